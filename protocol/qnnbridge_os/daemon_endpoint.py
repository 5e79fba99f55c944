"""Both ends of the daemon's socket or pipe, and the objects that are passed through it. This module imports the
functions of the current system."""

# ruff: noqa: F403, F405 - both modules define the same functions, which `__all__` lists once

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_daemon_endpoint import *
else:
    from qnnbridge_os._posix_daemon_endpoint import *

__all__ = [
    "DaemonEndpoint",
    "DaemonStream",
    "KeptMemory",
    "Streams",
    "abandon_stream",
    "allow_descriptors",
    "connect_to_daemon",
    "connection_ended",
    "let_go_of_terminal",
    "make_endpoint",
    "on_leave",
    "release_stream",
]
