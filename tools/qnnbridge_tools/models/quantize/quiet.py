"""Keeps onnxruntime's quantizer from printing and logging: it does both, on stdout and on the root logger.

Only what the calling thread prints and logs is kept back; other threads of an application are not touched.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any, TextIO


class Quiet:
    """A context manager; `messages` are the warnings that were logged meanwhile."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._thread = threading.get_ident()
        self._handler = _Collector(self.messages, self._thread)
        self._stdout: Any = None

    def __enter__(self) -> Quiet:
        # With a handler in place logging.warning() does not set up one of its own, for good.
        logging.getLogger().addHandler(self._handler)
        self._stdout = sys.stdout
        sys.stdout = _Silenced(self._stdout, self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout = self._stdout
        logging.getLogger().removeHandler(self._handler)


class _Collector(logging.Handler):
    def __init__(self, messages: list[str], thread: int) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages
        self._thread = thread

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._messages.append(record.getMessage())


class _Silenced:
    def __init__(self, real: TextIO, thread: int) -> None:
        self._real = real
        self._thread = thread

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return len(text)
        return self._real.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
