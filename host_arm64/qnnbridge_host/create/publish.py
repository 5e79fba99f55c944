"""A compilation's input and result, the names of its files, and how they come whole to their destination.

QNN refuses to load a context binary whose name has ``..`` in it, though it writes one without an error; a file name
has at most 255 bytes; and both files of a model and its manifest are to be recognised as one.

Invariants, also if this process is killed at any point: no .onnx file is there without the very context
binary that it was compiled with, and none is half-written. Context binaries are never replaced
(`Destination.file_stem` finds a free name); the .onnx is moved after its blob, and its manifest never describes
other files than the existing ones. Two processes with one destination run one after the other. Any thread.
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
from qnnbridge_os.outputs import place_of_several
from qnnbridge_protocol.errors import BridgeError, CompileFailed, OptionError
from qnnbridge_protocol.model_records import Validation
from qnnbridge_protocol.settings import state_dir
from qnnbridge_protocol.specs import QNN, Placement, ProviderSpec, SessionInfo, SessionSpec

# Those that a compiled model depends on.
RELEVANT_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "ep_source", "ep_version")

CONTEXT: Final = "_ctx"
MODEL_SUFFIX: Final = ".onnx"
# QNN appends it to the stem of the .onnx file.
BLOB_SUFFIX: Final = "_qnn.bin"

# Of the 255 that file systems take: leaves room for suffixes, and for those of temporary names.
MAX_STEM_BYTES: Final = 215

WITHOUT_A_NAME: Final = "model"

_ABOUT_COMPILING: Final = ("ep.context_", "ep.share_", "ep.stop_share_", "session.disable_model_compile")


@dataclasses.dataclass(frozen=True, slots=True)
class CompilerInput:
    """One model for one target.

    source: the original model. spec: as for a session of it (providers and their options, free dimensions,
    ``fallback``: with "error" a node that stays on the CPU is a `PlacementRefused`).
    file_stem: of the files, ``<file_stem>.onnx`` and ``<file_stem>_qnn.bin``; default the model's own name with
    ``_ctx``. Parts that QNN could never load again (``..``) are replaced, see `CompiledFiles.model`.
    embed: the context binary inside of the .onnx file. initializers: values of those that `spec` announces.
    inputs: on which the result is compared with the CPU; made up by default.
    """

    source: ModelSource
    spec: SessionSpec
    file_stem: str | None = None
    embed: bool = False
    initializers: tuple[Any, ...] = ()
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Of the files that the compiler writes."""
        path = self.source.path
        return self.file_stem or context_stem(stem_of(path) if path is not None else None)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledFiles:
    """A complete compiled model in the caller's folder.

    model: file name of the .onnx. blob: of the context binary, ``None`` if embedded.
    placement: of the nodes of the original; ``None`` if the compiler died before its report, though its files
    proved to be complete. soc_model: the target given to QNN, ``None``: the chip of the host.
    provider_options: all options given to QNN. seconds: of the native compile (of all of it for a salvaged result).
    died_at_teardown: the process crashed during its own clean-up; the result is complete.
    info: of the original as a session shows it, which the compiled model has forgotten in part (producer, version);
    ``None`` like `placement`.
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
        """Of all files, the .onnx first."""
        return (self.model,) if self.blob is None else (self.model, self.blob)


def job_key(job: CompilerInput, versions: Mapping[str, str]) -> str:
    """The same for jobs that give the same result: contents, options, versions; wherever the model lies."""
    relevant = {name: versions[name] for name in RELEVANT_VERSIONS if name in versions}
    text = json.dumps([job.source.fingerprint, job.spec.options_hash, job.embed, relevant], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def blobs_of(files: Sequence[CompiledFiles]) -> tuple[str, ...]:
    """Names of the context binaries, each once."""
    return tuple(dict.fromkeys(one.blob for one in files if one.blob is not None))


def chip_numbers(soc_model: str | None) -> tuple[int, ...]:
    """The numbers in a ``soc_model``; names are left out, and 0, which means none."""
    parts = (part.strip() for part in (soc_model or "").split(","))
    return tuple(int(part) for part in parts if part.isdecimal() and int(part))


def compiled_spec(spec: SessionSpec) -> SessionSpec:
    """The spec of the compiled model's session, without the options that were compiled in."""
    return SessionSpec(
        model_path=None,
        providers=spec.providers or (ProviderSpec(QNN),),
        fallback=spec.fallback,
        options=spec.options,
        config_entries=without_compiling(spec.config_entries),
        custom_op_libraries=spec.custom_op_libraries,
    )


def without_compiling(entries: Mapping[str, str]) -> dict[str, str]:
    """Configuration entries that are not about compiling."""
    return {key: text for key, text in entries.items() if not key.startswith(_ABOUT_COMPILING)}


# --- names -----------------------------------------------------------------------------------------------


def context_stem(stem: str | None) -> str:
    """The stem of the compiled model of a model with this stem: ``pnet`` -> ``pnet_ctx``, safe for QNN."""
    return safe_stem((stem or WITHOUT_A_NAME) + CONTEXT)


def safe_stem(stem: str) -> str:
    """A stem under which QNN finds its context binary again, short enough for every file that has it."""
    safe = re.sub(r"\.{2,}", "_", stem)
    if len(os.fsencode(safe)) > MAX_STEM_BYTES:
        # By its hash it stays another one than its neighbours that begin alike.
        tail = f"-{hashlib.sha256(os.fsencode(safe)).hexdigest()[:8]}"
        safe = _first_bytes(safe, MAX_STEM_BYTES - len(tail)) + tail
    return safe


def blob_of(stem: str) -> str:
    """The file name of the context binary beside ``<stem>.onnx``."""
    return stem + BLOB_SUFFIX


def stem_of(path: str) -> str:
    """``dir/a..b.onnx`` -> ``a..b``."""
    return os.path.splitext(os.path.basename(path))[0]


def _first_bytes(text: str, limit: int) -> str:
    while len(os.fsencode(text)) > limit:
        text = text[:-1]
    return text


# --- the destination: the path of `output`, and the working folder ------------------------------------------

# Its holder moves only three files.
LOCK_TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Destination:
    """folder: absolute. model: file name of the .onnx in it."""

    folder: str
    model: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.model)

    def file_stem(self) -> str:
        """The stem to compile under. An existing context binary may belong to another model and is
        never replaced: an .onnx file beside a blob that is not its own computes wrong numbers."""
        stem = safe_stem(stem_of(self.model))
        # `lexists`: a link that leads nowhere takes the name, too.
        if os.path.lexists(os.path.join(self.folder, blob_of(stem))):
            return safe_stem(f"{stem}-{secrets.token_hex(4)}")
        return stem


def destination_of(source: ModelSource, output: str | None, cwd: str, *, tag: str = "") -> Destination:
    """The path of `output`: default ``<stem>_ctx.onnx`` beside the model, the same name in a given folder. A name
    without a suffix is a folder.

    cwd: absolute, the base of relative paths. tag: follows the model's stem in a name that is not
    given. Raises `OptionError` for a name that ONNX Runtime would load as something else, and for the model
    itself.
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
            place = Destination(path, name)
        else:
            if not path.lower().endswith(MODEL_SUFFIX):
                raise OptionError(
                    f"The output {text} does not end in .onnx.",
                    cause="ONNX Runtime goes by the end of the name, and loads anything else as another format.",
                    fix="Give a file name that ends in .onnx, or a folder (ending in a slash if it has a dot).",
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
    cause = "QNN takes two dots in a row for a way out of the folder, and would never load the result."
    if ".." not in stem:
        cause = "The names of the files that belong to it would be longer than file systems take."
    raise OptionError(
        f"A compiled model cannot be called {stem}.onnx.", cause=cause, fix=f"Call it {safe}.onnx, for example."
    )


@contextlib.contextmanager
def compile_folder(target: str) -> Iterator[str]:
    """A hidden working folder inside of `target`, which is created if it is missing. Raises `CompileFailed`."""
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
                os.rmdir(path)  # only if it is empty
        raise


def _make(target: str) -> list[str]:
    """Make the folder; which ones that took, the innermost first."""
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
    """Raises `OptionError` if the destination exists."""
    if os.path.lexists(place.path):
        raise OptionError(
            f"{place.path} exists already.",
            fix="Give --overwrite (overwrite=True) to replace it, or another output.",
            details={"path": place.path, "exists": True},
        )


def is_finished(job: CompilerInput, place: Destination, versions: Mapping[str, str]) -> str | None:
    """The reason to skip a job: its result exists, is complete and has the same inputs. ``None`` if it must run."""
    try:
        manifest = read_manifest(place.path)
    except BridgeError:
        return None
    if manifest is None or manifest.extra.get("key") != job_key(job, versions):
        return None
    try:
        # Hashed, so that a damaged result is made again.
        for record in manifest.files:
            if KnownFile.look(os.path.join(place.folder, record.name)).sha256 != record.sha256:
                return None
    except OSError:
        return None
    return "It is there already, made from the same model with the same options and versions."


def describe(
    folder: str,
    place: Destination,
    job: CompilerInput,
    files: CompiledFiles,
    validation: Validation,
    bundle: Sequence[str] = (),
) -> CompiledManifest:
    """Write the manifest of a model that lies in `folder` under its final name."""
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
    """Move models, manifests and `blobs` from `folder` to the destination: all, or nothing visible.

    Raises `CompileFailed`, `OptionError`; moved files are then taken back, unless they replaced a file.
    """
    target = places[0].folder
    moved: list[str] = []
    try:
        with _alone(target):
            if not overwrite:
                for place in places:
                    refuse_existing(place)
            # Before they get their names: after a loss of power no name may lead to half a file.
            for name in (*blobs, *(place.model for place in places)):
                sync_file(os.path.join(folder, name))
            for name in blobs:
                try:
                    _move_new(os.path.join(folder, name), os.path.join(target, name))
                except FileExistsError:
                    raise CompileFailed(
                        f"Another compilation has put {name} into {target} meanwhile.",
                        cause="A context binary that is there already may belong to another model, and is never "
                        "replaced.",
                        fix="Compile again, or to another output.",
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
    """Move the .onnx and its manifest; after that the replaced model's blob is unused."""
    manifest = manifest_path(place.path)
    source, fresh = os.path.join(folder, place.model), manifest_path(os.path.join(folder, place.model))
    # Read before the old manifest goes.
    old_blobs = _blobs_of_old(place)
    if os.path.lexists(place.path):
        # Without a manifest the old model is as good as before; with the new one it would count as damaged.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(manifest)
        os.replace(source, place.path)
        moved.clear()  # they belong to the visible model now and must stay
        os.replace(fresh, manifest)
    else:
        # The manifest first: the .onnx that becomes visible is never without it.
        os.replace(fresh, manifest)
        moved.append(manifest)
        os.replace(source, place.path)
        moved.append(place.path)
    for path in old_blobs:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _blobs_of_old(place: Destination) -> list[str]:
    """The context binaries that only the model in the way needs, as its manifest says. Without one none is
    known."""
    try:
        old = read_manifest(place.path)
    except BridgeError:
        return []
    # A binary that several models share stays: the others need it.
    if old is None or old.model != place.model or old.extra.get("bundle") or not os.path.lexists(place.path):
        return []
    return [os.path.join(place.folder, record.name) for record in old.files if record.name != old.model]


def _move_new(source: str, target: str) -> None:
    """Rename, but never over something."""
    # On Windows `os.rename` refuses an existing target. Elsewhere it replaces it.
    if os.name == "nt":
        os.rename(source, target)
        return
    try:
        # One step that fails if the name exists.
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(17, os.strerror(17), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)


@contextlib.contextmanager
def _alone(target: str) -> Iterator[None]:
    """One process at a time moves files into `target`. The lock lies with qnnbridge's own state, not in
    `target`.
    """
    # One lock for all spellings of a folder.
    name = hashlib.sha256(os.fsencode(os.path.realpath(target))).hexdigest()[:32]
    path = state_dir() / "locks" / f"{name}.lock"
    try:
        make_folders(path.parent)
        held = hold(path, time.monotonic() + LOCK_TIMEOUT_S)
    except OSError:
        yield  # without a folder for locks the order of the moves still protects
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
