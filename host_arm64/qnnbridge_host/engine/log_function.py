"""Gives ONNX Runtime's log lines to the application's function while one of its requests is served.

The lines also go to stderr, in ONNX Runtime's own form: the application looks there for causes of failures. Lines
of threads that serve no such request go to stderr alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import onnxruntime as ort

from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import BridgeError

if TYPE_CHECKING:
    from qnnbridge_host.request.calls_back import CallsBack

# Name of the function on the wire.
LOG: Final = "log"
_LETTERS: Final = "VIWEF"

# In a thread that serves a request with a function for log lines: `calls_back`.
_serving = threading.local()
_installed: list[int] = []
_lock = threading.Lock()


@contextlib.contextmanager
def log_lines_to(calls_back: CallsBack, severity: int) -> Iterator[None]:
    """While the block runs, log lines of this thread go to the function."""
    _install(severity)
    _serving.calls_back = calls_back
    try:
        yield
    finally:
        _serving.calls_back = None


def _install(severity: int) -> None:
    with _lock:
        if _installed == [severity]:
            return
        if not hasattr(ort, "set_default_logger_callback"):
            raise errors.NotImplemented(
                f"The host's onnxruntime {ort.__version__} has no set_default_logger_callback.",
                fix="Install onnxruntime 1.32 or newer in the host's Python.",
            )
        ort.set_default_logger_callback(_take, severity)
        _installed[:] = [severity]


def _take(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    _write(severity, category, logid, code_location, message)
    calls_back: CallsBack | None = getattr(_serving, "calls_back", None)
    if calls_back is None or calls_back.failure is not None:
        return
    line = {"category": category, "logid": logid, "code_location": code_location, "message": message}
    with contextlib.suppress(BridgeError):  # the request's own answer says what is wrong
        calls_back.call(LOG, {"severity": int(severity), **line})


def _write(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    letter = _LETTERS[severity] if 0 <= severity < len(_LETTERS) else "?"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"{stamp} [{letter}:{category}:{logid}, {code_location}] {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
