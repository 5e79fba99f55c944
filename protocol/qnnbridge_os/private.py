"""Folders and files that only this user may use: one module per system, chosen here."""

# ruff: noqa: F403, F405 - the two have the same names, which `__all__` lists once

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_private import *
else:
    from qnnbridge_os._posix_private import *

__all__ = [
    "default_runtime_folder",
    "how_to_make_private",
    "make_private_folder",
    "read_private_file",
    "why_not_private",
    "write_private_file",
]
