"""The current step and its seconds on stderr: a moving line on a terminal, a line now and then when piped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from qnnbridge_tools import output

if TYPE_CHECKING:
    from rich.progress import Progress

# Between two lines of the same stage where nothing can move.
EVERY_S = 30.0
# Between two looks at the clock of several compilations.
TICK_S = 0.2


class ShownStages:
    """A context manager that is called with stage and seconds, from any one thread.

    counted: how many results there will be, each told with `finished`, from the same or another thread.
    """

    def __init__(self, subject: str, counted: int = 0) -> None:
        self._subject = output.visible(subject)
        self._counted = counted
        self._done = 0
        self._stage = ""
        self._printed_s = 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> ShownStages:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn("line"),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=Console(stderr=True, markup=False, emoji=False),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._text("compiling"), total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, stage: str, seconds: float) -> None:
        new, self._stage = stage != self._stage, stage
        if self._bar is not None:
            self._bar.update(self._task, description=self._text(stage))
        elif new:
            self._printed_s = seconds
            print(self._text(stage), file=sys.stderr, flush=True)
        elif seconds - self._printed_s >= EVERY_S:
            self._printed_s = seconds
            print(f"{self._text(stage)}, {output.seconds(seconds)}", file=sys.stderr, flush=True)

    def finished(self, text: str) -> None:
        """One of several results is complete."""
        self._done += 1
        line = f"[{self._done}/{self._counted}] {output.visible(text)}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
            self._bar.update(self._task, description=self._text("compiling"))
        else:
            print(line, file=sys.stderr, flush=True)

    def _text(self, stage: str) -> str:
        count = f" ({self._done} done)" if self._counted else ""
        return f"{stage} {self._subject}{count}"


@contextlib.contextmanager
def ticking(stages: ShownStages) -> Iterator[None]:
    """While the block runs, `stages` is called at once and a few times a second from a thread of its own."""
    done, begun = threading.Event(), time.monotonic()

    def tick() -> None:
        stages("compiling", 0.0)
        while not done.wait(TICK_S):
            stages("compiling", time.monotonic() - begun)

    thread = threading.Thread(target=tick, name="qnnbridge progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
