"""Tell PyInstaller how to freeze an application with qnnbridge: the entry point ``pyinstaller40`` contains the
path of this folder."""

from __future__ import annotations

import os


def get_hook_dirs() -> list[str]:
    return [os.path.dirname(__file__)]
