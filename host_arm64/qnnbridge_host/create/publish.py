"""Input and result of a compilation, the naming of its files, and the move of complete files to their destination.

Three rules apply to a file name: QNN refuses to load a context binary whose name contains ``..``, though it writes
such a file without an error; a file name has at most 255 bytes; and the files of a model and its manifest have the
same stem.

Invariants, even if this process is killed at any point: each .onnx file has the context binary that it was compiled
with, and is complete. Context binaries are never replaced (`Destination.file_stem` finds a free name). The .onnx
file is moved after its context binary, and its manifest always describes the existing files. Two processes with the
same destination move their files one after the other. Thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.cache.files import hold, work_folder
from qnnbridge_host.model.manifest import CompiledManifest, manifest_path, read_manifest, write_manifest
from qnnbridge_host.model.paths import from_os
from qnnbridge_host.model.source import KnownFile, ModelSource
from qnnbridge_os.files import make_folders, sync_file, sync_folder
from qnnbridge_os.outputs import check_folder, place_of_several
from qnnbridge_protocol.errors import BridgeError, CompileFailed, OptionError
from qnnbridge_protocol.model_records import Validation
from qnnbridge_protocol.settings import state_dir
from qnnbridge_protocol.specs import QNN, Placement, ProviderSpec, SessionInfo, SessionSpec

# Versions of the packages on which a compiled model depends.
RELEVANT_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "ep_source", "ep_version")

CONTEXT: Final = "_ctx"
MODEL_SUFFIX: Final = ".onnx"
# Suffix that QNN appends to the stem of the .onnx file to name the context binary.
BLOB_SUFFIX: Final = "_qnn.bin"

# Maximum length of a stem in bytes. File systems allow 255 bytes for a name; the rest is for the suffixes of result
# files and temporary files.
MAX_STEM_BYTES: Final = 215

WITHOUT_A_NAME: Final = "model"

_ABOUT_COMPILING: Final = ("ep.context_", "ep.share_", "ep.stop_share_", "session.disable_model_compile")


@dataclasses.dataclass(frozen=True, slots=True)
class CompilerInput:
    """One model to compile for one target.

    Attributes:
        source: the original model.
        spec: description of a session of the model: providers and their options, free dimensions. With
            ``fallback="error"``, compiling raises `PlacementRefused` if a node stays on the CPU.
        file_stem: the files are ``<file_stem>.onnx`` and ``<file_stem>_qnn.bin``; default: the model's own stem
            with ``_ctx``. Two dots in a row are replaced, because QNN could not load the result;
            `CompiledFiles.model` has the final name.
        embed: whether the context binary is embedded in the .onnx file.
        initializers: the values of the initializers that `spec` announces.
        inputs: inputs for comparing the result with the CPU; default: generated inputs.
    """

    source: ModelSource
    spec: SessionSpec
    file_stem: str | None = None
    embed: bool = False
    initializers: tuple[Any, ...] = ()
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Stem of the files that the compiler writes."""
        path = self.source.path
        return self.file_stem or context_stem(stem_of(path) if path is not None else None)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledFiles:
    """A complete compiled model in the caller's folder.

    Attributes:
        folder: folder of the files.
        model: file name of the .onnx file.
        blob: file name of the context binary; ``None`` if it is embedded.
        placement: placement of the original model's nodes; ``None`` if the compiler crashed before it reported the
            placement, but its files are complete.
        soc_model: the chip given to QNN; ``None`` for the chip of the host.
        provider_options: all options given to QNN.
        versions: versions of the worker's packages and QNN.
        seconds: duration of the native compilation; if the compiler crashed, duration of all its work.
        died_at_teardown: whether the compiler crashed during its clean-up; the result is complete.
        info: information of a session of the original model, which the compiled model partly lacks (producer,
            version); ``None`` if `placement` is ``None``.
    """

    folder: str
    model: str
    blob: str | None
    placement: Placement | None
    soc_model: str | None
    provider_options: Mapping[str, str]
    versions: Mapping[str, str]
    seconds: float
    died_at_teardown: bool = False
    info: SessionInfo | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the compiled model's files; the .onnx file is first."""
        return (self.model,) if self.blob is None else (self.model, self.blob)


def job_key(job: CompilerInput, versions: Mapping[str, str]) -> str:
    """Return a key of a job's contents, options and versions. Jobs with the same key have the same result."""
    relevant = {name: versions[name] for name in RELEVANT_VERSIONS if name in versions}
    text = json.dumps([job.source.fingerprint, job.spec.options_hash, job.embed, relevant], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def blobs_of(files: Sequence[CompiledFiles]) -> tuple[str, ...]:
    """Return the context binaries of the results without repetitions."""
    return tuple(dict.fromkeys(one.blob for one in files if one.blob is not None))


def chip_numbers(soc_model: str | None) -> tuple[int, ...]:
    """Return the numbers of the chips in a ``soc_model``. Omit chips given by name, and 0, which means no chip."""
    parts = (part.strip() for part in (soc_model or "").split(","))
    return tuple(int(part) for part in parts if part.isdecimal() and int(part))


def compiled_spec(spec: SessionSpec) -> SessionSpec:
    """Return the description of the compiled model's session, without the options that only affect compiling."""
    return SessionSpec(
        model_path=None,
        providers=spec.providers or (ProviderSpec(QNN),),
        fallback=spec.fallback,
        options=spec.options,
        config_entries=without_compiling(spec.config_entries),
        custom_op_libraries=spec.custom_op_libraries,
    )


def without_compiling(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration entries that do not concern compiling."""
    return {key: text for key, text in entries.items() if not key.startswith(_ABOUT_COMPILING)}


# --- file naming -----------------------------------------------------------------------------------------


def context_stem(stem: str | None) -> str:
    """Return the stem of the compiled model for a model's stem: ``pnet`` -> ``pnet_ctx``. See `safe_stem`."""
    return safe_stem((stem or WITHOUT_A_NAME) + CONTEXT)


def safe_stem(stem: str) -> str:
    """Return a stem with which QNN can load the context binary, and which is short enough for all files of the
    model."""
    safe = re.sub(r"\.{2,}", "_", stem)
    if len(os.fsencode(safe)) > MAX_STEM_BYTES:
        # The hash distinguishes the stem from other stems that begin in the same way.
        tail = f"-{hashlib.sha256(os.fsencode(safe)).hexdigest()[:8]}"
        safe = _first_bytes(safe, MAX_STEM_BYTES - len(tail)) + tail
    return safe


def blob_of(stem: str) -> str:
    """Return the file name of the context binary of ``<stem>.onnx``."""
    return stem + BLOB_SUFFIX


def stem_of(path: str) -> str:
    """Return the stem of a path: ``dir/a..b.onnx`` -> ``a..b``."""
    return os.path.splitext(os.path.basename(path))[0]


def _first_bytes(text: str, limit: int) -> str:
    while len(os.fsencode(text)) > limit:
        text = text[:-1]
    return text


# --- the destination: the path of `output`, and the working folder ---------------------------------------

# Seconds to wait for the lock. Its holder only moves a few files.
LOCK_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Destination:
    """Destination of a compiled model. folder: absolute path. model: file name of the .onnx file."""

    folder: str
    model: str

    @property
    def path(self) -> str:
        """Path of the .onnx file."""
        return os.path.join(self.folder, self.model)

    def file_stem(self) -> str:
        """Return a stem for the compiler's files. No context binary with this stem exists yet at the destination.

        An existing context binary may belong to another model and is never replaced, because an .onnx file with
        another model's context binary computes wrong numbers.
        """
        stem = safe_stem(stem_of(self.model))
        # `lexists`, because a dangling link occupies the file name, too.
        if os.path.lexists(os.path.join(self.folder, blob_of(stem))):
            return safe_stem(f"{stem}-{secrets.token_hex(4)}")
        return stem


def destination_of(source: ModelSource, output: str | None, cwd: str, *, tag: str = "") -> Destination:
    """Return the destination of a compiled model.

    Args:
        source: the model.
        output: a path ending in .onnx, or a folder (a path without a suffix counts as a folder), in which the file
            is ``<stem>_ctx.onnx``; default: the model's folder.
        cwd: absolute path of the folder to which relative paths refer.
        tag: suffix that follows the model's stem in a default file name.

    Raises:
        OptionError: ONNX Runtime or QNN could not load a file of this name, or the output is the model itself.
    """
    home = os.path.dirname(source.path) if source.path is not None else cwd
    stem = stem_of(source.path) if source.path is not None else WITHOUT_A_NAME
    name = context_stem(stem + tag) + MODEL_SUFFIX
    if output is None:
        place = Destination(home, name)
    else:
        text = output
        path = place_of_several(os.path.normpath(os.path.join(cwd, text)))
        if os.path.isdir(path) or text.endswith(("/", os.sep)) or not os.path.splitext(path)[1]:
            check_folder(path, text)
            place = Destination(path, name)
        else:
            if not path.lower().endswith(MODEL_SUFFIX):
                raise OptionError(
                    f"The output {text} does not end in .onnx.",
                    cause="ONNX Runtime chooses the format by the suffix, and would not load this file as ONNX.",
                    fix="Give a file name that ends in .onnx, or a folder (with a slash at the end if its name "
                    "contains a dot).",
                )
            place = Destination(os.path.dirname(path), os.path.basename(path))
            _check_name(stem_of(path))
    if source.path is not None and os.path.exists(place.path) and os.path.samefile(place.path, source.path):
        raise OptionError("The output is the model itself.", fix="Give another output.")
    return place


def _check_name(stem: str) -> None:
    safe = safe_stem(stem)
    if safe == stem:
        return
    cause = "QNN treats two dots in a row as a reference to another folder, and would never load the result."
    if ".." not in stem:
        cause = "The file names of the compiled model would be longer than file systems allow."
    raise OptionError(
        f"{stem}.onnx cannot be the name of a compiled model.",
        cause=cause,
        fix=f"Call it {safe}.onnx, for example.",
    )


@contextlib.contextmanager
def compile_folder(target: str) -> Iterator[str]:
    """Create a hidden working folder in `target`, and remove it after the block. Create `target` if it is missing.

    Raises:
        CompileFailed: a folder cannot be created.
    """
    made = _make(target)
    try:
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(work_folder("compile", target, hidden=True))
            except OSError as error:
                raise from_os(error, target) from None
            yield folder
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # `rmdir` removes only empty folders
        raise


def _make(target: str) -> list[str]:
    """Create the folder and its parents; return the folders that did not exist, the innermost first."""
    missing = []
    path = target
    while not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        raise from_os(error, target) from None
    return missing


# --- the move --------------------------------------------------------------------------------------------


def refuse_existing(place: Destination) -> None:
    """Raise `OptionError` if the destination exists."""
    if os.path.lexists(place.path):
        raise OptionError(
            f"{place.path} exists already.",
            fix="Give --overwrite (overwrite=True) to replace it, or another output.",
            details={"path": place.path, "exists": True},
        )


def is_finished(job: CompilerInput, place: Destination, versions: Mapping[str, str]) -> str | None:
    """Return why a job can be skipped (its result is complete and up to date); ``None`` if it must run."""
    try:
        manifest = read_manifest(place.path)
    except BridgeError:
        return None
    if manifest is None or manifest.extra.get("key") != job_key(job, versions):
        return None
    try:
        # Compare hashes, so that a damaged result is compiled again.
        for record in manifest.files:
            if KnownFile.look(os.path.join(place.folder, record.name)).sha256 != record.sha256:
                return None
    except OSError:
        return None
    return "The result exists already, compiled from the same model with the same options and versions."


def describe(
    folder: str,
    place: Destination,
    job: CompilerInput,
    files: CompiledFiles,
    validation: Validation,
    bundle: Sequence[str] = (),
) -> CompiledManifest:
    """Write the manifest of a model that is in `folder` with its final file name.

    Args:
        folder: the working folder.
        place: the final destination.
        job: the compiled job.
        files: the compiled model.
        validation: result of the comparison with the original.
        bundle: file names of all models that share the context binary; empty for a single model.
    """
    extra = {
        "key": job_key(job, files.versions),
        "embedded": files.blob is None,
        "compile_seconds": round(files.seconds, 3),
        "died_at_teardown": files.died_at_teardown,
        "placement": files.placement.to_wire() if files.placement is not None else None,
        "validation": validation.to_json(),
    }
    if bundle:
        extra["bundle"] = list(bundle)
    arch = files.provider_options.get("htp_arch", "")
    return write_manifest(
        folder,
        place.model,
        (files.blob,) if files.blob is not None else (),
        source_name=job.source.label,
        source_sha256=job.source.fingerprint,
        versions=files.versions,
        soc_models=chip_numbers(files.soc_model),
        htp_arch=int(arch) if arch.isdecimal() and int(arch) else None,
        options=files.provider_options,
        extra=extra,
    )


def move_whole(folder: str, places: Sequence[Destination], blobs: Sequence[str], *, overwrite: bool) -> None:
    """Move models, manifests and context binaries from `folder` to the destination: all or none.

    After an error the moved files are removed again, unless an existing .onnx file was already replaced.

    Args:
        folder: the working folder.
        places: the destinations, in one folder.
        blobs: file name of each context binary.
        overwrite: whether to replace existing .onnx files.

    Raises:
        CompileFailed: a file cannot be moved, or another process is moving files there.
        OptionError: a destination exists and `overwrite` is not set.
    """
    target = places[0].folder
    moved: list[str] = []
    try:
        with _alone(target):
            if not overwrite:
                for place in places:
                    refuse_existing(place)
            # Flush the files to disk before the move, so that a power failure leaves no incomplete file at the
            # destination.
            for name in (*blobs, *(place.model for place in places)):
                sync_file(os.path.join(folder, name))
            for name in blobs:
                try:
                    _move_new(os.path.join(folder, name), os.path.join(target, name))
                except FileExistsError:
                    raise CompileFailed(
                        f"Another compilation has created {name} in {target} in the meantime.",
                        cause="An existing context binary may belong to another model, and is never replaced.",
                        fix="Compile again, or choose another output.",
                        details={"taken": name},
                    ) from None
                moved.append(os.path.join(target, name))
            for place in places:
                _put(folder, place, moved)
            sync_folder(target)
    except BaseException as error:
        for path in moved:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if isinstance(error, OSError) and not isinstance(error, BridgeError):
            raise from_os(error, target) from None
        raise


def _put(folder: str, place: Destination, moved: list[str]) -> None:
    """Move the .onnx file and its manifest, and remove the context binaries of the replaced model."""
    manifest = manifest_path(place.path)
    source, fresh = os.path.join(folder, place.model), manifest_path(os.path.join(folder, place.model))
    # Read the names of the old context binaries before the manifest that contains them is removed.
    old_blobs = _blobs_of_old(place)
    if os.path.lexists(place.path):
        # Remove the old manifest first. Without a manifest the old model still works; with the new manifest it
        # would count as damaged.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(manifest)
        os.replace(source, place.path)
        moved.clear()  # these files now belong to the published model and must stay
        os.replace(fresh, manifest)
    else:
        # Move the manifest first, so that a visible .onnx file always has its manifest.
        os.replace(fresh, manifest)
        moved.append(manifest)
        os.replace(source, place.path)
        moved.append(place.path)
    for path in old_blobs:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _blobs_of_old(place: Destination) -> list[str]:
    """Return the context binaries that belong only to the model to be replaced, as its manifest lists them.

    Without a manifest the result is empty.
    """
    try:
        old = read_manifest(place.path)
    except BridgeError:
        return []
    # Keep a binary that other models share.
    if old is None or old.model != place.model or old.extra.get("bundle") or not os.path.lexists(place.path):
        return []
    return [os.path.join(place.folder, record.name) for record in old.files if record.name != old.model]


def _move_new(source: str, target: str) -> None:
    """Rename a file; raise `FileExistsError` if the target exists."""
    # On Windows `os.rename` refuses an existing target. Elsewhere it replaces the target.
    if os.name == "nt":
        os.rename(source, target)
        return
    try:
        # Use `os.link`, which is atomic and fails if the target exists.
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # the file system does not support hard links
        if os.path.lexists(target):
            raise FileExistsError(17, os.strerror(17), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)


@contextlib.contextmanager
def _alone(target: str) -> Iterator[None]:
    """Ensure that only one process at a time moves files to `target`. The lock file is in qnnbridge's state
    folder."""
    # Resolve links, so that all paths of a folder lead to the same lock.
    name = hashlib.sha256(os.fsencode(os.path.realpath(target))).hexdigest()[:32]
    path = state_dir() / "locks" / f"{name}.lock"
    try:
        make_folders(path.parent)
        held = hold(path, time.monotonic() + LOCK_TIMEOUT_S)
    except OSError:
        yield  # continue without a lock: the order of the moves still protects the files
        return
    if held is None:
        raise CompileFailed(
            f"Another process has been writing to {target} for {LOCK_TIMEOUT_S:g} s.",
            fix="Look for a stopped qnnbridge process, and try again.",
        )
    try:
        yield
    finally:
        held.release()
