"""Reading the daemon's log across rotation, as the handler of the standard library rotates it."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

import pytest

from qnnbridge_tools.host.actions import Follower, last_lines, rotated_files

LINES_PER_FILE = 4


class Log:
    """Return a real rotating log with a few lines per file."""

    def __init__(self, path: Path, old_files: int = 3) -> None:
        self.path = path
        line = len("line 000\n")
        self._handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=LINES_PER_FILE * line + 1, backupCount=old_files, encoding="utf-8"
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self.written: list[str] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            text = f"line {len(self.written):03}"
            self._handler.handle(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))
            self.written.append(text)

    def close(self) -> None:
        self._handler.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "daemon.log")
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9, 12, 13])
def test_the_last_lines_are_read_from_as_many_files_as_needed(log: Log, count: int) -> None:
    log.write(14)
    assert len(rotated_files(log.path)) == 4
    assert last_lines(log.path, count) == log.written[len(log.written) - count :]


def test_a_request_for_more_lines_than_exist_returns_all(log: Log) -> None:
    log.write(6)
    assert last_lines(log.path, 1000) == log.written


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none" / "daemon.log", 10) == []
    assert rotated_files(tmp_path / "none" / "daemon.log") == []


def test_files_with_similar_names_are_not_read_as_old_logs(log: Log) -> None:
    log.write(1)
    for name in ("daemon.log.x", "daemon.log.1.gz", "daemon.stderr.log", "daemon.log."):
        (log.path.parent / name).write_text("no\n")
    assert rotated_files(log.path) == [log.path]


def test_old_logs_are_sorted_by_number(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"daemon.log.{number}").write_text(f"{number}\n")
    assert [file.suffix for file in rotated_files(tmp_path / "daemon.log")] == [".1", ".2", ".10"]
    assert last_lines(tmp_path / "daemon.log", 9) == ["10", "2", "1"]


def test_a_last_line_without_a_line_end_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_bytes(b"one\r\ntwo\nhal\xff")
    assert last_lines(path, 2) == ["two", "hal\ufffd"]
    path.write_bytes(b"")
    assert last_lines(path, 2) == []


def test_a_file_larger_than_a_block_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    lines = [f"{number} " + "x" * 100 for number in range(3000)]
    path.write_text("\n".join(lines) + "\n")
    assert last_lines(path, 1500) == lines[-1500:]


def test_new_lines_are_followed_and_old_ones_are_not_shown(log: Log) -> None:
    log.write(1)
    follower = Follower(log.path)
    assert follower.new_lines() == []
    log.write(2)
    assert follower.new_lines() == log.written[1:]
    assert follower.new_lines() == []


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9])
def test_no_line_is_lost_or_repeated_across_rotations(log: Log, count: int) -> None:
    log.write(2)
    follower = Follower(log.path)
    seen: list[str] = []
    for _ in range(4):
        log.write(count)
        seen += follower.new_lines()
    assert seen == log.written[2:]


def test_a_line_is_shown_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_bytes(b"")
    follower = Follower(path)
    with path.open("ab", buffering=0) as file:
        file.write(b"ha")
        assert follower.new_lines() == []
        file.write(b"lf\nnext")
        assert follower.new_lines() == ["half"]


def test_a_log_that_is_created_later_is_followed_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    follower = Follower(path)
    assert follower.new_lines() == []
    path.write_text("first\n")
    assert follower.new_lines() == ["first"]
