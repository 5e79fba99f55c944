"""Let Wine report another version of Windows (``win11``) to programs that Python starts afterwards, in a Windows
lab.

Without an argument Wine reports its default again.
"""

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
