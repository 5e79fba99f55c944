"""Reads from the Windows registry what processor this computer has."""

from __future__ import annotations

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
