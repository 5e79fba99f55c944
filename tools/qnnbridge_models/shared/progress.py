"""Progress of long work on stderr: a bar on a terminal, a line now and then when piped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Called with the stage in words, and how much of how many is done (0 of 0: unknown).
OnProgress = Callable[[str, int, int], None]

LINES_PER_STAGE = 10


def ignore(stage: str, done: int, total: int) -> None:
    """An `OnProgress` that shows nothing."""


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
