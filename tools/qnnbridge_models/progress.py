"""Progress of long work on stderr: a bar on a terminal, else a line every few seconds. Also measures phases."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from qnnbridge_protocol.visible import visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Callback: called with (name of the stage, number of finished items, total number); 0 and 0 if unknown.
OnProgress = Callable[[str, int, int], None]

# Number of lines for each stage if progress is written to a log file.
LINES_PER_STAGE = 10


def ignore(stage: str, done: int, total: int) -> None:
    """Do not report progress: the default callback."""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Total time of one phase in seconds, and how often it was entered."""

    name: str
    seconds: float
    times: int


class Phases:
    """Measures the time of each phase. The time of a nested phase counts only for the nested phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.times: dict[str, int] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Within this context, record the duration of each `phase` of this thread in this object."""
        token = _phases.set(self)
        try:
            yield
        finally:
            _phases.reset(token)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        self._switched()
        self._open.append(name)
        self.times[name] = self.times.get(name, 0) + 1
        try:
            yield
        finally:
            self._switched()
            self._open.pop()

    @property
    def found(self) -> tuple[Phase, ...]:
        """The measured phases, the longest first."""
        return tuple(
            Phase(name, seconds, self.times[name])
            for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        )

    def _switched(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


# Use a context variable instead of a parameter: phases are entered many calls below the command that reports them.
_phases: contextvars.ContextVar[Phases | None] = contextvars.ContextVar("_phases", default=None)


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Measure the time of this context as a phase, if a caller has entered `Phases`."""
    phases = _phases.get()
    return contextlib.nullcontext() if phases is None else phases.of(name)


class ShownProgress:
    """An `OnProgress` callback that prints to stderr; use it as a context manager. Not thread-safe."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._printed = -1

    def __enter__(self) -> ShownProgress:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True, markup=False, emoji=False),
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        stage = visible(stage)
        new = stage != self._stage
        self._stage = stage
        if self._bar is not None:
            if new or self._task is None:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(stage, total=total or None)
            self._bar.update(self._task, completed=done)
            return
        step = done * LINES_PER_STAGE // total if total else 0
        if new or step != self._printed:
            self._printed = step
            print(f"{stage} {done}/{total}" if total else stage, file=sys.stderr, flush=True)
