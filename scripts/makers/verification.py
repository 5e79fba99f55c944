"""Generate the tables of docs/dev/verification.md from verification.toml in the same folder.

``python -m scripts.makers.verification`` writes the page; with ``--check`` it compares the page only.

The text above MARK is written by hand; everything below it is generated. A row contains what was checked
(`subject`), the outcome (`result`), on which of the `[places]` (`where`) and by which test, file or program (`by`);
"hand" means that no test or program repeats the check. A `table` contains figures that need other columns than
a row has. Needs Python 3.11 (tomllib).
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs" / "dev"
PAGE = DOCS / "verification.md"
DATA = DOCS / "verification.toml"
MARK = "<!-- Below this line: made from verification.toml by scripts/makers/verification.py. -->\n"
# Values of `by` that are not a test, a file or a program.
BY_HAND = "hand"
NOT_RUN = "not run"


def load() -> dict[str, Any]:
    # Imported by name, because mypy checks for Python 3.10, which lacks tomllib.
    toml: Any = importlib.import_module("tomllib")
    data: dict[str, Any] = toml.loads(DATA.read_text("utf-8"))
    return data


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield line(columns)
    yield "|" + "---|" * len(columns)
    yield from map(line, rows)
    yield ""


def sources(names: Sequence[str]) -> str:
    return ", ".join("by hand" if name == BY_HAND else f"`{name}`" for name in names)


def row_cells(row: dict[str, Any]) -> list[str]:
    when = f" ({row['when']})" if "when" in row else ""
    return [row["subject"], row.get("result", ""), ", ".join(row["where"]) + when, sources(row.get("by", []))]


def overview(data: dict[str, Any]) -> Iterator[str]:
    """Yield the table of places, and the number of rows and tables of each section for each place."""
    places = list(data["places"])
    yield from grid(["place", "what it is"], [[name, text] for name, text in data["places"].items()])
    yield "Rows and tables of each section, by place:"
    yield ""
    counted = []
    for section in data["section"]:
        of = Counter(place for entry in entries(section) for place in entry["where"])
        name = section["title"].replace("`", "")
        anchor = "".join(c for c in name.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        counted.append([f"[{name}](#{anchor})", *(str(of[place] or "") for place in places)])
    yield from grid(["section", *places], counted)


def entries(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [*section.get("row", []), *section.get("table", [])]


def tables(data: dict[str, Any]) -> str:
    lines = list(overview(data))
    for section in data["section"]:
        lines += [f"## {section['title']}", ""]
        about = [section["about"]] if "about" in section else []
        lines += [" ".join([*about, *([f"({section['release']}.)"] if "release" in section else [])]), ""]
        rows = [row_cells(row) for row in section.get("row", [])]
        kept = [number for number in range(4) if any(row[number] for row in rows)]
        if rows:
            columns = ["what", "result", "where", "by"]
            lines += grid([columns[number] for number in kept], [[row[number] for number in kept] for row in rows])
        for table in section.get("table", []):
            lines += [f"**{table['title']}.** {', '.join(table['where'])}; {sources(table['by'])}.", ""]
            lines += grid(table["columns"], table["rows"])
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def page() -> str:
    prose, mark, _ = PAGE.read_text("utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE} has no line {MARK.strip()!r}")
    return prose + mark + "\n" + tables(load())


if __name__ == "__main__":
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made, "utf-8")
    elif made != PAGE.read_text("utf-8"):
        raise SystemExit("docs/dev/verification.md is out of date: run python -m scripts.makers.verification")
