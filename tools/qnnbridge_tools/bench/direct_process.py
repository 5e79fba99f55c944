"""The other side of `direct`: a process with the host's interpreter that runs sessions without a bridge."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.bench.measuring import Batch

END_TIMEOUT_S = 10.0


class DirectProcess:
    """Started at once. One thread uses it."""

    def __init__(self, python: str) -> None:
        from qnnbridge._launch.interpreter import INTERPRETER_FLAGS, host_environment

        self._child = subprocess.Popen(
            [python, *INTERPRETER_FLAGS, "-m", "qnnbridge_host.direct"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=host_environment(),
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def open(self, spec: dict[str, Any], feed: Path) -> tuple[int, int]:
        """The number of the session, and the check sum of its outputs for this feed."""
        answer = self._opened({"open": spec, "feed": str(feed)})
        return int(answer["session"]), int(answer["crc"])

    def open_only(self, spec: dict[str, Any]) -> None:
        """Make the session, and run nothing."""
        self._opened({"open": spec})

    def _opened(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(question)
        if "error" in answer:
            raise BridgeError(f"The model cannot be run without the bridge either: {answer['error']}")
        return answer

    def batch(self, session: int) -> Batch:
        def batch(count: int) -> Sequence[int]:
            times: list[int] = self._ask({"calls": count, "session": session})["times"]
            return times

        return batch

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise BridgeError(f"The process without a bridge died (exit code {self._child.wait(END_TIMEOUT_S)}).")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> DirectProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(END_TIMEOUT_S)
        self._child.stdout.close()
