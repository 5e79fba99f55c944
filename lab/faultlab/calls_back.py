"""``python -m lab.faultlab.calls_back``: test callbacks (functions of the application that the host calls).

Half of the ``--calls`` occur in compilations and half in runs, with ``--faults`` of each kind in between: the
function raises an exception, exceeds its timeout, calls the host (which is waiting for the function), or returns a
wrong value; the host or the application is killed while the function runs. Every call must end in time with the
expected error, the next call must work, and nothing may leak. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

import qnnbridge.ort as ort
from lab.faultlab.leaks import holdings, leaked_since
from lab.faultlab.orphans import kill_when_ready
from qnnbridge._host import default_host
from qnnbridge.errors import CallBackFailed, HostCrashed

TIMEOUT = "QNNBRIDGE_CALLBACK_TIMEOUT"
# Duration from which a call counts as hanging. Most calls take a few seconds, including the start of a host.
STUCK_S = 90.0
NOISE = {"x": np.zeros(8, np.float32), "shape": np.array([2, 4], np.int64)}
CPU = ["CPUExecutionProvider"]


class ApplicationError(Exception):
    """The error that the application's function raises."""


def chain(path: Path, count: int) -> str:
    """Write a model with `count` initializers and return its path."""
    weights = [numpy_helper.from_array(np.full(4, i, np.float32), f"w{i}") for i in range(count)]
    names = ["x", *[f"y{i}" for i in range(count - 1)], "y"]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    return _saved(helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights), path)


def noisy(path: Path, outputs: int) -> str:
    """Write a model with wrong output shapes, so that each run logs a warning for each output; return its path."""
    names = [f"y{i}" for i in range(outputs)]
    nodes = [helper.make_node("Reshape", ["x", "shape"], [name]) for name in names]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [8]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    wrong = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 1]) for name in names]
    return _saved(helper.make_graph(nodes, "noisy", inputs, wrong), path)


def _saved(graph: Any, path: Path) -> str:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    onnx.save(made, path)
    return str(path)


def compile_with(model: str, location: Callable[..., Any]) -> bytes:
    compiler = ort.ModelCompiler(ort.SessionOptions(), model, get_initializer_location_func=location)
    return compiler.compile_to_bytes()


def other_hosts() -> list[psutil.Process]:
    """Return the host processes of this process that are not the default host. Compilations start them."""
    running = default_host().supervisor.running
    mine = running.real_pid if running is not None else None
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process.pid != mine and _is_host(process)]


def _is_host(process: psutil.Process) -> bool:
    try:
        return any("qnnbridge_host" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


class CallbackTest:
    """State of the test.

    Attributes:
        calls: calls of the application's functions so far.
        faults: injected faults so far.
        broken: descriptions of failed checks.
    """

    def __init__(self, folder: Path, calls: int, faults: int) -> None:
        self.calls = 0
        self.faults = 0
        self.broken: list[str] = []
        self.longest_s = 0.0
        self._wanted = calls
        self._times = faults
        self._count = max(4, min(2500, calls // 4))
        self._outputs = max(2, min(100, calls // 20))
        self._chain = chain(folder / "chain.onnx", self._count)
        self._few = chain(folder / "few.onnx", 4)
        self._noisy = noisy(folder / "noisy.onnx", self._outputs)

    def run(self) -> None:
        self._in_compiles()
        self._in_runs()

    # --- compiles ---

    def _in_compiles(self) -> None:
        half = self._wanted // 2
        while self.calls < half:
            before = self.calls
            with self._watched("a compile"):
                data = compile_with(self._chain, self._counted)
            self._check(self.calls - before == self._count, f"{self.calls - before} calls for {self._count}")
            self._check(
                len(onnx.load_from_string(data).graph.initializer) == self._count, "initializers are missing"
            )
            for _ in range(self._share(half)):
                self._faults_of_a_compile()

    def _faults_of_a_compile(self) -> None:
        error = ApplicationError("no room")
        at = [2]

        def when_due(act: Callable[[], Any]) -> Callable[..., Any]:
            def location(*_: Any) -> Any:
                self.calls += 1
                at[0] -= 1
                return act() if at[0] == 0 else None

            at[0] = 2
            return location

        def raises() -> None:
            raise error

        self._expect("raises", lambda: compile_with(self._few, when_due(raises)), lambda e: e is error)
        self._expect(
            "nonsense",
            lambda: compile_with(self._few, when_due(lambda: "nonsense")),
            lambda e: "Unable to cast Python instance" in str(e),
        )
        with _timeout("0.3"):
            self._expect(
                "hangs",
                lambda: compile_with(self._few, when_due(lambda: time.sleep(2))),
                lambda e: isinstance(e, CallBackFailed) and e.details["reason"] == "late",
            )
        self._expect(
            "host killed",
            lambda: compile_with(self._few, when_due(lambda: _kill_all(other_hosts()))),
            lambda e: isinstance(e, HostCrashed),
        )
        with self._watched("the next compile"):
            compile_with(self._few, self._counted)

    # --- runs ---

    def _in_runs(self) -> None:
        session = ort.InferenceSession(self._noisy, providers=CPU)
        expected = session.run(None, NOISE)
        lines: list[str] = []

        def take(*line: Any) -> None:
            self.calls += 1
            lines.append(str(line[4]))

        start, half = self.calls, self._wanted - self._wanted // 2
        while self.calls - start < half:
            ort.set_default_logger_callback(take, 2)
            for _ in range(5):
                del lines[:]
                with self._watched("a run"):
                    found = session.run(None, NOISE)
                told = sum("Expected shape" in line for line in lines)
                self._check(told == self._outputs, f"{told} lines for {self._outputs} outputs")
                self._check(all(map(np.array_equal, found, expected)), "a run returned wrong results")
            for _ in range(self._share(half)):
                self._faults_of_a_run(session, expected)
        ort.set_default_logger_callback(None)
        session.close()

    def _faults_of_a_run(self, session: Any, expected: Any) -> None:
        def kill() -> None:
            process = default_host().supervisor.running
            if process is not None:
                process.kill("the test kills it")

        def raises() -> None:
            raise ApplicationError("no log")

        for what, act in (
            ("raises", raises),
            ("reenters", lambda: session.run(None, NOISE)),
            ("host killed", kill),
        ):
            once = [act]

            def take(*_: Any, once: list[Any] = once) -> None:
                self.calls += 1
                if once:
                    once.pop()()

            self.faults += 1
            unraisable, sys.unraisablehook = sys.unraisablehook, lambda _args: None
            try:
                ort.set_default_logger_callback(take, 2)
                with self._watched(f"a run ({what})"):
                    found = session.run(None, NOISE)
                self._check(all(map(np.array_equal, found, expected)), f"a run returned wrong results ({what})")
            finally:
                sys.unraisablehook = unraisable

    # --- helpers ---

    def _counted(self, *_: Any) -> None:
        self.calls += 1

    def _share(self, half: int) -> int:
        """Return how many faults of each kind to inject after a round of calls, so that each kind occurs
        ``--faults`` times in total."""
        per_round = self._count if self.calls <= self._wanted // 2 + self._count else 5 * self._outputs
        return max(1, round(self._times * per_round / max(1, half)))

    def _expect(self, what: str, act: Callable[[], Any], right: Callable[[BaseException], bool]) -> None:
        self.faults += 1
        with self._watched(what):
            try:
                act()
            except Exception as error:
                self._check(right(error), f"{what}: {type(error).__name__}: {str(error)[:200]}")
            else:
                self.broken.append(f"{what}: no error")

    @contextlib.contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
        self.longest_s = max(self.longest_s, took)
        self._check(took < STUCK_S, f"{what} took {took:.0f} s")

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)


@contextlib.contextmanager
def _timeout(text: str) -> Iterator[None]:
    before = os.environ.get(TIMEOUT)
    os.environ[TIMEOUT] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[TIMEOUT]
        else:
            os.environ[TIMEOUT] = before


def application(where: str, folder: Path) -> None:
    """Run an application whose function prints the pids of its hosts and then waits until the test kills it."""

    def wait(*_: Any) -> None:
        print(*(p.pid for p in psutil.Process().children(recursive=True) if _is_host(p)), flush=True)
        time.sleep(STUCK_S)

    if where == "compile":
        compile_with(chain(folder / "m.onnx", 2), wait)
    else:
        session = ort.InferenceSession(noisy(folder / "m.onnx", 2), providers=CPU)
        ort.set_default_logger_callback(wait, 2)
        session.run(None, NOISE)


def run_test(calls: int, faults: int, kills: int) -> CallbackTest:
    """Run the test; the attribute `broken` of the result lists failed checks."""
    before = holdings()
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder:
        made = CallbackTest(Path(folder), calls, faults)
        made.run()
        default_host().close()
        for where in ("compile", "run"):
            command = [
                sys.executable,
                "-m",
                "lab.faultlab.calls_back",
                "--application",
                where,
                "--folder",
                folder,
            ]
            for _ in range(kills):
                made.faults += 1
                if kill_when_ready(where, command) is None:
                    made.broken.append(f"a host outlived its application, which was killed during a {where}")
    left = leaked_since(before)
    if left:
        made.broken.append(f"leaks: {left}")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.faultlab.calls_back", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="total number of callbacks")
    parser.add_argument(
        "--faults", type=int, default=10, help="number of faults of each kind, in compilations and in runs"
    )
    parser.add_argument("--kills", type=int, default=5, help="number of applications to kill in each state")
    parser.add_argument("--application", choices=("compile", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.application:
        application(options.application, options.folder)
        return 0
    begin = time.monotonic()
    made = run_test(options.calls, options.faults, options.kills)
    print(
        f"{made.calls} callbacks, {made.faults} faults, {time.monotonic() - begin:.0f} s; the longest call took "
        f"{made.longest_s:.1f} s; {'no check failed' if not made.broken else 'FAILED:'}"
    )
    print("\n".join(made.broken))
    return 1 if made.broken else 0


if __name__ == "__main__":
    sys.exit(main())
