"""Warnings at the line of the application that caused them, also from the bridge's own threads.

A warning is attributed to the nearest frame of the application. A job for another thread carries the caller along:
`Background` and the comparison of numbers in the background call `find_caller` where the application is on the
stack, and `inherit` in the thread. Python shows a warning once for each line of the application
(`__warningregistry__`).
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
    """A line of the application."""

    file: str
    line: int
    variables: Mapping[str, Any]


_inherited: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("qnnbridge caller", default=None)


def find_caller() -> Caller | None:
    """Return the application's line on this stack, or the line that this thread has inherited."""
    frame: FrameType | None = sys._getframe(1)
    # such frames start all threads
    while frame is not None and (is_ours(frame) or frame.f_globals is vars(threading)):
        frame = frame.f_back
    if frame is None:
        return _inherited.get()
    return Caller(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def inherit(caller: Caller | None) -> None:
    """Make `caller` the application's line for this thread, until the next call."""
    _inherited.set(caller)


def warn_application(text: str, category: type[Warning], log: logging.Logger | None = None) -> None:
    """Warn at the application's line, and log the text if the program handles log records.

    Without a handler Python would print the record in addition to the warning.
    """
    if log is not None and log.hasHandlers():
        log.warning("%s", text)
    caller = find_caller()
    if caller is None:  # a thread of the bridge that was not started by a call
        warnings.warn(text, category, stacklevel=2)
        return
    variables: Any = caller.variables
    # Python's own record of the warnings shown at a line. It is stored in the application's module and is deleted
    # with it.
    registry = variables.setdefault("__warningregistry__", {})
    name = variables.get("__name__") or "<string>"
    # Without the variables themselves: Python would ask their `__loader__` for the source, and the loader of
    # `python -c` raises ImportError.
    warnings.warn_explicit(text, category, caller.file, caller.line, name, registry)
