"""Folders and files that only this user may use, on Linux: their owner and mode decide."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from pathlib import Path

assert sys.platform != "win32"

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_runtime_folder() -> Path:
    """Where sockets of this user belong."""
    # systemd makes it at login for this user alone (mode 0700).
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime, "qnnbridge")
    # Another user can make this one first. `why_not_private` refuses it then.
    return Path(tempfile.gettempdir(), f"qnnbridge-{os.getuid()}")


def make_private_folder(path: Path) -> None:
    """Make the folder for us alone, with those above it. One that exists is left as it is: `why_not_private`
    judges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # With the mode in the call, no moment is left in which others could enter.
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass


def why_not_private(path: Path) -> str | None:
    """The fault of a folder or file that only this user may use; ``None`` if there is none."""
    return _why_not_private(os.lstat(path))


def _why_not_private(status: os.stat_result) -> str | None:
    # First, since Linux gives a link the mode 0777, which would be the wrong reason.
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return "it is neither a folder nor a file"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}, not to you ({os.getuid()})"
    if status.st_mode & _OTHERS:
        return f"others may use it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def how_to_make_private(path: Path) -> str | None:
    """A command; ``None`` for a path of another user, a link, or one that is gone by now."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
        return None
    return f"If no other user needs it: chmod go-rwx {shlex.quote(str(path))}"


def read_private_file(path: Path, limit: int) -> bytes:
    """The beginning of a file that only this user can have written: what was opened is looked at, not its name,
    which another file may have by now. Raises `OSError`."""
    # Without O_NONBLOCK a pipe in its place would be waited for.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        problem = _why_not_private(os.fstat(fd))
        if problem is not None:
            raise PermissionError(f"{path}: {problem}")
        return file.read(limit)


def write_private_file(path: Path, data: bytes) -> None:
    """Make a new file that only this user can read. Raises `FileExistsError`."""
    # O_EXCL also refuses a link, even one that leads nowhere.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
