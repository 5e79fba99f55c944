"""Communication between a running request and its client: stop signals, calls of the client's functions, and
errors.

`StopSignal` ends a request early, `CallsBack` calls functions of the application, `describe` converts any exception
to a map for the wire.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from qnnbridge_protocol.errors import BridgeError, CallBackFailed, Cancelled, RemoteError
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.records import NamedTuple

# --- stopping a request early, and its error -------------------------------------------------------------
#
# An error must always reach the client, whatever it contains: strings that are not Unicode, arbitrary objects,
# endless lists, an exception whose message cannot be read.

MAX_TEXT = 16 * 1024
MAX_ITEMS = 200
MAX_LEVELS = 4
_INT64 = 2**63
# Maximum number of characters of a string that must fit into every message.
SHORT_TEXT = 500


class StopSignal:
    """Ends a request that is waiting or working in a separate process. Any thread may call `stop`, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        # Call the callbacks without holding the lock, because they may take time; call each only once.
        with self._lock:
            self._stopped = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise `Cancelled` if the request was withdrawn."""
        if self._stopped:
            raise Cancelled("The request was cancelled.")

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` when the request is stopped during the block, or immediately if it was stopped before."""
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
    """Convert an error to its wire format. Never raises.

    max_header: maximum size of the message in bytes; if the error would exceed it, first the details are dropped
        and then the strings are shortened.
    """
    if isinstance(error, BridgeError):
        wire = error.to_wire()
    else:
        kind = type(error).__name__
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception whose `__str__` fails must not end the host
            text = "(its message cannot be shown)"
        wire = RemoteError(f"{kind} in the host: {text}", details={"type": kind}).to_wire()
    plain = {key: _plain(value, MAX_LEVELS) for key, value in wire.items()}
    if max_header is None or _fits(plain, max_header):
        return plain
    plain["details"] = {}
    # Divide by four: a character takes at most four bytes.
    most = max_header // (4 * (len(plain) + 1))
    if not _fits(plain, max_header):
        plain = {key: value[:most] if isinstance(value, str) else value for key, value in plain.items()}
    if not _fits(plain, max_header):
        plain["evidence"] = []
    return plain


def in_one_line(error: BaseException) -> str:
    """Return type, message and location of an error in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
    return " ".join(f"{type(error).__name__}: {_text(error)}".split())[:SHORT_TEXT] + place


def _fits(plain: dict[str, Any], max_header: int) -> bool:
    from qnnbridge_protocol.frames import encode_header

    return len(encode_header({"error": plain})) <= max_header


def _plain(value: Any, levels: int) -> Any:
    """Convert a value to types of msgpack, shortened."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        # msgpack supports integers from -2**63 to 2**64 - 1.
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
    # Escape lone surrogates, which come from file names that are not UTF-8.
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


# --- callbacks: the host calls a function of the application within a request ----------------------------
#
# A request makes one call at a time, from any thread. A wait ends with the function's RETURN, after the timeout, or
# when the request is withdrawn. After a call without an answer the request's functions are not called any more:
# native code gets the same error at once.

# Seconds that a call may take, unless the request sets another timeout.
TIMEOUT_S: Final = 300.0
# Time between two checks whether the request was withdrawn.
LOOK_EVERY_S: Final = 0.1


class Returned(NamedTuple):
    """Result of a function. result: a value of msgpack types. values: tensors and other values."""

    result: Any
    values: tuple[Any, ...]


class Withdrawable(Protocol):
    """A request that its client can withdraw."""

    id: int
    withdrawn: bool


class CallsBack:
    """Calls the functions of the application within one request.

    Attributes:
        failure: why a call got no answer; ``None`` if every call got one. Native code may have converted this error
            to another error.
    """

    def __init__(
        self, request: Withdrawable, functions: Any, timeout_s: Any, send: Callable[[Frame], None]
    ) -> None:
        """functions: the application's functions, by name. timeout_s: timeout of a single call in seconds."""
        self._request = request
        self._functions = frozenset(map(str, functions)) if isinstance(functions, list) else frozenset()
        self._timeout_s = float(timeout_s) if isinstance(timeout_s, (int, float)) else TIMEOUT_S
        self._send = send
        self._lock = threading.Lock()
        self._calls = 0
        self._arrived = threading.Event()
        self._frame: Frame | None = None
        self.failure: BridgeError | None = None

    def __contains__(self, function: str) -> bool:
        return function in self._functions

    def call(
        self, function: str, arguments: Mapping[str, Any] | None = None, values: Sequence[Any] = ()
    ) -> Returned:
        """Call a function of the application.

        Raises:
            CallBackFailed: the function raised, returned an invalid result, or did not return in time.
            Cancelled: the request was withdrawn.
            TooLarge: the values exceed the limits of a message.
        """
        # Allow one call at a time: a second open call in the request would violate the protocol (ADR 0019).
        with self._lock:
            if self.failure is not None:
                raise self.failure.copy()
            try:
                return self._call(function, arguments, values)
            except BridgeError as error:
                self.failure = error
                raise

    def nonsense(self, function: str, what: str) -> CallBackFailed:
        """Return the error for a result that native code cannot use, and store it as the `failure`."""
        error = CallBackFailed(
            f"The application's function {function} returned {what}.", details={"reason": "nonsense"}
        )
        self.failure = self.failure or error
        return error

    def returned(self, frame: Frame) -> None:
        """Accept a RETURN frame. Drop a frame that comes too late."""
        if frame.header.get("call") == self._calls and not self._arrived.is_set():
            self._frame = frame
            self._arrived.set()

    def _call(self, function: str, arguments: Mapping[str, Any] | None, values: Sequence[Any]) -> Returned:
        from qnnbridge_protocol.values import Encoder, decode_all

        encoder = Encoder()
        described = [encoder.add(value) for value in values]
        # Increment the number first, so that a late RETURN of the previous call is recognised by its number.
        self._calls += 1
        self._arrived.clear()
        header = {
            "call": self._calls,
            "function": function,
            "arguments": dict(arguments or {}),
            "values": described,
        }
        try:
            self._send(Frame(Kind.CALL_BACK, self._request.id, header, tuple(encoder.buffers)))
        except RuntimeError:
            raise Cancelled("The application is leaving.") from None
        self._wait(function)
        assert self._frame is not None
        answer, self._frame = self._frame, None
        raised = answer.header.get("error")
        if raised is not None:
            raised = raised if isinstance(raised, Mapping) else {}
            kind = str(raised.get("type", "Exception"))
            details = {"reason": "raised", "type": kind, "function": function}
            raise CallBackFailed(f"{kind}: {raised.get('text', '')}", details=details)
        found = decode_all(answer.header.get("values") or (), answer.buffers)
        return Returned(answer.header.get("result"), tuple(found))

    def _wait(self, function: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self._arrived.wait(LOOK_EVERY_S):
            if self._request.withdrawn:
                raise Cancelled("The request was cancelled.")
            if time.monotonic() >= deadline:
                self._calls += 1  # the RETURN frame of this call is dropped if it arrives later
                raise CallBackFailed(
                    f"The application's function {function} did not return within {self._timeout_s:g} s.",
                    cause="The function hangs, or waits for a resource that this call keeps busy.",
                    fix="Make the function return sooner, or set QNNBRIDGE_CALLBACK_TIMEOUT to more seconds.",
                    details={"reason": "late", "function": function},
                )
