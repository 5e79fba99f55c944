"""Child processes, pipes to child processes, and memory shared with them. This module imports the functions of
the current system."""

# ruff: noqa: F403, F405 - both modules define the same functions, which `__all__` lists once

from __future__ import annotations

import sys

from qnnbridge_os.programs import ChildProcess, Spawner

if sys.platform == "win32":
    from qnnbridge_os._win32_api import native_machine
    from qnnbridge_os._win32_process import *
    from qnnbridge_os._win32_streams import *
else:
    from qnnbridge_os._posix_process import *
    from qnnbridge_os._posix_streams import *

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
