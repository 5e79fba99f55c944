"""Starting a program that outlives this one: the right module for this system. See there."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge._platform._win32_detached import Detached, start_detached
else:
    from qnnbridge._platform._posix_detached import Detached, start_detached

__all__ = ["Detached", "start_detached"]
