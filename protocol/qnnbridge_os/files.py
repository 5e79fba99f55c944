"""Files that exist completely or not at all, and that survive a loss of power. Safe from any thread and process."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# File name prefix of incomplete files. A killed process leaves one behind.
TEMPORARY: Final = ".qnnbridge-part-"


def write_whole(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never a part. Raise `OSError`.

    `durable`: the file survives a loss of power.
    """
    folder = os.path.dirname(os.fspath(path))
    # The temporary file is in the same folder because `os.replace` is atomic only within a file system. Its name
    # does not contain the name of the file, which may be as long as the file system allows.
    temporary = os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            # Sync before the rename: after a loss of power the new name must not refer to an empty file.
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        # The new name itself is part of the folder's data.
        sync_folder(folder or os.curdir)


# Marks folders of qnnbridge, so that nothing is removed from another folder with the same name.
MARK_FILE: Final = ".qnnbridge-folder"
_MARK_TEXT: Final = b"This folder belongs to qnnbridge, which removes what it does not need any more.\n"


# Windows: a junction, which Python does not report as a link, and a symbolic link. Folders of OneDrive have other
# tags.
_LEADING_ELSEWHERE: Final = (0xA0000003, 0xA000000C)


class NotOurs(OSError):
    """The folder is a link, or contains files of other programs: qnnbridge neither uses nor changes it."""


def enter(folder: Path) -> Path:
    """Return the folder, which need not exist. Raise `NotOurs` if its path is a link, or not a folder."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return folder
    if not stat.S_ISDIR(status.st_mode) or getattr(status, "st_reparse_tag", None) in _LEADING_ELSEWHERE:
        raise NotOurs(errno.ENOTDIR, "It is a link or not a folder, so it is not used", os.fspath(folder))
    return folder


def is_own(folder: Path, is_ours: Callable[[str], bool]) -> bool:
    """Return whether a folder is qnnbridge's: it has the mark, or `is_ours` accepts the names of all its contents
    (earlier versions made no mark)."""
    try:
        enter(folder)
        return os.path.lexists(folder / MARK_FILE) or all(map(is_ours, os.listdir(folder)))
    except FileNotFoundError:
        return True
    except OSError:
        return False


def make_own(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Create a folder with the mark, or add the mark to a folder of an earlier version. Raise `NotOurs` for a
    folder of another program."""
    enter(folder)
    if os.path.lexists(folder / MARK_FILE):
        return
    if not is_own(folder, is_ours):
        raise NotOurs(errno.EEXIST, "It contains files of other programs, so it is not used", os.fspath(folder))
    make_folders(folder)
    # Errors are ignored: without the mark the contents identify the folder, and on a full or read-only disk the
    # first file that is written to the folder reports the error.
    with contextlib.suppress(OSError), open(folder / MARK_FILE, "xb") as file:
        file.write(_MARK_TEXT)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the written data survive a loss of power."""
    # Windows flushes only through writable handles; on other systems the file may be read-only.
    with open(path, "rb+" if sys.platform == "win32" else "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make new files in the folder survive a loss of power, if the system can sync folders."""
    # `os.open` does not accept a folder on Windows.
    if sys.platform == "win32":
        return
    # A folder that may not be listed cannot be opened, and some network file systems refuse to sync one.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Create a hard link to a file; copy the file to another volume, or to one without hard links."""
    try:
        # Caches of model hubs contain links; on Linux `os.link` would link these instead of their files.
        os.link(os.path.realpath(source), target)
    except OSError as error:
        # If the space does not suffice for a link, it does not for a copy.
        if error.errno == errno.ENOSPC:
            raise
        import shutil

        shutil.copyfile(source, target)


def make_folders(folder: str | os.PathLike[str]) -> None:
    """Create the folder and its missing parents, readable by this user only, whatever the umask. Raise `OSError`.

    A user who can write there decides what native code reads, and which models run. Existing folders
    stay unchanged: sharing one is its owner's decision.
    """
    missing, place = [], os.path.abspath(folder)
    while not os.path.exists(place):
        missing.append(place)
        above = os.path.dirname(place)
        if above == place:
            break  # a drive or share that does not exist, which `mkdir` reports
        place = above
    # `os.makedirs` would give the mode to the last folder only (since Python 3.7).
    for one in reversed(missing):
        # Another process has created it meanwhile.
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, 0o700)
