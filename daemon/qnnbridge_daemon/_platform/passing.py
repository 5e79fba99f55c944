"""Memory of a client, kept so that others can be shown it: the right module for this system. See there."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_daemon._platform._win32_passing import KeptMemory
else:
    from qnnbridge_daemon._platform._posix_passing import KeptMemory

__all__ = ["KeptMemory"]
