"""Generate the tables of docs/known-wrong.md: the rows, and their results on each measured chip.

``python -m scripts.makers.known_wrong [FILE...]`` adds the results of snapshots (``qnnbridge doctor --numbers
--snapshot FILE``) to docs/known-wrong-measured.json, and rewrites the tables of the page. Results of rows that have
changed since the measurement are omitted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from qnnbridge_host.cache.measured import digest_of
from qnnbridge_host.model.chips import chip_of
from qnnbridge_host.model.known_wrong import table
from qnnbridge_tools.doctor.examine import read_snapshot
from qnnbridge_tools.doctor.facts import MeasuredFacts

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "known-wrong.md"
DATA: Final = DOCS / "known-wrong-measured.json"
MARKS: Final = "<!-- measured: begin -->", "<!-- measured: end -->"
_ROWS_HEAD: Final = "| row | operator |"


def read_data() -> list[MeasuredFacts]:
    """Return the results in the data file of the page, oldest chip first."""
    found = [MeasuredFacts(**one) for one in json.loads(DATA.read_text("utf-8"))] if DATA.exists() else []
    return sorted(found, key=lambda one: (_arch(one), one.chip, not one.simulator, one.when))


def merged(before: Sequence[MeasuredFacts], more: Sequence[MeasuredFacts]) -> list[MeasuredFacts]:
    """Return all results, with the newest result of each row for each chip, driver and version of QNN."""
    kept: dict[str, MeasuredFacts] = {}
    for one in sorted((*before, *more), key=lambda one: one.when):
        key = json.dumps([one.chip, one.simulator, one.versions], sort_keys=True)
        if (older := kept.get(key)) is not None:
            # Keep older rows, because a snapshot may contain only some rows.
            one = dataclasses.replace(
                one, rows={**older.rows, **one.rows}, digests={**older.digests, **one.digests}
            )
        kept[key] = one
    return list(kept.values())


def page_rows() -> list[str]:
    """Return the lines of the table of known-wrong rows."""
    head = [
        "| row | operator | models | fault of QNN | wrong | worst | remedy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table():
        remedy = f"`fix` ({row.rewrite})" if row.rewrite else row.advice
        where = f"`{row.name}` | {', '.join(row.operators)} | {row.form or 'all'}"
        head.append(f"| {where} | {row.says} | {row.wrong} of {row.tried} | {row.snr:.0f} dB | {remedy} |")
    return head


def measured_table(measured: Sequence[MeasuredFacts]) -> str:
    """Return the table with a line per row and a column per chip."""
    lines = [f"| row | {' | '.join(map(_heading, measured))} |", "|---" * (len(measured) + 1) + "|"]
    for row in table():
        states = [
            one.rows.get(row.name, "") if one.digests.get(row.name) == digest_of(row) else "" for one in measured
        ]
        lines.append(f"| `{row.name}` | {' | '.join(states)} |")
    return "\n".join(lines)


def with_tables(page: str, measured: Sequence[MeasuredFacts]) -> str:
    """Return the page with its tables replaced by current ones."""
    lines = page.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(_ROWS_HEAD))
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    page = "\n".join([*lines[:first], *page_rows(), *lines[last:]])
    before, _, rest = page.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{measured_table(measured)}\n{MARKS[1]}{after}"


def _arch(one: MeasuredFacts) -> int:
    chip = chip_of(one.chip)
    return chip.arch if chip is not None else 0


def _heading(one: MeasuredFacts) -> str:
    arch = f"V{_arch(one)}" if _arch(one) else f"SoC {one.chip}"
    qnn = one.versions.get("qnn_sdk", "")
    where = "simulator" if one.simulator else f"NPU, driver {one.versions.get('driver', 'unknown')}"
    return f"{arch} {where}, QNN {qnn}" if qnn else f"{arch} {where}"


def main(files: list[Path] = typer.Argument(default=[])) -> None:  # noqa: B008 - typer's way
    found = [one for file in files for one in read_snapshot(file).measured]
    measured = merged(read_data(), found)
    documents: list[dict[str, Any]] = [dataclasses.asdict(one) for one in measured]
    DATA.write_text(json.dumps(documents, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), read_data()), "utf-8")


if __name__ == "__main__":
    typer.run(main)
