"""Progress on stderr of work whose completed fraction is unknown.

The current stage and its seconds are a moving line on a terminal, and a line every few seconds when piped.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING

from qnnbridge_tools import output

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds between two lines about the same stage, where the output is not a terminal.
EVERY_S = 30.0
# Seconds between two updates of the shown progress.
TICK_S = 0.2
# Seconds before progress is shown: on a terminal (`FIRST_S`), in piped output (`FIRST_PIPED_S`).
FIRST_S = 2.0
FIRST_PIPED_S = 15.0


class ShownStages:
    """Context manager that shows the current stage. Call it with (stage, seconds since its start), from one thread.

    counted: the number of results; report each result with `finished`, from any thread.
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
                # Draw on stderr, because stdout contains the table or the JSON document.
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
        """Report that one of several results is complete."""
        self._done += 1
        line = f"[{self._done}/{self._counted}] {output.visible(text)}"
        if self._bar is not None:
            # Print with the bar's console, which draws the bar again below the line; `print` would damage the bar.
            self._bar.console.print(line, markup=False, highlight=False)
            self._bar.update(self._task, description=self._text("compiling"))
        else:
            print(line, file=sys.stderr, flush=True)

    def _text(self, stage: str) -> str:
        count = f" ({self._done} done)" if self._counted else ""
        return f"{stage} {self._subject}{count}"


@contextlib.contextmanager
def waiting(stage: str, subject: str) -> Iterator[None]:
    """Show the stage and its elapsed time if the block takes long (`FIRST_S`, `FIRST_PIPED_S`)."""
    begun = time.monotonic()

    def show(done: threading.Event) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        if done.wait(FIRST_S if is_terminal else FIRST_PIPED_S):
            return
        with ShownStages(subject) as stages:
            stages(stage, time.monotonic() - begun)
            while not done.wait(TICK_S):
                stages(stage, time.monotonic() - begun)

    with _in_a_thread(show):
        yield


@contextlib.contextmanager
def ticking(stages: ShownStages) -> Iterator[None]:
    """While the block runs, call `stages` immediately and then several times a second from a separate thread."""
    begun = time.monotonic()

    def tick(done: threading.Event) -> None:
        stages("compiling", 0.0)
        while not done.wait(TICK_S):
            stages("compiling", time.monotonic() - begun)

    # The jobs of a matrix report only outcomes: without this thread a piped run would print nothing for minutes.
    with _in_a_thread(tick):
        yield


@contextlib.contextmanager
def _in_a_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do the work in a separate thread, until the block ends and sets the event."""
    done = threading.Event()
    with futures.ThreadPoolExecutor(1, "qnnbridge progress") as pool:
        pool.submit(work, done)
        try:
            yield
        finally:
            done.set()
