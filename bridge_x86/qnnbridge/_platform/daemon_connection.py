"""The daemon's door and the folder it is in: the right modules for this system. See there."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge._platform._win32_daemon_connection import PipeStream as DoorStream
    from qnnbridge._platform._win32_daemon_connection import (
        abandon_stream,
        connection_ended,
        open_door,
        release_stream,
    )
    from qnnbridge._platform._win32_folder import (
        default_runtime_folder,
        how_to_make_private,
        make_private_folder,
        why_not_private,
        write_private_file,
    )
else:
    from qnnbridge._platform._posix_daemon_connection import SocketStream as DoorStream
    from qnnbridge._platform._posix_daemon_connection import (
        abandon_stream,
        connection_ended,
        open_door,
        release_stream,
    )
    from qnnbridge._platform._posix_folder import (
        default_runtime_folder,
        how_to_make_private,
        make_private_folder,
        why_not_private,
        write_private_file,
    )

__all__ = [
    "DoorStream",
    "abandon_stream",
    "connection_ended",
    "default_runtime_folder",
    "how_to_make_private",
    "make_private_folder",
    "open_door",
    "release_stream",
    "why_not_private",
    "write_private_file",
]
