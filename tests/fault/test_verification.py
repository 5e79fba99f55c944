"""`docs/dev/verification.md` matches `verification.toml`, covers every fault, and refers to existing tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.makers import verification as tables

ROOT = Path(__file__).parents[2]
ROWS = 67
# Maximum number of words above the generated tables: what a reader can read at once.
MOST_PROSE_WORDS = 900
# Folders in which `python -m` finds programs.
PROGRAMS = ("", "tools", "protocol", "host_arm64", "bridge_x86", "daemon")


DATA: dict[str, Any] = tables.load()


def entries(*kinds: str) -> Iterator[dict[str, Any]]:
    for section in DATA["section"]:
        for kind in kinds or ("row", "table"):
            yield from section.get(kind, [])


def defined_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def exists(name: str, tests: set[str]) -> bool:
    """Return whether the name is a test function, a program for `python -m`, or a file or folder of the project."""
    if name == tables.BY_HAND or name in tests:
        return True
    if name.startswith("python -m "):
        module = name.removeprefix("python -m ").replace(".", "/")
        return any(
            (ROOT / folder / (module + end)).is_file() for folder in PROGRAMS for end in (".py", "/__main__.py")
        )
    return not name.startswith("test_") and (ROOT / name).exists()


def test_the_verification_page_equals_the_output_of_the_generator():
    assert tables.PAGE.read_text("utf-8") == tables.page(), "run python -m scripts.makers.verification"


def test_the_prose_fits_on_one_page():
    prose = tables.PAGE.read_text("utf-8").partition(tables.MARK)[0]
    assert 300 < len(prose.split()) <= MOST_PROSE_WORDS


def test_every_fault_has_a_row():
    numbers: list[int] = []
    for row in entries("row"):
        found = re.match(r"(\d[\d, -]*): ", row["subject"])
        for part in found[1].split(", ") if found else ():
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    assert numbers == sorted(set(numbers), key=numbers.index)
    assert set(numbers) == set(range(1, ROWS + 1))


def test_every_place_of_a_row_is_listed_and_every_listed_place_is_used():
    used = {place for entry in entries() for place in entry["where"]}
    assert used == set(DATA["places"])


def test_every_test_file_and_program_in_the_data_exists():
    tests = defined_tests()
    named = {name for entry in entries() for name in entry.get("by", [])}
    assert len([name for name in named if name in tests]) > ROWS
    assert {name for name in named if not exists(name, tests)} == set()
    # Texts also refer to tests and files.
    texts = tables.PAGE.read_text("utf-8")
    assert set(re.findall(r"`(test_\w+)`", texts)) - tests == set()
    assert {
        name
        for name in re.findall(r"`((?:tests|lab|scripts)/[\w/]+(?:\.\w+)?)`", texts)
        if not (ROOT / name).exists()
    } == set()


def test_a_name_that_does_not_exist_is_detected():
    assert not exists("test_that_nobody_wrote", defined_tests())
    assert not exists("python -m lab.nothing", set())
    assert not exists("tests/nothing.py", set())
    assert exists("python -m lab.walk", set())


def test_a_row_that_was_run_names_its_test_or_program_and_others_name_none():
    for entry in entries():
        not_run = tables.NOT_RUN in entry["where"]
        assert bool(entry.get("by")) != not_run, entry
        assert not not_run or entry["where"] == [tables.NOT_RUN], entry


def test_a_row_has_no_other_keys():
    keys = {"subject", "result", "where", "by", "when"}
    for row in entries("row"):
        assert set(row) <= keys, row
        assert row["subject"].strip()


def test_each_row_of_a_table_has_as_many_cells_as_it_has_columns():
    for table in entries("table"):
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}, table["title"]


def test_no_cell_breaks_its_table():
    cells = [text for entry in entries() for text in (entry.get("subject", ""), entry.get("result", ""))]
    cells += [cell for table in entries("table") for row in table["rows"] for cell in row]
    assert [cell for cell in cells if "\n" in cell or re.search(r"(?<!\\)\|", cell)] == []
