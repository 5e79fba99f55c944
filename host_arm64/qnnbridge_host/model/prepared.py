"""Choose a model file from a folder with several models: a folder of `qnnbridge prepare`, or a model package of
ONNX Runtime.

A prepared folder contains a compiled model for each chip, for each bucket if it has buckets, and the model before
its compilation. `choose` makes the offline checks of `qnnbridge inspect`, and returns the compiled model that can
run on the host, and the reason. If no compiled model can run, it returns the model before its compilation, unless
the session forbids compiling.

Compiled models are judged in the order of their chips: the host's own chip first. The first model with the verdict
`ok` is chosen, so the remaining ones are neither hashed nor judged. If a compiled model that it judges is damaged,
`choose` raises an error: skipping the model would silently make the session slower.

ONNX Runtime's own reader (1.32 and later) reads a model package; it resolves the paths and refuses unknown fields.
A folder written by `prepare --package` is a prepared folder and a model package: its `manifest.json` is the
manifest of a package and contains the document of `prepare` in its metadata. The functions have no side effects and
are thread-safe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from qnnbridge_host.model.chips import chip_label, chip_of
from qnnbridge_host.model.compatibility import METADATA_KEY as COMPATIBILITY_KEY
from qnnbridge_host.model.compatibility import HostTraits, examine, parse
from qnnbridge_host.model.context_files import Hash
from qnnbridge_host.model.manifest import FileRecord
from qnnbridge_host.model.paths import leaves_folder, open_regular, path_problem
from qnnbridge_host.model.scan import OK, Verdict, scan_model
from qnnbridge_protocol.errors import ContextUnusable, InvalidProtobuf, ModelRequiresCompilation, OptionError
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.model_records import PREPARED_MANIFEST, folder_refused
from qnnbridge_protocol.specs import CPU, QNN, ProviderSpec

SCHEMA: Final = 1
# Metadata key under which `prepare` stores the manifest of a model package.
METADATA_KEY: Final = "qnnbridge"
_LARGEST_BYTES: Final = 16 * 1024 * 1024
# Context binaries of this and newer architectures also run on later architectures.
_NEW_ARCH: Final = 73


class CompiledVariant(NamedTuple):
    """A compiled model of the folder.

    compiled: path relative to the folder; empty if compilation failed for the reason `problem`. soc_model: number
    of its chip, ``None`` for the chip of the computer that compiled it. sizes: sizes of its bucket. model: path of
    the model from which it was compiled; empty in folders that a version before 0.2 wrote.
    """

    compiled: str
    soc_model: int | None
    sizes: Mapping[str, int]
    model: str
    problem: str

    @property
    def label(self) -> str:
        return self.compiled or (chip_label(self.soc_model) if self.soc_model else "the chip of the host")


class PackageVariant(NamedTuple):
    """A variant of a model package, as ONNX Runtime's reader describes it.

    ep: its execution provider, "" for any. folder: absolute path. settings: ``model_file``, ``session_options`` and
    ``provider_options``.
    """

    component: str
    name: str
    ep: str
    folder: str
    compatibility: str
    settings: Mapping[str, Any]


class FolderManifest(NamedTuple):
    """Contents of `manifest.json`.

    model: the model to compile if no compiled model can run; empty if the folder does not contain the model.
    on_cpu: the model for providers other than QNN. files: empty for a package. made_by: for each file, the step
    that made it; files of one step belong together. settings: options that a package sets, by path of the model.
    """

    folder: str
    model: str
    on_cpu: str
    variants: tuple[CompiledVariant, ...]
    files: Mapping[str, FileRecord] = {}
    made_by: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, Any]] = {}

    def belonging_to(self, name: str) -> list[FileRecord]:
        """Return the records of a file and of all files that the same step made."""
        step = self.made_by.get(name)
        return [record for other, record in self.files.items() if self.made_by[other] == step]


class Chosen(NamedTuple):
    """The chosen model file.

    path: absolute. reason: text for `Placement.variant`. compiles: True if no compiled model could be used.
        settings: options that a package sets for the session and its provider.
    """

    path: str
    reason: str
    compiles: bool = False
    settings: Mapping[str, Any] = {}


def read_folder(folder: str) -> FolderManifest | None:
    """Read the manifest of a prepared folder; return ``None`` for a model package not made by `qnnbridge prepare`.

    Raises:
        InvalidProtobuf: the folder is neither a prepared folder nor a model package.
        ContextUnusable: the manifest is missing, damaged or of a newer version.
    """
    path = os.path.join(folder, PREPARED_MANIFEST)
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise folder_refused(folder, folder) from None
    except OSError as error:
        raise _unusable(folder, f"its {PREPARED_MANIFEST} cannot be read ({error.strerror or error})") from None
    try:
        if len(data) > _LARGEST_BYTES:
            raise ValueError("it is too long")
        document = json.loads(data)
        if isinstance(document, dict) and "components" in document:
            document = (document.get("additional_metadata") or {}).get(METADATA_KEY)
            if document is None:
                return None
        # Check for a key of `qnnbridge prepare`, because many programs write a file named manifest.json.
        if not isinstance(document, dict) or "source_sha256" not in document:
            raise InvalidProtobuf(
                f"{folder} is a folder, not a model.",
                cause=f"A program other than `qnnbridge prepare` wrote the folder's {PREPARED_MANIFEST}.",
                fix="Give the path of the .onnx file in the folder, or a folder that `qnnbridge prepare` made.",
                details={"path": folder},
            )
        schema = document["schema"]
        if type(schema) is not int:
            raise ValueError(f"schema {schema!r}")
        if schema > SCHEMA:
            raise _unusable(
                folder,
                f"a newer qnnbridge made it (schema {schema})",
                fix=f"Upgrade qnnbridge: {install_command(options='--upgrade')}",
            )
        return _from_document(folder, document)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _unusable(folder, f"its {PREPARED_MANIFEST} is damaged ({error})") from None


def _from_document(folder: str, document: Mapping[str, Any]) -> FolderManifest:
    rows = list(document["chips"])
    first = next((row["bucket"] for row in rows), None)
    model = str(document["model"])
    variants = tuple(
        CompiledVariant(
            compiled=str(row["compiled"] or ""),
            soc_model=None if row["soc_model"] is None else int(row["soc_model"]),
            sizes=_sizes(row["bucket"]),
            # Folders of older versions record the path of one model only, the model of the first bucket.
            model=str(row.get("model") or (model if row["bucket"] == first else "")),
            problem=str(row["problem"] or ""),
        )
        for row in rows
    )
    records = [
        (FileRecord(str(one["name"]), int(one["size"]), str(one["sha256"]).lower()), str(one["from"]))
        for one in document["files"]
    ]
    prepared = FolderManifest(
        folder,
        model,
        model,
        variants,
        {record.name: record for record, _ in records},
        {record.name: step for record, step in records},
    )
    # The folder's author chose each file name, so check all of them before opening a file.
    for name in (model, *prepared.files, *(name for one in variants for name in (one.compiled, one.model) if name)):
        problem = path_problem(name)
        if problem is not None:
            raise ValueError(f"the file name {name!r} in it: {problem}")
        if name not in prepared.files:
            raise ValueError(f"{name} is not in the manifest's list of files")
    return prepared


def from_package(folder: str, rows: Sequence[PackageVariant]) -> FolderManifest:
    """Return the manifest of a model package with one component.

    Raises:
        OptionError: the package has several components.
        ContextUnusable: the model file of a variant is missing, or is outside of the folder.
    """
    components = list(dict.fromkeys(row.component for row in rows))
    if len(components) > 1:
        raise OptionError(
            f"The model package {os.path.basename(folder)} has several components, but a session runs only one.",
            cause=f"Its components: {', '.join(components)}.",
            fix="Choose one: qnnbridge.ort.ModelPackageContext(FOLDER).select_component(NAME, options), then its "
            "create_session().",
            details={"path": folder},
        )
    variants: list[CompiledVariant] = []
    originals: dict[str, str] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row.ep not in ("", QNN, CPU):
            continue
        file = str(row.settings.get("model_file") or "")
        name = os.path.relpath(os.path.join(row.folder or folder, file), folder).replace(os.sep, "/")
        problem = path_problem(name) if file else f"its variant {row.name} names no model_file"
        if problem is not None:
            raise _unusable(folder, problem if not file else f"the path {name!r} in it: {problem}")
        settings[name] = row.settings
        scan = None if row.ep == CPU else scan_model(os.path.join(folder, name), count_nodes=False)
        if scan is None or not scan.is_compiled:
            originals.setdefault(row.ep, name)
            continue
        declared = parse(row.compatibility) or parse(scan.metadata.get(COMPATIBILITY_KEY, ""))
        chip = declared.targets[0].soc_model if declared is not None and declared.targets else 0
        variants.append(CompiledVariant(name, chip or None, {}, "", ""))
    on_qnn = originals.get(QNN) or originals.get("") or originals.get(CPU) or ""
    on_cpu = originals.get(CPU) or originals.get("") or originals.get(QNN) or ""
    return FolderManifest(folder, on_qnn, on_cpu, tuple(variants), settings=settings)


def _sizes(bucket: str | None) -> dict[str, int]:
    """Return the sizes in the text of a bucket (``seq=16, batch=2``) by name."""
    pairs = (part.rpartition("=") for part in bucket.split(", ")) if bucket else ()
    return {name: int(size) for name, _, size in pairs}


def choose(
    folder: str,
    host: HostTraits,
    providers: Sequence[ProviderSpec],
    sizes: Mapping[str, int],
    hash_of: Hash,
    *,
    may_compile: bool,
    read_package: Callable[[str], Sequence[PackageVariant]],
) -> Chosen:
    """Choose the model file for a session from a prepared folder or a model package.

    Args:
        folder: absolute path.
        host: traits of the session's host.
        providers: the session's providers; empty means QNN.
        sizes: sizes of free dimensions, which select the bucket.
        hash_of: returns the SHA-256 of a file.
        may_compile: whether the model may be compiled if no compiled model can run.
        read_package: ONNX Runtime's reader of model packages.

    Raises:
        InvalidProtobuf: the folder is neither a prepared folder nor a model package.
        ContextUnusable: a file of the folder is damaged, missing, or a link to a file outside.
        OptionError: the sizes select none of the folder's buckets, or the package has several components.
        ModelRequiresCompilation: no compiled model can run on the host, and `may_compile` is false.
    """
    prepared = read_folder(folder) or from_package(folder, read_package(folder))
    variants = _of_bucket(prepared, sizes)
    model, on_cpu = prepared.model, prepared.on_cpu
    if any(one.sizes for one in variants):
        model = on_cpu = next((one.model for one in variants if one.model), "")
    if providers and QNN not in [provider.name for provider in providers]:
        return _original(prepared, on_cpu, "the session does not ask for QNN", hash_of)
    if host.onnxruntime_qnn is None:
        return _original(prepared, on_cpu, "this host has no QNN", hash_of)
    why_not: list[str] = []
    second: Chosen | None = None
    for variant in sorted(variants, key=lambda one: _rank(one, host)):
        found = _judged(prepared, variant, host, hash_of)
        if isinstance(found, str):
            why_not.append(found)
            continue
        verdict, words = found
        if verdict.level == OK:
            return _compiled(prepared, variant, words, host)
        if not verdict.can_run:
            why_not.append(f"{variant.label} {verdict.message}")
        elif second is None:
            second = _compiled(prepared, variant, verdict.message, host)
    if second is not None:
        return second
    reasons = "; ".join(why_not) or "the folder contains no compiled model"
    if not may_compile:
        raise ModelRequiresCompilation(
            f"No compiled model of {os.path.basename(folder)} can run here.",
            cause="session.disable_model_compile=1 forbids compiling.",
            evidence=why_not,
            fix=_prepare_for(host) + ", or remove session.disable_model_compile from the session "
            f"options, so that {model or 'the original model'} is compiled here.",
            details={"path": folder},
        )
    chosen = _original(prepared, model, f"no compiled model fits, so it is compiled here ({reasons})", hash_of)
    return chosen._replace(compiles=True)


def _of_bucket(prepared: FolderManifest, sizes: Mapping[str, int]) -> tuple[CompiledVariant, ...]:
    buckets = [one.sizes for one in prepared.variants if one.sizes]
    if not buckets:
        return prepared.variants
    fitting = tuple(
        one for one in prepared.variants if all(sizes.get(name) == size for name, size in one.sizes.items())
    )
    if fitting:
        return fitting
    shown = [", ".join(f"{name}={size}" for name, size in one.items()) for one in buckets]
    given = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "none"
    option, value = next(iter(buckets[0].items()))
    raise OptionError(
        f"{os.path.basename(prepared.folder)} was prepared for several sizes of its free dimensions, and the "
        "session chooses none of these sizes.",
        cause=f"Prepared: {'; '.join(dict.fromkeys(shown))}. Given: {given}.",
        fix=f"Give the sizes: --dim {option}={value}, or "
        f"SessionOptions.add_free_dimension_override_by_name({option!r}, {value}).",
        details={"path": prepared.folder},
    )


def _rank(variant: CompiledVariant, host: HostTraits) -> tuple[int, int]:
    """Return the sort key of a compiled model: the host's chip first, then its architecture, then older
    architectures from the newest down, then the others.
    """
    chip = chip_of(variant.soc_model) if variant.soc_model else None
    arch, ours = (chip.arch if chip else 0), host.htp_arch
    if variant.soc_model and variant.soc_model == host.soc_model:
        return 0, 0
    if ours is None:
        # If the host's chip is unknown, prefer the oldest of the compatible architectures, because it runs on most
        # chips.
        return (1, arch) if arch >= _NEW_ARCH else (2, -arch)
    if arch == ours or variant.soc_model is None:
        return 1, 0
    return (2, -arch) if 0 < arch < ours else (3, arch)


def _judged(
    prepared: FolderManifest, variant: CompiledVariant, host: HostTraits, hash_of: Hash
) -> tuple[Verdict, str] | str:
    """Return the verdict on a compiled model and a description of its origin, or the reason why it cannot be
    judged.

    Raises:
        ContextUnusable: the compiled model is damaged.
    """
    if not variant.compiled:
        return f"{variant.label}: not compiled ({variant.problem})"
    path = os.path.join(prepared.folder, variant.compiled)
    # Skip a missing folder of another chip: the user may have copied only the folder for one chip.
    if variant.soc_model != host.soc_model and not os.path.lexists(os.path.dirname(path)):
        return f"{variant.label}: not in this folder"
    _check_files(prepared, variant.compiled, hash_of)
    scan = scan_model(path, count_nodes=False)
    examined = examine(path, scan, host, hash_of=hash_of)
    if examined.broken is not None:
        raise examined.broken.error(variant.label, path)
    return examined.verdict, examined.made.words


def _check_files(prepared: FolderManifest, name: str, hash_of: Hash) -> None:
    """Compare the hashes of a file, and of all files that the same step made, with the manifest. For a package,
    whose manifest contains no hashes, check only that the file is no link to a path outside of the folder."""
    own = os.path.join(prepared.folder, PREPARED_MANIFEST)
    records = prepared.belonging_to(name)
    for one in [record.name for record in records] or [name]:
        outside = leaves_folder(prepared.folder, one, own)
        if outside is not None:
            raise _unusable(prepared.folder, f"{one} is a link to {outside}, outside of the folder")
    for record in records:
        path = os.path.join(prepared.folder, record.name)
        try:
            size = os.stat(path).st_size
            found = hash_of(path) if size == record.size else None
        except OSError as error:
            raise _unusable(prepared.folder, f"{record.name} cannot be read ({error.strerror or error})") from None
        if found is None:
            why = f"{record.name} has {size} bytes, but had {record.size} bytes when the folder was prepared"
            raise _unusable(prepared.folder, why)
        if found != record.sha256:
            evidence = (f"sha256 {found}", f"in {PREPARED_MANIFEST} {record.sha256}")
            why = f"the contents of {record.name} have changed since the folder was prepared"
            raise _unusable(prepared.folder, why, evidence)


def verdicts(prepared: FolderManifest, host: HostTraits, hash_of: Hash) -> list[tuple[CompiledVariant, str]]:
    """Return the verdict on each compiled model as text, in the order of the manifest."""
    found: list[tuple[CompiledVariant, str]] = []
    for variant in prepared.variants:
        try:
            judged = _judged(prepared, variant, host, hash_of)
            words = judged.partition(": ")[2] if isinstance(judged, str) else judged[0].message
        except ContextUnusable as error:
            words = error.message
        found.append((variant, words))
    return found


def _compiled(prepared: FolderManifest, variant: CompiledVariant, words: str, host: HostTraits) -> Chosen:
    path = os.path.join(prepared.folder, variant.compiled)
    reason = f"{variant.compiled}: {words}; this host has {host.words}"
    return Chosen(path, reason, settings=prepared.settings.get(variant.compiled, {}))


def _original(prepared: FolderManifest, model: str, why: str, hash_of: Callable[[str], str]) -> Chosen:
    if not model:
        raise _unusable(
            prepared.folder,
            f"it contains neither the model before compilation nor its path ({why})",
            fix="Prepare the model again with this version of qnnbridge, or open the original model.",
        )
    _check_files(prepared, model, hash_of)
    path = os.path.join(prepared.folder, model)
    return Chosen(path, f"{model}: {why}", settings=prepared.settings.get(model, {}))


def _prepare_for(host: HostTraits) -> str:
    chip = f" with --soc-model {host.soc_model}" if host.soc_model else " on this computer"
    return f"Prepare the model again{chip}"


def _unusable(folder: str, why: str, evidence: Sequence[str] = (), *, fix: str = "") -> ContextUnusable:
    return ContextUnusable(
        f"The prepared folder {os.path.basename(folder)} cannot be used: {why}.",
        fix=fix or "Copy the folder again with all its files, or prepare the model again.",
        evidence=evidence,
        details={"path": folder},
    )
