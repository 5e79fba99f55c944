"""`docs/verification.md` has a row for every fault, and names tests and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = 67


def rows() -> list[str]:
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (\d[\d, -]*): .*\|$", page, re.MULTILINE)


def test_every_fault_has_a_row():
    numbers: list[int] = []
    for text in rows():
        for part in text.split(", "):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    assert numbers == sorted(set(numbers), key=numbers.index)
    assert set(numbers) == set(range(1, ROWS + 1))


def test_every_test_that_is_named_exists():
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > ROWS
    defined: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert named - defined == set()


def test_every_file_that_is_named_exists():
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+(?:\.py)?|test_\w+\.py)`", page))
    assert len(named) > 10
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert {name for name in named if name not in files and not (ROOT / name).exists()} == set()
