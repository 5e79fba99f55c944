"""Functions of the application that the host may call within one request.

They run in a thread of the request's own, in the caller's context variables, while the caller waits for its answer:
a function that hangs can then be given up. What a function raises comes out of the call as the same object.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qnnbridge._transport.channel import ChannelFailed
from qnnbridge._transport.open_requests import inside
from qnnbridge_os.native import SimpleQueue
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.connection import CALL_BACK_FEATURE
from qnnbridge_protocol.errors import BridgeError, CallBackFailed, HostError, OptionError
from qnnbridge_protocol.frames import Frame, Kind

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge._transport.channel import Channel

# Given the host's arguments and values; gives what is sent back.
CalledFunction = Callable[[Mapping[str, Any], list[Any]], tuple[Any, Sequence[Any]]]

# Environment variable: seconds that the host waits for one call of a function.
TIMEOUT_VARIABLE: Final = "QNNBRIDGE_CALLBACK_TIMEOUT"
TIMEOUT_S: Final = 300.0
# Longer texts of errors are cut for the host, which only logs them.
MAX_TEXT: Final = 2000


# Name of the function for log lines.
LOG: Final = "log"


class LogFunction:
    """The application's function for log lines. As in ONNX Runtime, its errors go to ``sys.unraisablehook``."""

    def __init__(self, function: Callable[[int, str, str, str, str], Any], severity: int) -> None:
        self._function = function
        self.severity = severity

    def __call__(self, arguments: Mapping[str, Any], _values: list[Any]) -> tuple[Any, Sequence[Any]]:
        line = [arguments.get(name) for name in ("category", "logid", "code_location", "message")]
        try:
            self._function(int(arguments.get("severity") or 0), *(str(part or "") for part in line))
        except Exception as error:  # noqa: BLE001 - see the class
            unraisable(error, self._function)
        return None, ()


class _Unraisable(NamedTuple):
    """``sys.UnraisableHookArgs``, which Python does not let a program make."""

    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: Any


def unraisable(error: BaseException, where: Any) -> None:
    """Give an error that no caller can get to ``sys.unraisablehook``. where: the function, or its name."""
    sys.unraisablehook(_Unraisable(type(error), error, error.__traceback__, None, where))  # type: ignore[arg-type]


class CalledFunctions:
    """Runs the functions that the host calls within one request.

    A context manager around the call; inside of it, it is what `Channel.call` takes as ``on_news``."""

    def __init__(
        self,
        functions: Mapping[str, CalledFunction],
        on_news: Callable[[Frame], None] | None = None,
        log: LogFunction | None = None,
    ) -> None:
        """on_news: given PHASE and EVENT frames. log: given ONNX Runtime's log lines."""
        self._functions = dict(functions)
        self._log = log
        if log is not None:
            self._functions[LOG] = log
        self._on_news = on_news
        self._channel: Channel | None = None
        # Copied when the call is made: the function sees the caller's context variables, such as those of a
        # web framework.
        self._context = contextvars.copy_context()
        self._frames: SimpleQueue[Frame | None] = SimpleQueue()
        self._serves = False
        self._raised: BaseException | None = None

    def header(self) -> dict[str, Any]:
        """The fields of the request."""
        header = {"functions": sorted(self._functions), "function_timeout_s": timeout_s()}
        return header if self._log is None else {**header, "log_severity": self._log.severity}

    @contextlib.contextmanager
    def around(self, process: HostProcess) -> Iterator[CalledFunctions]:
        """Around the call in this host. Raises what a function raised, in place of the host's error for it."""
        agreement = process.channel.agreement
        if agreement is not None and CALL_BACK_FEATURE not in agreement.features:
            raise CallBackFailed(
                "This host does not call functions of the application.",
                cause="It is a daemon: a function that hangs would keep other applications waiting.",
                fix="Use a host of the application's own: host=qnnbridge.Host(), or QNNBRIDGE_HOST=private.",
                details={"reason": "unavailable"},
            )
        self._channel = process.channel
        try:
            yield self
        # The host has died or hangs: that is the answer, whatever the function raised before.
        except HostError:
            raise
        except BaseException:
            # The host only reports that its function failed; the application gets its own exception object
            # back.
            if self._raised is not None:
                raise self._raised from None
            raise
        finally:
            # Ends the thread, unless it hangs in the function: then it is left, as a daemon thread.
            self._frames.put(None)
            self._raised = self._channel = None

    def __call__(self, frame: Frame) -> None:
        """By the thread that reads the connection."""
        if frame.kind is not Kind.CALL_BACK:
            if self._on_news is not None:
                self._on_news(frame)
            return
        # Only handed over: this thread reads the connection for all callers and must not wait for a function.
        self._frames.put(frame)
        if not self._serves:
            self._serves = True
            start_thread("qnnbridge function", self._context.run, self._serve)

    def _serve(self) -> None:
        # Marks the thread, so that a call of the same host from inside the function is refused (`reentered`).
        inside.channel = channel = self._channel
        while channel is not None and (frame := self._frames.get()) is not None:
            header, buffers = self._answer(frame)
            header["call"] = frame.header.get("call")
            with contextlib.suppress(ChannelFailed):  # the caller sees it, too
                try:
                    channel.give_back(frame.request_id, header, buffers)
                except (BridgeError, TypeError, ValueError, OverflowError) as error:
                    # Over the limits, or of types that msgpack does not have.
                    self._raised = self._raised or error
                    answer = {"call": header["call"], "error": _described(error)}
                    channel.give_back(frame.request_id, answer, ())

    def _answer(self, frame: Frame) -> tuple[dict[str, Any], tuple[Any, ...]]:
        from qnnbridge_protocol.values import Decoder, Encoder

        try:
            function = self._functions[str(frame.header.get("function"))]
            decoder = Decoder(frame.buffers)
            values = [decoder.value(item) for item in frame.header.get("values") or ()]
            decoder.finish()
            result, given = function(frame.header.get("arguments") or {}, values)
            encoder = Encoder()
            described = [encoder.add(value) for value in given]
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._raised = self._raised or error
            return {"error": _described(error)}, ()
        return {"result": result, "values": described}, tuple(encoder.buffers)


def timeout_s() -> float:
    """Seconds that the host waits for a function. Raises `OptionError`."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{TIMEOUT_VARIABLE}={text!r} is no number of seconds.", fix="Give seconds, such as 60.")
    return seconds


def _described(error: BaseException) -> dict[str, str]:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose own text fails
        text = ""
    return {"type": type(error).__name__, "text": text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()}


__all__ = ["CalledFunction", "CalledFunctions", "LogFunction", "unraisable"]
