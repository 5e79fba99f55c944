"""What each operation of the protocol does. `docs/protocol.md` lists the operations and their fields."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge_host.in_flight import Request
from qnnbridge_host.npu_reset import Npu, ResettableSession
from qnnbridge_host.server import Answer
from qnnbridge_protocol.errors import BridgeError, Cancelled, Closed, UnknownOperation
from qnnbridge_protocol.frames import desync

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine, EngineSession
    from qnnbridge_protocol.specs import SessionSpec

NPU_LANE = "npu"
CREATE_LANE = "create"
WATCHDOG_GRACE_S = 5.0


class HostHandlers:
    """The sessions of one client, and the engine that makes them. Any thread."""

    def __init__(self, load_engine: Callable[[Callable[[str], None]], Engine]) -> None:
        self._load_engine = load_engine
        self._engine: Engine | None = None
        self._engine_error: BaseException | None = None
        self._engine_loaded = threading.Event()
        self._sessions: dict[int, ResettableSession] = {}
        self._compiled: list[EngineSession] = []
        self._npu = Npu()
        self._started_at = time.monotonic()
        self._operations: dict[str, Callable[[Request, Callable[[str], None]], Answer]] = {
            "host.info": self._host_info,
            "host.stats": self._host_stats,
            "session.create": self._create,
            "session.run": self._run,
            "session.close": self._close_session,
            "session.assignment": self._assignment,
            "session.end_profiling": self._end_profiling,
            "session.set_ep_dynamic_options": self._set_ep_dynamic_options,
            "model.compile": self._compile,
        }

    # --- the engine ---

    def start(self, tell_phase: Callable[[str], None]) -> None:
        """Import ONNX Runtime while the application goes on.

        numpy first, and here: two threads that import it at once can meet it half made (its modules import each
        other in a circle), and both the loader and the reader of a first tensor need it.
        """
        import numpy  # noqa: F401

        threading.Thread(target=self._load, args=(tell_phase,), name="qnnbridge loader", daemon=True).start()

    def _load(self, tell_phase: Callable[[str], None]) -> None:
        try:
            self._engine = self._load_engine(tell_phase)
        except BaseException as error:  # noqa: BLE001 - told to everyone who asks for the engine
            self._engine_error = error
        finally:
            tell_phase("ready")
            self._engine_loaded.set()

    def _ready_engine(self) -> Engine:
        self._engine_loaded.wait()
        if self._engine_error is not None:
            # A fresh one for each: what is raised gathers tracebacks, and is completed on its way.
            error = self._engine_error
            raise error.copy() if isinstance(error, BridgeError) else error.with_traceback(None)
        assert self._engine is not None
        return self._engine

    # --- dispatch ---

    def lane_of(self, request: Request) -> str | None:
        if request.op in ("session.create", "model.compile"):
            return CREATE_LANE
        if request.op in ("session.run", "session.set_ep_dynamic_options"):
            session = self._sessions.get(_session_id(request))
            if session is not None and session.on_npu:
                return NPU_LANE
        return None

    def handle(self, request: Request, enter: Callable[[str], None]) -> Answer:
        operation = self._operations.get(str(request.op))
        if operation is None:
            raise UnknownOperation(
                f"This host does not know the operation {request.op!r}.",
                fix="Upgrade qnnbridge in the host's Python.",
            )
        return operation(request, enter)

    def close(self) -> None:
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        self._compiled.clear()

    # --- operations on the host ---

    def _host_info(self, _request: Request, _enter: Callable[[str], None]) -> Answer:
        engine = self._ready_engine()
        return {"versions": engine.versions(), **engine.describe()}, ()

    def _host_stats(self, _request: Request, _enter: Callable[[str], None]) -> Answer:
        import psutil

        process = psutil.Process()
        return {
            "rss_bytes": process.memory_info().rss,
            "threads": process.num_threads(),
            "sessions": len(self._sessions),
            "npu_resets": self._npu.resets,
            "uptime_seconds": time.monotonic() - self._started_at,
        }, ()

    # --- operations on a session ---

    def _create(self, request: Request, enter: Callable[[str], None]) -> Answer:
        from qnnbridge_protocol.specs import SessionSpec

        engine = self._ready_engine()
        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            model, initializers = _model_and_tensors(request, spec, header.get("initializers", []))
            dynamic = dict(header.get("dynamic") or {})
            seed = header.get("seed")
            if seed is not None:
                engine.set_seed(int(seed))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"session.create without a proper description ({error})") from None
        with _native_set_up(request, engine, header.get("budget_s")):
            session = ResettableSession(
                self._npu,
                spec,
                lambda on_phase: engine.create_session(spec, model, initializers, on_phase),
                enter,
            )
            if dynamic:
                try:
                    session.set_ep_dynamic_options(dynamic, enter)
                except BaseException:
                    session.close()
                    raise
        if request.withdrawn:
            # Whoever asked has given up, so nobody would ever close it.
            session.close()
            raise Cancelled("The creation of the session was cancelled.")
        # Its number is that of the request: a client that does not wait for the answer can close it all the same.
        self._sessions[request.id] = session
        request.after = _load_what_runs_need
        return {"session": request.id, "info": session.info.to_wire()}, ()

    def _compile(self, request: Request, enter: Callable[[str], None]) -> Answer:
        from qnnbridge_host.engine.compile import compile_model
        from qnnbridge_protocol.specs import CompileSpec

        engine = self._ready_engine()
        header = request.header
        try:
            spec = CompileSpec.from_wire(header["spec"])
            model, initializers = _model_and_tensors(request, spec.session, header.get("initializers", []))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.compile without a proper description ({error})") from None
        with _native_set_up(request, engine, header.get("budget_s")):
            session = compile_model(engine, spec, model, initializers, enter)
        # Released with the host: QNN may die of that, and must not take the answer with it.
        self._compiled.append(session)
        return {"info": session.info.to_wire(), "versions": engine.versions()}, ()

    def _run(self, request: Request, enter: Callable[[str], None]) -> Answer:
        from qnnbridge_host.engine import StopHandle
        from qnnbridge_protocol.specs import RunSpec
        from qnnbridge_protocol.values import Decoder, Encoder

        session = self._session(request)
        header = request.header
        decoder = Decoder(request.buffers)
        feeds = {name: decoder.value(item) for name, item in header["inputs"]}
        decoder.finish()
        options = header.get("options")
        run = RunSpec.from_wire(options) if options is not None else None
        request.stopper = stop = StopHandle()
        outputs = session.run(header.get("outputs"), feeds, run, stop, enter)
        encoder = Encoder()
        described = [encoder.add(value) for value in outputs]
        return {"outputs": described}, tuple(encoder.buffers)

    def _close_session(self, request: Request, _enter: Callable[[str], None]) -> Answer:
        session = self._sessions.pop(_session_id(request), None)
        if session is not None:
            session.close()
        return {}, ()

    def _assignment(self, request: Request, _enter: Callable[[str], None]) -> Answer:
        return {"subgraphs": self._session(request).assignment()}, ()

    def _end_profiling(self, request: Request, _enter: Callable[[str], None]) -> Answer:
        return {"file": self._session(request).end_profiling()}, ()

    def _set_ep_dynamic_options(self, request: Request, enter: Callable[[str], None]) -> Answer:
        self._session(request).set_ep_dynamic_options(request.header["options"], enter)
        return {}, ()

    def find(self, session: int) -> tuple[ResettableSession, str | None]:
        """The session with this number, and the lane that its runs wait in."""
        found = self._sessions.get(session)
        if found is None:
            raise Closed("The session is closed.", fix="Create a new one.")
        return found, NPU_LANE if found.on_npu else None

    def _session(self, request: Request) -> ResettableSession:
        return self.find(_session_id(request))[0]


def _load_what_runs_need() -> None:
    """Behind the answer that a session is there: the application has its arrays to make ready before it runs it."""
    with contextlib.suppress(ImportError):  # who needs it is told
        from qnnbridge_host.engine import ort_values  # noqa: F401
        from qnnbridge_host.fastpath import channel  # noqa: F401
        from qnnbridge_protocol import values  # noqa: F401


def _model_and_tensors(request: Request, spec: SessionSpec, described: list[Any]) -> tuple[Any, dict[str, Any]]:
    """The model, unless it is a file, and the initializers by name."""
    # A model that travels as bytes is the last buffer, behind the tensors.
    count = len(request.buffers) - (spec.model_path is None)
    model = request.buffers[count] if spec.model_path is None else None
    values: list[Any] = []
    if described or count:
        from qnnbridge_protocol.values import Decoder

        decoder = Decoder(request.buffers[:count])
        values = [decoder.value(item) for item in described]
        decoder.finish()
    return model, dict(zip((*spec.initializers, *spec.external_initializers), values, strict=True))


@contextlib.contextmanager
def _native_set_up(request: Request, engine: Engine, budget: Any) -> Iterator[None]:
    """Marks on stderr what is written meanwhile, and holds a watchdog over calls that may hold the GIL."""
    mark("begin", request.id)
    try:
        # Only around calls that may hold the GIL: the dumper races with running frames (cpython 116008).
        if budget and getattr(engine, "create_holds_gil", False):
            faulthandler.dump_traceback_later(float(budget) + WATCHDOG_GRACE_S, exit=True)
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        mark("end", request.id)


def _session_id(request: Request) -> int:
    session_id = request.header.get("session")
    return session_id if type(session_id) is int else 0


def mark(what: str, request_id: int) -> None:
    """A line on stderr around native set-up: QNN tells the real cause of a failure nowhere else.

    The application's side collects stderr and looks between the two lines.
    """
    try:
        os.write(2, f"\n@qnnbridge {what} {request_id}\n".encode())
    except OSError:
        pass


__all__ = ["HostHandlers", "mark"]
