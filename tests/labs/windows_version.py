"""Runs in a Windows lab: makes Wine be another Windows (``win11``) for programs that Python starts from now on, or what it is
(no argument)."""

from __future__ import annotations

import contextlib
import sys
import winreg

KEY = r"Software\Wine\AppDefaults\python.exe"

if __name__ == "__main__":
    with winreg.CreateKeyEx(winreg.HKEY_CURRENT_USER, KEY, 0, winreg.KEY_ALL_ACCESS) as key:
        if sys.argv[1:]:
            winreg.SetValueEx(key, "Version", 0, winreg.REG_SZ, sys.argv[1])
        else:
            with contextlib.suppress(FileNotFoundError):
                winreg.DeleteValue(key, "Version")
    print("{}")
