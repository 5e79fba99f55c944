"""How PyInstaller freezes an application with qnnbridge: the entry point ``pyinstaller40`` names this folder."""

from __future__ import annotations

import os


def get_hook_dirs() -> list[str]:
    return [os.path.dirname(__file__)]
