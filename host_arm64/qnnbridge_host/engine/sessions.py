"""The sessions of one client, and the engine that creates them. In a host, only this module requests sessions.

Theory of operation. `start` imports ONNX Runtime in a separate thread while the host answers HELLO and identifies
the first model. `engine` waits for the import; an error of the import is stored and raised for every request that
needs the engine. `create` creates a session without a number. The caller compares the session with its cache entry
or files, and then either calls `keep`, which returns the session's number for the client, or closes the session.

Invariants: only one native creation runs at a time, because its stderr output is written between two markers and
must belong to one request, and because a process has only one watchdog of `faulthandler`. A session's cache entry
is held (`Use`) while the session is open, so that no other process evicts its files. Thread-safe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    Closed,
    DeadlineExceeded,
    ModelChanged,
    StateLost,
)
from qnnbridge_protocol.specs import QNN, RunSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine, EngineSession, StopHandle
    from qnnbridge_host.engine.calls import BoundCall
    from qnnbridge_host.model.source import KnownFile
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_host.request.slow_calls import SlowCallReport
    from qnnbridge_protocol.specs import CompileSpec

# Function that reports the native step that a request is about to start.
Enter = Callable[[str], None]

# --- resets of the NPU while the host runs (SSR, QNN code 1007) ------------------------------------------
#
# The driver restarts the NPU's own processor, and all sessions lose what was loaded into it. The host can continue:
# the session is recreated and the call repeated once; every other session is recreated by its next call. If a reset
# recurs within a minute, or QNN reports that the NPU is lost permanently (1011), only a new process helps; then
# ``details["host_must_restart"]`` of the error makes the client restart the host.
#
# `ort_errors` decides from ONNX Runtime's messages which error is a reset, and records it in the error's details:
# ``npu_reset``, ``qnn_code``.

T = TypeVar("T")

# An occasional reset is a normal recovery by the driver. Two resets within a minute have a cause that a new session
# does not remove.
REPEATED_WITHIN_S = 60.0


class Npu:
    """Records the resets of the NPU that this process has observed. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reset: float | None = None
        # Number of resets. Each session stores the number at its creation and compares it later.
        self.resets = 0

    def note_reset(self, seen_before: int) -> bool:
        """Record that a call failed because of a reset. Return whether a retry in this process can help.

        seen_before: the number of resets when the call began.
        """
        with self._lock:
            if self.resets != seen_before:
                return True  # another session has already counted this reset
            now = self._clock()
            again = self._last_reset is not None and now - self._last_reset < REPEATED_WITHIN_S
            self._last_reset = now
            self.resets += 1
            return not again


class ResettableSession:
    """A session that is recreated after a reset of the NPU. Its runs are executed one at a time, in the NPU's
    queue.

    Invariant: if recreating fails, the next call tries again.
    """

    def __init__(
        self,
        npu: Npu,
        files: Sequence[KnownFile],
        spec: SessionSpec,
        make: Callable[[Enter], EngineSession],
        enter: Enter,
    ) -> None:
        """Create the session.

        Args:
            npu: the record of resets in this process.
            files: all files from which the session is created, with their hashes.
            spec: the session's description.
            make: creates the native session; called again after a reset. It keeps references to all data that a
                creation needs, including a model given as bytes.
            enter: reports that a native step begins.
        """
        self._npu = npu
        # After a reset, a call raises `ModelChanged` if a file's contents have changed. Size and date alone do not
        # prove that a file is unchanged, because a program may set a date.
        self._files = files
        self._make: Callable[[Enter], EngineSession] | None = make
        self._profiling = bool(spec.options.get("enable_profiling"))
        self._profile_lost = False
        # All dynamic options that the application has set, in the order in which they were first set.
        self._dynamic: dict[str, str] = {}
        # Number of resets when the current creation or call began.
        self._seen_resets = npu.resets
        session = self._first(make, enter)
        self._session: EngineSession | None = session
        self._made_at_reset = self._seen_resets
        self._closed = False
        # Reports that the first call takes a long time; ``None`` if the session does not run on the simulator.
        self.slow_calls: SlowCallReport | None = None
        # For a session from the cache this describes the compiled model; `MadeSession.info` describes the original.
        self.info: SessionInfo = session.info
        placement = self.info.placement
        # Before onnxruntime 1.24 the placement is unknown; in that case assume the NPU if QNN is a provider.
        self.on_npu = bool(placement.qnn_nodes) or (not placement.known and QNN in self.info.providers)
        if not self.on_npu:
            # Resets do not affect a session on the CPU, so do not keep the model's bytes for it.
            self._make = None

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run: RunSpec | None,
        stop: StopHandle | None,
        enter: Enter,
    ) -> list[Any]:
        """See `EngineSession.run`."""
        return self._with_reset(lambda session: session.run(output_names, feeds, run, stop), enter)

    def run_bound(self, call: BoundCall, stop: StopHandle, enter: Enter) -> list[Any] | None:
        """See `EngineSession.run_bound`."""
        session, resets = self._session, self._npu.resets
        if session is None or (self._make is not None and self._made_at_reset != resets):
            return self._with_reset(lambda session: session.run_bound(call, stop), enter)
        # Do the same as `_attempt` inline if the session need not be recreated, which saves two function calls.
        self._seen_resets = resets
        enter("running")
        try:
            return session.run_bound(call, stop)
        except BridgeError as error:
            if self._make is None:
                raise
            self._after(error)
        return self._once_more(lambda session: session.run_bound(call, stop), enter)

    def set_ep_dynamic_options(self, options: Mapping[str, str], enter: Enter) -> None:
        """See `EngineSession`. The options are stored, and are set again when the session is recreated."""
        self._with_reset(lambda session: session.set_ep_dynamic_options(options), enter)
        self._dynamic.update(options)

    def assignment(self) -> list[Any]:
        """See `EngineSession.assignment`."""
        session = self._session
        if session is None:
            raise _closed()
        return session.assignment()

    def end_profiling(self) -> str:
        session = self._session
        if self._closed:
            raise _closed()
        if self._profile_lost:
            self._profile_lost = False
            raise StateLost(
                "The profile is lost: the session was recreated after a reset of the NPU.",
                fix="Run the session again; the next end_profiling() returns the profile since the reset.",
            )
        self._profiling = False
        return session.end_profiling() if session is not None else ""

    def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _first(self, make: Callable[[Enter], EngineSession], enter: Enter) -> EngineSession:
        try:
            return make(enter)
        except BridgeError as error:
            self._after(error)
        self._seen_resets = self._npu.resets
        return make(enter)

    def _with_reset(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        try:
            return self._attempt(call, enter)
        except BridgeError as error:
            if self._make is None:
                raise
            self._after(error)
        return self._once_more(call, enter)

    def _once_more(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        try:
            return self._attempt(call, enter)
        except BridgeError as error:
            if is_reset(error):
                raise _needs_restart(error) from None
            raise

    def _attempt(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        self._seen_resets = self._npu.resets
        session = self._session
        if self._make is not None and (session is None or self._made_at_reset != self._seen_resets):
            session = self._rebuild(self._make, enter)
        if session is None:
            raise _closed()
        enter("running")
        return call(session)

    def _after(self, error: BridgeError) -> None:
        """Record the reset that caused `error`. If no reset caused it, raise `error`. If a second attempt in this
        process cannot help, raise an error that requests a restart."""
        if not is_reset(error):
            raise error
        from qnnbridge_host.engine.ort_errors import QNN_COMMUNICATION_FATAL

        if error.details.get("qnn_code") == QNN_COMMUNICATION_FATAL or not self._npu.note_reset(self._seen_resets):
            raise _needs_restart(error)

    def _rebuild(self, make: Callable[[Enter], EngineSession], enter: Enter) -> EngineSession:
        if self._closed:
            raise _closed()
        for file in self._files:
            try:
                changed = file.changed()
            except OSError:
                changed = True
            if changed:
                raise ModelChanged(
                    f"The NPU was reset, and {file.path} has changed since the session was created from it.",
                    fix="Create the session again.",
                    details={"path": file.path},
                )
        if self._session is not None and self._profiling:
            self._profile_lost = True
        # Release the old session first, because the NPU's memory may not hold both sessions.
        old, self._session = self._session, None
        if old is not None:
            old.close()
        session = make(enter)
        if self._dynamic:
            enter("running")
            try:
                session.set_ep_dynamic_options(self._dynamic)
            except BaseException:
                session.close()
                raise
        self._made_at_reset = self._seen_resets
        self._session = session
        if self._closed:  # another thread closed the session during the creation
            self.close()
            raise _closed()
        return session


def is_reset(error: BridgeError) -> bool:
    """Return whether a reset of the NPU caused the error."""
    return bool(error.details.get("npu_reset"))


def _closed() -> Closed:
    return Closed("The session is closed.", fix="Create a new session.")


def _needs_restart(error: BridgeError) -> BridgeError:
    error.details["host_must_restart"] = True
    error.cause = error.cause or "The driver has reset the NPU, and this process cannot use it any more."
    error.fix = error.fix or (
        "No action is needed: the host is restarted. If the error recurs, update the NPU driver."
    )
    return error


# Seconds after the request's deadline at which the watchdog ends a host that no longer responds.
WATCHDOG_GRACE_S: Final = 5.0
# Interval at which a waiting creation checks whether its request was withdrawn.
TURN_POLL_S: Final = 0.05


class Use(Protocol):
    """A resource that is reserved while a session is open, such as a cache entry."""

    def release(self, *, remove: bool = False) -> None: ...


class Sessions:
    """The engine, and the open sessions of one client by number."""

    def __init__(self, load_engine: Callable[[Callable[[str], None]], Engine]) -> None:
        self._load_engine = load_engine
        self._engine: Engine | None = None
        self._engine_error: BaseException | None = None
        # Set when loading has finished or failed; in the second case waiting threads raise the error.
        self._engine_loaded = threading.Event()
        self._creating = threading.Lock()
        self._open: dict[int, ResettableSession] = {}
        self._uses: dict[int, Use] = {}
        # Sessions created by `compile`, kept until the host ends: QNN may crash while it releases them.
        self._compiled: list[EngineSession] = []
        self._npu = Npu()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def npu_resets(self) -> int:
        return self._npu.resets

    # --- the engine ---

    def start(self, declare_phase: Callable[..., None]) -> None:
        """Start a thread that imports ONNX Runtime.

        Numpy is imported first, in this thread: the new thread and the thread that reads the first tensor both need
        it, and two threads that import it at once can get a partly initialised module.
        """
        import numpy  # noqa: F401

        threading.Thread(target=self._load, args=(declare_phase,), name="qnnbridge loader", daemon=True).start()

    def _load(self, declare_phase: Callable[..., None]) -> None:
        try:
            self._engine = self._load_engine(declare_phase)
        except BaseException as error:  # noqa: BLE001 - every request that needs the engine raises it
            self._engine_error = error
        finally:
            self._engine_loaded.set()
            # Report "ready" after the event is set, because the application may immediately send a request that
            # needs the engine.
            declare_phase("ready")

    @property
    def engine(self) -> Engine:
        """The engine, once it is loaded. If loading failed, raise that error."""
        self._engine_loaded.wait()
        if self._engine_error is not None:
            # Raise a new copy for each request, because a raised error collects tracebacks and handlers add to it.
            error = self._engine_error
            raise error.copy() if isinstance(error, BridgeError) else error.with_traceback(None)
        assert self._engine is not None
        return self._engine

    # --- creating sessions -------------------------------------------------------------------------------

    def create(
        self,
        request: Request,
        enter: Enter,
        spec: SessionSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
        *,
        files: Sequence[KnownFile] = (),
        dynamic: Mapping[str, str] | None = None,
        seed: int | None = None,
        deadline: float | None = None,
        mark_id: int | None = None,
        stop: StopSignal | None = None,
    ) -> ResettableSession:
        """Create a native session. The caller then calls `keep` or closes the session.

        Args:
            request: the request that needs the session.
            enter: declares a native step.
            spec: the session's description.
            model: the model's bytes, if it was not given as a path.
            initializers: the initializers' values by name.
            files: all files that the session is created from.
            dynamic: dynamic options of the execution provider that are set after the creation.
            seed: seed of random operators.
            deadline: time by `time.monotonic`; if a creation holds the GIL longer, the watchdog ends the host.
            mark_id: the number in the markers on stderr; default: the request's id.
            stop: signal that cancels native loading.

        Raises:
            Cancelled: the request was withdrawn.
            DeadlineExceeded: the deadline expired before the creation could begin.
            BridgeError: the engine could not create the session.
        """
        engine, ends = self.engine, stop
        with self._native_set_up(request, engine, deadline, mark_id):
            if seed is not None:
                engine.set_seed(seed)
            try:
                session = ResettableSession(
                    self._npu,
                    files,
                    spec,
                    lambda on_phase: engine.create_session(spec, model, initializers, on_phase, ends),
                    enter,
                )
            except BridgeError:
                if stop is not None:
                    stop.check()  # raise the reason for the stop instead of ONNX Runtime's error
                raise
            # A recreation after a reset of the NPU does not depend on this request, so drop its stop signal.
            ends, spec = None, spec.again
            if dynamic:
                try:
                    session.set_ep_dynamic_options(dynamic, enter)
                except BaseException:
                    session.close()
                    raise
        # Check for a cancellation now, because the native creation cannot be interrupted in every step.
        if request.withdrawn:
            # Close the session, because the client does not have its number and cannot close it.
            session.close()
            raise Cancelled("The creation of the session was cancelled.")
        return session

    def compile(
        self,
        request: Request,
        enter: Enter,
        spec: CompileSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
        *,
        deadline: float | None,
        mark_id: int | None,
    ) -> SessionInfo:
        """Compile a model and return the `info` of its session. The caller must then end the process, because the
        session is released only at process exit.

        For arguments and errors see `create`; it also raises `CompileFailed`.
        """
        from qnnbridge_host.engine.compile import compile_model

        engine = self.engine
        with self._native_set_up(request, engine, deadline, mark_id):
            session = compile_model(engine, spec, model, initializers, enter)
        # Release the session only when the host ends: QNN may crash while releasing it, before the response is
        # sent.
        self._compiled.append(session)
        return session.info

    def keep(self, request: Request, session: ResettableSession, use: Use | None = None) -> int:
        """Register a session as the client's and return its number.

        The number is the request's id, so that a client can close the session without waiting for the response.

        Args:
            request: the request that created the session.
            session: the session.
            use: a resource that is released when the session is closed.

        Raises:
            Cancelled: the request was withdrawn after the creation; its `session.close` may have arrived already.
        """
        if use is not None:
            # Store the use before the session, because `close` in another thread releases both.
            self._uses[request.id] = use
        self._open[request.id] = session
        if request.withdrawn:
            self.close(request.id)
            raise Cancelled("The creation of the session was cancelled.")
        return request.id

    def hold(self, number: int, use: Use) -> None:
        """Release a resource when the session is closed; release it immediately if the session is closed
        already."""
        self._uses[number] = use
        if number not in self._open:  # another thread has closed the session
            self.close(number)

    @contextlib.contextmanager
    def _native_set_up(
        self, request: Request, engine: Engine, deadline: float | None, mark_id: int | None
    ) -> Iterator[None]:
        """Run the block exclusively, between markers on stderr, with a watchdog for calls that may hold the GIL."""
        # Wait in short intervals, so that a withdrawn or expired request does not wait for another creation, which
        # may take minutes.
        while not self._creating.acquire(timeout=TURN_POLL_S):
            if request.withdrawn:
                raise Cancelled("The creation of the session was cancelled.")
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded(
                    "The deadline expired before the creation of the session could begin.",
                    cause="The host creates one session at a time, and was creating another session.",
                    details={"state": "not-started"},
                )
        number = request.id if mark_id is None else mark_id
        mark("begin", number)
        try:
            # Use the watchdog only for calls that may hold the GIL, because its stack dump races with running
            # frames (cpython 116008).
            if deadline is not None and getattr(engine, "create_holds_gil", False):
                left_s = max(0.0, deadline - time.monotonic())
                # The watchdog is a thread in C that does not need the GIL: it prints all stacks and ends the
                # process.
                faulthandler.dump_traceback_later(left_s + WATCHDOG_GRACE_S, exit=True)
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            mark("end", number)
            self._creating.release()

    # --- open sessions -----------------------------------------------------------------------------------

    def find(self, number: int) -> ResettableSession:
        """Return an open session; raise `Closed` for an unknown number."""
        found = self._open.get(number)
        if found is None:
            raise _closed()
        return found

    def on_npu(self, number: int) -> bool:
        found = self._open.get(number)
        return found is not None and found.on_npu

    def describe_npu_use(self) -> list[str]:
        """Describe what occupies the NPU in this host, as lines of text."""
        placements = [session.info.placement for session in list(self._open.values()) if session.on_npu]
        # Add up the sizes of the loaded files, because QNN does not report how much memory the driver has reserved.
        size = sum(placement.npu_bytes for placement in placements)
        lines = [f"sessions on the NPU in this host: {len(placements)}, {size / 1e6:.1f} MB"]
        for label, size in list(_others.values()):
            lines.append(f"loaded on the NPU by onnxruntime-genai: {label}, {size / 1e6:.1f} MB")
        return lines

    def close(self, number: int) -> None:
        """Close a session and release its resource; do nothing for an unknown number."""
        session = self._open.pop(number, None)
        use = self._uses.pop(number, None)
        if session is not None:
            session.close()
        if use is not None:
            with contextlib.suppress(OSError):
                use.release(remove=True)

    def close_all(self) -> None:
        for number in list(self._open):
            self.close(number)
        self._compiled.clear()


# Label and size in bytes of users of the NPU other than sessions, by the object's id.
_others: Final[dict[int, tuple[str, int]]] = {}


def occupies(holder: object, label: str, size_bytes: int) -> None:
    """Record that an object of onnxruntime-genai occupies the NPU until `holder` is deleted."""
    _others[id(holder)] = (label, size_bytes)
    weakref.finalize(holder, _others.pop, id(holder), None)


def mark(what: str, request_id: int) -> None:
    """Write a marker to stderr before or after native set-up.

    QNN reports the real cause of a failure only on stderr. The application's process collects stderr and searches
    between the two markers. what: "begin" or "end".
    """
    with contextlib.suppress(OSError):
        # The leading line break ends an unfinished line of native code. Use one write, so that no other thread
        # writes into the marker.
        os.write(2, f"\n@qnnbridge {what} {request_id}\n".encode())
