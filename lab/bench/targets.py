"""The targets: ratios of figures of one run. A release has to meet the "must" and should meet the "aim".

The figures are in seconds unless their name contains another unit; see `figures`. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

Figures = Mapping[str, float]
Verdict = Literal["aim", "must", "missed", "not measured"]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A ratio of measured figures, with the values that it must reach (`must`) and should reach (`aim`).

    Args:
        ratio: computes the value from the figures, in the unit of `must` and `aim`.
        more: whether larger values are better.
    """

    name: str
    unit: str
    must: float
    aim: float
    ratio: Callable[[Figures], float]
    more: bool = False

    def value(self, figures: Figures) -> float | None:
        """Return the value of the target; ``None`` if a figure was not measured."""
        try:
            return self.ratio(figures)
        except KeyError:
            return None

    def verdict(self, figures: Figures) -> Verdict:
        value = self.value(figures)
        if value is None:
            return "not measured"
        sign = 1 if self.more else -1
        if sign * value >= sign * self.aim:
            return "aim"
        return "must" if sign * value >= sign * self.must else "missed"


def _over_run(way: str, size: str) -> Callable[[Figures], float]:
    """Return a function that computes the bridge's overhead for calls of this size, as a multiple of a ping
    through a raw pipe."""
    return lambda f: (f[f"{way} {size}"] - f[f"direct {size}"]) / f["raw ping"]


def _against(peer: str) -> Callable[[Figures], float]:
    """Return a function that divides a peer's round-trip time by the bridge's call time without the model's run."""
    return lambda f: f[f"{peer} 600 KB"] / (f["bridge 600 KB"] - f["direct 600 KB"])


def _bandwidth(size: str) -> Callable[[Figures], float]:
    """Return a function that divides the bridge's bandwidth (both directions) by that of a copy in one process."""
    return lambda f: 2 * f[f"copy {size}"] / (f[f"bridge {size}"] - f[f"direct {size}"] - f["ping"])


def _waiting(threads: int) -> Callable[[Figures], float]:
    return lambda f: f[f"waiting calls/s {threads}"] / f["waiting calls/s 1"]


_FLOORS = {"bridge": "floor with copies", "zero-copy": "floor", "inline": "floor by pipe"}


def of_the_floor(figures: Figures) -> Figures:
    """Return the figures with the bridge's replaced by the floor's, the fastest bridge possible on this machine."""
    least = dict(figures)
    for name in figures:
        way, _, size = name.partition(" ")
        floor = f"{_FLOORS.get(way)} {size}"
        if floor in figures:
            least[name] = figures[floor]
    if "raw ping" in figures:
        least["ping"] = figures["raw ping"]
    return least


TARGETS = (
    Target("ping", "x raw pipe", 2.0, 1.25, lambda f: f["ping"] / f["raw ping"]),
    Target(
        "run, 600 KB in and out, plain arrays: overhead",
        "x (ping + 2 copies)",
        1.8,
        1.3,
        lambda f: (f["bridge 600 KB"] - f["direct 600 KB"]) / (f["raw ping"] + 2 * f["copy 600 KB"]),
    ),
    *(
        Target(f"run, zero-copy, {size}: overhead", "pings", 3.0, 1.25, _over_run("zero-copy", size))
        for size in ("4 KB", "64 KB", "600 KB", "4 MB")
    ),
    # Compare with a call in process instead of a ping: 3 pings are less than 1 % of this call. The time of this
    # call varies by 10 % from process to process, because the location of the arrays in memory differs.
    Target("run, zero-copy, 32 MB", "x in-process", 1.15, 1.03, lambda f: f["zero-copy 32 MB"] / f["direct 32 MB"]),
    Target("convnet, plain", "x in-process", 1.15, 1.08, lambda f: f["bridge convnet"] / f["direct convnet"]),
    Target(
        "convnet, zero-copy", "x in-process", 1.15, 1.03, lambda f: f["zero-copy convnet"] / f["direct convnet"]
    ),
    Target("bandwidth, plain arrays, 600 KB", "of copying", 0.6, 0.8, _bandwidth("600 KB"), more=True),
    Target("bandwidth, plain arrays, 4 MB", "of copying", 0.6, 0.9, _bandwidth("4 MB"), more=True),
    Target(
        "without shared memory, 600 KB: overhead",
        "x raw pipe",
        1.25,
        1.08,
        lambda f: (f["inline 600 KB"] - f["direct 600 KB"]) / f["raw pipe 600 KB"],
    ),
    Target("600 KB against multiprocessing.Pipe", "x", 10, 30, _against("multiprocessing.Pipe"), more=True),
    Target("600 KB against JSON and base64", "x", 100, 250, _against("JSON and base64"), more=True),
    Target("600 KB against ZeroMQ", "x", 3, 7, _against("ZeroMQ"), more=True),
    Target(
        "4 threads, no work", "x calls/s of one", 0.6, 0.9, lambda f: f["calls/s 4"] / f["calls/s 1"], more=True
    ),
    *(
        Target(
            f"300 us device wait, {size} threads",
            "x calls/s of one",
            must,
            aim,
            _waiting(size),
            more=True,
        )
        for size, must, aim in ((4, 2.5, 3.5), (8, 3.5, 6.5))
    ),
    Target("page faults, plain 600 KB, both sides", "a call", 1.0, 0.02, lambda f: f["faults a call"]),
    Target("memory growth, both sides", "bytes a call", 64.0, 8.0, lambda f: f["growth bytes a call"]),
    Target("ready ping from spawn", "x python -I -c pass", 2.5, 1.3, lambda f: f["host ready"] / f["python"]),
    Target("session ready from spawn", "x in-process", 1.15, 0.95, lambda f: f["session"] / f["direct session"]),
    Target("run on the simulator", "x in-process", 1.15, 1.06, lambda f: f["bridge qnn"] / f["direct qnn"]),
    Target(
        "first token of turn 10 with a new generator",
        "x a kept one",
        5.0,
        8.0,
        lambda f: f["turn new"] / f["turn kept"],
        more=True,
    ),
    Target(
        "first token of turn 10 with a kept generator",
        "x the new tokens alone",
        2.0,
        1.3,
        lambda f: f["turn kept"] / f["turn alone"],
    ),
    Target("import qnnbridge beyond numpy", "ms", 60.0, 60.0, lambda f: f["import"] * 1e3),
    Target(
        "rate of serve relative to mlserver with one worker, lowest row",
        "x",
        1.0,
        1.0,
        lambda f: f["serve against mlserver, least row"],
        more=True,
    ),
)
