"""The path by which QNN can open a file of the cache.

On Windows it opens a context binary by a path in the system's code page: one with other characters ends the
process. There the short name stands in for it. Any thread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    from qnnbridge._platform._win32_short_path import short_path
else:

    def short_path(path: str) -> str:
        return path


def native_path(path: Path) -> str:
    """Of a folder that is there. Raises `OSError` if it has none."""
    text = os.fspath(path)
    if os.name != "nt" or text.isascii():
        return text
    short = short_path(text)
    if not short.isascii():
        raise OSError(
            f"QNN could not open files in {text} on Windows, whose volume keeps no short names; "
            "set QNNBRIDGE_CACHE_DIR to a folder with a plain English name"
        )
    return short
