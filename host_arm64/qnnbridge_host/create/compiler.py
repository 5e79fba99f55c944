"""Compile models in a worker. The result is complete files in a folder, or an error with its cause.

The worker compiles; the serving host checks the results. Invariants: the worker has ended when the functions
return, and the files are complete unless the functions raise an error. Thread-safe; jobs are independent.

Parts of QNN open files by paths in the system's own code page. So a model with a non-ASCII path is linked (or
copied from another volume) with all of its files to a folder with an ASCII path, and the result is moved from
there. A model that changes while it is compiled is compiled again from a private copy, whose hashes are checked.
The folder with the links or copies is removed after the compilation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.create.beforehand import refuse_beforehand
from qnnbridge_host.create.order import WorkOrder
from qnnbridge_host.create.publish import MODEL_SUFFIX, CompiledFiles, CompilerInput, blob_of, compiled_spec
from qnnbridge_host.create.worker import Worker
from qnnbridge_host.model.chips import chip_named, known_chips_text
from qnnbridge_host.model.paths import from_host, from_os
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import are_same, take_stamp
from qnnbridge_os.files import link_or_copy
from qnnbridge_protocol.errors import BridgeError, CompileFailed, EPFail, Fail, PlacementRefused, WorkerDied
from qnnbridge_protocol.specs import (
    QNN,
    CompileSpec,
    NodeInfo,
    ProviderSpec,
    SessionInfo,
    SessionSpec,
    ShareWeights,
)
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.compiling")

# Parts of a session's refusal message that do not apply to a compilation (`nothing_to_compile`).
_ABOUT_SESSIONS = re.compile(r",? and this session forbids (?:the CPU|it)\.")
_ALLOW_CPU = re.compile(r"\s*To run unsupported nodes on the CPU, create the session with fallback='cpu'\.")
# Beginning of the advice in a refusal if overrides by name cannot fix all free dimensions.
_EXPORT_ADVICE = "Export the model with fixed shapes"
# Stem of staged files. Users never see it: `StagingDir.with_real_paths` inserts the real file name into errors.
STAGED_STEM = "qnnbridge_staged_model"


def compile_together(jobs: Sequence[CompilerInput], folder: str, order: WorkOrder) -> tuple[CompiledFiles, ...]:
    """Compile models. Several jobs share their weights in one context binary, which is named after the first job.

    Args:
        jobs: the models.
        folder: an existing folder of the caller for the results.
        order: stop signal, deadline and receiver of progress events for the worker.

    Raises:
        CompileFailed: no node is on QNN, or the files are incomplete.
        PlacementRefused: nodes would stay on the CPU and the job's ``fallback`` forbids it.
        WorkerDied: the worker crashed without a complete result.
        Cancelled, DeadlineExceeded: the request was withdrawn, or its deadline expired.
        BridgeError: the errors of creating a session.
    """
    for job in jobs:
        refuse_beforehand(job.source, job.spec, job.initializers, order)
    try:
        made = _compiled(jobs, folder, order)
        if made is None:
            _log.warning("files of the model may have changed while it was compiled; compiling again from a copy")
            made = _compiled(jobs, folder, order, copied=True)
        if made is None:
            raise jobs[0].source.never_rests()
        return tuple(dataclasses.replace(files, folder=folder) for files in made)
    except BridgeError:
        raise
    except OSError as error:
        raise from_os(error, folder) from None


def _compiled(
    jobs: Sequence[CompilerInput], folder: str, order: WorkOrder, *, copied: bool = False
) -> list[CompiledFiles] | None:
    """Compile the jobs; return ``None`` if a file may have changed meanwhile, which makes the result unusable."""
    with staging_dir(jobs, folder, copied=copied) as place:
        # Take the stamps after the staging, which creates hard links and so changes the stamps.
        before = list(itertools.chain(*(job.source.stamps() for job in jobs)))
        try:
            made = _Compilation(jobs, place, order).run()
        except BridgeError as error:
            raise from_host(place.with_real_paths(error), folder) from None
        after = list(itertools.chain(*(job.source.stamps() for job in jobs)))
        return made if place.private or are_same(before, after) else None


class _Compilation:
    """Compilation of all jobs in one worker; `run` returns the files."""

    def __init__(self, jobs: Sequence[CompilerInput], place: StagingDir, order: WorkOrder) -> None:
        self._jobs = jobs
        self._place = place
        self._order = order
        self._begun = time.monotonic()
        self._stems = [job.stem for job in jobs]
        self._shared = len(jobs) > 1

    def run(self) -> list[CompiledFiles]:
        worker = Worker(self._order)
        try:
            with worker.running():
                made = [self._compile(worker, index) for index in range(len(self._jobs))]
        except WorkerDied as death:
            made = [self._salvaged(death)]
        else:
            if worker.exit_code:
                _log.warning(
                    "the compiler crashed during its clean-up (exit code %s); its complete result is kept",
                    worker.exit_code,
                )
                made = [dataclasses.replace(files, died_at_teardown=True) for files in made]
        for files in made:
            check_whole(files.folder, files.model, files.blob)
        for job in self._jobs:
            # The result must not be stored under the hash of the old contents if the model has changed.
            job.source.check_unchanged()
        return made

    def _compile(self, worker: Worker, index: int) -> CompiledFiles:
        job, spec = self._jobs[index], self._place.specs[index]
        header = {"op": "worker.compile", "spec": self._description(index, spec).to_wire()}
        # Record the model for crash reports, because one worker may compile several models.
        worker.model = job.source
        try:
            frame = worker.call_with_model(header, job.initializers, job.source.data)
        except BridgeError as error:
            if isinstance(error, PlacementRefused) and spec.fallback == "cpu":
                error = nothing_to_compile(error, job.source.scan.inputs if job.source.scan is not None else ())
            blame_unknown_chips(error, spec.providers)
            raise error from None
        info = SessionInfo.from_wire(frame.header["info"])
        options = dict(info.provider_options.get(QNN, {}))
        return CompiledFiles(
            folder=self._place.folder,
            model=self._stems[index] + MODEL_SUFFIX,
            blob=self._blob(index),
            placement=info.placement,
            soc_model=info.placement.soc_model or options.get("soc_model"),
            provider_options=options,
            versions={**worker.versions, **frame.header["versions"]},
            seconds=info.create_seconds,
            info=info,
        )

    def _description(self, index: int, spec: SessionSpec) -> CompileSpec:
        share: ShareWeights = "no"
        # QNN writes the shared binary with the last model, and names it after the first model.
        if self._shared:
            share = "last" if index == len(self._jobs) - 1 else "more"
        output = os.path.join(self._place.folder, self._stems[index] + MODEL_SUFFIX)
        return CompileSpec(spec, output, self._jobs[index].embed, share)

    def _blob(self, index: int) -> str | None:
        if self._jobs[index].embed:
            return None
        return blob_of(self._stems[0 if self._shared else index])

    def _salvaged(self, death: WorkerDied) -> CompiledFiles:
        """Return the files that a crashed compiler left, if they are complete and another process can load them.

        QNN crashes most often while it cleans up, when all files are written.
        """
        # The simulator cannot load a binary that several models share, so such a binary cannot be verified.
        if self._shared:
            raise death
        job, model, blob = self._jobs[0], self._stems[0] + MODEL_SUFFIX, self._blob(0)
        try:
            check_whole(self._place.folder, model, blob)
            worker = Worker(self._order)
            with worker.running():
                path = os.path.join(self._place.folder, model)
                spec = dataclasses.replace(compiled_spec(job.spec), model_path=path)
                frame = worker.call_with_model({"op": "worker.create", "spec": spec.to_wire()})
                info = SessionInfo.from_wire(frame.header["info"])
        except BridgeError:
            # If the request was withdrawn, raise `Cancelled`: an interrupted check does not prove that the files
            # are bad.
            self._order.stop.check()
            raise death from None
        _log.warning("%s The files that the compiler wrote are complete and are kept.", death.message)
        return CompiledFiles(
            folder=self._place.folder,
            model=model,
            blob=blob,
            placement=None,
            soc_model=info.placement.soc_model,
            provider_options=dict(info.provider_options.get(QNN, {})),
            versions=death.details.get("versions", {}),
            seconds=time.monotonic() - self._begun,
            died_at_teardown=True,
        )


def check_whole(folder: str, model: str, blob: str | None) -> None:
    """Raise `CompileFailed` unless the .onnx file is complete and has its context binary.

    Args:
        folder: folder of the files.
        model: file name of the .onnx file.
        blob: file name of the context binary that the model must refer to; ``None`` if the binary must be embedded.
    """
    path = os.path.join(folder, model)
    try:
        scan = scan_model(path)
    except BridgeError as error:
        raise _broken(f"{model} is truncated or damaged.", error.message) from None
    owners = [node for node in scan.ep_contexts if node.owns_blob]
    # In the file the operator sets follow the graph, so a file that was truncated after the graph lacks them.
    if not owners or not scan.opsets:
        raise _broken(f"{model} contains no compiled graph.", "")
    for node in owners:
        if blob is None:
            if not node.embedded:
                raise _broken(f"{model} contains no embedded context binary.", "")
        elif node.embeds or node.cache_path != blob:
            raise _broken(
                f"{model} does not refer to the context binary {blob}.", f"It refers to {node.cache_path!r}."
            )
    if blob is not None and not _size(os.path.join(folder, blob)):
        raise _broken(f"The context binary {blob} is missing or empty.", "")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _broken(what: str, why: str) -> CompileFailed:
    return CompileFailed(
        f"The compiler left no complete result: {what}",
        cause=why or None,
        fix="Compile again. If the error occurs again, check the free disk space and the host's log.",
    )


# --- the folder that QNN's compiler reads and writes -----------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class StagingDir:
    """Paths for the native compiler.

    Attributes:
        folder: folder for the results.
        specs: the jobs' session descriptions with the paths that the compiler reads.
        replaced: pairs of a staged path and the real path.
        private: whether all files to read are private copies.
    """

    folder: str
    specs: tuple[SessionSpec, ...]
    replaced: tuple[tuple[str, str], ...] = ()
    private: bool = False

    def with_real_paths(self, error: BridgeError) -> BridgeError:
        """Replace staged paths in an error by the user's paths, and return the error."""
        for staged, real in self.replaced:
            for old, new in ((staged, real), (os.path.basename(staged), os.path.basename(real))):
                error.message = error.message.replace(old, new)
                error.cause = error.cause.replace(old, new) if error.cause else error.cause
                error.fix = error.fix.replace(old, new) if error.fix else error.fix
                error.evidence = tuple(line.replace(old, new) for line in error.evidence)
        error.args = (error.message,)
        return error


@contextlib.contextmanager
def staging_dir(jobs: Sequence[CompilerInput], folder: str, *, copied: bool = False) -> Iterator[StagingDir]:
    """Provide the paths for the native compiler, and move the results to `folder` after the block.

    Args:
        jobs: the models.
        folder: the folder for the results.
        copied: whether to stage private copies of all models.

    Raises:
        OSError: a copy failed.
        ModelChanged: the contents of a copy do not have the model's hash.
    """
    specs = tuple(job.spec for job in jobs)
    staged = [job.source.path is not None and (copied or not job.source.path.isascii()) for job in jobs]
    parent = _ascii_folder() if any(staged) or not folder.isascii() else None
    # Either staging is not needed, or no folder with an ASCII path is writable. In both cases QNN gets the real
    # paths.
    if parent is None:
        yield StagingDir(folder, specs)
        return
    with work_folder("compile", parent) as place:
        out = folder
        # A second attempt (`copied`) writes to a new folder: the first attempt may have left files in `folder`.
        if copied or not folder.isascii():
            out = os.path.join(place, "out")
            os.mkdir(out)
        new_specs, replaced = [], []
        for index, job in enumerate(jobs):
            spec, path = specs[index], None
            if staged[index]:
                path = _stage(job, os.path.join(place, f"in{index}"), index, copied=copied)
            # The path is ``None`` if the model is not staged, or if one of its files is outside of its folder.
            if path is not None and job.source.path is not None:
                spec = dataclasses.replace(spec, model_path=path)
                replaced.append((path, job.source.path))
            new_specs.append(spec)
        private = copied and len(replaced) == len(jobs)
        yield StagingDir(out, tuple(new_specs), tuple(replaced), private)
        if out != folder:
            for name in sorted(os.listdir(out)):
                shutil.move(os.path.join(out, name), os.path.join(folder, name))


def _ascii_folder() -> str | None:
    """Return a writable folder with an ASCII path, for staged files; ``None`` if no candidate is writable."""
    # On Windows the path of the temporary folder contains the user name, which may not be ASCII.
    candidates = [tempfile.gettempdir()]
    candidates += [os.environ[name] for name in ("PUBLIC", "ProgramData") if os.environ.get(name)]
    return next((one for one in candidates if one.isascii() and os.access(one, os.W_OK)), None)


def _stage(job: CompilerInput, folder: str, index: int, *, copied: bool) -> str | None:
    """Link or copy a model to `folder` and return its new path; ``None`` if one of its files is outside of the
    model's folder."""
    source = job.source.path
    assert source is not None
    home = os.path.dirname(source)
    try:
        beside = [(path, os.path.relpath(path, home)) for path in job.source.files if os.path.exists(path)]
    except ValueError:  # the file is on another drive (Windows)
        return None
    # The model refers to its external files by paths relative to its folder, so the copies must have the same
    # relative paths. Files outside of the model's folder cannot be staged.
    if any(name.startswith(os.pardir) or os.path.isabs(name) for _, name in beside):
        return None
    os.mkdir(folder)
    staged = os.path.join(folder, f"{STAGED_STEM}{index}{os.path.splitext(source)[1]}")
    if not staged.isascii():
        staged = os.path.join(folder, f"{STAGED_STEM}{index}.onnx")
    targets = {source: staged}
    for path, name in beside:
        targets[path] = os.path.join(folder, name)
        os.makedirs(os.path.dirname(targets[path]), exist_ok=True)
    for path, target in targets.items():
        if copied:
            shutil.copyfile(path, target)
        else:
            link_or_copy(path, target)
    if copied:
        # The stamps of the new files do not prove that their contents are equal, so hash the copies.
        copies = [file._replace(path=targets[file.path]) for file in job.source.known if file.path in targets]
        known = tuple(copy._replace(stamp=take_stamp(copy.path)) for copy in copies)
        job.source._replace(known=known).check_unchanged()
    return staged


# --- refusals --------------------------------------------------------------------------------------------


def nothing_to_compile(refused: PlacementRefused, inputs: Sequence[NodeInfo] = ()) -> CompileFailed:
    """Turn a session's refusal into the error of a compilation that allows the CPU.

    QNN supports no node of the model, so the "compiled" model would be a copy of the original.

    Args:
        refused: the session's refusal.
        inputs: the model's inputs, if known.
    """
    fix = _ALLOW_CPU.sub("", refused.fix or "").strip()
    free = _free_axes(inputs)
    if fix.startswith(_EXPORT_ADVICE) and free:
        fix = (
            "Fix the dimensions in a copy of the model, and compile that: qnnbridge optimize MODEL -o FIXED.onnx "
            + " ".join(f"--dim {axis}=SIZE" for axis in free)
            + "; or export the model with fixed shapes."
        )
    return CompileFailed(
        _ABOUT_SESSIONS.sub(", so there is nothing to compile.", refused.message),
        cause=refused.cause,
        fix=fix or None,
        evidence=refused.evidence,
        details=refused.details,
    )


def unknown_chips(providers: Sequence[ProviderSpec]) -> tuple[str, ...]:
    """Return the chips in ``soc_model`` that are not in `CHIPS`. Such chips are accepted, because QNN supports more
    chips than the table."""
    texts = (provider.options.get("soc_model", "") for provider in providers if provider.name == QNN)
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part.strip("0") and chip_named(part) is None))


def unknown_chips_text(chips: Sequence[str]) -> str:
    """Return the sentence that reports the result of `unknown_chips`."""
    return f"{', '.join(chips)} {'is' if len(chips) == 1 else 'are'} not in qnnbridge's table of chips"


def blame_unknown_chips(error: BridgeError, providers: Sequence[ProviderSpec]) -> None:
    """Put an unknown chip first in an error's causes, because it is the most likely reason for QNN's refusal."""
    chips = unknown_chips(providers)
    if chips and isinstance(error, (CompileFailed, PlacementRefused, EPFail, Fail)):
        error.cause = f"{unknown_chips_text(chips)} (soc_model). {error.cause or ''}".rstrip()
        known = known_chips_text()
        error.fix = f"Check soc_model (--soc-model); the known chips are {known}. {error.fix or ''}".rstrip()


def _free_axes(inputs: Sequence[NodeInfo]) -> list[str]:
    """Return each free dimension as the name of its input and its axis, such as ``x:0``."""
    return [
        f"{node.name}:{axis}"
        for node in inputs
        for axis, size in enumerate(node.shape or ())
        if not isinstance(size, int) or size < 0
    ]
