"""Show warnings at the line of the application that caused them, also for warnings from qnnbridge's own threads.

A warning is attributed to the nearest stack frame of the application. A thread of qnnbridge has no such frame, so
the code that starts its work calls `find_caller` first, and the thread passes the result to `inherit`. Each warning
is shown only once for each line of the application, because Python records shown warnings in the
`__warningregistry__` of the application's module.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnbridge_protocol.shown import is_ours

if TYPE_CHECKING:
    import logging
    from types import FrameType


class Caller(NamedTuple):
    """Line of the application to which warnings are attributed, with the global variables of its module."""

    file: str
    line: int
    variables: Mapping[str, Any]


_inherited: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("qnnbridge caller", default=None)


def find_caller() -> Caller | None:
    """Return the line of the application that called qnnbridge. In a thread of qnnbridge, return the line set by
    `inherit`."""
    frame: FrameType | None = sys._getframe(1)
    # The stack of each thread begins with frames of `threading`, which do not belong to the application.
    while frame is not None and (is_ours(frame) or frame.f_globals is vars(threading)):
        frame = frame.f_back
    if frame is None:
        return _inherited.get()
    return Caller(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def inherit(caller: Caller | None) -> None:
    """Set the line of the application on whose behalf this thread works, until the next call of this function."""
    _inherited.set(caller)


def warn_application(text: str, category: type[Warning], log: logging.Logger | None = None) -> None:
    """Warn at the application's line. Also log the text, but only if a log handler exists: without a handler Python
    would print the log record in addition to the warning."""
    if log is not None and log.hasHandlers():
        log.warning("%s", text)
    caller = find_caller()
    if caller is None:  # no call of the application caused the warning: show a line of qnnbridge
        warnings.warn(text, category, stacklevel=2)
        return
    variables: Any = caller.variables
    # Python records shown warnings in this dict of the application's module, to show each only once per line.
    registry = variables.setdefault("__warningregistry__", {})
    name = variables.get("__name__") or "<string>"
    # Do not pass the module's variables: Python would request the source from their `__loader__`, and the loader of
    # `python -c` raises ImportError.
    warnings.warn_explicit(text, category, caller.file, caller.line, name, registry)
