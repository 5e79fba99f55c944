"""Operations of the protocol, and ONNX Runtime objects that stay in the host and that requests refer to by number.

`docs/dev/protocol.md` lists the operations with their fields, and the types of objects.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.service import ModelService, deadline_of, model_and_tensors, stop_signal
from qnnbridge_host.create.session import SessionMaker
from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult
from qnnbridge_host.engine.sessions import Enter, Sessions
from qnnbridge_host.request.in_flight import Answer, Request
from qnnbridge_protocol.errors import (
    BridgeError,
    Busy,
    Cancelled,
    Closed,
    ProviderUnavailable,
    UnknownOperation,
    desync,
)
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.shown import with_article

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine
    from qnnbridge_host.engine.sessions import ResettableSession
    from qnnbridge_host.model.genai_folder import GenaiFolder
    from qnnbridge_host.serve.numbers_service import NumbersService
    from qnnbridge_protocol.connection import Hello

NPU_LANE: Final = "npu"


class HostHandlers:
    """Operations for one client. Thread-safe.

    Args:
        load_engine: imports ONNX Runtime; its argument is a function that reports the phases.
        hello: the host's HELLO message.
        worker: value of the option ``--worker``: a JSON list, the command line that starts a worker.
    """

    def __init__(
        self,
        load_engine: Callable[[Callable[[str], None]], Engine],
        hello: Hello,
        worker: str | None = None,
    ) -> None:
        self._sessions = Sessions(load_engine)
        self._maker = SessionMaker(self._sessions, hello, worker)
        models = ModelService(self._maker)
        self._objects = HostObjects(self._sessions, KINDS, work=self._in_worker)
        self._numbers: NumbersService | None = None
        self._started_at = time.monotonic()
        self.operations: dict[str, Callable[[Request, Enter], Answer]] = {
            "host.info": self._host_info,
            "host.stats": self._host_stats,
            "model.identify": models.identify,
            "model.choose": models.choose,
            "model.compile": models.compile,
            "model.verify": self._verify,
            "model.samples": self._samples,
            "session.create": models.create,
            "session.run": self._run,
            "session.close": self._close_session,
            "session.assignment": self._assignment,
            "session.end_profiling": self._end_profiling,
            "session.set_ep_dynamic_options": self._set_ep_dynamic_options,
            "object.create": self._objects.create,
            "object.call": self._objects.call,
            "object.release": self._objects.release,
            "worker.compile": self._worker_compile,
            "worker.create": self._worker_create,
            "worker.fix": self._worker_fix,
            "worker.wrap": self._worker_wrap,
            "worker.generate": self._worker_generate,
        }

    def start(self, declare_phase: Callable[..., None]) -> None:
        """Import ONNX Runtime. Called when the client has connected."""
        self._sessions.start(declare_phase)

    # --- dispatch of requests ----------------------------------------------------------------------------

    def lane_of(self, request: Request) -> str | None:
        if request.op in ("session.run", "session.set_ep_dynamic_options"):
            if request.op == "session.run" and _asks_to_terminate(request):
                return None
            return NPU_LANE if self._sessions.on_npu(_session_id(request)) else None
        if request.op == "object.call":
            return self._objects.lane_of(request.header.get("object"))
        return None

    def handle(self, request: Request, enter: Enter) -> Answer:
        operation = self.operations.get(str(request.op))
        if operation is None:
            raise UnknownOperation(
                f"This host does not support the operation {request.op!r}.",
                fix="Upgrade qnnbridge in the host's Python.",
            )
        calls_back = request.calls_back
        if calls_back is None or "log" not in calls_back:
            return operation(request, enter)
        _ = self._sessions.engine
        from qnnbridge_host.engine.ort_objects import log_lines_to

        severity = request.header.get("log_severity")
        with log_lines_to(calls_back, severity if type(severity) is int and 0 <= severity <= 4 else 2):
            return operation(request, enter)

    def find(self, session: int) -> tuple[ResettableSession, str | None]:
        """Return the session with this number, and the name of the queue that its runs use."""
        found = self._sessions.find(session)
        return found, NPU_LANE if found.on_npu else None

    def close(self) -> None:
        self._objects.close_all()
        self._sessions.close_all()

    # --- operations on the host ---

    def _host_info(self, _request: Request, _enter: Enter) -> Answer:
        engine = self._sessions.engine
        return {"versions": engine.versions(), **engine.describe()}, ()

    def _host_stats(self, _request: Request, _enter: Enter) -> Answer:
        import psutil

        process = psutil.Process()
        return {
            "rss_bytes": process.memory_info().rss,
            "threads": process.num_threads(),
            "sessions": len(self._sessions),
            "objects": len(self._objects),
            "npu_resets": self._sessions.npu_resets,
            "uptime_seconds": time.monotonic() - self._started_at,
        }, ()

    # --- comparison of results with the CPU --------------------------------------------------------------

    def _verify(self, request: Request, _enter: Enter) -> Answer:
        return self._numbers_service.verify(request)

    def _samples(self, request: Request, _enter: Enter) -> Answer:
        return self._numbers_service.samples(request)

    @property
    def _numbers_service(self) -> NumbersService:
        if self._numbers is None:
            from qnnbridge_host.serve.numbers_service import NumbersService

            self._numbers = NumbersService(self._maker)
        return self._numbers

    # --- operations on a session ---

    def _run(self, request: Request, enter: Enter) -> Answer:
        from qnnbridge_host.engine import StopHandle
        from qnnbridge_protocol.field_types import field
        from qnnbridge_protocol.specs import RunSpec
        from qnnbridge_protocol.values import Encoder, decode_all

        session = self._session(request)
        header = request.header
        inputs = field(header, "inputs", "tuple[tuple[str, Any], ...]")
        names = field(header, "outputs", "tuple[str, ...] | None", None)
        values = decode_all((item for _, item in inputs), request.buffers)
        feeds = {name: value for (name, _), value in zip(inputs, values, strict=True)}
        options = header.get("options")
        run = RunSpec.from_wire(options) if options is not None else None
        request.stopper = stop = StopHandle()
        slow = session.slow_calls
        with contextlib.nullcontext() if slow is None else slow.watching(request.emit):
            outputs = session.run(None if names is None else list(names), feeds, run, stop, enter)
        encoder = Encoder()
        described = [encoder.add(value) for value in outputs]
        return {"outputs": described}, tuple(encoder.buffers)

    def _close_session(self, request: Request, _enter: Enter) -> Answer:
        self._sessions.close(_session_id(request))
        return {}, ()

    def _assignment(self, request: Request, _enter: Enter) -> Answer:
        return {"subgraphs": self._session(request).assignment()}, ()

    def _end_profiling(self, request: Request, _enter: Enter) -> Answer:
        return {"file": self._session(request).end_profiling()}, ()

    def _set_ep_dynamic_options(self, request: Request, enter: Enter) -> Answer:
        from qnnbridge_protocol.field_types import field

        options = field(request.header, "options", "Mapping[str, str]")
        self._session(request).set_ep_dynamic_options(options, enter)
        return {}, ()

    def _session(self, request: Request) -> ResettableSession:
        return self._sessions.find(_session_id(request))

    # --- operations of a worker ---

    def _worker_compile(self, request: Request, enter: Enter) -> Answer:
        from qnnbridge_protocol.specs import CompileSpec

        header = request.header
        try:
            spec = CompileSpec.from_wire(header["spec"])
            model, values = model_and_tensors(request, spec.session, header.get("initializers", []))
            deadline = deadline_of(header.get("budget_s"))
            mark_id = header.get("mark")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"worker.compile without a proper description ({error})") from None
        info = self._sessions.compile(
            request, enter, spec, model, _by_name(spec.session, values), deadline=deadline, mark_id=mark_id
        )
        return {"info": info.to_wire(), "versions": self._sessions.engine.versions()}, ()

    def _worker_create(self, request: Request, enter: Enter) -> Answer:
        from qnnbridge_protocol.specs import SessionSpec

        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            model, values = model_and_tensors(request, spec, header.get("initializers", []))
            deadline = deadline_of(header.get("budget_s"))
            mark_id = header.get("mark")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"worker.create without a proper description ({error})") from None
        session = self._sessions.create(
            request, enter, spec, model, _by_name(spec, values), deadline=deadline, mark_id=mark_id
        )
        return {"session": self._sessions.keep(request, session), "info": session.info.to_wire()}, ()

    def _worker_fix(self, request: Request, _enter: Enter) -> Answer:
        from qnnbridge_protocol.input_constants import plain_constants

        _require_onnx()
        header = request.header
        try:
            source, target = str(header["source"]), header.get("target")
            sizes = {str(name): int(size) for name, size in (header.get("sizes") or {}).items()}
            constants = plain_constants(header.get("constants") or {})
            only, skip = tuple(header.get("only") or ()), tuple(header.get("skip") or ())
            right_here = frozenset(str(name) for name in header.get("right_here") or ())
            refused = header.get("refused")
            refused = None if refused is None else frozenset(map(str, refused))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"worker.fix without a proper description ({error})") from None
        _ = self._sessions.engine  # wait for the import, which must not run in two threads at once
        decides: dict[str, str] = {}
        if target is None:
            from qnnbridge_host.rewrite.deciding import what_would_change

            changes, constants, decides = what_would_change(source, sizes, constants, refused)
        else:
            from qnnbridge_host.rewrite.fixer import fix_model

            result = fix_model(
                source, str(target), dims=sizes, constants=constants, only=only, skip=skip, right_here=right_here
            )
            changes = [f"{step.rewrite}: {change}" for step in result.kept for change in step.changes]
        return {"changes": changes, "constants": constants, "decides": decides}, ()

    def _worker_wrap(self, request: Request, _enter: Enter) -> Answer:
        _require_onnx("A session of a context binary")
        from qnnbridge_host.wrap.build import WrapRequest, work

        try:
            wanted = WrapRequest.from_plain(request.header)
        except (LookupError, TypeError, ValueError) as error:
            raise desync(f"worker.wrap without a proper description ({error})") from None
        # Use the folder of the loaded QNN, which may come from Windows' catalogue instead of the wheel.
        folder = self._sessions.engine.describe().get("library_folder")
        described, models = work(wanted, folder)
        graphs = [list(one.graphs) for one in models]
        return {"description": described.to_plain(), "models": graphs}, tuple(one.data for one in models)

    def _in_worker(
        self,
        request: Request,
        model: GenaiFolder,
        header: Mapping[str, Any],
        buffers: tuple[Any, ...],
        timeout_s: float,
    ) -> Mapping[str, Any]:
        """Start a worker for a request about a model, and return its reply."""
        from qnnbridge_host.create.worker import Worker

        stop = stop_signal(request)
        order = self._maker.order(request, stop, model, time.monotonic() + timeout_s, timeout_s)
        with Worker(order).running() as worker:
            return worker.call(dict(header), buffers).header

    def _worker_generate(self, request: Request, _enter: Enter) -> Answer:
        header = request.header
        try:
            folder, steps = str(header["folder"]), [tuple(step) for step in header.get("steps") or ()]
            names = [str(name) for name in header.get("data") or ()]
            data = dict(zip(names, map(bytes, request.buffers), strict=True))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"worker.generate without a proper description ({error})") from None
        engine = self._sessions.engine
        # Import this after the engine, because the module imports onnxruntime-genai.
        from qnnbridge_host.genai.models import ModelRequest
        from qnnbridge_host.genai.trial_worker import perform

        found = perform(ModelRequest({"folder": folder, "steps": steps}, data), engine)
        return {"problem": found["problem"], "words": found["words"], "compared": found["compared"]}, ()


def _require_onnx(what: str = "fix=True") -> None:
    import importlib.util

    if importlib.util.find_spec("onnx") is None:
        raise ProviderUnavailable(
            f"{what} needs the package onnx, which is missing in the host's Python: {sys.executable}.",
            fix=install_command("host", python=sys.executable),
        )


def _by_name(spec: Any, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(spec.value_names, values, strict=True))


def _asks_to_terminate(request: Request) -> bool:
    if not request.header.get("options"):
        return False
    from qnnbridge_protocol.specs import asks_to_terminate

    return asks_to_terminate(request.header)


def _session_id(request: Request) -> int:
    session_id = request.header.get("session")
    return session_id if type(session_id) is int else 0


# --- the numbered objects of a client --------------------------------------------------------------------

# Maximum number of objects of one client. A program that creates more objects does not release them.
MAX_OBJECTS: Final = 10_000


class _Held:
    __slots__ = ("kind", "lock", "value")

    def __init__(self, kind: ObjectKind, value: Any) -> None:
        self.kind = kind
        self.value = value
        self.lock = threading.Lock()


class HostObjects:
    """Objects that one client has created in the host, by number."""

    def __init__(
        self,
        sessions: Sessions,
        kinds: Mapping[str, Callable[[], ObjectKind]],
        limit: int = MAX_OBJECTS,
        work: Callable[..., Mapping[str, Any]] | None = None,
    ) -> None:
        self._sessions = sessions
        self._kinds = kinds
        self._limit = limit
        self._work = work
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lane_of(self, number: Any) -> str | None:
        held = self._held.get(number) if type(number) is int else None
        return None if held is None else held.kind.lane

    # --- operations ---

    def create(self, request: Request, enter: Enter) -> Answer:
        """Create an object. Its number is the request's id, so a client that does not wait for the response can
        release it."""
        header = request.header
        load = self._kinds.get(str(header["kind"]))
        if load is None:
            raise _unknown(f"objects of the kind {header['kind']!r}")
        call = self._call(request, enter, header.get("arguments"), header.get("values"), header.get("objects"))
        self._check_limit()
        # wait for the import of ONNX Runtime, which must precede the import of onnxruntime-genai
        _ = self._sessions.engine
        kind = _natively(load)
        make = kind.create
        if make is None:
            raise _unknown(f"creating {with_article(kind.name)}")
        made = _natively(lambda: make(call))
        return {"object": self._keep(request, kind, made), "result": kind.describe(made)}, ()

    def call(self, request: Request, enter: Enter) -> Answer:
        """Call an operation on an object."""
        from qnnbridge_protocol.values import Encoder

        header = request.header
        held = self._find(header["object"])
        operation = held.kind.operations.get(str(header["operation"]))
        if operation is None:
            raise _unknown(f"the operation {header['operation']!r} of {held.kind.name}")
        call = self._call(request, enter, header.get("arguments"), header.get("values"), header.get("objects"))
        with held.lock:
            if held.value is None:
                raise _released()
            found = _natively(lambda: operation(held.value, call)) or ObjectResult()
        if found.after is not None:
            found = _natively(found.after)
        encoder = Encoder()
        values = [encoder.add(value) for value in found.values]
        number, result = None, found.result
        if found.made is not None:
            kind, made = found.made
            self._check_limit()
            number = self._keep(request, kind, made)
            result = kind.describe(made) if result is None else result
        return {"object": number, "result": result, "values": values}, tuple(encoder.buffers)

    def release(self, request: Request, _enter: Enter) -> Answer:
        """Release objects; unknown numbers are ignored."""
        numbers = request.header["objects"]
        for number in numbers if isinstance(numbers, list) else ():
            self._free(number)
        return {}, ()

    def close_all(self) -> None:
        # Release the newest objects first, because newer objects use older objects.
        for number in sorted(self._held, reverse=True):
            self._free(number)

    # --- internal ----------------------------------------------------------------------------------------

    def _call(self, request: Request, enter: Enter, arguments: Any, values: Any, objects: Any) -> ObjectCall:
        if not isinstance(arguments or {}, Mapping) or not isinstance(objects or [], list):
            raise desync(f"{request.op} without a proper description")
        decoded: tuple[Any, ...] = ()
        if values or request.buffers:
            from qnnbridge_protocol.values import decode_all

            decoded = tuple(decode_all(values or (), request.buffers))
        others = tuple(self._find(number).value for number in objects or ())
        return ObjectCall(request, enter, self._sessions, arguments or {}, decoded, others, self._work)

    def _find(self, number: Any) -> _Held:
        held = self._held.get(number) if type(number) is int else None
        if held is None:
            raise _released()
        return held

    def _keep(self, request: Request, kind: ObjectKind, value: Any) -> int:
        self._held[request.id] = _Held(kind, value)
        if request.withdrawn:
            # Release the object now: the client's request to release it may have arrived already.
            self._free(request.id)
            raise Cancelled("The creation of the object was cancelled.")
        return request.id

    def _free(self, number: Any) -> None:
        held = self._held.pop(number, None) if type(number) is int else None
        if held is None:
            return
        with held.lock:
            value, held.value = held.value, None
            held.kind.close(value)

    def _check_limit(self) -> None:
        if len(self._held) >= self._limit:
            raise Busy(
                f"The host holds {self._limit} objects for this application, which is the maximum.",
                fix="Release objects that are no longer needed by deleting the last reference to them.",
                details={"limit": "objects", "value": self._limit},
            )


def _natively(work: Callable[[], Any]) -> Any:
    """Call `work`, and convert errors of ONNX Runtime and Python to the project's errors."""
    try:
        return work()
    except BridgeError:
        raise
    except Exception as error:
        from qnnbridge_host.engine.ort_errors import translate

        raise translate(error) from error


def _released() -> Closed:
    return Closed("The object was released.", fix="Create a new object.")


def _unknown(what: str) -> UnknownOperation:
    return UnknownOperation(f"This host does not support {what}.", fix="Upgrade qnnbridge in the host's Python.")


# --- the table of all object types -----------------------------------------------------------------------
#
# Each type is registered here with a function, which imports the type's module when the first object is created.


def _of_onnxruntime(name: str) -> Callable[[], ObjectKind]:
    def load() -> ObjectKind:
        from qnnbridge_host.engine.ort_objects import KINDS as OTHERS
        from qnnbridge_host.engine.ort_objects import MODEL_COMPILER

        return next(kind for kind in (MODEL_COMPILER, *OTHERS) if kind.name == name)

    return load


def _genai_model() -> ObjectKind:
    from qnnbridge_host.genai.object_kinds import MODEL

    return MODEL


_OF_ONNXRUNTIME: Final = (
    "AdapterFormat",
    "BuildTools",
    "ModelCompiler",
    "ModelPackage",
    "ModelPackageContext",
    "ModelPackageOptions",
    "OrtSyncStream",
    "SharedAllocator",
)
KINDS: Final[Mapping[str, Callable[[], ObjectKind]]] = {
    **{name: _of_onnxruntime(name) for name in _OF_ONNXRUNTIME},
    "GenaiModel": _genai_model,
}
