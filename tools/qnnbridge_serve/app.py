"""ASGI application: paths, endpoints of the Open Inference Protocol, readiness and /metrics.

The event loop counts requests; a worker thread writes the text of /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded
from qnnbridge_serve import transport
from qnnbridge_serve.errors import Refused, error_text, load_refused, wrong
from qnnbridge_serve.http_protocol import (
    ROUTE,
    AnsweredEndpoint,
    Endpoint,
    Guard,
    PartedResponse,
    error_answer,
    json_answer,
)
from qnnbridge_serve.infer import InferReply, InferRequest, has_many_texts, header_length, infer, read_request
from qnnbridge_serve.json_reading import Take, read_document
from qnnbridge_serve.openai_endpoints import EmbeddingService, LanguageService
from qnnbridge_serve.openai_speech import SpeechService
from qnnbridge_serve.openapi import OPENAPI_PATH, openapi_document
from qnnbridge_serve.options import ServiceLimits
from qnnbridge_serve.page import PAGE_FILES, PageFiles
from qnnbridge_serve.repository import Repository
from qnnbridge_serve.status import daemon_document
from qnnbridge_serve.transport import Admission, Ticket, Workers, check_answer_time, receive_body, time_left_s
from qnnbridge_serve.triton import ModelStatistics, configuration
from qnnbridge_tools.host.figures import read_figures
from qnnbridge_tools.host.metrics import Families, families_of

if TYPE_CHECKING:
    from qnnbridge import Host

# --- /metrics, by prometheus_client ---

_OPEN_METRICS: Final = "application/openmetrics-text"
# Bounds of the latency buckets in seconds. A small model takes a millisecond, an answer of many tokens takes
# minutes.
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ServeMetrics:
    """Metrics of the server's HTTP requests."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "qnnbridge_http_requests",
            "Requests that were answered, by path, method and status.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._times = Histogram(
            "qnnbridge_http_request_duration_seconds",
            "Time from the head of a request to the end of its answer.",
            ("route",),
            unit="seconds",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._running = Gauge(
            "qnnbridge_http_requests_running", "Requests that are being answered.", registry=self._registry
        )

    def measured(self, app: ASGIApp) -> ASGIApp:
        """Return the application, extended to count its requests."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            begun, status = time.monotonic(), 0

            async def noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            self._running.inc()
            try:
                await app(scope, receive, noted)
            finally:
                self._running.dec()
                # A request that was refused before routing has no route. Do not use its path instead: clients could
                # send any number of paths, and each would create new time series.
                route = scope.get(ROUTE, "")
                method = scope["method"] if route else ""
                self._requests.labels(route, method, str(status)).inc()
                self._times.labels(route).observe(time.monotonic() - begun)

        return counted

    def exposition(self, families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
        """Return text and content type, in OpenMetrics unless the client requests the older format."""
        older = "text/plain" in accept and _OPEN_METRICS not in accept
        encoder, kind = choose_encoder(accept if older else _OPEN_METRICS)
        return encoder(Families(itertools.chain(families, self._registry.collect()))), kind


# --- readiness ---

ANSWER_TIMEOUT_S: Final = 2.0


class HostProbe:
    """Readiness check of the host. The check restarts a dead host; a host that keeps dying is not ready."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._workers = Workers("probe", 1)
        self._asking: asyncio.Future[str | None] | None = None

    async def why_not_ready(self) -> str | None:
        if self._asking is None or self._asking.done():
            # Concurrent checks, such as those of ten load balancers, share one ping.
            self._asking = asyncio.ensure_future(self._workers.do(self._ask))
        # `shield` keeps a client that disconnects from cancelling the ping for the other clients.
        return await asyncio.shield(self._asking)

    def facts(self) -> dict[str, Any]:
        """Return the counters of this server's private host for `/status`, without starting the host."""
        stats = self._host.stats
        return {
            "running": stats.running,
            "starts": stats.generation,
            "crashes": stats.crashes,
            "planned_restarts": stats.planned_restarts,
            "last_crash": (stats.last_crash or "").partition("\n")[0],
        }

    def _ask(self) -> str | None:
        try:
            self._host.ping(ANSWER_TIMEOUT_S)
        except DeadlineExceeded:
            # A running host that is only slow to answer counts as ready.
            return None if self._host.stats.running else "the host is being started"
        except BridgeError as error:
            return error_text(error)
        return None


# --- the Open Inference Protocol ---

HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")
READERS = 2
# Number of threads that load models. Loading may compile for minutes and must not use the threads of requests.
LOADERS = 2
# Bodies up to this size are parsed in the event loop, which takes at most a millisecond; larger bodies wait for a
# thread.
QUICK_BYTES = 64 * 1024
# Kind of the models of the Open Inference Protocol in `/status`.
TENSOR_MODEL = "tensor model"
# Maximum body of a request to load or unload a model.
CONTROL_BYTES = 1024**2


class InferenceService:
    """Endpoints of the server.

    Args:
        repository: models of the Open Inference Protocol.
        probe: readiness check of the host.
        limits: limits of the service.
        control: whether clients may load and unload models.
        language: endpoints for text generation.
        embeddings: endpoint for embeddings.
        speech: endpoints for speech.
        figures: returns the status document of the daemon; ``None`` for a private host.
    """

    def __init__(
        self,
        repository: Repository,
        probe: HostProbe,
        limits: ServiceLimits,
        *,
        control: bool,
        language: LanguageService,
        embeddings: EmbeddingService,
        speech: SpeechService,
        figures: Callable[[], Mapping[str, Any]] | None,
    ) -> None:
        self._repository = repository
        self._probe = probe
        self._limits = limits
        self._control = control
        self._begun = time.monotonic()
        self.language = language
        self.embeddings = embeddings
        self.speech = speech
        self._by_folder = (language.models, embeddings.models, speech.models)
        self._figures = figures
        self.figures = ServeMetrics()
        # Statistics by name of the model. Requests for unknown models are refused before they are counted.
        self._statistics: dict[str, ModelStatistics] = {}
        # Limit the number of requests, and their memory to the larger of 1 GiB and four requests of maximum size.
        self._admission = Admission(limits.in_all, max(4 * limits.most_bytes, 1024**3))
        # Few threads are enough, because parsing JSON holds the GIL.
        self._readers = Workers("reader", READERS)
        self._runs = Workers("run", limits.threads)
        # Requests with many strings have a separate thread, because they could occupy all threads for many seconds.
        self._texts = Workers("texts", 1)
        self._loaders = Workers("loader", LOADERS)
        self._meters = Workers("metrics", 1)

    # --- health and metadata ---

    async def live(self, request: Request) -> Response:
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        by_folder, repository = self._by_folder, self._repository
        reason = next(filter(None, (models.why_not_ready() for models in by_folder)), None)
        # A server for which only language, embedding or speech models are requested is ready without tensor models.
        if reason is None and (repository.names or not any(models.wanted for models in by_folder)):
            reason = repository.why_not_ready()
        reason = reason or await self._probe.why_not_ready()
        # The Open Inference Protocol requires a 4xx status for "not ready".
        return Response(status_code=200) if reason is None else error_answer(wrong(f"Not ready: {reason}"))

    async def model_ready(self, request: Request) -> Response:
        try:
            self._repository.check(*_model_of(request))
        except Refused as refused:
            # The protocol requires a 4xx status, also for a model that is not ready.
            raise wrong(refused.text) if refused.status == 503 else refused from None
        return Response(status_code=200)

    async def server_metadata(self, request: Request) -> Response:
        return json_answer({"name": "qnnbridge", "version": __version__, "extensions": list(EXTENSIONS)})

    async def model_metadata(self, request: Request) -> Response:
        return json_answer(self._repository.describe(*_model_of(request)))

    async def model_config(self, request: Request) -> Response:
        with self._repository.lease(*_model_of(request)) as model:
            return json_answer(configuration(model))

    async def model_statistics(self, request: Request) -> Response:
        name = request.path_params.get("name")
        if name is None:
            found = [one["name"] for one in self._repository.index(ready_only=True)]
        else:
            self._repository.check(*_model_of(request))
            found = [name]
        return json_answer({"model_stats": [self._statistics_of(one) for one in found]})

    def _statistics_of(self, name: str) -> dict[str, Any]:
        version = self._repository.version_of(name)
        return self._statistics.setdefault(name, ModelStatistics()).document(name, version)

    async def status(self, request: Request) -> Response:
        # Read the statistics here and not in the worker, because only the event loop may read them.
        rows = {name: one.row() for name, one in self._statistics.items()}
        return json_answer(await self._meters.do(functools.partial(self._status, rows)))

    def _status(self, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        unused = ModelStatistics().row()
        models = [
            {"kind": TENSOR_MODEL, "version": self._repository.version_of(one["name"])}
            | one
            | rows.get(one["name"], unused)
            for one in self._repository.states()
        ]
        for registry in self._by_folder:
            models += [
                {"kind": registry.kind} | one | registry.figures[one["name"]].row() for one in registry.states()
            ]
        return {
            "qnnbridge": __version__,
            "running_s": round(time.monotonic() - self._begun, 1),
            "server_bytes": psutil.Process().memory_info().rss,
            "model_control": self._control,
            "models": models,
            "generators": self.language.pool_row() if self.language.models.wanted else None,
            **self._host_status(),
        }

    def _host_status(self) -> dict[str, Any]:
        if self._figures is None:
            return {"daemon": None, "host": self._probe.facts()}
        try:
            return {"daemon": daemon_document(read_figures(self._figures())), "host": None}
        # Answer even while the daemon is being replaced: the rest of `/status` is still useful.
        except BridgeError as error:
            return {"daemon": {"facts": [["no answer", error_text(error)]], "tables": []}, "host": None}

    async def metrics(self, request: Request) -> Response:
        text, kind = await self._meters.do(functools.partial(self._exposition, request.headers.get("accept", "")))
        return Response(text, 200, {"content-type": kind})

    def _exposition(self, accept: str) -> tuple[bytes, str]:
        of_daemon = () if self._figures is None else families_of(read_figures(self._figures()))
        registries = (self._repository, *self._by_folder)
        families = (
            *of_daemon,
            *(family for registry in registries for family in registry.families()),
            *self.language.families(),
        )
        return self.figures.exposition(families, accept)

    async def list_models(self, request: Request) -> Response:
        found = [models.described(name) for models in self._by_folder for name in models.names]
        return json_answer({"object": "list", "data": found})

    async def show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        # For an unknown name, the registry of language models raises the error.
        registry = next((one for one in self._by_folder if name in one.names), self.language.models)
        registry.get(name)
        return json_answer(registry.described(name))

    # --- inference ---

    async def infer(self, request: Request) -> Response:
        name, version = _model_of(request)
        # Check the name before the body is received, so that requests for unknown models need no memory.
        self._repository.check(name, version)
        statistics, begun = self._statistics.setdefault(name, ModelStatistics()), time.monotonic()
        try:
            return await self._infer(request, name, version, statistics)
        except Exception:
            statistics.failed(begun)
            raise

    async def _infer(
        self, request: Request, name: str, version: str | None, statistics: ModelStatistics
    ) -> Response:
        encoding = transport.check_encoding(request.headers.get("content-encoding"))
        packed = transport.wanted_encoding(request.headers.get("accept-encoding"))
        with contextlib.ExitStack() as place:
            ticket = place.enter_context(self._admission.enter())
            parts = await receive_body(request, ticket, self._limits.most_bytes)
            ticket.take_place()
            # The timeout begins with the last byte, so that slow sending does not count.
            arrived = time.monotonic()
            limit = None if self._limits.timeout_s is None else arrived + self._limits.timeout_s
            take = functools.partial(self._take, ticket, limit)
            read = functools.partial(self._read, parts, encoding, request.headers.get(HEADER_LENGTH), take)
            # Parse a small body in the event loop, because passing it to a thread would take longer.
            if encoding is None and sum(map(len, parts)) <= QUICK_BYTES:
                asked = read()
            else:
                asked = await self._readers.do_for(read, limit, request.receive)
            times_s = [limit for limit in (self._limits.timeout_s, asked.timeout_s) if limit is not None]
            # The client's timeout is part of the request, so the deadline is known only now.
            deadline = arrived + min(times_s) if times_s else None
            take = functools.partial(self._take, ticket, deadline)
            started: list[float] = []  # the worker adds the time at which the run starts
            run = functools.partial(self._run, name, version, asked, deadline, packed, take, started)
            lane = self._texts if has_many_texts(asked.inputs) else self._runs
            reply = await lane.do_for(run, deadline, request.receive)
            statistics.succeeded(arrived, started[0] - arrived, reply)
            headers = {"content-encoding": packed} if packed else {}
            if reply.json_size is not None:
                headers[HEADER_LENGTH] = str(reply.json_size)
            kind = "application/json" if reply.json_size is None else "application/octet-stream"
            # The ticket is released when the answer has been sent, not at the end of this function.
            return PartedResponse(reply.body, headers, kind, ticket, place.pop_all())

    def _take(self, ticket: Ticket, deadline: float | None, size: int) -> None:
        """Reserve bytes for decoding a body. Raise `Refused`, `Busy` or `DeadlineExceeded`."""
        time_left_s(deadline)
        ticket.unpack(size, self._limits.most_bytes)

    def _read(self, parts: list[bytes], encoding: str | None, json_size: str | None, take: Take) -> InferRequest:
        # A single part is not copied; several parts are freed as soon as they are joined.
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if encoding is not None:
            body = transport.unpack(memoryview(body), take)
        return read_request(memoryview(body), header_length(json_size, len(body)))

    def _run(
        self,
        name: str,
        version: str | None,
        asked: InferRequest,
        deadline: float | None,
        packed: str | None,
        take: Take,
        started: list[float],
    ) -> InferReply:
        started.append(time.monotonic())
        # Check the memory again: while this request waited, answers that clients do not read may have filled it.
        take(0)
        # Acquire the lease in the worker, so that the model cannot be closed while it runs.
        with self._repository.lease(name, version) as model:
            reply = infer(model, asked, deadline, take)
        if not packed:
            return reply
        check = functools.partial(check_answer_time, deadline)
        return dataclasses.replace(reply, body=transport.pack(reply.body, packed, check))

    # --- repository ---

    async def index(self, request: Request) -> Response:
        wanted = await self._control_body(request)
        return json_answer(self._repository.index(ready_only=wanted.get("ready") is True))

    async def load(self, request: Request) -> Response:
        wanted = await self._control_body(request)
        parameters = wanted.get("parameters")
        # Refuse the field `parameters`, in which Triton's clients send a configuration and files of a model.
        if parameters:
            raise wrong("The server loads models only from the files that it was started with; omit parameters.")
        try:
            return await self._change(self._repository.load, request)
        except BridgeError as error:
            raise load_refused(request.path_params["name"], error) from None

    async def unload(self, request: Request) -> Response:
        await self._control_body(request)
        return await self._change(self._repository.unload, request)

    async def _change(self, change: Callable[[str], object], request: Request) -> Response:
        if not self._control:
            raise Refused(403, "Loading and unloading by clients is switched off (--no-model-control).")
        await self._loaders.do(functools.partial(change, request.path_params["name"]))
        return json_answer({})

    async def _control_body(self, request: Request) -> dict[str, object]:
        with self._admission.enter() as ticket:
            body = b"".join(await receive_body(request, ticket, CONTROL_BYTES))
        document = read_document(body) if body.strip() else {}
        if not isinstance(document, dict):
            raise wrong("The request is not a JSON object.")
        return document


# --- all paths ---


def api_paths(service: InferenceService) -> list[tuple[str, Endpoint, str]]:
    """Return path, endpoint and method of each route, without the web page and the OpenAPI document."""
    get, post = "GET", "POST"
    paths: list[tuple[str, Endpoint, str]] = [
        ("/v2/health/live", service.live, get),
        ("/v2/health/ready", service.ready, get),
        ("/v2", service.server_metadata, get),
        ("/metrics", service.metrics, get),
        ("/status", service.status, get),
        ("/v1/models", service.list_models, get),
        # The type `path` allows slashes, which names of these models may contain.
        ("/v1/models/{name:path}", service.show_model, get),
        ("/v1/chat/completions", service.language.chat, post),
        ("/v1/completions", service.language.text, post),
        ("/v1/responses", service.language.respond, post),
        ("/v1/embeddings", service.embeddings.embed, post),
        ("/v1/audio/transcriptions", service.speech.transcribe, post),
        ("/v1/audio/translations", service.speech.translate, post),
        ("/v2/repository/index", service.index, post),
        ("/v2/repository/models/{name}/load", service.load, post),
        ("/v2/repository/models/{name}/unload", service.unload, post),
    ]
    paths.append(("/v2/models/stats", service.model_statistics, get))
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        paths += [
            (model, service.model_metadata, get),
            (f"{model}/config", service.model_config, get),
            (f"{model}/stats", service.model_statistics, get),
            (f"{model}/ready", service.model_ready, get),
            (f"{model}/infer", service.infer, post),
        ]
    return paths


def make_app(
    service: InferenceService, token: bytes | None, origins: Sequence[str] = (), *, page: bool = True
) -> ASGIApp:
    """Return the application for an ASGI server.

    Args:
        service: the endpoints.
        token: token that clients must send; ``None`` for none.
        origins: origins of pages of other servers whose scripts may use the server.
        page: whether `GET /` returns the page.
    """
    paths = api_paths(service)
    # Create the document at the start: a path without a description then fails in every test that starts a server.
    document = openapi_document([*((path, method) for path, _, method in paths), (OPENAPI_PATH, "GET")])

    async def openapi(request: Request) -> Response:
        return json_answer(document)

    paths.append((OPENAPI_PATH, openapi, "GET"))
    if page:
        files = PageFiles()
        paths += [(path, files.show, "GET") for path in PAGE_FILES]
    routes = [Route(path, AnsweredEndpoint(path, endpoint), methods=[method]) for path, endpoint, method in paths]
    # Do not redirect a path with a trailing slash, because not every client follows redirects.
    router = Router(routes, redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # with this entry, the router raises its errors instead of answering
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            await _no_such_path(Request(scope).url.path, error)(scope, receive, send)

    guard = service.figures.measured(Guard(app, token, origins, PAGE_FILES if page else ()))
    if not origins:
        return guard
    # CORSMiddleware answers preflight requests, and lets scripts of the allowed origins read answers. It must be
    # the outermost middleware, because preflight requests have no token, which `Guard` would require.
    return CORSMiddleware(
        guard, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"], expose_headers=["*"]
    )


def _no_such_path(path: str, error: HTTPException) -> Response:
    text = "There is nothing at" if error.status_code == 404 else "This method is not allowed at"
    return error_answer(Refused(error.status_code, f"{text} {path[:200]}.", error.headers), path)


def _model_of(request: Request) -> tuple[str, str | None]:
    return request.path_params["name"], request.path_params.get("version")
