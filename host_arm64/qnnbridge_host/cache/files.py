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

MAX_JSON_BYTES: Final = 16 * 1024 * 1024


class Damaged(Exception):
    """The file exists with other contents than were written. The text says why."""


def make_private(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for this user alone, whatever the umask.

    Who can write to the cache decides what native code reads. Folders that exist stay as they are: to share a cache
    is its owner's decision. Raises `OSError`.
    """
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)


def write_json(path: Path, content: dict[str, Any], *, durable: bool = False) -> None:
    """Readers see the old file or the new one. durable: it survives a loss of power. Raises `OSError`."""
    text = _dump({"sha256": _digest(content), "content": content})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


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
            make_private(self._folder)
            write_json(self._file(key), content)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def sync_file(path: Path) -> None:
    """Make the written data survive a loss of power."""
    # Windows flushes through handles only that may write.
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make new names in the folder survive a loss of power, where the system can sync folders."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse it
    finally:
        os.close(descriptor)


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
