"""Streams and memory that are shared with the host: the right module for this system. See there."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge._platform._win32_sharing import LINES, MEMORY, LineStreams, Place, SharedMemory, take_back
else:
    from qnnbridge._platform._posix_sharing import LINES, MEMORY, LineStreams, Place, SharedMemory, take_back

__all__ = ["LINES", "MEMORY", "LineStreams", "Place", "SharedMemory", "take_back"]
