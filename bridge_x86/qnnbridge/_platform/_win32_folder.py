"""A folder and files that are nobody else's business, on Windows. No state; any thread."""

from __future__ import annotations

import _winapi
import ctypes
import msvcrt
import os
import stat
import sys
from ctypes import wintypes
from pathlib import Path

assert sys.platform == "win32"

from qnnbridge._platform._win32_security import (  # noqa: E402 - type checkers find it empty on Linux
    ADMINISTRATORS,
    SYSTEM,
    OwnerOnly,
    access_list,
    allowed_in,
    owner_of,
    user_sid,
)

_GENERIC_WRITE = 0x40000000
_CREATE_NEW = 1
_ERROR_ALREADY_EXISTS = 183

# The system and administrators can do everything anyway; "owner" and "creator owner" are who owns it, in other
# words.
_TRUSTED = {SYSTEM, ADMINISTRATORS, "S-1-5-18", "S-1-5-32-544", "OW", "CO", "S-1-3-0", "S-1-3-4"}

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.CreateDirectoryW.argtypes = (wintypes.LPCWSTR, ctypes.c_void_p)


def default_runtime_folder() -> Path:
    """Where such things of this user belong."""
    local = os.environ.get("LOCALAPPDATA")
    return Path(local, "qnnbridge", "run") if local else Path.home() / "AppData" / "Local" / "qnnbridge" / "run"


def make_private_folder(path: Path) -> None:
    """Make the folder for us alone, with those above it. One that exists is left as it is: `why_not_private`
    judges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    attributes = OwnerOnly(inherit=True)
    if not _kernel32.CreateDirectoryW(str(path), attributes.address):
        code = ctypes.get_last_error()
        if code != _ERROR_ALREADY_EXISTS:
            raise ctypes.WinError(code)


def why_not_private(path: Path) -> str | None:
    """What is wrong with a folder or file that only this user may use; ``None`` if it is as it should be."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode) or status.st_reparse_tag:
        return "it is a link"
    sddl = access_list(str(path))
    me = user_sid()
    owner = owner_of(sddl)
    if owner not in {me, *_TRUSTED}:
        return f"it belongs to {owner}, not to you ({me})"
    allowed = allowed_in(sddl)
    if allowed is None:
        return "everybody may use it"
    others = allowed - _TRUSTED - {me}
    return f"others may use it ({', '.join(sorted(others))})" if others else None


def how_to_make_private(path: Path) -> str | None:
    return f'If nobody else needs it: icacls "{path}" /inheritance:r /grant:r "%USERNAME%:(OI)(CI)F"'


def write_private_file(path: Path, data: bytes) -> None:
    """Make a new file that only this user can read. Raises `FileExistsError`."""
    attributes = OwnerOnly()
    handle = _winapi.CreateFile(str(path), _GENERIC_WRITE, 0, attributes.address, _CREATE_NEW, 0, 0)
    with open(msvcrt.open_osfhandle(handle, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT), "wb") as file:
        file.write(data)
