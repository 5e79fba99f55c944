"""Progress of long work on stderr: a bar on a terminal, a line every few seconds otherwise. Also the times."""

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

# Called with the name of the stage, and how much of how many is done (0 of 0: unknown).
OnProgress = Callable[[str, int, int], None]

# A file of logs gets a line for each tenth of a stage.
LINES_PER_STAGE = 10


def ignore(stage: str, done: int, total: int) -> None:
    """An `OnProgress` that shows nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of one phase, and how often it was entered."""

    name: str
    seconds: float
    times: int


class Phases:
    """Seconds of each phase of a work, and how often it was entered. A phase inside of another one counts alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.times: dict[str, int] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """`phase` counts here, in this thread."""
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
        """The longest first."""
        return tuple(
            Phase(name, seconds, self.times[name])
            for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])
        )

    def _switched(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


# Not handed down: phases are entered many calls below the command that shows them.
_phases: contextvars.ContextVar[Phases | None] = contextvars.ContextVar("_phases", default=None)


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Counts what is inside as this phase, where somebody wants to know."""
    phases = _phases.get()
    return contextlib.nullcontext() if phases is None else phases.of(name)


class ShownProgress:
    """An `OnProgress` that shows; a context manager. One thread at a time."""

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
