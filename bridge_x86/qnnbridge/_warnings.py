"""Warnings at the line of the application that led to them, also from the bridge's own threads.

A warning names the nearest frame of the application. A job for another thread takes the caller along: `Background`
and the comparison of numbers in the background call `find_caller` where the application is on the stack, and
`inherit` in the thread. Python shows a warning once for each line of the application (`__warningregistry__`).
"""

from __future__ import annotations

import contextvars
import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qnnbridge_os import shield

if TYPE_CHECKING:
    import logging
    from types import FrameType

# Modules whose frames are not the application's: ours by file, since `qnnbridge.dropin` gives them other names, and
# commands by name, since they lie elsewhere in a checkout. `threading` starts all threads.
_FOLDERS: Final = tuple(os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (__file__, shield.__file__))
_PACKAGES: Final = frozenset(
    ("qnnbridge_protocol", "qnnbridge_tools", "qnnbridge_models", "qnnbridge_serve", "qnnbridge_daemon", "threading")
)


class Caller(NamedTuple):
    """A line of the application."""

    file: str
    line: int
    variables: Mapping[str, Any]


_inherited: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("qnnbridge caller", default=None)


def is_application(frame: FrameType) -> bool:
    """Return whether a frame is neither the bridge's nor the start of a thread."""
    if frame.f_code.co_filename.startswith(_FOLDERS):
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in _PACKAGES


def find_caller() -> Caller | None:
    """Return the application's line on this stack, or the one that this thread has inherited."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_application(frame):
        frame = frame.f_back
    return Caller(frame.f_code.co_filename, frame.f_lineno, frame.f_globals) if frame is not None else _inherited.get()


def inherit(caller: Caller | None) -> None:
    """Make `caller` the application's line for this thread, until the next call."""
    _inherited.set(caller)


def warn_application(text: str, category: type[Warning], log: logging.Logger | None = None) -> None:
    """Warn at the application's line, and log the text if the program handles log records.

    Without a handler Python would print the record beside the warning.
    """
    if log is not None and log.hasHandlers():
        log.warning("%s", text)
    caller = find_caller()
    if caller is None:  # a thread of the bridge that no call has started
        warnings.warn(text, category, stacklevel=2)
        return
    variables: Any = caller.variables
    registry = variables.setdefault("__warningregistry__", {})
    name = variables.get("__name__") or "<string>"
    warnings.warn_explicit(text, category, caller.file, caller.line, name, registry, variables)
