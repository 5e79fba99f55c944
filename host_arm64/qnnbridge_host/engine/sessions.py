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
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge_host.engine.npu_reset import Npu, ResettableSession
from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.errors import BridgeError, Cancelled, Closed, DeadlineExceeded

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine, EngineSession
    from qnnbridge_host.request.ending import StopSignal
    from qnnbridge_protocol.specs import CompileSpec, SessionInfo, SessionSpec

Enter = Callable[[str], None]

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
        files: tuple[str, ...] = (),
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
            files: absolute paths of all files that it is made from.
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
            ends = None
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
            raise Closed("The session is closed.", fix="Create a new one.")
        return found

    def on_npu(self, number: int) -> bool:
        found = self._open.get(number)
        return found is not None and found.on_npu

    def on_npu_in_words(self) -> str:
        """What occupies the NPU in this host."""
        placements = [session.info.placement for session in list(self._open.values()) if session.on_npu]
        # What was loaded; QNN does not report what the driver reserved for it.
        size = sum(placement.npu_bytes for placement in placements)
        return f"sessions on the NPU in this host: {len(placements)}, {size / 1e6:.1f} MB"

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


def mark(what: str, request_id: int) -> None:
    """A line on stderr around native set-up: QNN reports the real cause of a failure nowhere else.

    The application's side collects stderr and looks between the two lines.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"\n@qnnbridge {what} {request_id}\n".encode())
