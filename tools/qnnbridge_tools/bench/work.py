"""The work behind `qnnbridge bench`: everything is measured here, and nothing printed."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import NoSuchFile, OptionError, PlacementRefused
from qnnbridge_tools import free_dimensions
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.bench import moments, subjects, threads
from qnnbridge_tools.bench.hosts import Rig, Subject, open_session, specification
from qnnbridge_tools.bench.measuring import Timing, pinned, race

if TYPE_CHECKING:
    from qnnbridge import HostInfo, HostStats
    from qnnbridge_protocol.specs import Placement

CROWDS = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long it may take. starts: fresh processes of each kind. kills: hosts that are ended."""

    sizes: Sequence[str]
    rounds: int
    turn_s: float
    crowd_s: float
    starts: int
    kills: int


QUICK = Effort(subjects.QUICK_SIZES, rounds=5, turn_s=0.03, crowd_s=0.1, starts=3, kills=2)
THOROUGH = Effort(tuple(subjects.SIZES), rounds=15, turn_s=0.08, crowd_s=0.4, starts=7, kills=5)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The command line, read. model: the user's own; ``None`` for ours."""

    model: Path | None
    providers: tuple[str, ...]
    fallback: str
    dimensions: Dimensions
    effort: Effort
    pin: bool
    host_python: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One model, or one size, made all ways."""

    name: str
    bytes_in: int
    timings: dict[str, Timing]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """crowds: calls a second by number of threads. starts, recovery_s: seconds of each try. load: of the machine,
    before and behind, as far as the system tells."""

    rows: list[Row]
    crowds: dict[int, float]
    starts: dict[str, list[float]]
    recovery_s: list[float]
    pinned: bool
    placement: Placement | None
    host: HostInfo
    stats: HostStats
    load: tuple[float, float] | None
    cpus: int


def perform(request: Request, say: Callable[[str], None]) -> Measured:
    """say: told what is being done, for somebody who waits."""
    if request.model is not None and not request.model.exists():
        raise NoSuchFile(f"There is no model file {request.model}.")
    _check_dimensions(request)
    try:
        return _performed(request, say)
    except PlacementRefused as refused:
        free_dimensions.in_options(refused)
        raise


def _check_dimensions(request: Request) -> None:
    if not request.dimensions.by_name and not request.dimensions.by_axis:
        return
    if request.model is None:
        raise OptionError("--dim goes with --model: our own models have no free dimensions.")
    from qnnbridge_host.model.scan import scan_model

    free_dimensions.refuse_unknown((scan_model(request.model, count_nodes=False),), request.dimensions)


def _performed(request: Request, say: Callable[[str], None]) -> Measured:
    effort = request.effort
    before = _load()
    say("starting hosts")
    with Rig(request.host_python) as rig:
        todo, placement, spec = _subjects(request, rig)
        rows, held = _race(rig, todo, request, say)
        say("threads")
        crowds = _crowds(rig, todo[0][1], effort)
        stats, info = rig.shared.stats, rig.info
    small = todo[0][1] if request.model is not None else subjects.convolving()
    say("start-up")
    starts = moments.starting(info.executable, small, effort.starts, spec)
    say("recovery")
    recovery_s = moments.recovery(info.executable, small, effort.kills)
    after = _load()
    load = (before, after) if before is not None and after is not None else None
    return Measured(rows, crowds, starts, recovery_s, held, placement, info, stats, load, os.cpu_count() or 1)


def _subjects(
    request: Request, rig: Rig
) -> tuple[list[tuple[str, Subject]], Placement | None, dict[str, Any] | None]:
    """What to measure by name; of the user's model where it runs and how its session is made, too."""
    if request.model is None:
        ours = [(name, subjects.adding(subjects.SIZES[name])) for name in request.effort.sizes]
        return [*ours, ("convnet", subjects.convolving())], None, None
    subject = subjects.users_own(
        rig.shared, request.model, request.providers, request.fallback, request.dimensions, seed=0
    )
    with open_session(rig.shared, subject) as session:
        return [(request.model.name, subject)], session.placement, specification(session)


def _race(
    rig: Rig, todo: list[tuple[str, Subject]], request: Request, say: Callable[[str], None]
) -> tuple[list[Row], bool]:
    rows, held = [], request.pin
    for name, subject in todo:
        say(f"calls: {name}")
        contenders, close = rig.contenders(subject)
        try:
            with pinned(rig.pids, wanted=request.pin) as worked:
                held = held and worked
                timings = race(contenders, rounds=request.effort.rounds, turn_s=request.effort.turn_s)
        finally:
            close()
        rows.append(Row(name, sum(value.nbytes for value in subject.feed.values()), timings))
    return rows, held


def _crowds(rig: Rig, subject: Subject, effort: Effort) -> dict[int, float]:
    with open_session(rig.shared, subject) as session:
        feed = dict(subject.feed)
        session.run(None, feed)
        return threads.crowds(
            lambda: session.run(None, feed), CROWDS, rounds=max(1, effort.rounds // 3), seconds=effort.crowd_s
        )


def _load() -> float | None:
    """Of the last minute; not every system knows it."""
    if sys.platform == "win32":
        return None
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
