"""Child processes, the pipes to them, and memory that is shared with them: one module per system, chosen here."""

from __future__ import annotations

import sys

from qnnbridge_os.programs import ChildProcess, Spawner

if sys.platform == "win32":
    from qnnbridge_os._win32_api import native_machine
    from qnnbridge_os._win32_process import Detached, default_spawner, out_of_memory_kills, start_detached
    from qnnbridge_os._win32_streams import (
        CHANNELS,
        MEMORY,
        ChannelStreams,
        SharedMemory,
        ShareHandle,
        enlarge_pipe,
        is_writing,
        let_ctrl_c_through,
        reclaim,
        stop_writing,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )
else:
    from qnnbridge_os._posix_process import (
        Detached,
        default_spawner,
        native_machine,
        out_of_memory_kills,
        start_detached,
    )
    from qnnbridge_os._posix_streams import (
        CHANNELS,
        MEMORY,
        ChannelStreams,
        SharedMemory,
        ShareHandle,
        enlarge_pipe,
        is_writing,
        let_ctrl_c_through,
        reclaim,
        stop_writing,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )

__all__ = [
    "CHANNELS",
    "MEMORY",
    "ChannelStreams",
    "ChildProcess",
    "Detached",
    "ShareHandle",
    "SharedMemory",
    "Spawner",
    "default_spawner",
    "enlarge_pipe",
    "is_writing",
    "let_ctrl_c_through",
    "native_machine",
    "out_of_memory_kills",
    "reclaim",
    "start_detached",
    "stop_writing",
    "wait_readable",
    "wait_writable",
    "write_some",
    "writer",
]
