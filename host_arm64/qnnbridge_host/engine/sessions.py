"""The sessions of one client, and the engine that makes them: everything that enters native code to make something.

Theory of operation. `start` imports ONNX Runtime in a thread of its own, while HELLO and the identification of the
first model go on. `engine` waits for it; an error of the import is kept and raised for every request that needs
the engine. `create` makes a session and does not number it: the caller compares it with its entry or its files
first, and then calls `keep`, which gives the number that the client uses, or closes it.

Invariants: one native creation at a time, since the text on stderr between the markers must belong to one request,
and the watchdog of `faulthandler` is one for the whole process. A session's entry in the cache is held (`Use`) as
long as the session lives, so that no other process evicts its files. Any thread.
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

# Declares the native step that a request is about to enter.
Enter = Callable[[str], None]

# --- resets of the NPU under a living process (SSR, QNN code 1007) ----------------------------------------
#
# The driver restarts the NPU's own processor; everything that was loaded into it is gone, in all sessions. That is
# no reason to end the host: the session is made again in place and the call repeated once; every other session is
# made again by its next call. If it happens again within a minute, or QNN reports that the NPU is lost permanently
# (1011), only a new process helps; the error then says so to the client in ``details["host_must_restart"]``.
#
# `ort_errors` decides which error is a reset when it reads ONNX Runtime's texts, and records it in its details:
# ``npu_reset``, ``qnn_code``.

T = TypeVar("T")

# A reset now and again is the driver's normal recovery; two in a minute are a cause that a new session does
# not cure.
REPEATED_WITHIN_S = 60.0


class Npu:
    """The state of the NPU as this process has seen it. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reset: float | None = None
        # How often it was reset: the number shows a session whether it was made before the last one.
        self.resets = 0

    def note_reset(self, seen_before: int) -> bool:
        """A call failed by a reset. Whether it is worth to try again in this process."""
        with self._lock:
            # The session was made before a reset that another session has counted already.
            if self.resets != seen_before:
                return True  # another session has met the same reset
            now = self._clock()
            again = self._last_reset is not None and now - self._last_reset < REPEATED_WITHIN_S
            self._last_reset = now
            self.resets += 1
            return not again


class ResettableSession:
    """A session that comes back from a reset of the NPU. Its runs come one at a time (the NPU's lane).

    make: makes it, as often as need be; it keeps what that takes, a model given as bytes included.
    Invariants: when it could not be made again, the next call tries it again.
    """

    def __init__(
        self,
        npu: Npu,
        files: Sequence[KnownFile],
        spec: SessionSpec,
        make: Callable[[Enter], EngineSession],
        enter: Enter,
    ) -> None:
        """files: all that it is made from, as it was hashed."""
        self._npu = npu
        # A file with other contents makes the session `ModelChanged`, not another model. Size and date alone do not
        # show that: a program may set a date.
        self._files = files
        self._make: Callable[[Enter], EngineSession] | None = make
        self._profiling = bool(spec.options.get("enable_profiling"))
        self._profile_lost = False
        # All dynamic options that were set, in this order.
        self._dynamic: dict[str, str] = {}
        # How many there had been when the attempt that is under way began.
        self._seen_resets = npu.resets
        session = self._first(make, enter)
        self._session: EngineSession | None = session
        self._made_at_reset = self._seen_resets
        self._closed = False
        # On the simulator, what reports that the first call takes long.
        self.slow_calls: SlowCallReport | None = None
        self.info: SessionInfo = session.info
        placement = self.info.placement
        # Before onnxruntime 1.24 nothing says where the nodes are.
        self.on_npu = bool(placement.qnn_nodes) or (not placement.known and QNN in self.info.providers)
        if not self.on_npu:
            # A session on the CPU never meets a reset, and need not keep the model's bytes for it.
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
        # The inner step of `_with_reset` before the first reset.
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
        """See `EngineSession`. They are kept, and set again whenever the session is made again."""
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
                "The profile is lost: the session was made again after a reset of the NPU.",
                fix="Run the session again; the next end_profiling() gives what was recorded since the reset.",
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
        """Returns if the call is to be repeated here; raises `error` if not."""
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
                    f"The NPU was reset, and {file.path} has changed since the session was made from it.",
                    fix="Create the session again.",
                    details={"path": file.path},
                )
        if self._session is not None and self._profiling:
            self._profile_lost = True
        # First release the old one: two at once may not fit into the NPU.
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
        if self._closed:  # meanwhile
            self.close()
            raise _closed()
        return session


def is_reset(error: BridgeError) -> bool:
    """Whether the NPU was reset under the call."""
    return bool(error.details.get("npu_reset"))


def _closed() -> Closed:
    return Closed("The session is closed.", fix="Create a new one.")


def _needs_restart(error: BridgeError) -> BridgeError:
    error.details["host_must_restart"] = True
    error.cause = error.cause or "The NPU was reset by its driver, and is not usable from this process any more."
    error.fix = error.fix or "The host is started again. If it happens again, update the NPU driver."
    return error


# The application's own deadline comes first; the watchdog is for a host that cannot even answer any more.
WATCHDOG_GRACE_S: Final = 5.0
# Between two looks of a creation that waits for its turn whether it was withdrawn.
TURN_POLL_S: Final = 0.05


class Use(Protocol):
    """Something that is kept for as long as a session lives."""

    def release(self, *, remove: bool = False) -> None: ...


class Sessions:
    """The open sessions of one client, by number, and the engine."""

    def __init__(self, load_engine: Callable[[Callable[[str], None]], Engine]) -> None:
        self._load_engine = load_engine
        self._engine: Engine | None = None
        self._engine_error: BaseException | None = None
        # Set also when loading failed: waiters then raise its error.
        self._engine_loaded = threading.Event()
        self._creating = threading.Lock()
        self._open: dict[int, ResettableSession] = {}
        self._uses: dict[int, Use] = {}
        # Kept until the process ends, see `compile`.
        self._compiled: list[EngineSession] = []
        self._npu = Npu()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def npu_resets(self) -> int:
        return self._npu.resets

    # --- the engine ---

    def start(self, declare_phase: Callable[..., None]) -> None:
        """Import ONNX Runtime while the application continues.

        numpy first, and here: two threads that import it at once can meet it half made (its modules import each
        other in a circle), and both the loader and the reader of a first tensor need it.
        """
        import numpy  # noqa: F401

        threading.Thread(target=self._load, args=(declare_phase,), name="qnnbridge loader", daemon=True).start()

    def _load(self, declare_phase: Callable[..., None]) -> None:
        try:
            self._engine = self._load_engine(declare_phase)
        except BaseException as error:  # noqa: BLE001 - raised for every request that needs the engine
            self._engine_error = error
        finally:
            self._engine_loaded.set()
            # After the event: the application may send at once, and finds the engine.
            declare_phase("ready")

    @property
    def engine(self) -> Engine:
        """Waits until it is loaded. Raises the error of its loading."""
        self._engine_loaded.wait()
        if self._engine_error is not None:
            # A fresh one for each: a raised error gathers tracebacks, and is completed on its way.
            error = self._engine_error
            raise error.copy() if isinstance(error, BridgeError) else error.with_traceback(None)
        assert self._engine is not None
        return self._engine

    # --- making ---

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
        """Make a session natively; `keep` follows, or it is closed.

        Args:
            request: the request that needs it.
            enter: declares a native step.
            spec: of the session.
            model: the model itself, if it has no path.
            initializers: values by name.
            files: all files that it is made from.
            dynamic: options of the execution provider that are set at once.
            seed: of random operators.
            deadline: on `time.monotonic`; a creation that holds the GIL past it ends the host.
            mark_id: the number in the marks on stderr; default that of the request.
            stop: ends native loading.
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
                    stop.check()  # ONNX Runtime has its own words for a loading that was ended
                raise
            # A reset of the NPU makes it again, whatever has become of the request.
            ends, spec = None, spec.again
            if dynamic:
                try:
                    session.set_ep_dynamic_options(dynamic, enter)
                except BaseException:
                    session.close()
                    raise
        # The client sends a CANCEL when it gives up; the native creation cannot be interrupted in every step.
        if request.withdrawn:
            # The client has given up, so it would never close it.
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
        """Compile a model natively. The process is to be ended afterwards."""
        from qnnbridge_host.engine.compile import compile_model

        engine = self.engine
        with self._native_set_up(request, engine, deadline, mark_id):
            session = compile_model(engine, spec, model, initializers, enter)
        # Released with the host: QNN may die of that, and must not take the answer with it.
        self._compiled.append(session)
        return session.info

    def keep(self, request: Request, session: ResettableSession, use: Use | None = None) -> int:
        """The session is the client's. Its number is that of the request: a client that does not wait for the
        answer can close it all the same.

        Raises `Cancelled` for one that was withdrawn since it was made: its `session.close` may have arrived
        already.
        """
        if use is not None:
            # Before the session is entered: `close` of another thread releases both.
            self._uses[request.id] = use
        self._open[request.id] = session
        if request.withdrawn:
            self.close(request.id)
            raise Cancelled("The creation of the session was cancelled.")
        return request.id

    def hold(self, number: int, use: Use) -> None:
        """Keep something for as long as this session lives."""
        self._uses[number] = use
        if number not in self._open:  # closed meanwhile
            self.close(number)

    @contextlib.contextmanager
    def _native_set_up(
        self, request: Request, engine: Engine, deadline: float | None, mark_id: int | None
    ) -> Iterator[None]:
        """Alone; with marks on stderr around it, and a watchdog over calls that may hold the GIL."""
        # In slices, so that a request that was withdrawn, or is late, does not wait for a creation of
        # minutes.
        while not self._creating.acquire(timeout=TURN_POLL_S):
            if request.withdrawn:
                raise Cancelled("The creation of the session was cancelled.")
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded(
                    "The time was over before the session could be made.",
                    cause="The host makes one session at a time, and was making another one.",
                    details={"state": "not-started"},
                )
        number = request.id if mark_id is None else mark_id
        mark("begin", number)
        try:
            # Only around calls that may hold the GIL: the dumper races with running frames (cpython 116008).
            if deadline is not None and getattr(engine, "create_holds_gil", False):
                left_s = max(0.0, deadline - time.monotonic())
                # A thread in C, which needs no GIL: it prints all stacks and ends the process.
                faulthandler.dump_traceback_later(left_s + WATCHDOG_GRACE_S, exit=True)
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            mark("end", number)
            self._creating.release()

    # --- look-ups ---

    def find(self, number: int) -> ResettableSession:
        """Raises `Closed`."""
        found = self._open.get(number)
        if found is None:
            raise _closed()
        return found

    def on_npu(self, number: int) -> bool:
        found = self._open.get(number)
        return found is not None and found.on_npu

    def on_npu_in_words(self) -> list[str]:
        """What occupies the NPU in this host, a line each."""
        placements = [session.info.placement for session in list(self._open.values()) if session.on_npu]
        # What was loaded; QNN does not report what the driver reserved for it.
        size = sum(placement.npu_bytes for placement in placements)
        lines = [f"sessions on the NPU in this host: {len(placements)}, {size / 1e6:.1f} MB"]
        for label, size in list(_others.values()):
            lines.append(f"on the NPU by onnxruntime-genai: {label}, {size / 1e6:.1f} MB")
        return lines

    def close(self, number: int) -> None:
        """Of one that is unknown it does nothing."""
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


# What is on the NPU beside sessions: label and bytes, by the id of its object.
_others: Final[dict[int, tuple[str, int]]] = {}


def occupies(holder: object, label: str, size_bytes: int) -> None:
    """onnxruntime-genai has this on the NPU for as long as the holder lives."""
    _others[id(holder)] = (label, size_bytes)
    weakref.finalize(holder, _others.pop, id(holder), None)


def mark(what: str, request_id: int) -> None:
    """A line on stderr around native set-up: QNN reports the real cause of a failure nowhere else.

    The application's side collects stderr and looks between the two lines.
    """
    with contextlib.suppress(OSError):
        # The line break in front ends a line that native code has left open. One write, so that no other thread's
        # text lands inside of the mark.
        os.write(2, f"\n@qnnbridge {what} {request_id}\n".encode())
