"""The output of `qnnbridge compile`: its progress on stderr, and its results.

The current step and its seconds are a moving line on a terminal, and a line every few seconds when piped.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING

from qnnbridge_tools import output, session_report

if TYPE_CHECKING:
    from rich.progress import Progress

    from qnnbridge import CompileResult
    from qnnbridge_protocol.model_records import Validation
    from qnnbridge_tools.compile.matrix import CellOutcome

MIB = 1024 * 1024
_COMPILER = (("onnxruntime_qnn", "onnxruntime-qnn"), ("qnn_sdk", "QNN SDK"))

# Between two lines of the same stage where nothing can move.
EVERY_S = 30.0
# Between two looks at the clock of several compilations.
TICK_S = 0.2


class ShownStages:
    """A context manager that is called with stage and seconds, from any one thread.

    counted: how many results there will be, each reported with `finished`, from the same or another thread.
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

    with futures.ThreadPoolExecutor(1, "qnnbridge progress") as pool:
        pool.submit(tick)
        try:
            yield
        finally:
            done.set()


def print_result(result: CompileResult) -> None:
    placement = result.placement
    pairs = [
        ("model", result.path),
        ("binary", result.blob or "inside of the model"),
        ("manifest", result.manifest),
        ("size", size_text(result.size_bytes)),
        ("for", f"soc_model {result.soc_model}" if result.soc_model else "the chip of the host"),
        ("nodes", session_report.placement_text(placement) if placement is not None else "not reported"),
        ("time", f"{output.seconds(result.compile_seconds)} to compile, {output.seconds(result.seconds)} in all"),
        ("with", _compiler_text(result)),
        ("validated", validation_text(result.validation)),
    ]
    output.print_pairs(f"Compiled {output.visible(result.source)}", pairs)
    for warning in result.warnings:
        print(f"Warning: {output.visible(warning)}", file=sys.stderr)


def validation_text(validation: Validation) -> str:
    if validation.skipped:
        return f"no: {validation.skipped}"
    cosine = "" if validation.cosine is None else f", cosine at least {validation.cosine:.5f}"
    count = len(validation.differences)
    worst = validation.worst
    if worst is None:
        return "against the CPU: none of the outputs is numbers"
    values = "the output's range" if count == 1 else f'the range of output "{output.visible(worst.output)}"'
    unshown = sum(one.is_not_shown for one in validation.differences)
    shown = f", {unshown} of them not shown by these inputs" if unshown else ""
    return (
        f"against the CPU, {count} output{'' if count == 1 else 's'}{shown}: "
        f"largest difference {worst.max_abs:.3g} ({output.percent(worst.max_rel)} of {values}){cosine}"
    )


def outcome_text(outcome: CellOutcome) -> str:
    """One line for one result of several."""
    chip = f" for {outcome.soc_model}" if outcome.soc_model else ""
    more = ""
    if outcome.error is not None:
        more = f": {outcome.error.message}"
    elif outcome.reason:
        more = f": {outcome.reason}"
    return f"{outcome.model}{chip} {outcome.state}{more}"


def print_outcomes(outcomes: Sequence[CellOutcome]) -> None:
    """The table, then the errors in full and the warnings."""
    headers = ("model", "chip", "state", "nodes", "size", "difference", "time", "file")
    output.print_table(headers, [_row(outcome) for outcome in outcomes])
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"Error: {output.visible(outcome.model)}: {outcome.error}", file=sys.stderr)
        for warning in outcome.result.warnings if outcome.result is not None else ():
            print(f"Warning: {output.visible(outcome.model)}: {output.visible(warning)}", file=sys.stderr)


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / 1024:.0f} KiB"


def _row(outcome: CellOutcome) -> tuple[str, ...]:
    result = outcome.result
    if result is None:
        path = outcome.path if outcome.state == "skipped" else ""
        return outcome.model, outcome.soc_model or "", outcome.state, "", "", "", "", path
    placed = result.placement
    nodes = f"{placed.qnn_nodes} QNN, {placed.cpu_nodes} CPU" if placed is not None and placed.known else "?"
    difference = "not validated" if result.validation.skipped else output.percent(result.validation.max_rel)
    chip = outcome.soc_model or result.soc_model or ""
    return (
        *(outcome.model, chip, outcome.state, nodes, size_text(result.size_bytes), difference),
        *(output.seconds(result.compile_seconds), result.path),
    )


def _compiler_text(result: CompileResult) -> str:
    shown = [f"{name} {result.versions[key]}" for key, name in _COMPILER if result.versions.get(key)]
    return ", ".join(shown) or "not reported"
