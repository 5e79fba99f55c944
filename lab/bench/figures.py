"""Measure the figures from which `targets` computes its values. Each method of `Bench` measures one group."""

from __future__ import annotations

import gc
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scripts.makers import bench_models
from tests.fakes.hosts import fake_host, script

import qnnbridge
from lab.bench import conversations, serving
from lab.bench.peers import open_floors, open_peers
from qnnbridge_tools import demo
from qnnbridge_tools.bench import work
from qnnbridge_tools.bench.measuring import (
    CPU,
    DIRECT,
    PLAIN,
    Contender,
    Rig,
    Subject,
    Timing,
    open_session,
    pinned,
    race,
    timed,
)

# The model of the demo: all of its nodes run on QNN.
QNN_MODEL = next((Path(demo.__file__).parent / "assets").glob("*.onnx"))
PEERS_AT = "600 KB"
# Minimum duration in seconds of a run of the targets' convolution network without the bridge.
CONVNET_S = 250e-6
CONVNET_WIDTHS = range(8, 129, 4)
STEADY_CALLS = 2000


class Bench:
    """One run of the benchmark.

    Attributes:
        figures: medians, in seconds unless the name contains another unit.
        timings: the timing of every contender.
    """

    def __init__(self, *, rounds: int, turn_s: float, pin: bool = True, mlserver: str | None = None) -> None:
        self.figures: dict[str, float] = {}
        self.timings: dict[str, Timing] = {}
        self._rounds = rounds
        self._turn_s = turn_s
        self._pin = pin
        self._mlserver = mlserver
        self.serving: list[list[str]] = []
        self.groups: dict[str, Callable[[], None]] = {
            "calls": self.calls,
            "threads": self.threads,
            "steady": self.steady,
            "starts": self.starts,
            "qnn": self.qnn,
            "genai": self.genai,
            "serve": self.serve,
        }

    # --- calls ---

    def calls(self) -> None:
        """Measure the bridge, lower bounds and other libraries. The contenders for one size take turns."""
        with Rig(sys.executable) as rig, tempfile.TemporaryDirectory(prefix="bench-") as folder:
            self._ping(rig, Path(folder))
            for size in work.SIZES:
                self._size(rig, size, Path(folder))
            subject, contenders, close = _convolving(rig, Path(folder))
            with open_floors(subject.model, subject.feed["x"]) as floors:
                contenders += [Contender(floor.name, timed(floor.call)) for floor in floors]
                self._race(contenders, "convnet", [*rig.pids, *{floor.pid for floor in floors}])
            close()

    def _ping(self, rig: Rig, folder: Path) -> None:
        with open_session(rig.shared, work.adding(64)) as session:
            x = np.zeros(16, np.float32)
            for _ in range(3):
                session.run(None, {"x": x})
            process = rig.shared.supervisor.running
            assert process is not None
            pool = process.pool
            assert pool is not None

            def ping() -> None:
                # `ping` returns False, and measures nothing, if no channel is idle.
                assert pool.ping(None)

            with open_peers(folder, 1, ("raw pipe",)) as (raw,):
                contenders = [
                    Contender("raw ping", timed(raw.call)),
                    Contender("ping", timed(ping)),
                ]
                self._race(contenders, "", [*rig.pids, raw.pid])

    def _size(self, rig: Rig, size: str, folder: Path) -> None:
        count = work.SIZES[size]
        subject = work.adding(count)
        contenders, close = rig.contenders(subject)
        source = np.random.default_rng(4).integers(0, 256, count, np.uint8)

        def copy() -> None:
            np.copyto(np.empty(count, np.uint8), source)

        contenders.append(Contender("copy", timed(copy)))
        names = None if size == PEERS_AT else ("raw pipe",)
        with open_peers(folder, count, names) as others, open_floors(subject.model, subject.feed["x"]) as floors:
            peers = [*others, *floors]
            contenders += [Contender(peer.name, timed(peer.call)) for peer in peers]
            self._race(contenders, size, [*rig.pids, *{peer.pid for peer in peers}])
        close()

    def _race(self, contenders: list[Contender], what: str, pids: list[int]) -> None:
        with pinned(pids, wanted=self._pin) as done:
            assert done or not self._pin, "the processes cannot be pinned"
            for name, timing in race(contenders, rounds=self._rounds, turn_s=self._turn_s).items():
                self._note(f"{name} {what}".strip(), timing)

    def _note(self, name: str, timing: Timing) -> None:
        self.timings[name] = timing
        self.figures[name] = timing.median_s

    # --- threads ---

    def threads(self) -> None:
        rounds = max(3, self._rounds // 2)
        with Rig(sys.executable) as rig, open_session(rig.shared, work.adding(16)) as session:
            feed = {"x": np.zeros(4, np.float32)}
            rates = work.crowds(lambda: session.run(None, feed), (1, 2, 4, 8), rounds=rounds, seconds=0.3)
        for size, rate in rates.items():
            self.figures[f"calls/s {size}"] = rate
        model = script(scale=2, on_run=["sleep:0.0003"], npu=False)
        with fake_host() as host, qnnbridge.InferenceSession(model, host=host, providers=[CPU]) as waiting:
            x = {"x": np.zeros(4, np.float32)}
            rates = work.crowds(lambda: waiting.run(None, x), (1, 4, 8), rounds=rounds, seconds=0.3)
        for size, rate in rates.items():
            self.figures[f"waiting calls/s {size}"] = rate

    # --- steady state ---

    def steady(self) -> None:
        """Measure page faults and memory growth of application and host over calls after a warm-up."""
        subject = work.adding(work.SIZES["600 KB"])
        with qnnbridge.Host() as host, open_session(host, subject) as session:
            feed = dict(subject.feed)
            pids = ["self", str(host.info.pid)]
            for _ in range(STEADY_CALLS // 4):
                session.run(None, feed)
            gc.collect()
            before = [_faults_and_memory(pid) for pid in pids]
            for _ in range(STEADY_CALLS):
                session.run(None, feed)
            gc.collect()
            after = [_faults_and_memory(pid) for pid in pids]
        faults = sum(b[0] - a[0] for a, b in zip(before, after, strict=True))
        growth = sum(b[1] - a[1] for a, b in zip(before, after, strict=True))
        self.figures["faults a call"] = faults / STEADY_CALLS
        self.figures["growth bytes a call"] = growth / STEADY_CALLS

    # --- starting ---

    def starts(self) -> None:
        rounds = max(5, self._rounds)
        for name, taken in work.starting(sys.executable, work.convolving(), rounds).items():
            self.figures[name] = statistics.median(taken)
        times = []
        code = (
            "import time, numpy; begin = time.perf_counter(); import qnnbridge; print(time.perf_counter() - begin)"
        )
        for _ in range(rounds):
            told = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
            times.append(float(told.stdout))
        self.figures["import"] = statistics.median(times)
        self.figures["recovery"] = statistics.median(
            work.recovery(sys.executable, work.convolving(), kills=max(3, rounds // 2))
        )

    # --- serve ---

    def genai(self) -> None:
        """Measure a late turn of a conversation, if onnxruntime-genai is installed."""
        if importlib.util.find_spec("onnxruntime_genai") is None:
            return
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, qnnbridge.Host() as host:
            self.figures |= conversations.measure(Path(folder) / "model", host, self._rounds)

    def serve(self) -> None:
        """Measure ``qnnbridge serve``, alternating with mlserver if its interpreter is given."""
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            rounds, seconds = max(3, self._rounds // 3), self._turn_s * 25
            found = serving.race(Path(folder), self._mlserver, rounds=rounds, seconds=seconds)
        self.serving = serving.table(found)
        least = []
        for row, by_name in found.items():
            for name, figures in by_name.items():
                self.figures[f"{name}, requests/s, {row}"] = statistics.median(one["rate"] for one in figures)
            if serving.WORKER in by_name:
                least.append(statistics.median(serving.ratios(by_name, serving.WORKER)))
        if least:
            self.figures["serve against mlserver, least row"] = min(least)

    # --- QNN ---

    def qnn(self) -> None:
        """Measure runs on the simulator."""
        image = np.random.default_rng(5).random((1, 3, 48, 192), np.float32)
        subject = Subject(QNN_MODEL, {"x": image}, ("QNNExecutionProvider",), threads=0)
        with Rig(sys.executable) as rig:
            contenders, close = rig.contenders(subject)
            wanted = [contender for contender in contenders if contender.name in (DIRECT, PLAIN)]
            self._race(wanted, "qnn", rig.pids)
            close()


def _convolving(rig: Rig, folder: Path) -> tuple[Subject, list[Contender], Callable[[], None]]:
    """Return a convolution network that takes at least `CONVNET_S` on this machine, and the ways to call it.

    The width of the network is increased until its run takes long enough.
    """
    image = work.convolving().feed
    for width in CONVNET_WIDTHS:
        model = folder / f"convnet{width}.onnx"
        model.write_bytes(bench_models.convnet(width).SerializeToString())
        subject = Subject(model, image)
        contenders, close = rig.contenders(subject)
        (direct,) = (contender for contender in contenders if contender.name == DIRECT)
        with pinned(rig.pids):
            direct.batch(200)
            if statistics.median(direct.batch(200)) * 1e-9 >= CONVNET_S or width == CONVNET_WIDTHS[-1]:
                break
        close()
    return subject, contenders, close


def _faults_and_memory(pid: str) -> tuple[int, int]:
    """Return the number of minor and major page faults so far, and the private resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith(("Private_", "Swap:")))
    return int(fields[7]) + int(fields[9]), private * 1024
