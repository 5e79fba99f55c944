"""A folder and files that are nobody else's business, on Linux. No state; any thread."""

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
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime, "qnnbridge")
    return Path(tempfile.gettempdir(), f"qnnbridge-{os.getuid()}")


def make_private_folder(path: Path) -> None:
    """Make the folder for us alone, with those above it. One that exists is left as it is: `why_not_private`
    judges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass


def why_not_private(path: Path) -> str | None:
    """What is wrong with a folder or file that only this user may use; ``None`` if it is as it should be."""
    status = os.lstat(path)
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
    """``None`` for what is not ours to change, or is a link."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
        return None
    return f"If nobody else needs it: chmod go-rwx {shlex.quote(str(path))}"


def write_private_file(path: Path, data: bytes) -> None:
    """Make a new file that only this user can read. Raises `FileExistsError`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
