"""The destination of a compiled model: the path of `output`, the working folder, and the move when it is complete.

Invariants, also if this process is killed at any point: no .onnx file is there without the very context
binary that it was compiled with, and none is half-written. Context binaries are never replaced
(`Destination.file_stem` finds a free name); the .onnx is moved after its blob, and its manifest never describes
other files than the existing ones. Two processes with one destination run one after the other.

The working folder is hidden, on the volume of the result, held by an OS lock as long as its owner lives, and gone
when the block ends. The next compilation into the same folder removes the leftovers of a killed owner: it finds the
lock free. Any process, any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from qnnbridge_host.create.jobs import (
    MODEL_SUFFIX,
    WITHOUT_A_NAME,
    CompiledFiles,
    CompilerInput,
    blob_of,
    chip_numbers,
    context_stem,
    job_key,
    safe_stem,
    stem_of,
)
from qnnbridge_host.model.manifest import CompiledManifest, manifest_path, read_manifest, write_manifest
from qnnbridge_host.model.paths import from_os
from qnnbridge_host.model.source import KnownFile, ModelSource
from qnnbridge_os.files import sync_file, sync_folder
from qnnbridge_protocol.errors import BridgeError, CompileFailed, OptionError
from qnnbridge_protocol.model_records import Validation

# Its holder moves only three files.
LOCK_TIMEOUT_S = 60.0
PREFIX: Final = ".qnnbridge-compile-"
LOCK: Final = ".lock"
# Younger folders are left alone: their owner may be about to take the lock.
SETTLED_S: Final = 30.0


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
        path = os.path.normpath(os.path.join(cwd, text))
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
def work_folder(target: str) -> Iterator[str]:
    """A new folder inside of `target`, which is created if it is missing. Raises `CompileFailed`."""
    from filelock import FileLock

    made = _make(target)
    folder = None
    try:
        sweep(target)
        try:
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=target)
            lock = FileLock(os.path.join(folder, LOCK))
            lock.acquire(blocking=False)
        except OSError as error:
            raise from_os(error, target) from None
        try:
            # Apart from the file of the lock: all that is in it is the compiler's.
            inner = os.path.join(folder, "out")
            os.mkdir(inner)
            yield inner
        finally:
            # Before the folder is removed: Windows removes no open file.
            lock.release()
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # only if it is empty
        raise
    shutil.rmtree(folder, ignore_errors=True)


def sweep(target: str) -> None:
    """Remove leftovers of killed compilations in `target`."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError):
        for entry in list(os.scandir(target)):
            lock_path = os.path.join(entry.path, LOCK)
            # Without the file of the lock its owner has only just begun.
            if not entry.name.startswith(PREFIX) or not os.path.exists(lock_path):
                continue
            # A date in the future, after the clock was set back, protects no folder for ever.
            if 0 <= time.time() - entry.stat().st_mtime < SETTLED_S:
                continue
            lock = FileLock(lock_path)
            try:
                lock.acquire(blocking=False)
            except (Timeout, OSError):
                continue
            # Before the folder is removed, as above.
            lock.release()
            shutil.rmtree(entry.path, ignore_errors=True)


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
                    raise _taken(target, name) from None
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


def is_about_a_taken_name(error: CompileFailed) -> bool:
    """Whether the name of a context binary was taken after its choice."""
    return "taken" in error.details


def _taken(target: str, name: str) -> CompileFailed:
    return CompileFailed(
        f"Another compilation has put {name} into {target} meanwhile.",
        cause="A context binary that is there already may belong to another model, and is never replaced.",
        fix="Compile again, or to another output.",
        details={"taken": name},
    )


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
    from filelock import FileLock, Timeout

    # One lock for all spellings of a folder.
    name = hashlib.sha256(os.fsencode(os.path.realpath(target))).hexdigest()[:32]
    path = _state_dir() / "locks" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        lock.acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout:
        raise CompileFailed(
            f"Another process has been writing to {target} for {LOCK_TIMEOUT_S:g} s.",
            fix="Look for a stopped qnnbridge process, and try again.",
        ) from None
    except OSError:
        yield  # without a folder for locks the order of the moves still protects
        return
    try:
        yield
    finally:
        lock.release()


def _state_dir() -> Path:
    override = os.environ.get("QNNBRIDGE_STATE_DIR")
    if override:
        return Path(os.path.abspath(os.path.expanduser(override)))
    import platformdirs

    return Path(platformdirs.user_state_dir("qnnbridge", appauthor=False))
