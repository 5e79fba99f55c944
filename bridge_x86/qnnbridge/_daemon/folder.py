"""The folder in which a daemon and its applications find each other: this user's, and closed to everybody else.

What is in it is as good as a password, so a folder that others could use, that is not ours, or that is a link is
refused, never put right silently. No state; any thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from qnnbridge import _platform as platform
from qnnbridge_protocol.errors import HostStartFailed

VARIABLE: Final = "QNNBRIDGE_RUNTIME_DIR"
_NOT_PRIVATE: Final = "Who can write there could pretend to be the daemon, and who can read there could use it."


def runtime_folder() -> Path:
    """Where it is, or would be: ``QNNBRIDGE_RUNTIME_DIR``, else the place that the system has for such things."""
    named = os.environ.get(VARIABLE)
    return Path(os.path.abspath(os.path.expanduser(named))) if named else platform.default_runtime_folder()


def make_runtime_folder() -> Path:
    """The folder, made if it is not there. Raises `HostStartFailed` if it cannot be made, or be trusted."""
    folder = runtime_folder()
    try:
        platform.make_private_folder(folder)
    except OSError as error:
        raise _refused(folder, f"it cannot be made ({error.strerror or error})") from error
    _check_folder(folder)
    return folder


def existing_runtime_folder() -> Path | None:
    """The folder if it is there. Raises `HostStartFailed` if it cannot be trusted."""
    folder = runtime_folder()
    return folder if _check_folder(folder) else None


def _check_folder(path: Path) -> bool:
    if path.exists() and not path.is_dir():
        raise _refused(path, "it is no folder")
    return check_private(path)


def check_private(path: Path) -> bool:
    """Whether it is there. Raises `HostStartFailed` if it is not for us alone."""
    try:
        problem = platform.why_not_private(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refused(path, f"it cannot be looked at ({error.strerror or error})") from error
    if problem is not None:
        raise _refused(path, problem, platform.how_to_make_private(path), _NOT_PRIVATE)
    return True


def _refused(path: Path, problem: str, fix: str | None = None, cause: str | None = None) -> HostStartFailed:
    elsewhere = f"{VARIABLE} to a folder of your own."
    error = HostStartFailed(
        f"{path} cannot be used for the daemon: {problem}.",
        cause=cause,
        fix=f"{fix}. Or set {elsewhere}" if fix else f"Set {elsewhere}",
        details={"path": str(path)},
    )
    error.retry = "pointless"
    return error
