"""Takes descriptors 0 and 1 away from everything but the protocol.

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
