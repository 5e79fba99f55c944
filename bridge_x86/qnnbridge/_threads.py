"""Background jobs, functions of the application that the host calls, and cancellation from another thread.

`Background` has a few daemon threads for `run_async`, futures and asyncio. `concurrent.futures` is not used: before
the interpreter ends, it waits for the threads of that module, so a native call that never returns would prevent the
application from ending.

`CalledFunctions` runs functions of the application that the host calls during a request. The functions run in a
separate thread for the request, with the caller's context variables, while the caller waits for the answer. So the
caller can abandon a function that hangs. If a function raises an exception, the call raises the same exception
object.

`TerminateFlag` stops a request from another thread: `TerminateRelay` sends a CANCEL message for the request when
the flag is set. A request first adds its listener and then reads the flag, so that no assignment is missed. The
thread that assigns the flag calls the listeners.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from qnnbridge._callers import Caller, find_caller, inherit
from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge._transport.open_requests import inside
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock, SimpleQueue
from qnnbridge_os.shield import Changes, start_thread
from qnnbridge_protocol.connection import CALL_BACK_FEATURE
from qnnbridge_protocol.errors import BridgeError, CallBackFailed, Closed, HostError, OptionError
from qnnbridge_protocol.frames import Frame, Kind

if TYPE_CHECKING:
    from qnnbridge._transport.channel import Channel

# --- background jobs ---------------------------------------------------------------------------------------------

# Number of threads. The NPU executes one call at a time, so more threads would only wait.
THREADS = 4


def silence_daemon_threads() -> None:
    """Suppress the traceback of a daemon thread that ends with `Closed` because the program is ending and has
    closed its hosts.

    With onnxruntime such a thread stops silently. A traceback would obscure the last output of the application.
    """
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not (isinstance(ended.exc_value, Closed) and ended.thread is not None and ended.thread.daemon):
            before(ended)

    threading.excepthook = hook


def refuse_at_the_end() -> None:
    """Raise `Closed` if the interpreter is finalizing (a call in ``__del__``), because no module can be imported
    then."""
    if sys.is_finalizing():
        raise Closed(
            "The program is ending: its hosts are closed.",
            fix="Make this call before the end of the program, or in a function that atexit runs, not in __del__.",
        )


class Background:
    """Run jobs in the order of their arrival, up to `threads` at a time. Threads exist only while there are jobs.
    Thread-safe."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name = name
        self._most = threads
        self._jobs: collections.deque[tuple[Caller | None, Callable[[], None]]] = collections.deque()
        self._begin()
        renew_in_forks(self)

    def _begin(self) -> None:
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        self._threads = 0

    def _at_fork_reinit(self) -> None:
        # Drop the jobs in the forked child: threads of the parent run them, and the child does not have these
        # threads.
        self._jobs.clear()
        self._begin()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append((find_caller(), job))
        self._start_thread_if_needed()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all jobs are done. Return False after the timeout."""
        self._start_thread_if_needed()  # an interrupted `submit` may have queued a job without starting a thread
        return self._changes.wait_for(lambda: not (self._threads or self._jobs), timeout_s)

    def _start_thread_if_needed(self) -> None:
        if self._jobs and self._threads < self._most:
            start_thread(self._name, self._work)

    def _work(self) -> None:
        # Each thread counts itself, because the code that starts a thread may be interrupted.
        with self._lock:
            if self._threads == self._most:
                return
            self._threads += 1
        while True:
            with self._lock:
                if not self._jobs:
                    self._threads -= 1
                    break
                caller, job = self._jobs.popleft()
            inherit(caller)
            job()
        self._changes.notify()


# --- functions of the application that the host may call within one request --------------------------------------

# Function that the host may call. It receives the host's arguments and values, and returns the result to send.
CalledFunction = Callable[[Mapping[str, Any], list[Any]], tuple[Any, Sequence[Any]]]

# Environment variable: number of seconds that the host waits for the result of an application's function.
TIMEOUT_VARIABLE: Final = "QNNBRIDGE_CALLBACK_TIMEOUT"
TIMEOUT_S: Final = 300.0
# Maximum length of an error text that is sent to the host, which only logs it.
MAX_TEXT: Final = 2000


# Name under which the host calls the log function.
LOG: Final = "log"


class LogFunction:
    """The application's function for log lines. As in ONNX Runtime, errors of the function go to
    ``sys.unraisablehook``."""

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
    """Replacement for ``sys.UnraisableHookArgs``, because programs cannot create instances of that class."""

    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: Any


def unraisable(error: BaseException, where: Any) -> None:
    """Pass an error that cannot be raised in a caller to ``sys.unraisablehook``. `where`: the function that raised
    the error, or its name."""
    sys.unraisablehook(_Unraisable(type(error), error, error.__traceback__, None, where))  # type: ignore[arg-type]


class CalledFunctions:
    """Run the functions of the application that the host calls during a request.

    Make the call inside the context manager `around`, and pass this object to `Channel.call` as ``on_news``.

    Args:
        functions: functions by name.
        on_news: called with PHASE and EVENT frames.
        log: called with ONNX Runtime's log lines.
    """

    def __init__(
        self,
        functions: Mapping[str, CalledFunction],
        on_news: Callable[[Frame], None] | None = None,
        log: LogFunction | None = None,
    ) -> None:
        self._functions = dict(functions)
        self._log = log
        if log is not None:
            self._functions[LOG] = log
        self._on_news = on_news
        self._channel: Channel | None = None
        # Copy the context when the call starts, so that the function has the caller's context variables, such as
        # those of a web framework.
        self._context = contextvars.copy_context()
        self._frames: SimpleQueue[Frame | None] = SimpleQueue()
        self._serves = False
        self._raised: BaseException | None = None

    def header(self) -> dict[str, Any]:
        """Return the fields of the request that list the functions for the host."""
        header = {"functions": sorted(self._functions), "function_timeout_s": timeout_s()}
        return header if self._log is None else {**header, "log_severity": self._log.severity}

    @contextlib.contextmanager
    def around(self, channel: Channel) -> Iterator[CalledFunctions]:
        """Return a context manager for the call on this channel. If a function raised an exception, the context
        manager raises it instead of the host's error."""
        agreement = channel.agreement
        if agreement is not None and CALL_BACK_FEATURE not in agreement.features:
            raise CallBackFailed(
                "This host does not call functions of the application.",
                cause="The host belongs to a daemon: a function that hangs would keep other applications waiting.",
                fix="Use a private host: host=qnnbridge.Host(), or QNNBRIDGE_HOST=private.",
                details={"reason": "unavailable"},
            )
        self._channel = channel
        try:
            yield self
        # The death of the host takes precedence over an earlier exception of a function.
        except HostError:
            raise
        except BaseException:
            # The host only reports that a function failed, so raise the original exception object.
            if self._raised is not None:
                raise self._raised from None
            raise
        finally:
            # `None` ends the thread, unless the function hangs. In that case the daemon thread remains.
            self._frames.put(None)
            self._raised = self._channel = None

    def __call__(self, frame: Frame) -> None:
        """Handle a frame. Called by the thread that reads the connection."""
        if frame.kind is not Kind.CALL_BACK:
            if self._on_news is not None:
                self._on_news(frame)
            return
        # Run the function in another thread, because this thread reads the connection for all callers and must not
        # wait for a function.
        self._frames.put(frame)
        if not self._serves:
            self._serves = True
            start_thread("qnnbridge function", self._context.run, self._serve)

    def _serve(self) -> None:
        # Mark the thread, so that a call of the same host from inside the function is refused (`reentered`).
        inside.channel = channel = self._channel
        while channel is not None and (frame := self._frames.get()) is not None:
            header, buffers = self._answer(frame)
            header["call"] = frame.header.get("call")
            with contextlib.suppress(ChannelFailed):  # the waiting caller raises `ChannelFailed`, too
                try:
                    channel.give_back(frame.request_id, header, buffers)
                except (BridgeError, TypeError, ValueError, OverflowError) as error:
                    # The function's result is too large for a message, or msgpack does not support its type. The
                    # call raises this error.
                    self._raised = self._raised or error
                    answer = {"call": header["call"], "error": _described(error)}
                    channel.give_back(frame.request_id, answer, ())

    def _answer(self, frame: Frame) -> tuple[dict[str, Any], tuple[Any, ...]]:
        from qnnbridge_protocol.values import Encoder, decode_all

        try:
            function = self._functions[str(frame.header.get("function"))]
            values = decode_all(frame.header.get("values") or (), frame.buffers)
            result, given = function(frame.header.get("arguments") or {}, values)
            encoder = Encoder()
            described = [encoder.add(value) for value in given]
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._raised = self._raised or error
            return {"error": _described(error)}, ()
        return {"result": result, "values": described}, tuple(encoder.buffers)


def timeout_s() -> float:
    """Return how many seconds the host waits for a function. Raise `OptionError` if the environment variable is
    invalid."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise OptionError(
            f"{TIMEOUT_VARIABLE}={text!r} is not a valid number of seconds.",
            fix=f"Set {TIMEOUT_VARIABLE} to a number of seconds, for example 60.",
        )
    return seconds


def _described(error: BaseException) -> dict[str, str]:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - `str` of an exception may fail
        text = ""
    return {"type": type(error).__name__, "text": text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()}


# --- stop a request from another thread ----------------------------------------------------------------------


class Terminable(Protocol):
    """Interface of an object that can stop a request. `terminate`: whether the request must stop."""

    @property
    def terminate(self) -> bool: ...

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Add a function that is called when `terminate` is assigned. Return a function that removes it."""


class TerminateFlag:
    """A boolean flag with listeners. Thread-safe."""

    __slots__ = ("_listeners", "_lock", "_terminate")

    def __init__(self) -> None:
        self._terminate = False
        self._listeners: list[Callable[[bool], None]] = []
        self._lock = renew_in_forks(Lock())

    def __reduce__(self) -> tuple[type[TerminateFlag], tuple[()]]:
        # A session that was unpickled gets a new flag, because the code that could set the old flag is in another
        # process.
        return TerminateFlag, ()

    @property
    def terminate(self) -> bool:
        return self._terminate

    def assign(self, value: bool) -> None:
        with self._lock:
            self._terminate = value
            listeners = list(self._listeners)
        # Call the listeners without the lock, because they may send a frame or acquire other locks.
        for listener in listeners:
            listener(value)

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener` with each value assigned from now on. The listener must not raise an exception.

        Return a function that removes the listener.
        """
        with self._lock:
            self._listeners.append(listener)

        def remove() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove


class TerminateRelay:
    """Context manager around a request that sends a CANCEL message when the flag is set. The caller passes the
    value of the `with` statement to `Channel.call` as ``on_sent``.

    Args:
        options: object with the flag.
        channel: the channel of the request.
        ends_at_once: whether the request itself contains the option to stop immediately, so that no CANCEL message
            is needed.
    """

    def __init__(self, options: Terminable | None, channel: Channel, ends_at_once: bool = False) -> None:
        self._options = options
        self._ends_at_once = ends_at_once
        self._channel = channel
        self._request_id = 0
        self._remove: Callable[[], None] | None = None

    def __enter__(self) -> Callable[[int], None] | None:
        if self._options is None:
            return None
        # After an exception of a signal handler `__exit__` may not run. The remaining listener does nothing,
        # because its reference is weak.
        me = weakref.ref(self)

        def listener(terminate: bool) -> None:
            relay = me()
            if relay is not None:
                relay._on_terminate(terminate)

        self._remove = self._options.add_terminate_listener(listener)
        return self._on_sent

    def __exit__(self, *_: object) -> None:
        remove, self._remove = self._remove, None  # break the reference cycle of this object and `remove`
        if remove is not None:
            remove()

    def _on_sent(self, request_id: int) -> None:
        self._request_id = request_id
        if self._options is not None and self._options.terminate and not self._ends_at_once:
            # The flag was set before the request had a number, or before the listener was added, so no other thread
            # sends the CANCEL message.
            self._on_terminate(True)

    def _on_terminate(self, terminate: bool) -> None:
        if terminate and self._request_id:
            try:
                self._channel.cancel(self._request_id, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
                pass  # if the connection failed, the waiting request raises the error
