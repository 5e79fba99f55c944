"""Operating systems: processes, pipes, shared memory, the connection to a daemon, program files.

Nothing else of the bridge asks `sys.platform`. Each subject has a module per system, chosen here. All of the bridge
and the daemon call it; it imports the protocol only. The daemon's part is loaded when a name of it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from qnnbridge._platform._fds import OwnedFds
from qnnbridge._platform._programs import (
    ChildProcess,
    Executable,
    RegisteredPython,
    Spawner,
    executable_machine,
    read_executable,
    registered_pythons,
    start_failed,
)

if sys.platform == "win32":
    from qnnbridge._platform._win32_api import native_machine
    from qnnbridge._platform._win32_process import Detached, default_spawner, out_of_memory_kills, start_detached
    from qnnbridge._platform._win32_streams import (
        CHANNELS,
        MEMORY,
        ChannelStreams,
        SharedMemory,
        ShareHandle,
        enlarge_pipe,
        is_writing,
        let_ctrl_c_through,
        reclaim,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )
else:
    from qnnbridge._platform._posix_process import (
        Detached,
        default_spawner,
        native_machine,
        out_of_memory_kills,
        start_detached,
    )
    from qnnbridge._platform._posix_streams import (
        CHANNELS,
        MEMORY,
        ChannelStreams,
        SharedMemory,
        ShareHandle,
        enlarge_pipe,
        is_writing,
        let_ctrl_c_through,
        reclaim,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )

if TYPE_CHECKING:
    if sys.platform == "win32":
        from qnnbridge._platform._win32_daemon import (
            DaemonStream,
            abandon_stream,
            connect_to_daemon,
            connection_ended,
            default_runtime_folder,
            how_to_make_private,
            make_private_folder,
            read_private_file,
            release_stream,
            why_not_private,
            write_private_file,
        )
    else:
        from qnnbridge._platform._posix_daemon import (
            DaemonStream,
            abandon_stream,
            connect_to_daemon,
            connection_ended,
            default_runtime_folder,
            how_to_make_private,
            make_private_folder,
            read_private_file,
            release_stream,
            why_not_private,
            write_private_file,
        )

_OF_THE_DAEMON = frozenset(
    (
        "DaemonStream",
        "abandon_stream",
        "connect_to_daemon",
        "connection_ended",
        "default_runtime_folder",
        "how_to_make_private",
        "make_private_folder",
        "read_private_file",
        "release_stream",
        "why_not_private",
        "write_private_file",
    )
)


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_DAEMON:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "_win32_daemon" if sys.platform == "win32" else "_posix_daemon"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


__all__ = [
    "CHANNELS",
    "MEMORY",
    "ChannelStreams",
    "ChildProcess",
    "DaemonStream",
    "Detached",
    "Executable",
    "OwnedFds",
    "RegisteredPython",
    "ShareHandle",
    "SharedMemory",
    "Spawner",
    "abandon_stream",
    "connect_to_daemon",
    "connection_ended",
    "default_runtime_folder",
    "default_spawner",
    "enlarge_pipe",
    "executable_machine",
    "how_to_make_private",
    "is_writing",
    "let_ctrl_c_through",
    "make_private_folder",
    "native_machine",
    "out_of_memory_kills",
    "read_executable",
    "read_private_file",
    "reclaim",
    "registered_pythons",
    "release_stream",
    "start_detached",
    "start_failed",
    "wait_readable",
    "wait_writable",
    "why_not_private",
    "write_private_file",
    "write_some",
    "writer",
]
