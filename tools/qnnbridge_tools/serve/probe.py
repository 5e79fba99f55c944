"""Whether the host of the models can be used, for readiness: one question at a time, however many ask."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded
from qnnbridge_tools.serve.refusals import in_words
from qnnbridge_tools.serve.workers import Workers

ANSWER_TIMEOUT_S: Final = 2.0


class Stats(Protocol):
    @property
    def running(self) -> bool: ...


class Host(Protocol):
    """What is used of `qnnbridge.Host`."""

    def ping(self, timeout: float = ...) -> float: ...

    @property
    def stats(self) -> Stats: ...


class HostProbe:
    """A host that has died is started again by the question; one that keeps dying makes the server not ready."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._workers = Workers("probe", 1)
        self._asking: asyncio.Future[str | None] | None = None

    async def why_not_ready(self) -> str | None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._workers.do(self._ask))
        return await asyncio.shield(self._asking)

    def _ask(self) -> str | None:
        try:
            self._host.ping(ANSWER_TIMEOUT_S)
        except DeadlineExceeded:
            # A host that is busy may answer late and is none the worse for it.
            return None if self._host.stats.running else "the host is being started"
        except BridgeError as error:
            return in_words(error)
        return None
