"""GET /metrics: requests of this server, figures of its models, and those of the daemon, by prometheus_client.

The event loop's thread counts; an exposition is written by a worker.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qnnbridge_tools.host.metrics import Families

# In a request's scope: the path that it was served by, without the names in it.
ROUTE: Final = "qnnbridge.route"
_OPEN_METRICS: Final = "application/openmetrics-text"
# From a small model in shared memory to an answer of many tokens.
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ServeMetrics:
    """What this server has done."""

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
            "From the head of a request to the end of its answer.",
            ("route",),
            unit="seconds",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._running = Gauge(
            "qnnbridge_http_requests_running", "Requests that are being answered.", registry=self._registry
        )

    def measured(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted."""

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
                # What was refused before it came to a path has none; clients could make up any number of them.
                route = scope.get(ROUTE, "")
                method = scope["method"] if route else ""
                self._requests.labels(route, method, str(status)).inc()
                self._times.labels(route).observe(time.monotonic() - begun)

        return counted

    def exposition(self, families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
        """Text and content type; OpenMetrics, unless the client wants the older format."""
        older = "text/plain" in accept and _OPEN_METRICS not in accept
        encoder, kind = choose_encoder(accept if older else _OPEN_METRICS)
        return encoder(Families(itertools.chain(families, self._registry.collect()))), kind
