"""How a request ends early: `StopSignal`, and any exception as a map that can travel.

An error must always arrive, whatever is inside of it: text that is no Unicode, objects, endless lists, an exception
whose message cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qnnbridge_protocol.errors import BridgeError, Cancelled, RemoteError

MAX_TEXT = 16 * 1024
MAX_ITEMS = 200
MAX_LEVELS = 4
_INT64 = 2**63
# Characters of a text that must fit into any message.
SHORT_TEXT = 500


class StopSignal:
    """Ends a request that waits, or works in a process of its own. Set once by `stop`, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        # The callbacks are called outside of the lock, since they may take long, and each only once.
        with self._lock:
            self._stopped = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raises `Cancelled` if the request was withdrawn."""
        if self._stopped:
            raise Cancelled("The request was cancelled.")

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a stop calls `callback`; at once if the stop came before."""
        with self._lock:
            stopped = self._stopped
            if not stopped:
                self._callbacks.append(callback)
        if stopped:
            callback()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)


def describe(error: BaseException, max_header: int | None = None) -> dict[str, Any]:
    """The error as the wire has it. Never raises.

    max_header: bytes that the client takes; an error that would be longer loses first its details, then its words.
    """
    if isinstance(error, BridgeError):
        wire = error.to_wire()
    else:
        kind = type(error).__name__
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception whose own text fails must not end the host
            text = "(its message cannot be shown)"
        wire = RemoteError(f"{kind} in the host: {text}", details={"type": kind}).to_wire()
    plain = {key: _plain(value, MAX_LEVELS) for key, value in wire.items()}
    if max_header is None or _fits(plain, max_header):
        return plain
    plain["details"] = {}
    # A character takes up to four bytes.
    most = max_header // (4 * (len(plain) + 1))
    if not _fits(plain, max_header):
        plain = {key: value[:most] if isinstance(value, str) else value for key, value in plain.items()}
    if not _fits(plain, max_header):
        plain["evidence"] = []
    return plain


def in_one_line(error: BaseException) -> str:
    """What it is, and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
    return " ".join(f"{type(error).__name__}: {_text(error)}".split())[:SHORT_TEXT] + place


def _fits(plain: dict[str, Any], max_header: int) -> bool:
    from qnnbridge_protocol.frames import encode_header

    return len(encode_header({"error": plain})) <= max_header


def _plain(value: Any, levels: int) -> Any:
    """The value in msgpack's types, shortened."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        # msgpack has integers from -2**63 to 2**64 - 1.
        return int(value) if -_INT64 <= value < 2 * _INT64 else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)[:MAX_TEXT]
    if isinstance(value, Mapping) and levels:
        items = list(value.items())[:MAX_ITEMS]
        return {_text(key): _plain(item, levels - 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)) and levels:
        return [_plain(item, levels - 1) for item in list(value)[:MAX_ITEMS]]
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - see `describe`
        text = f"<{type(value).__name__}>"
    # Lone surrogates come from file names that are no UTF-8.
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
