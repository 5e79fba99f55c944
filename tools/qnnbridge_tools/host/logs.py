"""The daemon's log: the last lines across its rotated files, and following it across a rotation.

A file is open only while it is read: on Windows a reader that held it would keep the daemon from rotating it. One
thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.host.link import left_behind
from qnnbridge_tools.output import refuse_without_reader

FOLLOW_INTERVAL_S: Final = 0.25
_BLOCK_BYTES: Final = 64 << 10


def log_path() -> Path:
    """The log that the running or killed daemon names: it may use other folders. Else the log of a daemon that
    starts now."""
    from qnnbridge_daemon.logs import log_file

    with contextlib.suppress(BridgeError):
        found = left_behind()
        if found is not None and found.log_file and os.path.isfile(found.log_file):
            return Path(found.log_file)
    return log_file()


def rotated_files(path: Path) -> list[Path]:
    """The log and its predecessors (``daemon.log.1`` ...), the newest first, as far as they are there."""
    numbered: list[tuple[int, Path]] = []
    try:
        names = os.listdir(path.parent)
    except OSError:
        names = []
    for name in names:
        number = name[len(path.name) + 1 :]
        # `isdigit` alone also takes characters such as a superscript 2, which `int` refuses.
        if name.startswith(path.name + ".") and number.isascii() and number.isdigit():
            numbered.append((int(number), path.parent / name))
    found = [file for _, file in sorted(numbered)]
    return [path, *found] if path.exists() else found


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of all the files together, the oldest first."""
    found: list[str] = []
    for file in rotated_files(path):
        wanted = count - len(found)
        if wanted <= 0:
            break
        try:
            found = _tail(file, wanted) + found
        except FileNotFoundError:
            continue  # rotated away meanwhile
    return found


def _tail(file: Path, count: int) -> list[str]:
    """Read from the end, so that a large file costs no more than its last lines."""
    with file.open("rb") as stream:
        at = stream.seek(0, os.SEEK_END)
        data = b""
        # One line end more than lines: the first line of a block may be cut.
        while at > 0 and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, at)
            at -= size
            stream.seek(at)
            data = stream.read(size) + data
    return _lines(data)[-count:]


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []


class Follower:
    """The lines that are added to a log from now on, also in the file that replaces it.

    Begins at the end of the file as it is when this is made. A last line without its end is kept back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = _identity(path)
        self._at = _size(path)
        self._rest = b""

    def new_lines(self) -> list[str]:
        identity = _identity(self._path)
        data = b""
        # Another file stands there, or the same one was emptied.
        if identity != self._identity or _size(self._path) < self._at:
            data = self._rest_of_the_old_ones()
            self._identity, self._at = identity, 0
        data += self._read(self._path)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]

    def _rest_of_the_old_ones(self) -> bytes:
        """The rest of the rotated file, and all of the files that were rotated since."""
        newer: list[Path] = []
        for file in rotated_files(self._path)[1:]:
            if self._identity is not None and _identity(file) == self._identity:
                data = self._read(file)
                for other in reversed(newer):
                    self._at = 0
                    data += self._read(other)
                return data
            newer.append(file)
        return b""

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read()
        except OSError:  # being rotated at this moment; the next look finds it
            return b""
        self._at += len(data)
        return data


def follow(follower: Follower, show: Callable[[str], None], stop: threading.Event) -> None:
    """Shows what is added until `stop` is set or Ctrl+C. Raises `BrokenPipeError` when the reader is gone."""
    while not stop.wait(FOLLOW_INTERVAL_S):
        refuse_without_reader()
        for line in follower.new_lines():
            show(line)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
