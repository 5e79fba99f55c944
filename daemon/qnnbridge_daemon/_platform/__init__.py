"""The daemon's socket or pipe, its streams, kept memory and process: one module per system, chosen here."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_daemon._platform._win32 import (
        DaemonEndpoint,
        KeptMemory,
        Streams,
        allow_descriptors,
        let_go_of_terminal,
        make_endpoint,
        on_leave,
    )
else:
    from qnnbridge_daemon._platform._posix import (
        DaemonEndpoint,
        KeptMemory,
        Streams,
        allow_descriptors,
        let_go_of_terminal,
        make_endpoint,
        on_leave,
    )

__all__ = [
    "DaemonEndpoint",
    "KeptMemory",
    "Streams",
    "allow_descriptors",
    "let_go_of_terminal",
    "make_endpoint",
    "on_leave",
]
