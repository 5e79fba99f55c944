"""Takes descriptors 0 and 1 away from everything but the protocol; keeps a full disk from spoiling bytecode.

Native QNN libraries print on descriptor 1, and a program started from the host inherits it: one stray line would
destroy the byte stream. So the protocol gets private duplicates that nothing inherits, 0 becomes the null device
and 1 becomes another 2. A redirection of `sys.stdout` alone does not reach native code.

Must run before any import that could load a library, so this module itself imports next to nothing.
"""

import os
import sys

if sys.platform == "win32":
    from qnnbridge_os.windows_stdio import make_binary, set_standard_handles

_claimed: tuple[int, int] | None = None

_FIRST_PRIVATE_FD = 3

# More than any of our modules has.
_BYTECODE_ROOM_BYTES = 16 * 1024 * 1024


def claim() -> tuple[int, int]:
    """The descriptors to read the protocol from and to write it to. The same ones when called again."""
    global _claimed
    if _claimed is None:
        in_fd, out_fd = _private(0), _private(1)
        _take_over()
        if sys.platform == "win32":
            make_binary(in_fd, out_fd)
            set_standard_handles()
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
        sys.stdout = sys.stderr
        _claimed = in_fd, out_fd
    return _claimed


def _private(fd: int) -> int:
    """A duplicate that no program inherits, out of the range of the standard streams."""
    passed_over = []
    copy = os.dup(fd)
    while copy < _FIRST_PRIVATE_FD:  # a standard stream that was closed
        passed_over.append(copy)
        copy = os.dup(fd)
    for low in passed_over:
        os.close(low)
    return copy


def _take_over() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(2)
    except OSError:
        os.dup2(null, 2)  # started without stderr
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null >= _FIRST_PRIVATE_FD:
        os.close(null)


def spare_bytecode() -> None:
    """Write no ``.pyc`` files, if the size of files is limited or the disk is nearly full.

    Python up to 3.13.0 takes a short write of one for success (cpython 126606). Every later import of that module,
    by any program of the interpreter, then fails with "marshal data too short".
    """
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < _BYTECODE_ROOM_BYTES:
        sys.dont_write_bytecode = True
        return
    try:
        disk = os.statvfs(os.path.dirname(__file__))
    except OSError:
        return
    if disk.f_bavail * disk.f_frsize < _BYTECODE_ROOM_BYTES:
        sys.dont_write_bytecode = True
