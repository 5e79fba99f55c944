"""Hooks that PyInstaller runs when it freezes an application with qnnbridge. PyInstaller finds this folder through
the entry point ``pyinstaller40``, which refers to `get_hook_dirs`."""

from __future__ import annotations

import os


def get_hook_dirs() -> list[str]:
    return [os.path.dirname(__file__)]
