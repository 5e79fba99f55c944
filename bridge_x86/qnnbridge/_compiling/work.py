"""The job function: compile, look, try. The same for one model, a matrix, and a worker of a cluster.

It knows nothing of where the files end up: it fills a folder, and says what it did. Everything here can be pickled.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from qnnbridge._compiling.compiler import compile_together
from qnnbridge._compiling.job import CompiledFiles, CompileJob, HostSettings
from qnnbridge._compiling.names import MODEL_SUFFIX, WITHOUT_A_NAME
from qnnbridge._compiling.progress import ticking
from qnnbridge._compiling.validation import Validation, validate
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge_protocol.errors import BridgeError

Stage = Callable[[str, float], None]
"""Told what is being done (``compiling``, ``validating``) and for how many seconds all of it has gone on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """jobs: one, or several that share their weights. timeout_s: for compiling and trying together."""

    jobs: tuple[CompileJob, ...]
    validate: bool = True
    timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What a task made, for each of its jobs. seconds: all of it, with the starts of the processes."""

    files: tuple[CompiledFiles, ...]
    validations: tuple[Validation, ...]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """`Made` and the contents of its files, to be sent from one machine to another."""

    made: Made
    contents: Mapping[str, bytes]


def perform(task: Task, folder: str, on_stage: Stage | None = None) -> Made:
    """Do the task into `folder`. Raises what `compile_into` and `validate` raise."""
    deadline = deadline_after(task.timeout_s)
    begun = time.monotonic()
    stage = ["compiling"]
    with ticking((lambda seconds: on_stage(stage[0], seconds)) if on_stage is not None else None):
        files = compile_together(task.jobs, folder, timeout_s=task.timeout_s)
        stage[0] = "validating"
        validations = tuple(
            _validated(task, job, made, deadline) for job, made in zip(task.jobs, files, strict=True)
        )
    return Made(files, validations, time.monotonic() - begun)


def perform_and_send(task: Task) -> Delivery | BridgeError:
    """`perform` on another machine: models come and files go as bytes, so no folder need be shared.

    An error is an answer as well: a cluster would write its trace into the worker's log.
    """
    with tempfile.TemporaryDirectory(prefix="qnnbridge-compile-") as folder:
        arrived, out = os.path.join(folder, "in"), os.path.join(folder, "out")
        os.mkdir(arrived)
        os.mkdir(out)
        try:
            jobs = tuple(_as_file(job, arrived) for job in task.jobs)
            made = perform(dataclasses.replace(task, jobs=jobs), out)
            contents = {}
            for name in dict.fromkeys(name for files in made.files for name in files.names):
                with open(os.path.join(out, name), "rb") as file:
                    contents[name] = file.read()
        except BridgeError as error:
            return error.copy()
        return Delivery(made, contents)


def _as_file(job: CompileJob, folder: str) -> CompileJob:
    """The job with its model as a file of the model's own name, by which messages call it."""
    if job.source.data is None:
        return job
    path = os.path.join(folder, f"{job.stem or WITHOUT_A_NAME}{MODEL_SUFFIX}")
    with open(path, "wb") as file:
        file.write(job.source.data)
    source = dataclasses.replace(job.source, path=path, data=None)
    return dataclasses.replace(job, source=source, spec=dataclasses.replace(job.spec, model_path=path))


def versions_of(settings: HostSettings) -> dict[str, str]:
    """The versions of the host that would do the work."""
    with settings.fresh() as host:
        return dict(host.info.versions)


def _validated(task: Task, job: CompileJob, files: CompiledFiles, deadline: float | None) -> Validation:
    if not task.validate:
        return Validation(skipped="It was not asked for.")
    if len(task.jobs) > 1 and files.placement is not None and files.placement.simulator:
        return Validation(skipped="The simulator cannot load a context binary that several models share.")
    return validate(job, files, deadline=deadline)


def blobs_of(files: Sequence[CompiledFiles]) -> tuple[str, ...]:
    """Names of the context binaries, each once."""
    return tuple(dict.fromkeys(one.blob for one in files if one.blob is not None))
