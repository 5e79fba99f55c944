"""Count the lines of every package and folder, and update their budgets in docs/dev/budget.md.

``python -m scripts.makers.budget`` prints each package and folder that is over its budget. With ``--reason TEXT``
it writes the counted lines and the reason as new budgets, and lowers budgets that are far above the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dev" / "budget.md"
FOLDERS = ("protocol", "host_arm64", "bridge_x86", "daemon", "tools")
TOTAL = "all packages"
# A package or folder may exceed its budget by the fraction SLACK or by SLACK_LINES lines, whichever is more, so
# that a change of a few lines does not require an edit of the page. The total has no slack: it shows how much the
# whole code has grown.
SLACK = 0.05
SLACK_LINES = 30
# A budget is lowered if it exceeds the code by more than the fraction UNUSED_SHARE and by more than UNUSED_LINES
# lines, so that the code does not grow unnoticed.
UNUSED_SHARE = 0.10
UNUSED_LINES = 100

_ROW = re.compile(r"^\| `(?P<place>[^`]+)` \| (?P<lines>[\d,]+) \| (?P<reason>.*) \|$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Row:
    """Budget of one package or folder. lines: maximum number of lines. reason: why the budget was last raised."""

    lines: int
    reason: str


def rows(page: str) -> dict[str, Row]:
    """Return the rows of the section "Lines", by package or folder."""
    section = page.partition("\n## Lines\n")[2].partition("\n## ")[0]
    return {row["place"]: Row(int(row["lines"].replace(",", "")), row["reason"]) for row in _ROW.finditer(section)}


def counted(root: Path = ROOT) -> dict[str, int]:
    """Return the number of Python lines: in total, by package, and by folder (key ``package.folder``)."""
    found: dict[str, int] = defaultdict(int)
    for path in (path for folder in FOLDERS for path in (root / folder).glob("*/**/*.py")):
        lines = len(path.read_text("utf-8").splitlines())
        package, *inner = path.relative_to(root).parts[1:]
        found[package] += lines
        found[TOTAL] += lines
        if len(inner) > 1:
            found[f"{package}.{inner[0]}"] += lines
    return dict(found)


def most(place: str, lines: int) -> int:
    """Return the number of lines, including slack, that a budget of `lines` allows."""
    return lines if place == TOTAL else max(int(lines * (1 + SLACK)), lines + SLACK_LINES)


def over(found: Mapping[str, int], budget: Mapping[str, Row]) -> Iterator[str]:
    """Yield the packages and folders that exceed their budget or have no budget."""
    for place, lines in found.items():
        if place not in budget or lines > most(place, budget[place].lines):
            yield place


def unused(found: Mapping[str, int], budget: Mapping[str, Row]) -> Iterator[str]:
    """Yield the packages and folders whose budget is far above the code, or that no longer exist."""
    for place, row in budget.items():
        lines = found.get(place, 0)
        if not lines or row.lines > max(lines * (1 + UNUSED_SHARE), lines + UNUSED_LINES):
            yield place


def renewed(page: str, found: Mapping[str, int], reason: str) -> str:
    """Return the page with the counted lines as new budgets where a budget is exceeded or far too large.

    Args:
        page: the text of docs/dev/budget.md.
        found: the counted lines of each package and folder.
        reason: why the code needs the lines; becomes the text of each raised row.
    """
    budget = rows(page)
    raised, lowered = set(over(found, budget)), set(unused(found, budget))
    changed = {
        place: Row(found[place], reason if place in raised else budget[place].reason)
        for place in sorted(raised | lowered)
        if place in found
    }
    new = {place: row for place, row in {**budget, **changed}.items() if place in found}
    ordered = {TOTAL: new.pop(TOTAL)} if TOTAL in new else {}
    ordered |= dict(sorted(new.items()))
    table = "\n".join(f"| `{place}` | {row.lines:,} | {row.reason} |" for place, row in ordered.items())
    before, heading, rest = page.partition("\n## Lines\n")
    section, next_heading, after = rest.partition("\n## ")
    head = section[: section.index("|---|") + section[section.index("|---|") :].index("\n") + 1]
    return f"{before}{heading}{head}{table}\n{next_heading}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is over budget, or update the budgets. Return 1 if anything is over budget and no reason was
    given."""
    parser = argparse.ArgumentParser(prog="python -m scripts.makers.budget", description=__doc__)
    parser.add_argument("--reason", help="write the counted lines into docs/dev/budget.md with this reason")
    reason = parser.parse_args(arguments).reason
    page, found = PAGE.read_text("utf-8"), counted()
    if reason:
        PAGE.write_text(renewed(page, found, reason), "utf-8")
        return 0
    places = list(over(found, rows(page)))
    for place in places:
        row = rows(page).get(place)
        print(f"{place}: {found[place]:,} lines, budget {f'{row.lines:,}' if row else 'none'}")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
