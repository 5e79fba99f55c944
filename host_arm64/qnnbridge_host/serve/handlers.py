"""The operations of the protocol. `docs/protocol.md` lists them with their fields."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.service import ModelService, deadline_of, model_and_tensors
from qnnbridge_host.create.session import SessionMaker
from qnnbridge_host.engine.sessions import Enter, Sessions
from qnnbridge_host.request.in_flight import Answer, Request
from qnnbridge_host.serve.objects import KINDS, HostObjects
from qnnbridge_protocol.errors import ProviderUnavailable, UnknownOperation, desync

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine
    from qnnbridge_host.engine.sessions import ResettableSession
    from qnnbridge_host.serve.numbers_service import NumbersService
    from qnnbridge_protocol.connection import Hello

NPU_LANE: Final = "npu"


class HostHandlers:
    """The operations for one client. Any thread.

    Args:
        load_engine: imports ONNX Runtime; is given what declares its phases.
        hello: the host's HELLO.
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
        self._objects = HostObjects(self._sessions, KINDS)
        self._numbers: NumbersService | None = None
        self._started_at = time.monotonic()
        self._operations: dict[str, Callable[[Request, Enter], Answer]] = {
            "host.info": self._host_info,
            "host.stats": self._host_stats,
            "model.identify": models.identify,
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
        }

    def start(self, declare_phase: Callable[..., None]) -> None:
        """The client is connected: import ONNX Runtime."""
        self._sessions.start(declare_phase)

    # --- dispatch ---

    def lane_of(self, request: Request) -> str | None:
        if request.op in ("session.run", "session.set_ep_dynamic_options"):
            if request.op == "session.run" and _asks_to_terminate(request):
                return None
            return NPU_LANE if self._sessions.on_npu(_session_id(request)) else None
        if request.op == "object.call":
            return self._objects.lane_of(request.header.get("object"))
        return None

    def handle(self, request: Request, enter: Enter) -> Answer:
        operation = self._operations.get(str(request.op))
        if operation is None:
            raise UnknownOperation(
                f"This host does not know the operation {request.op!r}.",
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
        """The session with this number, and the lane that its runs wait in."""
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

    # --- operations on numbers ---

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
        _require_onnx()
        header = request.header
        try:
            source, target = str(header["source"]), header.get("target")
            sizes = {str(name): int(size) for name, size in (header.get("sizes") or {}).items()}
            constants = {str(name): float(number) for name, number in (header.get("constants") or {}).items()}
            only, skip = tuple(header.get("only") or ()), tuple(header.get("skip") or ())
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"worker.fix without a proper description ({error})") from None
        _ = self._sessions.engine  # two threads that import onnxruntime at once can meet it half made
        if target is None:
            from qnnbridge_host.rewrite.fixer import what_would_change

            changes, constants = what_would_change(source, sizes)
        else:
            from qnnbridge_host.rewrite.fixer import fix_model

            result = fix_model(source, str(target), dims=sizes, constants=constants, only=only, skip=skip)
            changes = [f"{step.rewrite}: {change}" for step in result.kept for change in step.changes]
        return {"changes": changes, "constants": constants}, ()

    def _worker_wrap(self, request: Request, _enter: Enter) -> Answer:
        _require_onnx("A session of a context binary")
        from qnnbridge_host.wrap.build import WrapRequest, work

        try:
            wanted = WrapRequest.from_plain(request.header)
        except (LookupError, TypeError, ValueError) as error:
            raise desync(f"worker.wrap without a proper description ({error})") from None
        # That of Windows' catalogue has its libraries in a folder of its own.
        folder = self._sessions.engine.describe().get("library_folder")
        described, models = work(wanted, folder)
        graphs = [list(one.graphs) for one in models]
        return {"description": described.to_plain(), "models": graphs}, tuple(one.data for one in models)


def _require_onnx(what: str = "fix=True") -> None:
    import importlib.util

    if importlib.util.find_spec("onnx") is None:
        raise ProviderUnavailable(
            f"{what} needs the package onnx, which the host's Python does not have: {sys.executable}.",
            fix=f'{sys.executable} -m pip install "qnnbridge[host]"',
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
