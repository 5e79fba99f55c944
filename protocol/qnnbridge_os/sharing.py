"""Streams and memory of another process, opened here: one module per system, chosen here."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_sharing import AVAILABLE, drop, map_memory, open_stream
else:
    from qnnbridge_os._posix_sharing import AVAILABLE, drop, map_memory, open_stream

__all__ = ["AVAILABLE", "drop", "map_memory", "open_stream"]
