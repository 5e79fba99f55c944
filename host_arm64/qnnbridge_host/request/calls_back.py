"""Calls back: the host calls a function of the application within a request, and waits for what it returns.

One call at a time within a request, from any thread. A wait ends with the function's RETURN, when its time is over,
and when the request is withdrawn. After a call without an answer the functions of the request are not called any
more: native code gets the same error at once.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from qnnbridge_protocol.errors import BridgeError, CallBackFailed, Cancelled
from qnnbridge_protocol.frames import Frame, Kind

# For one call, unless the request says otherwise.
TIMEOUT_S: Final = 300.0
# Between two looks whether the request was withdrawn.
LOOK_EVERY_S: Final = 0.1


@dataclasses.dataclass(frozen=True)
class Returned:
    """What a function returned. result: of msgpack types. values: tensors and other values."""

    result: Any
    values: tuple[Any, ...]


class Withdrawable(Protocol):
    """A request of the client."""

    id: int
    withdrawn: bool


class CallsBack:
    """The calls of one request.

    Attributes:
        failure: why a call came to no answer; ``None`` if each did. Native code may have turned it into another
            error.
    """

    def __init__(
        self, request: Withdrawable, functions: Any, timeout_s: Any, send: Callable[[Frame], None]
    ) -> None:
        """functions: names of those that the application has. timeout_s: of one call."""
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
            CallBackFailed: it raised, returned nonsense, or not in time.
            Cancelled: the request was withdrawn.
            TooLarge: the values are over the limits of a message.
        """
        # A second call that is open breaks the stream (ADR 0019).
        with self._lock:
            if self.failure is not None:
                raise self.failure.copy()
            try:
                return self._call(function, arguments, values)
            except BridgeError as error:
                self.failure = error
                raise

    def nonsense(self, function: str, what: str) -> CallBackFailed:
        """The error for a result that native code cannot use; kept as the `failure`."""
        error = CallBackFailed(
            f"The application's function {function} returned {what}.", details={"reason": "nonsense"}
        )
        self.failure = self.failure or error
        return error

    def returned(self, frame: Frame) -> None:
        """A RETURN has been read. One that comes too late is dropped."""
        if frame.header.get("call") == self._calls and not self._arrived.is_set():
            self._frame = frame
            self._arrived.set()

    def _call(self, function: str, arguments: Mapping[str, Any] | None, values: Sequence[Any]) -> Returned:
        from qnnbridge_protocol.values import Decoder, Encoder

        encoder = Encoder()
        described = [encoder.add(value) for value in values]
        # The number first: a late RETURN of the call before has another one.
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
        decoder = Decoder(answer.buffers)
        found = tuple(decoder.value(item) for item in answer.header.get("values") or ())
        decoder.finish()
        return Returned(answer.header.get("result"), found)

    def _wait(self, function: str) -> None:
        until = time.monotonic() + self._timeout_s
        while not self._arrived.wait(LOOK_EVERY_S):
            if self._request.withdrawn:
                raise Cancelled("The request was cancelled.")
            if time.monotonic() >= until:
                self._calls += 1  # its RETURN comes too late
                raise CallBackFailed(
                    f"The application's function {function} did not return within {self._timeout_s:g} s.",
                    cause="It hangs, or it waits for something that this call keeps busy.",
                    fix="Let it return sooner, or set QNNBRIDGE_CALLBACK_TIMEOUT to more seconds.",
                    details={"reason": "late", "function": function},
                )
