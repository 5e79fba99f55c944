"""Many models times many chips: each a job of its own, here or on a cluster, with one table of results.

One that fails does not stop the others. A matrix that was stopped is resumed by calling it again: a result that is
there, made from the same contents with the same options and versions, is recognized by its manifest and skipped.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from qnnbridge import CompileResult, Host
from qnnbridge._compile import CompileJob, OnProgress, Running, Soc, make_jobs
from qnnbridge._compile import perform as perform_jobs
from qnnbridge_host.create.publish import Destination, destination_of
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import BridgeError, Closed, OptionError

State = Literal["done", "skipped", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class SizeVariant:
    """Sizes of free dimensions: as text (`seq=16`), as part of file names, and as `SessionOptions`."""

    label: str
    tag: str
    sess_options: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One job of a matrix, and where its result goes. variant: its sizes as text, if there are several."""

    job: CompileJob
    place: Destination
    variant: str = ""

    @property
    def soc_model(self) -> str | None:
        """The chip, as it was asked for."""
        return self.job.soc_model

    @property
    def label(self) -> str:
        return f"{self.job.recipe.label} ({self.variant})" if self.variant else self.job.recipe.label


@dataclasses.dataclass(frozen=True, slots=True)
class CellOutcome:
    """What became of a cell. result: if it is done. error: if it failed. reason: why it was skipped."""

    model: str
    soc_model: str | None
    path: str
    state: State
    result: CompileResult | None = None
    error: BridgeError | None = None
    reason: str | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, cell: Cell, state: State, begun: float | None = None, **more: Any) -> CellOutcome:
        seconds = 0.0 if begun is None else time.monotonic() - begun
        return cls(cell.label, cell.soc_model, cell.place.path, state, seconds=seconds, **more)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "soc_model": self.soc_model,
            "path": self.path,
            "state": self.state,
            "result": self.result.to_json() if self.result is not None else None,
            "error": self.error.to_wire() if self.error is not None else None,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
        }


OnOutcome = Callable[[CellOutcome], None]


def plan(
    models: Sequence[str | os.PathLike[str] | bytes],
    soc_models: Sequence[Soc] = (),
    output: str | os.PathLike[str] | None = None,
    variants: Sequence[SizeVariant] = (),
    **options: Any,
) -> list[Cell]:
    """The cells of models x chips x variants.

    Args:
        variants: sizes to compile for; in place of `sess_options`.
        options: of `make_jobs`.

    Raises:
        OptionError: two results would be one file.
    """
    if not variants:
        return _planned(make_jobs(models, soc_models or (None,), output, **options))
    jobs: list[CompileJob] = []
    labels: list[str] = []
    for variant in variants:
        made = make_jobs(models, soc_models or (None,), output, **{**options, "sess_options": variant.sess_options})
        jobs += [dataclasses.replace(job, tag=variant.tag + job.tag) for job in made]
        labels += [variant.label] * len(made)
    return _planned(jobs, labels)


def _planned(jobs: Sequence[CompileJob], labels: Sequence[str] = ()) -> list[Cell]:
    cells: list[Cell] = []
    taken: dict[str, str] = {}
    for number, job in enumerate(jobs):
        recipe = job.recipe
        source = ModelSource(recipe.spec.model_path, recipe.data, recipe.fingerprint)
        place = destination_of(source, job.output, recipe.folder, tag=job.tag)
        # Compared as the system compares paths: names that differ in their case are one file on Windows.
        other = taken.setdefault(os.path.normcase(place.path), recipe.label)
        # It has not grown, so this place was taken by a cell before.
        if len(taken) == len(cells):
            raise OptionError(
                f"Two of the models would be written to {place.path} ({other} and {recipe.label}).",
                fix="Give a folder as output." if labels else "Compile them to different folders.",
            )
        cells.append(Cell(job, place, labels[number] if labels else ""))
    return cells


class CompileGroup:
    """The compilations that run at the moment, so that all can be ended when they are interrupted. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Running] = set()
        self._ended = False

    def perform(self, job: CompileJob, **options: Any) -> Any:
        """`perform_jobs` as a member of the group. Raises `Closed` when the group was ended."""

        def began(running: Running) -> None:
            # Under the lock: a compilation that begins while all are ended would go on unseen.
            with self._lock:
                if self._ended:
                    raise Closed("The work was interrupted.")
                self._running.add(running)

        return perform_jobs((job,), on_begin=began, **options)

    def end(self) -> None:
        """Cancel all of them; no new one begins."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        # Outside of the lock: to interrupt a host takes time, and `began` of the other threads needs the lock.
        for one in running:
            one.interrupt()


def run_here(
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    on_outcome: OnOutcome | None = None,
) -> list[CellOutcome]:
    """Do the cells in processes of this machine, `jobs` at a time. The outcomes are in the order of the cells."""
    group = CompileGroup()

    def work(cell: Cell) -> CellOutcome:
        begun = time.monotonic()
        try:
            done = group.perform(
                cell.job,
                validate=validate,
                timeout_s=timeout_s,
                overwrite=overwrite,
                host=host,
                # A result that is there is looked at, unless it is to be replaced in any case.
                resume=not overwrite,
            )
        # Errors of the bridge are about the cell; anything else is a fault of ours and ends the matrix.
        except BridgeError as error:
            return CellOutcome.of(cell, "failed", begun, error=error)
        if done.skipped is not None:
            return CellOutcome.of(cell, "skipped", reason=done.skipped)
        return CellOutcome.of(cell, "done", begun, result=done.results[0])

    with concurrent.futures.ThreadPoolExecutor(jobs, "qnnbridge compile") as executor:
        try:
            futures = {executor.submit(work, cell): number for number, cell in enumerate(cells)}
            return collect(futures, on_outcome)
        except BaseException:
            # Ctrl+C: running jobs are not awaited, and waiting jobs do not begin.
            executor.shutdown(wait=False, cancel_futures=True)
            # Leaving the block waits for its threads, and they end only when their hosts do.
            group.end()
            raise


def collect(
    futures: Mapping[concurrent.futures.Future[CellOutcome], int], on_outcome: OnOutcome | None
) -> list[CellOutcome]:
    """The outcomes in the order of their numbers, each reported as it comes."""
    found: dict[int, CellOutcome] = {}
    for future in concurrent.futures.as_completed(futures):
        outcome = found[futures[future]] = future.result()
        if on_outcome is not None:
            on_outcome(outcome)
    return [found[number] for number in sorted(found)]


def compile_bundle(
    models: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    validate: bool = True,
    timeout: float | None = None,
    overwrite: bool = False,
    host: Host | None = None,
    soc_model: Soc | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> tuple[CompileResult, ...]:
    """Compile `models` with shared weights into one folder: one context binary, and a manifest of each model.

    They are compiled in one process, one after the other; QNN writes the binary with the last. It is named after
    the first and belongs to all, so it must not be deleted with one of them. The models need inputs and outputs, or
    graph names, that distinguish them.

    options: as for `qnnbridge.compile`. Raises what that raises; then nothing is left behind.
    """
    if len(models) < 2:
        raise OptionError("A bundle with shared weights needs at least two models.", fix="Name another model.")
    if options.get("embed"):
        raise OptionError(
            "Shared weights cannot be embedded.",
            cause="The context binary belongs to several .onnx files.",
            fix="Leave --embed (embed=True) out.",
        )
    cells = plan(models, () if soc_model is None else [soc_model], output, **options)
    if len({cell.place.folder for cell in cells}) > 1:
        raise OptionError(
            "The models lie in different folders, and their compiled ones share a file.",
            fix="Give the folder for the result: -o DIR (output=).",
        )
    return perform_jobs(
        [cell.job for cell in cells],
        validate=validate,
        timeout_s=timeout,
        overwrite=overwrite,
        host=host,
        on_progress=on_progress,
    ).results
