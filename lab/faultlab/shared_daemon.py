"""Soak test of the daemon: several applications, several models, and a host that is killed repeatedly.

No call may be lost or wrong, the applications must get equal shares, the daemon's memory and descriptors must not
grow, and no resources may remain after the daemon was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

import qnnbridge
from lab.faultlab.leaks import holdings, leaked_since

SCALES = (3, 5, 7, 11)
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 1.0
# Fraction of the samples that is ignored at the start of the test, because the heaps grow during the first calls.
WARM_UP = 0.25

GROWTH_BYTES = 48 * 1024 * 1024
GROWTH_FDS = 8
UNFAIR = 2.0


@dataclasses.dataclass
class DaemonResult:
    """Outcome of the soak test.

    Args:
        clients: the report of each application.
        looks: samples of the daemon's descriptors and private bytes, about one per second.
        left: resources that remain after the daemon was stopped.
    """

    clients: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    kills: int = 0
    looks: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    left: dict[str, object] = dataclasses.field(default_factory=dict)
    status: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(client["calls"] for client in self.clients)

    @property
    def unfairness(self) -> float:
        counts = [client["calls"] for client in self.clients]
        return max(counts) / max(1, min(counts)) if counts else 0.0

    @property
    def flat(self) -> bool:
        warm = self.looks[int(len(self.looks) * WARM_UP) :]
        half = len(warm) // 2
        if not half:
            return True
        for index, more in enumerate((GROWTH_FDS, GROWTH_BYTES)):
            before, behind = (max(look[index] for look in part) for part in (warm[:half], warm[half:]))
            if behind > before * 1.1 + more:
                return False
        return True

    @property
    def good(self) -> bool:
        broken = any(client["wrong"] or client["errors"] or client["late_s"] > 1.0 for client in self.clients)
        return bool(self.clients) and not broken and self.unfairness <= UNFAIR and self.flat and not self.left

    def __str__(self) -> str:
        errors = {text: count for client in self.clients for text, count in client["errors"].items()}
        counts = ", ".join(str(client["calls"]) for client in self.clients)
        warm = self.looks[int(len(self.looks) * WARM_UP) :] or [(0, 0)]
        totals = self.status.get("totals", {})
        lines = [
            f"{self.calls} calls of {len(self.clients)} applications ({counts}), {self.kills} kills of the host",
            f"wrong results: {sum(client['wrong'] for client in self.clients)}; errors: {sum(errors.values())}",
            *(f"  {count} x {text}" for text, count in list(errors.items())[:5]),
            f"largest number of calls of an application relative to the smallest: {self.unfairness:.2f}",
            f"daemon after warming up: {warm[0][1] / 1e6:.1f} to {warm[-1][1] / 1e6:.1f} MB (peak "
            f"{max(look[1] for look in warm) / 1e6:.1f}), {warm[0][0]} to {warm[-1][0]} descriptors",
            f"sessions created {totals.get('sessions_created')}, shared {totals.get('sessions_shared')}",
            "flat" if self.flat else "GROWN",
            f"leaks: {self.left or 'none'}",
        ]
        return "\n".join(lines)


def make_models(folder: Path) -> list[Path]:
    """For each scale in `SCALES`, write a model that multiplies a vector of any length by it; return the paths."""
    from onnx import TensorProto, helper

    paths = []
    for scale in SCALES:
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "k"], ["y"])],
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
            [helper.make_tensor("k", TensorProto.FLOAT, [], [float(scale)])],
        )
        path = folder / f"times_{scale}.onnx"
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        path.write_bytes(model.SerializeToString())
        paths.append(path)
    return paths


def daemon_soak(*, clients: int, seconds: float, kill_every_s: float, seed: int, threads: int = 2) -> DaemonResult:
    """Run the soak test on a new daemon, whose runtime, state and cache folders must be set in the environment."""
    result = DaemonResult()
    before = holdings()
    with tempfile.TemporaryDirectory(prefix="daemon-soak-") as folder:
        models = make_models(Path(folder))
        with qnnbridge.connect(start=True, timeout=START_TIMEOUT_S) as host:
            told = host.call({"op": "daemon.status"}).header["status"]
            daemon = psutil.Process(told["daemon"]["pid"])
            applications = [_Client(models, seconds, seed + number, threads) for number in range(clients)]
            try:
                for application in applications:
                    application.expect_ready()
                over = threading.Event()
                watcher = threading.Thread(target=_watch, args=(daemon, result, over))
                killer = threading.Thread(target=_kill, args=(host, result, over, kill_every_s))
                watcher.start()
                killer.start()
                for application in applications:
                    application.begin()
                result.clients = [application.result(seconds) for application in applications]
                over.set()
                killer.join()
                watcher.join()
            finally:
                for application in applications:
                    application.end()
            result.status = host.call({"op": "daemon.status"}).header["status"]
            family = [daemon, *daemon.children(recursive=True)]
            host.call({"op": "daemon.stop"})
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
        if alive:
            result.left["processes"] = [process.pid for process in alive]
            for process in alive:
                process.kill()
        runtime = Path(os.environ["QNNBRIDGE_RUNTIME_DIR"])
        files = [path.name for path in runtime.iterdir() if not path.name.endswith(".lock")]
        if files:
            result.left["files"] = files
    result.left.update(leaked_since(before))
    return result


def _watch(daemon: psutil.Process, result: DaemonResult, over: threading.Event) -> None:
    while not over.wait(LOOK_INTERVAL_S):
        result.looks.append((daemon.num_fds(), daemon.memory_full_info().uss))


def _kill(host: qnnbridge.Host, result: DaemonResult, over: threading.Event, every_s: float) -> None:
    last = None
    while not over.wait(every_s):
        pid = host.call({"op": "daemon.status"}).header["status"]["host"].get("pid")
        if pid and pid != last:
            last = pid
            psutil.Process(pid).kill()
            result.kills += 1


class _Client:
    """The process of one application."""

    def __init__(self, models: list[Path], seconds: float, seed: int, threads: int) -> None:
        arguments = [str(seconds), str(seed), str(threads), *map(str, models)]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "lab.faultlab.daemon_client", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def expect_ready(self) -> None:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"an application could not create its sessions: {line!r}")

    def begin(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("go\n")
        self._child.stdin.flush()

    def result(self, seconds: float) -> dict[str, Any]:
        out, _ = self._child.communicate(timeout=seconds + END_TIMEOUT_S)
        told: dict[str, Any] = json.loads(out)
        return told

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()


__all__ = ["DaemonResult", "daemon_soak", "make_models"]
