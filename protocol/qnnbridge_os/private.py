"""Folders and files that only this user may use: one module per system, chosen here."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_private import (
        default_runtime_folder,
        how_to_make_private,
        make_private_folder,
        read_private_file,
        why_not_private,
        write_private_file,
    )
else:
    from qnnbridge_os._posix_private import (
        default_runtime_folder,
        how_to_make_private,
        make_private_folder,
        read_private_file,
        why_not_private,
        write_private_file,
    )

__all__ = [
    "default_runtime_folder",
    "how_to_make_private",
    "make_private_folder",
    "read_private_file",
    "why_not_private",
    "write_private_file",
]
