"""The budget of `docs/dev/budget.md`: lines, depth and import cycles of folders, and words. A commit that needs
more raises a number there."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.makers import budget as lines
from test_architecture import MODULES, ROOT, SOURCES, imports

PAGE = ROOT / "docs" / "dev" / "budget.md"
_ROW = re.compile(r"\| `(?P<what>[^`]+)` \| (?P<most>[\d,.]+) \|")


@functools.cache
def budget(heading: str) -> dict[str, float]:
    """Return the rows of one section: item -> its number."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = {row["what"]: float(row["most"].replace(",", "")) for row in _ROW.finditer(section)}
    assert rows, f"{PAGE} has no section {heading!r}"
    return rows


def package_of(module: str) -> str:
    return module.partition(".")[0]


def room_of(module: str) -> str:
    """Return the folder of a module in its package, or the module itself if it is in the root of the package."""
    return ".".join(module.split(".")[:2])


@functools.cache
def lines_of(module: str) -> int:
    return len(MODULES[module].read_text("utf-8").splitlines())


# --- lines -----------------------------------------------------------------------------------------------

HOW = 'run: python -m scripts.makers.budget --reason "WHY"'


def test_no_package_has_more_lines_than_its_budget() -> None:
    found = list(lines.over(lines.counted(), lines.rows(PAGE.read_text("utf-8"))))
    assert found == [], HOW


def test_a_budget_far_above_the_code_is_lowered() -> None:
    found = list(lines.unused(lines.counted(), lines.rows(PAGE.read_text("utf-8"))))
    assert found == [], HOW


def test_the_script_counts_the_modules_that_the_rules_check() -> None:
    assert lines.counted()[lines.TOTAL] == sum(map(lines_of, MODULES))


def test_a_package_has_five_percent_of_slack_and_the_total_has_none() -> None:
    budget = {"large": lines.Row(1000, ""), "small": lines.Row(100, ""), lines.TOTAL: lines.Row(1100, "")}
    assert list(lines.over({"large": 1050, "small": 130, lines.TOTAL: 1100}, budget)) == []
    assert list(lines.over({"large": 1051, "small": 131, lines.TOTAL: 1101, "new": 1}, budget)) == [
        *("large", "small", lines.TOTAL, "new"),
    ]
    assert list(lines.unused({"large": 890, "small": 1}, {**budget, "gone": lines.Row(1, "")})) == [
        *("large", lines.TOTAL, "gone"),
    ]


def test_raising_a_budget_changes_only_the_rows_that_need_it() -> None:
    page = "# Page\n\n## Lines\n\n| place | lines | why |\n|---|---|---|\n| `a` | 1,000 | old |\n| `gone` | 5 | x |\n\n## Next\n\n| `a` | 1 |\n"
    new = lines.renewed(page, {"a": 1100, "b": 10}, "a feature")
    rows = "| `a` | 1,100 | a feature |\n| `b` | 10 | a feature |\n"
    assert new == page.replace("| `a` | 1,000 | old |\n| `gone` | 5 | x |\n", rows)
    assert lines.renewed(new, {"a": 1100, "b": 10}, "another") == new


# --- layers and circular imports of folders ----------------------------------------------------------------


@functools.cache
def edges() -> dict[str, frozenset[str]]:
    """Return, for each folder, the folders of the same package that it imports, also for type checkers only."""
    found: dict[str, set[str]] = {room_of(module): set() for module in MODULES}
    for module in MODULES:
        for name in imports(module):
            if name in MODULES and package_of(name) == package_of(module) and room_of(name) != room_of(module):
                found[room_of(module)].add(room_of(name))
    return {room: frozenset(others) for room, others in found.items()}


@functools.cache
def reached(room: str) -> frozenset[str]:
    seen: set[str] = set()
    waiting = [room]
    while waiting:
        for other in edges()[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return frozenset(seen)


@functools.cache
def group_of(room: str) -> frozenset[str]:
    """Return the folder, and the folders that import it and are imported by it, directly or indirectly."""
    return frozenset({room} | {other for other in reached(room) if room in reached(other)})


@functools.cache
def floor_of(group: frozenset[str]) -> int:
    """Return 1 for folders that import no other; otherwise one more than the highest layer that they import."""
    below = {group_of(other) for room in group for other in edges()[room]} - {group}
    return 1 + max(map(floor_of, below), default=0)


def circles() -> Iterator[frozenset[str]]:
    yield from {group_of(room) for room in edges() if len(group_of(room)) > 1}


def test_circular_imports_of_folders_equal_those_of_the_budget() -> None:
    found = {" - ".join(sorted(name.partition(".")[2] for name in circle)): 1.0 for circle in circles()}
    known = budget("Circles of folders")
    assert found.keys() <= known.keys() - {"none"}, "a new circle, or one that has grown"
    assert known.keys() - {"none"} <= found.keys(), "cut: take it out of docs/dev/budget.md"


def test_no_package_has_more_layers_than_its_budget() -> None:
    found = {
        package: max(floor_of(group_of(room)) for room in edges() if package_of(room) == package)
        for package in SOURCES
    }
    assert found == budget("Floors")


# --- words -------------------------------------------------------------------------------------------------


def comment_lines(path: Path) -> int:
    with tokenize.open(path) as file:
        text = file.read()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def test_private_words_become_fewer_and_comments_do_not() -> None:
    """Count `told`, this project's own word for what a log, an error or a report contains: a stranger has to guess
    it.
    """
    told = sum(
        len(re.findall(r"\btold\b", line)) > 0
        for path in MODULES.values()
        for line in path.read_text("utf-8").splitlines()
    )
    assert told <= budget("Words")["lines with told"]
    share = sum(map(comment_lines, MODULES.values())) / sum(map(lines_of, MODULES))
    assert 100 * share >= budget("Words")["comment lines in 100"]


# Private words, with words that a stranger understands. Checked in comments, docstrings and messages, not in names.
PRIVATE_WORDS = {
    "in words": "as text",
    "so many": "this many",
    "whoever": "the caller, the thread, the client",
    "wished": "requested",
    "without a word": "silently",
    "of no use": "useless, not needed",
    "now and then": "periodically",
    "in the place of": "in place of, instead of",
    "be had": "is available",
    "such a one": "name the thing",
}
_PRIVATE = re.compile(rf"\b({'|'.join(PRIVATE_WORDS)})\b", re.IGNORECASE)
# From Python 3.12 on the text of an f-string is a separate token.
_TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def private_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each private word in the comments and strings of a program."""
    if not _PRIVATE.search(" ".join(text.split())):
        return  # skip most modules: parsing them all takes seconds
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXTS:
            for found in _PRIVATE.finditer(" ".join(token.string.split())):
                yield token.start[0], found[0].lower()


def test_messages_have_no_private_words() -> None:
    found = [
        f"{module}:{line}: {word!r}: write {PRIVATE_WORDS[word]}"
        for module, path in MODULES.items()
        for line, word in private_words(path.read_text("utf-8"))
    ]
    assert found == []


def test_private_words_are_found_only_in_text() -> None:
    program = 'so_many = wished  # so\n# So many\nx = f\'{so} in words\'\ny = """now\n    and then"""\n'
    assert {word for _, word in private_words(program)} == {"so many", "in words", "now and then"}
    assert list(private_words("wished = [word for word in words]\n")) == []


def test_no_docstring_only_refers_to_the_module() -> None:
    found = [
        f"{module}:{number}"
        for module, path in MODULES.items()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "See the module." in line
    ]
    assert found == []


@pytest.mark.parametrize("heading", ["Lines", "Circles of folders", "Floors", "Words"])
def test_every_row_of_the_budget_page_is_read(heading: str) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) == len(budget(heading))
