"""What a program did with its sessions: for the report of `qnnbridge exec --report`. Off unless switched on.

One record per model, kept in memory and written once, at the end of the process, as a JSON file of its own into the
folder that ``QNNBRIDGE_REPORT_DIR`` names (child processes inherit the variable; nobody writes into another's file).
Any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

REPORT_VARIABLE = "QNNBRIDGE_REPORT_DIR"


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """seconds: spent in runs, as the program waited for them."""

    model: str
    qnn_nodes: int
    cpu_nodes: int
    cause: str | None
    sessions: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0


class Journal(Protocol):
    def opened(self, session: Any, because: str | None = None) -> None: ...
    def running(self, session: Any) -> AbstractContextManager[None]: ...


class _Silent:
    """Nobody asked for a report."""

    _nothing = contextlib.nullcontext()

    def opened(self, session: Any, because: str | None = None) -> None:
        pass

    def running(self, session: Any) -> AbstractContextManager[None]:
        return self._nothing


class _Writing:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._records: dict[tuple[str, int, int], ModelRecord] = {}
        self._hosts: dict[int, Any] = {}
        self._process = os.getpid()
        atexit.register(self.write)

    def opened(self, session: Any, because: str | None = None) -> None:
        record = self._record(session)
        with self._lock:
            record.sessions += 1
            record.cause = because or record.cause
            self._hosts[id(session.host)] = session.host

    @contextlib.contextmanager
    def running(self, session: Any) -> Iterator[None]:
        begin = time.perf_counter()
        failed = True
        try:
            yield
            failed = False
        finally:
            spent = time.perf_counter() - begin
            record = self._record(session)
            with self._lock:
                record.calls += 1
                record.failed += failed
                record.seconds += spent

    def _record(self, session: Any) -> ModelRecord:
        placement = session.placement
        label = session._remote.manifest.source.label
        with self._lock:
            return self._records.setdefault(
                (label, placement.qnn_nodes, placement.cpu_nodes),
                ModelRecord(label, placement.qnn_nodes, placement.cpu_nodes, placement.cause),
            )

    def write(self) -> None:
        if os.getpid() != self._process:
            return  # a fork: its parent writes
        with self._lock:
            stats = [host.stats for host in self._hosts.values()]
            document = {
                "pid": os.getpid(),
                "models": [dataclasses.asdict(record) for record in self._records.values()],
                "crashes": sum(one.crashes for one in stats),
                "retried_calls": sum(one.retried_calls for one in stats),
            }
        if not document["models"]:
            return
        with contextlib.suppress(OSError):  # the folder is gone with the parent
            path = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)


_made: Journal | None = None
_lock = threading.Lock()


def journal() -> Journal:
    """The journal of this process."""
    global _made
    if _made is None:
        with _lock:
            if _made is None:
                folder = os.environ.get(REPORT_VARIABLE)
                _made = _Writing(folder) if folder else _Silent()
    return _made
