"""What a program did with its sessions: for the report of `qnnbridge exec --report`. Off unless switched on.

One record per model. They stand in a JSON file of this process in the folder that ``QNNBRIDGE_REPORT_DIR`` names
(child processes inherit the variable; no process writes into another's file). The file is written anew with each
change, since a worker process may be ended by a signal at any time. Any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from qnnbridge_os.native import Lock, local

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


class Journal:
    """Of a process for which no report was asked: writes nothing."""

    _nothing = contextlib.nullcontext()

    def opened(self, session: Any, because: str | None = None) -> None:
        pass

    def running(self, session: Any) -> AbstractContextManager[None]:
        """Around one run. What a run does within itself, in the same thread, is part of it."""
        return self._nothing


class _Thread(local):
    """runs: whether this thread is within a run."""

    runs = False


class _Writing(Journal):
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = Lock()
        self._thread = _Thread()
        self._records: dict[tuple[str, int, int], ModelRecord] = {}
        # The host itself is kept, so that no other one gets its id while the process lives.
        self._hosts: dict[int, Any] = {}
        self._process = 0
        self._file: BinaryIO | None = None
        self._bytes = 0

    def opened(self, session: Any, because: str | None = None) -> None:
        with self._changing(session) as record:
            record.sessions += 1
            record.cause = because or record.cause
            self._hosts[id(session.host)] = session.host

    @contextlib.contextmanager
    def running(self, session: Any) -> Iterator[None]:
        # By thread: runs of one session in two threads are two calls of the program.
        if self._thread.runs:  # `run` of a session calls `run_values` of the same: one call of the program
            yield
            return
        self._thread.runs = True
        begin = time.perf_counter()
        # Set first, so that KeyboardInterrupt and SystemExit count as well.
        failed = True
        try:
            yield
            failed = False
        finally:
            self._thread.runs = False
            spent = time.perf_counter() - begin
            with self._changing(session) as record:
                record.calls += 1
                record.failed += failed
                record.seconds += spent

    @contextlib.contextmanager
    def _changing(self, session: Any) -> Iterator[ModelRecord]:
        placement = session.placement
        label = session._remote.recipe.label
        with self._lock:
            if self._process != os.getpid():  # the first record, or a fork, which has a file of its own
                self._begin()
            yield self._records.setdefault(
                (label, placement.qnn_nodes, placement.cpu_nodes),
                ModelRecord(label, placement.qnn_nodes, placement.cpu_nodes, placement.cause),
            )
            with contextlib.suppress(OSError):  # the folder is gone with the parent, or the disk is full
                self._write()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._records, self._hosts, self._file, self._bytes = {}, {}, None, 0
        with contextlib.suppress(OSError):
            # Systems give the id of an ended process to a later one, whose file must not replace the first.
            path = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}.json")
            # Unbuffered: what was written is with the system, and stays when the process is killed.
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - for the life of the process

    def _write(self) -> None:
        if self._file is None:
            return
        stats = [host.stats for host in self._hosts.values()]
        document = {
            "models": [dataclasses.asdict(record) for record in self._records.values()],
            "crashes": sum(one.crashes for one in stats),
            "retried_calls": sum(one.retried_calls for one in stats),
        }
        data = json.dumps(document).encode()
        # One write, and never shorter than the last one: a reader sees all of it or none.
        self._bytes = max(self._bytes, len(data))
        self._file.seek(0)
        # JSON ignores the blanks behind the document, which cover the end of a longer one.
        self._file.write(data.ljust(self._bytes))


_made: Journal | None = None
_lock = Lock()


def journal() -> Journal:
    """The journal of this process."""
    global _made
    # Without the lock first: every run of every session asks.
    if _made is None:
        with _lock:
            if _made is None:
                folder = os.environ.get(REPORT_VARIABLE)
                _made = _Writing(folder) if folder else Journal()
    return _made
