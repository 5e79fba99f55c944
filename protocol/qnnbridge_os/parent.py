"""The process that a host belongs to, and crashes without dialogs: one module per system, chosen here."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_parent import ParentHandle, error_dialogs_off
else:
    from qnnbridge_os._posix_parent import ParentHandle, error_dialogs_off

__all__ = ["ParentHandle", "error_dialogs_off"]
