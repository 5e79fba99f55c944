"""Where visitors come in: the right module for this system. See there."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_daemon._platform._win32_listener import (
        Gate,
        Streams,
        allow_descriptors,
        let_go_of_terminal,
        make_endpoint,
        on_leave,
    )
else:
    from qnnbridge_daemon._platform._posix_listener import (
        Gate,
        Streams,
        allow_descriptors,
        let_go_of_terminal,
        make_endpoint,
        on_leave,
    )

__all__ = ["Gate", "Streams", "allow_descriptors", "let_go_of_terminal", "make_endpoint", "on_leave"]
