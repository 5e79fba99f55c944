"""Run cases in worker processes, so that a crash or a hang affects only its own case. One thread per process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from qnnbridge_host.numerics.cases import Case

# Number of cases per process. After about 130 sessions QNN crashes the process, because it accumulates state.
_CASES_EACH: Final = 60
_SECONDS_EACH: Final = 60.0

Results = dict[str, Any]


class Worker:
    """A worker process, which is replaced after `_CASES_EACH` cases, a crash or a hang."""

    def __init__(self, python: str, soc: str, *, used: bool = False) -> None:
        self._command = [python, "-m", "lab.sweep.worker", soc, *(["used"] if used else [])]
        self._process: subprocess.Popen[str] | None = None
        self._left = 0
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Start the process in advance; otherwise `run` starts it."""
        self._ready()

    def run(self, case: Case, rewrite: str = "") -> Results:
        """Run a case and return its result.

        If the process crashes, the status is `died` and the result contains the exit code; if it hangs, the status
        is `hung`.

        Args:
            rewrite: name of a rewrite that is applied to the model for QNN.
        """
        process = self._ready()
        assert process.stdin is not None
        self._left -= 1
        try:
            process.stdin.write(json.dumps({**case.to_words(), "rewrite": rewrite}) + "\n")
            process.stdin.flush()
        except OSError:
            return {"status": "died", "code": self._ended()}
        line = self._line(process)
        if line is None:
            self.close()
            return {"status": "hung"}
        return json.loads(line) if line else {"status": "died", "code": self._ended()}  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _ready(self) -> subprocess.Popen[str]:
        if self._process is not None and self._left > 0:
            return self._process
        self.close()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._left = _CASES_EACH
        line = self._line(self._process)
        if not line:
            code = self._ended()
            raise RuntimeError(f"the worker does not start (exit code {code}): {' '.join(self._command)}")
        self.versions = json.loads(line)["versions"]
        return self._process

    def _line(self, process: subprocess.Popen[str]) -> str | None:
        """Read a line; return None after the time limit, and "" if the process ended."""
        assert process.stdout is not None
        limit = threading.Timer(_SECONDS_EACH, process.kill)
        begun = time.monotonic()
        limit.start()
        try:
            line = process.stdout.readline()
        finally:
            limit.cancel()
        return None if not line and time.monotonic() - begun >= _SECONDS_EACH else line

    def _ended(self) -> int:
        process = self._process
        code = process.wait() if process is not None else 0
        self.close()
        return code


def run_cases(
    cases: Iterable[Case],
    on_result: Callable[[Case, Results], None],
    *,
    soc: str = "60",
    python: str = sys.executable,
    processes: int = 1,
    deadline: float = float("inf"),
    used: bool = False,
) -> dict[str, str]:
    """Run the cases until all are done or the deadline expires; return the versions of the packages.

    Args:
        on_result: called with each case and its result, by one thread at a time.
        deadline: time of `time.monotonic`.
        used: fill QNN's memory before each run with `measuring.filling_model`.
    """
    waiting = iter(cases)
    lock = threading.Lock()
    versions: dict[str, str] = {}

    def serve() -> None:
        worker = Worker(python, soc, used=used)
        try:
            while time.monotonic() < deadline:
                with lock:
                    case = next(waiting, None)
                if case is None:
                    return
                result = worker.run(case)
                with lock:
                    versions.update(worker.versions)
                    on_result(case, result)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return versions
