"""What differs between operating systems, behind one set of names. Nothing else asks `sys.platform`.

This package imports nothing of ours but the errors.
"""

from __future__ import annotations

import sys

from qnnbridge._platform._executable import Executable, executable_machine, read_executable
from qnnbridge._platform._fds import OwnedFds
from qnnbridge._platform._memory import out_of_memory_kills
from qnnbridge._platform._types import ChildProcess, Spawner

if sys.platform == "win32":
    from qnnbridge._platform._win32 import default_spawner
    from qnnbridge._platform._win32_api import native_machine
    from qnnbridge._platform._win32_pipes import (
        enlarge_pipe,
        let_ctrl_c_through,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )
    from qnnbridge._platform._win32_registry import registered_pythons
else:
    from qnnbridge._platform._posix import default_spawner, native_machine
    from qnnbridge._platform._posix_pipes import (
        enlarge_pipe,
        let_ctrl_c_through,
        wait_readable,
        wait_writable,
        write_some,
        writer,
    )
    from qnnbridge._platform._registered import no_registered_pythons as registered_pythons

from qnnbridge._platform._registered import RegisteredPython

__all__ = [
    "ChildProcess",
    "Executable",
    "OwnedFds",
    "RegisteredPython",
    "Spawner",
    "default_spawner",
    "enlarge_pipe",
    "executable_machine",
    "let_ctrl_c_through",
    "native_machine",
    "out_of_memory_kills",
    "read_executable",
    "registered_pythons",
    "wait_readable",
    "wait_writable",
    "write_some",
    "writer",
]
