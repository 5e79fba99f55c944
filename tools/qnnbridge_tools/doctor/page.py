"""The table of findings in docs/doctor.md: ``python -m qnnbridge_tools.doctor.page docs/doctor.md`` renews it.

A test holds page and catalogue together.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from qnnbridge_tools.doctor.catalogue import CATALOGUE
from qnnbridge_tools.doctor.findings import Effect, Severity

BEGIN: Final = "<!-- the table of findings: begin -->"
END: Final = "<!-- the table of findings: end -->"


def findings_table() -> str:
    rows = ["| code | how bad | why it matters |", "|---|---|---|"]
    for code, entry in CATALOGUE.items():
        bad = entry.severity.name.lower()
        if entry.severity is Severity.BLOCKED and entry.effect is not Effect.UNUSABLE:
            bad += f": {entry.effect.value[:1].lower()}{entry.effect.value[1:]}"
        rows.append(f"| `{code}` | {bad} | {entry.why.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with the table as it should be. Raises `ValueError` if the place for it is missing."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{findings_table()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
