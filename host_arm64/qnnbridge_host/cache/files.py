"""Small JSON files of the cache, written whole and checked when they are read, and folders that must last.

A file holds ``{"sha256": ..., "content": {...}}``: a flipped byte in it is detected. Pure functions on
paths; any thread, any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.paths import open_regular
from qnnbridge_os.files import make_folders, write_whole

MAX_JSON_BYTES: Final = 16 * 1024 * 1024


class Damaged(Exception):
    """The file exists with other contents than were written. The text says why."""


def write_json(path: Path, content: dict[str, Any], *, durable: bool = False) -> None:
    """Readers see the old file or the new one. durable: it survives a loss of power. Raises `OSError`."""
    text = _dump({"sha256": _digest(content), "content": content})
    write_whole(path, text, durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """``None`` if there is no such file. Raises `Damaged`, and `OSError` for one that cannot be read."""
    try:
        with io.BufferedReader(open_regular(path)) as file:
            data = file.read(MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = json.loads(data)
        content, digest = document["content"], document["sha256"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Damaged(f"{path.name} is not readable") from None
    if not isinstance(content, dict) or digest != _digest(content):
        raise Damaged(f"{path.name} is not as it was written")
    return content


class JsonFolder:
    """Small JSON files in one folder, each named by a key. Any thread, any process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keys(self) -> list[str]:
        """The oldest first."""
        dated = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as files:
            for file in files:
                if file.name.endswith(".json"):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        dated.append((file.stat().st_mtime, file.name[:-5]))
        return [key for _, key in sorted(dated)]

    def remove(self, key: str) -> bool:
        """Whether there was one. Raises `OSError`."""
        try:
            os.unlink(self._file(key))
        except FileNotFoundError:
            return False
        return True

    def _read(self, key: str) -> dict[str, Any] | None:
        return read_json(self._file(key))

    def _write(self, key: str, content: dict[str, Any]) -> None:
        """A failed write costs only time."""
        with contextlib.suppress(OSError):
            make_folders(self._folder)
            write_json(self._file(key), content)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def remove_tree(path: Path) -> None:
    """Remove a folder or a file as far as possible. A missing one is no error."""

    def make_writable(function: Callable[[str], None], name: str, _info: object) -> None:
        try:
            os.chmod(name, stat.S_IRWXU)
            function(name)
        except OSError:
            pass

    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return
    import shutil  # with the compressions

    if not is_folder:
        make_writable(os.unlink, os.fspath(path), None)
    elif sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=make_writable)
    else:
        shutil.rmtree(path, onerror=make_writable)


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, ensure_ascii=True, indent=1).encode("ascii")


def _digest(content: object) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    ).hexdigest()
