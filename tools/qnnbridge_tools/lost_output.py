"""When stdout takes nothing any more: a disk that is full, a reader that went away, as `head` does.

The first is told in a sentence, the second not at all; both end with exit code 1, and with no stack trace at the
interpreter's end. With the standard library alone, because the doctor uses it, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

EXIT_FAILED = 1
_FULL = (errno.ENOSPC, errno.EFBIG, *((errno.EDQUOT,) if hasattr(errno, "EDQUOT") else ()))


def in_words(error: OSError) -> str:
    """One sentence without a full stop."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    return f"The output cannot be written: {reason}" if error.errno in _FULL else reason


def reader_is_gone(error: OSError) -> bool:
    """Whether the other end of our output was closed; no reason for words."""
    return error.errno == errno.EPIPE or (sys.platform == "win32" and error.errno == errno.EINVAL)


def refuse_without_reader() -> None:
    """For a command that waits for something to print. Raises `BrokenPipeError` if nobody would read it: that shows
    by itself only with the next line, which may never come."""
    if sys.platform == "win32":
        return
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        told = poll.poll(0)
    except (OSError, ValueError, AttributeError):
        return  # no stream of the system's
    if told and told[0][1] & (select.POLLERR | select.POLLHUP):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and writes out what it printed. Its exit code, or 1 if the output is lost."""
    try:
        code = command()
    except OSError as error:
        if error.filename is not None:
            raise
        return _lost(error, 0)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _lost(error, code)
    except ValueError:
        pass
    return code


def _lost(error: OSError, code: int) -> int:
    # What is left in the buffer must not fail again when the interpreter ends.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if not code and not reader_is_gone(error):  # with another code something was said already
        print(f"Error: {in_words(error)}.", file=sys.stderr)
    return code or EXIT_FAILED
