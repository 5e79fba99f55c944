"""Many models times many chips: each a job of its own, on an executor, with one table of results.

The jobs are the same wherever they run (`work.perform`): in disposable processes that threads of this machine wait
for, or on the workers of a cluster (`cluster`). One that fails does not stop the others. A matrix that was stopped
is resumed by calling it again: what is there, made from the same contents with the same options and versions, is
recognised by its manifest and skipped.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from qnnbridge._compiling import publish
from qnnbridge._compiling.compile import compile_to, deliver, make_task
from qnnbridge._compiling.hosts import HostGroup
from qnnbridge._compiling.job import CompileJob, job_key
from qnnbridge._compiling.places import Place, place_of
from qnnbridge._compiling.request import Soc, make_job
from qnnbridge._compiling.result import CompileResult
from qnnbridge._compiling.work import Delivery, perform_and_send, versions_of
from qnnbridge._compiling.workfolder import work_folder
from qnnbridge_host.model.manifest import CompiledManifest, read_manifest
from qnnbridge_protocol.errors import BridgeError, CompileFailed, OptionError

State = Literal["done", "skipped", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One job of a matrix. soc_model: as it was asked for."""

    job: CompileJob
    place: Place
    soc_model: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell. result: if it is done. error: if it failed. reason: why it was skipped."""

    model: str
    soc_model: str | None
    path: str
    state: State
    result: CompileResult | None = None
    error: BridgeError | None = None
    reason: str | None = None
    seconds: float = 0.0

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


OnOutcome = Callable[[Outcome], None]


def plan(
    models: Sequence[str | os.PathLike[str] | bytes],
    soc_models: Sequence[Soc] = (),
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> list[Cell]:
    """The cells of models x chips. options: of `make_job`. Raises `OptionError` where two would be one file."""
    chips: list[str | None] = [*dict.fromkeys(str(chip) for chip in soc_models)] or [None]
    if output is not None and len(models) * len(chips) > 1:
        text = os.fsdecode(output)
        if text.lower().endswith(".onnx") and not os.path.isdir(text):
            raise OptionError(
                f"There will be several compiled models, and {text} is one file.", fix="Give a folder as output."
            )
        output = os.path.join(os.path.abspath(text), "")
    cells: list[Cell] = []
    taken: dict[str, str] = {}
    for model in models:
        for chip in chips:
            job = make_job(model, soc_model=chip, **options)
            tag = "" if len(chips) == 1 else f"_soc{re.sub(r'[^A-Za-z0-9]+', '-', chip or '')}"
            place = place_of(job.source, output, tag=tag)
            other = taken.setdefault(os.path.normcase(place.path), job.source.label)
            if any(os.path.normcase(cell.place.path) == os.path.normcase(place.path) for cell in cells):
                raise OptionError(
                    f"Two of the models would be written to {place.path} ({other} and {job.source.label}).",
                    fix="Compile them to different folders.",
                )
            cells.append(Cell(job, place, chip))
    return cells


def run_here(
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    on_outcome: OnOutcome | None = None,
) -> list[Outcome]:
    """Do the cells in processes of this machine, `jobs` at a time. The outcomes are in the order of the cells."""
    versions = versions_of(cells[0].job.host) if _any_there(cells) else {}

    def work(cell: Cell) -> Outcome:
        there = None if overwrite else finished(cell, versions)
        if there is not None:
            return there
        begun = time.monotonic()
        try:
            (result,) = compile_to((cell.job,), (cell.place,), validate, timeout_s, overwrite)
        except BridgeError as error:
            return _failed(cell, error, begun)
        return _done(cell, result, begun)

    group = HostGroup()
    with concurrent.futures.ThreadPoolExecutor(jobs, "qnnbridge compile", group.join) as executor:
        try:
            return _collect({executor.submit(work, cell): cell for cell in cells}, cells, on_outcome)
        except BaseException:
            # Ctrl+C: nobody waits for what is under way, and what has not begun does not begin.
            executor.shutdown(wait=False, cancel_futures=True)
            group.end()
            raise


def run_on(
    executor: concurrent.futures.Executor,
    cells: Sequence[Cell],
    *,
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    on_outcome: OnOutcome | None = None,
) -> list[Outcome]:
    """Do the cells on workers of other machines: models travel there as bytes, results come back as bytes and are
    moved into their place here. A model with files beside it must lie at the same path there."""
    versions = executor.submit(versions_of, cells[0].job.host).result() if _any_there(cells) else {}
    begun = time.monotonic()
    outcomes: dict[int, Outcome] = {}
    futures: dict[concurrent.futures.Future[Delivery | BridgeError], int] = {}
    for index, cell in enumerate(cells):
        there = None if overwrite else finished(cell, versions)
        if there is not None:
            outcomes[index] = there
            if on_outcome is not None:
                on_outcome(there)
            continue
        task = make_task((_portable(cell.job),), (cell.place,), validate, timeout_s)
        futures[executor.submit(perform_and_send, task)] = index
    for future in concurrent.futures.as_completed(futures):
        index = futures[future]
        try:
            outcome = _done(cells[index], _receive(cells[index], future, validate, overwrite, begun), begun)
        except BridgeError as error:
            outcome = _failed(cells[index], error, begun)
        outcomes[index] = outcome
        if on_outcome is not None:
            on_outcome(outcome)
    return [outcomes[index] for index in range(len(cells))]


def compile_for_chips(
    model: str | os.PathLike[str] | bytes,
    soc_models: Sequence[Soc],
    output: str | os.PathLike[str] | None = None,
    *,
    validate: bool = True,
    timeout: float | None = None,
    overwrite: bool = False,
    on_progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> tuple[CompileResult, ...]:
    """`qnnbridge.compile` of one model for several chips, one after the other. The first error ends it; what was
    done before stays."""
    if not soc_models:
        raise OptionError("soc_model is an empty list.", fix="Name at least one chip.")
    return tuple(
        compile_to((cell.job,), (cell.place,), validate, timeout, overwrite, on_progress)[0]
        for cell in plan([model], soc_models, output, **options)
    )


def finished(cell: Cell, versions: Mapping[str, str]) -> Outcome | None:
    """The outcome of a cell of which the result is there already, whole and made from the same."""
    try:
        manifest = read_manifest(cell.place.path)
    except BridgeError:
        return None
    if manifest is None or manifest.extra.get("key") != job_key(cell.job, versions):
        return None
    if not _is_whole(manifest, cell.place.folder):
        return None
    reason = "It is there already, made from the same model with the same options and versions."
    return Outcome(cell.job.source.label, cell.soc_model, cell.place.path, "skipped", reason=reason)


def _is_whole(manifest: CompiledManifest, folder: str) -> bool:
    from qnnbridge_host.model.source import KnownFile

    try:
        return all(
            KnownFile.look(os.path.join(folder, record.name)).sha256 == record.sha256 for record in manifest.files
        )
    except OSError:
        return False


def _any_there(cells: Iterable[Cell]) -> bool:
    """Only then the versions matter, which cost a start of a host."""
    return any(os.path.exists(cell.place.path) for cell in cells)


def _portable(job: CompileJob) -> CompileJob:
    """The job for another machine, with the model in it. An interpreter that was named is the one there, too."""
    job = dataclasses.replace(job, host=dataclasses.replace(job.host, cwd=None), stem=_stem(job))
    if job.source.path is None or job.source.files:
        return job
    with open(job.source.path, "rb") as file:
        data = file.read()
    source = dataclasses.replace(job.source, path=None, data=data)
    return dataclasses.replace(job, source=source, spec=dataclasses.replace(job.spec, model_path=None))


def _stem(job: CompileJob) -> str | None:
    return os.path.splitext(job.source.label)[0] if job.source.path is not None else job.stem


def _receive(
    cell: Cell,
    future: concurrent.futures.Future[Delivery | BridgeError],
    validate: bool,
    overwrite: bool,
    begun: float,
) -> CompileResult:
    try:
        delivery = future.result()
    except BridgeError:
        raise
    except concurrent.futures.CancelledError:
        raise CompileFailed(
            f"The connection to the cluster was lost before {cell.job.source.label} was finished.",
            cause="The scheduler ended, or the network between did.",
            fix="Start the scheduler and its workers again and repeat the command; what is done is not done twice.",
        ) from None
    except Exception as error:  # noqa: BLE001 - a cluster has errors of its own, and a worker may die
        raise CompileFailed(
            f"The worker did not finish {cell.job.source.label}.",
            cause=f"{type(error).__name__}: {error}",
            fix="Look at the worker's log; it needs qnnbridge[cluster] of the same version and an interpreter for "
            "the host (QNNBRIDGE_HOST_PYTHON).",
        ) from None
    if isinstance(delivery, BridgeError):
        raise delivery
    with work_folder(cell.place.folder) as folder:
        try:
            for name, contents in delivery.contents.items():
                with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                    file.write(contents)
        except OSError as error:
            from qnnbridge._compiling import trouble

            raise trouble.from_os(error, cell.place.folder) from None
        if not overwrite:
            publish.refuse_existing(cell.place)
        task = make_task((cell.job,), (cell.place,), validate, None)
        return deliver(task, (cell.place,), delivery.made, folder, overwrite, begun)[0]


def _collect(
    futures: Mapping[concurrent.futures.Future[Outcome], Cell], cells: Sequence[Cell], on_outcome: OnOutcome | None
) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    for future in concurrent.futures.as_completed(futures):
        outcome = future.result()
        found[id(futures[future])] = outcome
        if on_outcome is not None:
            on_outcome(outcome)
    return [found[id(cell)] for cell in cells]


def _done(cell: Cell, result: CompileResult, begun: float) -> Outcome:
    return Outcome(
        cell.job.source.label,
        cell.soc_model,
        result.path,
        "done",
        result=result,
        seconds=time.monotonic() - begun,
    )


def _failed(cell: Cell, error: BridgeError, begun: float) -> Outcome:
    seconds = time.monotonic() - begun
    return Outcome(cell.job.source.label, cell.soc_model, cell.place.path, "failed", error=error, seconds=seconds)
