"""Compile many models for many chips: one job each, on this machine or on a cluster, with one table of results.

A failed job does not stop the others. An interrupted matrix is resumed by running it again: a job is
skipped if the manifest of an existing result has the same model, options and versions.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal

from qnnbridge import CompileResult, Host
from qnnbridge._compile import CompileJob, OnProgress, Running, Soc, make_jobs
from qnnbridge._compile import perform as perform_jobs
from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.create.publish import (
    MODEL_SUFFIX,
    WITHOUT_A_NAME,
    CompilerInput,
    Destination,
    compile_folder,
    destination_of,
    is_finished,
    move_whole,
    refuse_existing,
)
from qnnbridge_host.model.manifest import manifest_path, read_manifest, write_manifest
from qnnbridge_host.model.paths import from_os
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import BridgeError, Closed, CompileFailed, OptionError
from qnnbridge_protocol.installing import install_command
from qnnbridge_tools.sessions import quiet

State = Literal["done", "skipped", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class SizeVariant:
    """Sizes of free dimensions.

    Args:
        label: the sizes as text (`seq=16`).
        tag: the sizes as part of file names.
        sess_options: the sizes as `SessionOptions`.
    """

    label: str
    tag: str
    sess_options: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One job of a matrix: a model, a chip and a combination of sizes.

    Args:
        job: the job.
        place: destination of its result.
        variant: the sizes as text, if several combinations are compiled.
    """

    job: CompileJob
    place: Destination
    variant: str = ""

    @property
    def soc_model(self) -> str | None:
        """The chip as the user gave it."""
        return self.job.soc_model

    @property
    def label(self) -> str:
        return f"{self.job.recipe.label} ({self.variant})" if self.variant else self.job.recipe.label


@dataclasses.dataclass(frozen=True, slots=True)
class CellOutcome:
    """Outcome of a job of the matrix.

    Args:
        model: label of the model.
        soc_model: the chip.
        path: path of the result.
        state: done, skipped or failed.
        result: result of a job that is done.
        error: error of a failed job.
        reason: why the job was skipped.
        seconds: duration.
    """

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
    """Return the cells of models x chips x variants.

    Args:
        models: the models.
        soc_models: the chips.
        output: file or folder for the results.
        variants: sizes to compile for; they replace `sess_options`.
        options: options of `make_jobs`.

    Raises:
        OptionError: two results would have the same path.
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
        # Compare paths as the system does: on Windows, names that differ only in case are the same file.
        other = taken.setdefault(os.path.normcase(place.path), recipe.label)
        # The dictionary has not grown, so an earlier cell has the same path.
        if len(taken) == len(cells):
            raise OptionError(
                f"The results of two models would be written to {place.path} ({other} and {recipe.label}).",
                fix="Give a folder as output." if labels else "Compile them to different folders.",
            )
        cells.append(Cell(job, place, labels[number] if labels else ""))
    return cells


class CompileGroup:
    """The running compilations, so that all can be stopped on an interrupt. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Running] = set()
        self._ended = False

    def perform(self, job: CompileJob, **options: Any) -> Any:
        """Call `perform_jobs` as a member of the group. Raise `Closed` if the group was ended."""

        def began(running: Running) -> None:
            # Check and add under the lock, because otherwise a compilation that starts while the group ends
            # would not be stopped.
            with self._lock:
                if self._ended:
                    raise Closed("The work was interrupted.")
                self._running.add(running)

        return perform_jobs((job,), on_begin=began, **options)

    def end(self) -> None:
        """Interrupt all compilations and prevent new compilations."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        # Release the lock first: interrupting a host takes time, and other threads need the lock to register
        # compilations.
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
    """Run the cells on this machine, `jobs` at a time; return the outcomes in the order of the cells."""
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
                # Check for an existing result, unless --overwrite replaces it anyway.
                resume=not overwrite,
            )
        # A BridgeError fails only this job; any other exception is a bug and ends the matrix.
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
            # After Ctrl+C do not wait for running jobs, and do not start waiting jobs.
            executor.shutdown(wait=False, cancel_futures=True)
            # Interrupt all hosts: leaving the `with` block waits for the threads, which end only when their hosts
            # end.
            group.end()
            raise


def collect(
    futures: Mapping[concurrent.futures.Future[CellOutcome], int], on_outcome: OnOutcome | None
) -> list[CellOutcome]:
    """Return the outcomes in the order of the indices in `futures`; report each outcome when it is complete."""
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

    The models are compiled in one process, one after the other; QNN writes the binary with the last model. The
    binary is named after the first model and belongs to all models, so it must not be deleted together with one
    model. The inputs and outputs, or the graph names, must distinguish the models.

    Args:
        options: options of `qnnbridge.compile`.

    Raises:
        BridgeError: `qnnbridge.compile` failed. No file is left.
    """
    if len(models) < 2:
        raise OptionError("A bundle with shared weights needs at least two models.", fix="Give another model.")
    if options.get("embed"):
        raise OptionError(
            "Shared weights cannot be embedded.",
            cause="The context binary belongs to several .onnx files.",
            fix="Omit --embed (embed=True).",
        )
    cells = plan(models, () if soc_model is None else [soc_model], output, **options)
    if len({cell.place.folder for cell in cells}) > 1:
        raise OptionError(
            "The models are in different folders, but the compiled models share a file.",
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


# --- jobs on an existing Dask cluster, through its `concurrent.futures` executor (``qnnbridge[cluster]``) ---
#
# Models and results are transferred as bytes, so no shared folder is needed; a model with separate files must be at
# the same path on the worker. A worker compiles and validates in a temporary folder; the results are moved to their
# destination on this machine.

CONNECT_TIMEOUT_S = 10.0
MAX_PORT = 65535


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job for a worker.

    Args:
        job: the job.
        name: file name of the model.
        data: contents of the model; ``None`` if the worker reads it from its path.
        file_stem: stem of the result's file name.
        validate: compare the result with the CPU.
        timeout_s: time limit in seconds.
        python: interpreter of the worker's host.
    """

    job: CompileJob
    name: str
    data: bytes | None
    file_stem: str
    validate: bool
    timeout_s: float | None
    python: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """Result of a worker, with the contents of its files by name."""

    result: CompileResult
    contents: Mapping[str, bytes]


@contextlib.contextmanager
def executor_of(address: str) -> Iterator[Executor]:
    """Open the executor of the scheduler at `address` (``tcp://HOST:8786``). Its workers need qnnbridge and a host.

    Raises:
        OptionError: the extra is not installed, or the port is too large.
        CompileFailed: there is no scheduler, or it has no workers.
    """
    try:
        distributed: Any = importlib.import_module("distributed")  # untyped
    except ImportError:
        raise OptionError(
            "Compiling on a cluster needs the package distributed, which is not installed.",
            fix=install_command("cluster", python=sys.executable),
        ) from None
    port = address.rpartition(":")[2].lstrip("0")
    # Dask's client does not stop its threads if it gets a port that does not exist.
    if port.isdecimal() and (len(port) > 5 or int(port) > MAX_PORT):
        raise OptionError(
            f"{port} is not a port: a port is at most {MAX_PORT}.",
            fix="Give the scheduler's address: tcp://HOST:8786.",
        )
    try:
        # Do not make this client Dask's default, because the application may have a default client.
        client = distributed.Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise CompileFailed(
            f"There is no Dask scheduler at {address}.",
            cause=f"{error}",
            fix="Start a scheduler (dask scheduler) and workers (dask worker ADDRESS), or check the address.",
        ) from None
    # Suppress Dask's stack traces about a lost connection: the results report the loss.
    with quiet("distributed", "distributed.client"), client:
        if not client.scheduler_info()["workers"]:
            raise CompileFailed(
                f"The scheduler at {address} has no workers.", fix=f"Start some: dask worker {address}"
            )
        # Dask merges calls with equal arguments unless they are declared impure. Disable retries: a compilation
        # that crashed one worker would crash the next.
        executor: Executor = client.get_executor(pure=False, retries=0)
        try:
            yield executor
        finally:
            with contextlib.suppress(BridgeError, OSError):
                executor.shutdown(wait=False)


def run_on(
    executor: Executor,
    cells: Sequence[Cell],
    *,
    validate: bool = True,
    timeout_s: float | None = None,
    overwrite: bool = False,
    python: str | None = None,
    on_outcome: OnOutcome | None = None,
) -> list[CellOutcome]:
    """Run the cells on workers of other machines.

    Args:
        python: interpreter of the workers' hosts.
    """
    there = any(os.path.exists(cell.place.path) for cell in cells)
    # Query the versions only to check existing results, because the query starts a host.
    versions = executor.submit(versions_of, python).result() if there and not overwrite else {}
    begun = time.monotonic()
    outcomes: dict[int, CellOutcome] = {}
    futures: dict[concurrent.futures.Future[Delivery | BridgeError], int] = {}

    def report(index: int, outcome: CellOutcome) -> None:
        outcomes[index] = outcome
        if on_outcome is not None:
            on_outcome(outcome)

    for index, cell in enumerate(cells):
        reason = None if overwrite else _finished(cell, versions)
        if reason is not None:
            report(index, CellOutcome.of(cell, "skipped", reason=reason))
        else:
            futures[executor.submit(compile_there, _portable(cell, validate, timeout_s, python))] = index
    for future in concurrent.futures.as_completed(futures):
        cell = cells[futures[future]]
        try:
            result = _receive(cell, future, overwrite)
            report(futures[future], CellOutcome.of(cell, "done", begun, result=result))
        except BridgeError as error:
            report(futures[future], CellOutcome.of(cell, "failed", begun, error=error))
    # Futures end in any order; return the outcomes in the order of the cells.
    return [outcomes[index] for index in range(len(cells))]


def versions_of(python: str | None) -> dict[str, str]:
    """Return the versions of the host that would compile here."""
    with Host(python) as host:
        return dict(host.info.versions)


def compile_there(remote: RemoteJob) -> Delivery | BridgeError:
    """Compile on the worker that runs this function, in a temporary folder.

    An error is returned instead of raised: a cluster would write its traceback to the worker's log.
    """
    with work_folder("compile") as folder:
        try:
            job = remote.job
            if remote.data is not None:
                path = os.path.join(folder, "in", remote.name)
                os.mkdir(os.path.dirname(path))
                with open(path, "wb") as file:
                    file.write(remote.data)
                spec = dataclasses.replace(job.recipe.spec, model_path=path)
                job = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, spec=spec, data=None))
            out = os.path.join(folder, "out")
            job = dataclasses.replace(job, output=os.path.join(out, remote.file_stem + MODEL_SUFFIX))
            host = Host(remote.python) if remote.python is not None else None
            (result,) = perform_jobs(
                (job,), validate=remote.validate, timeout_s=remote.timeout_s, host=host
            ).results
            # Return names and contents of the files, because the sender cannot access paths of this worker.
            contents = {}
            for path in filter(None, (result.path, result.blob, result.manifest)):
                with open(path, "rb") as file:
                    contents[os.path.basename(path)] = file.read()
        except BridgeError as error:
            # Return the error without its traceback, whose frames would keep the model's bytes in memory.
            return error.copy()
        return Delivery(result, contents)


def _portable(cell: Cell, validate: bool, timeout_s: float | None, python: str | None) -> RemoteJob:
    recipe = cell.job.recipe
    path, data, name = recipe.spec.model_path, recipe.data, WITHOUT_A_NAME + MODEL_SUFFIX
    if path is not None:
        name = os.path.basename(path)
        # Weights next to a model may be gigabytes, so such a model must be present on the worker.
        if not ModelSource.open(path).files:
            with open(path, "rb") as file:
                data = file.read()
    # Choose the stem here, because the worker cannot check which files exist in the destination.
    return RemoteJob(cell.job, name, data, cell.place.file_stem(), validate, timeout_s, python)


def _finished(cell: Cell, versions: Mapping[str, str]) -> str | None:
    if not os.path.exists(cell.place.path):
        return None
    recipe = cell.job.recipe
    source = ModelSource.open(recipe.spec.model_path or recipe.data or b"")
    return is_finished(CompilerInput(source, recipe.spec, embed=cell.job.embed), cell.place, versions)


def _receive(
    cell: Cell, future: concurrent.futures.Future[Delivery | BridgeError], overwrite: bool
) -> CompileResult:
    try:
        delivery = future.result()
    except BridgeError:
        raise
    # Dask's futures raise this error when the scheduler has ended.
    except concurrent.futures.CancelledError:
        raise CompileFailed(
            f"The connection to the cluster was lost before {cell.label} was finished.",
            cause="The scheduler ended, or the network failed.",
            fix="Start the scheduler and its workers again and repeat the command; finished results are kept.",
        ) from None
    except Exception as error:  # noqa: BLE001 - Dask raises its own errors, and a worker may crash
        raise CompileFailed(
            f"The worker did not finish {cell.label}.",
            cause=f"{type(error).__name__}: {error}",
            fix="Read the worker's log; the worker needs the extra [cluster] in the same version and an "
            "interpreter for the host (QNNBRIDGE_HOST_PYTHON).",
        ) from None
    if isinstance(delivery, BridgeError):
        raise delivery
    return _deliver(cell, delivery, overwrite)


def _deliver(cell: Cell, delivery: Delivery, overwrite: bool) -> CompileResult:
    """Move the files of a worker to their destination, all or none."""
    place, result = cell.place, delivery.result
    # The binary keeps the name that it was compiled under, because the model contains this name.
    blob = os.path.basename(result.blob) if result.blob is not None else None
    # Create the folder inside the destination, because renaming works only within a volume.
    with compile_folder(place.folder) as folder:
        try:
            for name, contents in delivery.contents.items():
                # Use only the base name, because data from the network must not select a folder here.
                with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                    file.write(contents)
            _rename(folder, os.path.basename(result.path), place.model, blob)
        except OSError as error:
            raise from_os(error, place.folder) from None
        # Check again: hours may have passed since the job was sent.
        if not overwrite:
            refuse_existing(place)
        move_whole(folder, (place,), () if blob is None else (blob,), overwrite=overwrite)
    return dataclasses.replace(
        result,
        path=place.path,
        blob=os.path.join(place.folder, blob) if blob is not None else None,
        manifest=manifest_path(place.path),
    )


def _rename(folder: str, made: str, wanted: str, blob: str | None) -> None:
    """Rename a model that was compiled under another name because its context binary already existed."""
    if made == wanted:
        return
    path = os.path.join(folder, made)
    manifest = read_manifest(path)
    os.rename(path, os.path.join(folder, wanted))
    # A manifest contains the name of its model, so the old manifest is no longer valid.
    os.unlink(manifest_path(path))
    if manifest is not None:
        write_manifest(
            folder,
            wanted,
            () if blob is None else (blob,),
            source_name=manifest.source_name,
            source_sha256=manifest.source_sha256,
            versions=manifest.versions,
            soc_models=manifest.soc_models,
            htp_arch=manifest.htp_arch,
            options=manifest.options,
            extra=manifest.extra,
        )
