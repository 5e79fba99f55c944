"""Write files completely or not at all, so that they survive a loss of power. Any thread and process may call
the functions."""

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

# File name prefix of incomplete files. A process that is killed while it writes leaves such a file behind.
TEMPORARY: Final = ".qnnbridge-part-"


def write_whole(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: a reader sees the old or the new file, never a partial file. Raise `OSError`.

    `durable`: whether the file must survive a loss of power.
    """
    folder = os.path.dirname(os.fspath(path))
    # The temporary file is in the same folder, because `os.replace` is atomic only within a file system. Its name
    # does not contain the file's name, which may already have the maximum length.
    temporary = os.path.join(folder, f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            # Sync before the rename: after a loss of power, the new name must not refer to an empty file.
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        # The folder's data contains the new name, so sync the folder, too.
        sync_folder(folder or os.curdir)


# Name of a file that marks folders of qnnbridge, so that nothing is removed from another folder with the same name.
MARK_FILE: Final = ".qnnbridge-folder"
_MARK_TEXT: Final = b"This folder belongs to qnnbridge, which removes what it does not need any more.\n"


# Reparse tags of Windows for junctions, which Python does not report as links, and symbolic links. Folders of
# OneDrive have different tags.
_LEADING_ELSEWHERE: Final = (0xA0000003, 0xA000000C)


class NotOurs(OSError):
    """The folder is a link, or contains files of other programs, so qnnbridge neither uses nor changes it."""


def enter(folder: Path) -> Path:
    """Check a folder, which need not exist, and return it. Raise `NotOurs` if the path is a link, or not a
    folder."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return folder
    if not stat.S_ISDIR(status.st_mode) or getattr(status, "st_reparse_tag", None) in _LEADING_ELSEWHERE:
        raise NotOurs(
            errno.ENOTDIR, "The path is a link or not a folder, so qnnbridge does not use it", os.fspath(folder)
        )
    return folder


def is_own(folder: Path, is_ours: Callable[[str], bool]) -> bool:
    """Return whether a folder belongs to qnnbridge: it has the mark, or (in earlier versions, which made no
    mark) `is_ours` accepts the names of all its contents."""
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
        raise NotOurs(
            errno.EEXIST,
            "The folder contains files of other programs, so qnnbridge does not use it",
            os.fspath(folder),
        )
    make_folders(folder)
    # Ignore errors: without the mark the contents identify the folder, and if the disk is full or read-only,
    # writing the first file to the folder reports the error.
    with contextlib.suppress(OSError), open(folder / MARK_FILE, "xb") as file:
        file.write(_MARK_TEXT)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Write the file's data to the disk, so that it survives a loss of power."""
    # On Windows `fsync` needs a writable handle; on other systems the file may be read-only.
    with open(path, "rb+" if sys.platform == "win32" else "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Write the folder's list of files to the disk, if the system supports that, so that new files survive a
    loss of power."""
    # `os.open` does not accept a folder on Windows.
    if sys.platform == "win32":
        return
    # A folder that the user may not list cannot be opened, and some network file systems do not support syncing
    # folders.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Create a hard link to a file. Copy the file if the destination is on another volume, or the volume has no
    hard links."""
    try:
        # Caches of model hubs contain symbolic links. On Linux `os.link` would link to the symbolic link instead of
        # its file.
        os.link(os.path.realpath(source), target)
    except OSError as error:
        # If there is not enough space for a link, there is not enough for a copy.
        if error.errno == errno.ENOSPC:
            raise
        import shutil

        shutil.copyfile(source, target)


def make_folders(folder: str | os.PathLike[str]) -> None:
    """Create the folder and its missing parents, readable by this user only, for any umask. Raise `OSError`.

    Another user with write access could control the files that native code reads and the models that run. Existing
    folders are not changed, because their owner may have shared them on purpose.
    """
    missing, place = [], os.path.abspath(folder)
    while not os.path.exists(place):
        missing.append(place)
        above = os.path.dirname(place)
        if above == place:
            break  # a drive or network share that does not exist, which `mkdir` reports
        place = above
    # `os.makedirs` would set the mode only for the last folder (since Python 3.7).
    for one in reversed(missing):
        # Another process may create the folder at the same time.
        with contextlib.suppress(FileExistsError):
            os.mkdir(one, 0o700)
