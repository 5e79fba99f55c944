"""What processor this computer has, by the Windows registry, and whether it is Wine and not Windows."""

from __future__ import annotations

import ctypes
import sys
import winreg

assert sys.platform == "win32"

_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def processor_name() -> str | None:
    """As Windows names it: the same under emulation, where the environment and `platform` name another."""
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _KEY, 0, winreg.KEY_READ | winreg.KEY_WOW64_64KEY) as key:
            value = winreg.QueryValueEx(key, "ProcessorNameString")[0]
    except OSError:
        return None
    return value if isinstance(value, str) else None


def wine_version() -> str | None:
    """``None`` on Windows itself."""
    try:
        tell = ctypes.WinDLL("ntdll").wine_get_version
    except (AttributeError, OSError):
        return None
    tell.restype = ctypes.c_char_p
    version = tell()
    return version.decode("ascii", "replace") if isinstance(version, bytes) else None
