"""Reserve descriptors 0 and 1 for the protocol; prevent a full disk from corrupting bytecode.

Native QNN libraries print on descriptor 1, and a program started by the host inherits it: one stray line would
corrupt the byte stream. So the protocol uses private duplicates that are not inherited; descriptor 0 becomes the
null device, and descriptor 1 a duplicate of descriptor 2. Redirecting `sys.stdout` alone has no effect on native
code.

Must run before any import that could load a library, so this module itself imports next to nothing.
"""

import os
import sys

if sys.platform == "win32":
    from qnnbridge_os.windows_stdio import make_binary, set_standard_handles

_claimed: tuple[int, int] | None = None

_FIRST_PRIVATE_FD = 3

# Free space in bytes that must be available: more than the bytecode of any module.
_BYTECODE_ROOM_BYTES = 16 * 1024 * 1024


def claim() -> tuple[int, int]:
    """Return the descriptors from which the protocol is read and to which it is written. Idempotent."""
    global _claimed
    if _claimed is None:
        in_fd, out_fd = _private(0), _private(1)
        _take_over()
        if sys.platform == "win32":
            make_binary(in_fd, out_fd)
            set_standard_handles()
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
        sys.stdout = sys.stderr
        _claimed = in_fd, out_fd
    return _claimed


def _private(fd: int) -> int:
    """Return a duplicate that is not inherited, outside of the range of the standard streams."""
    passed_over = []
    copy = os.dup(fd)
    while copy < _FIRST_PRIVATE_FD:  # the duplicate is 0, 1 or 2, because that standard stream was closed
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
        os.dup2(null, 2)  # the process was started without stderr
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null >= _FIRST_PRIVATE_FD:
        os.close(null)


def spare_bytecode() -> None:
    """Disable writing ``.pyc`` files if the size of files is limited or the disk is nearly full.

    Python up to 3.13.0 treats a short write of a ``.pyc`` file as success (cpython 126606). Every later import of
    that module, by any program of the interpreter, then fails with "marshal data too short".
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
