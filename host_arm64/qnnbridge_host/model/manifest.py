"""Manifest of a compiled model: its files, its origin, the versions that compiled it, and its target.

A context binary lacks a checksum: one changed byte crashes the host, hangs it or causes wrong results. The manifest
adds one. It is written last and atomically, as `m_ctx.qnnbridge.json` next to `m_ctx.onnx`. All functions are
thread-safe.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.model.paths import open_regular, path_problem
from qnnbridge_os.files import write_whole
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, ContextUnusable
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.installing import install_command

if TYPE_CHECKING:
    from qnnbridge_protocol.model_records import NumbersReport

SUFFIX: Final = ".qnnbridge.json"
SCHEMA: Final = 1
# Keys in `extra` under which `prepare` and `compile` record how the model's results compare with the CPU's.
VERIFIED: Final = "verified"
VALIDATION: Final = "validation"
_LARGEST_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a compiled model.

    name: path relative to the manifest's folder, with forward slashes. size: in bytes. sha256: in hex.
    """

    name: str
    size: int
    sha256: str

    @classmethod
    def of(cls, folder: str | os.PathLike[str], name: str) -> FileRecord:
        """Return the record of a file in its present state. Raise `OSError` if it cannot be read."""
        import hashlib

        digest, size = hashlib.sha256(), 0
        with open_regular(os.path.join(folder, name)) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        return cls(name.replace(os.sep, "/"), size, digest.hexdigest())


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledManifest:
    """Contents of a manifest.

    model: file name of the compiled .onnx. files: all its files, the model first. source_name: file name of the
    original. source_sha256: `ModelSource.fingerprint` of the original, which includes external data. versions:
    versions of onnxruntime, onnxruntime_qnn, qnn_sdk and qnnbridge. soc_models, htp_arch: the target. options: the
    provider's options. created: time in UTC, for information only. extra: other data in JSON types.
    """

    model: str
    files: tuple[FileRecord, ...]
    source_name: str = ""
    source_sha256: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    soc_models: tuple[int, ...] = ()
    htp_arch: int | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    created: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def record_of(self, name: str) -> FileRecord | None:
        wanted = name.replace("\\", "/")
        return next((record for record in self.files if record.name == wanted), None)


def manifest_path(model: str | os.PathLike[str]) -> str:
    """Return the path of a compiled model's manifest, which need not exist."""
    return os.path.splitext(os.fsdecode(model))[0] + SUFFIX


def write_manifest(
    folder: str | os.PathLike[str],
    model: str,
    beside: Sequence[str] = (),
    *,
    source_name: str = "",
    source_sha256: str = "",
    versions: Mapping[str, str] | None = None,
    soc_models: Sequence[int] = (),
    htp_arch: int | None = None,
    options: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> CompiledManifest:
    """Hash a compiled model and its other files, and write the manifest atomically.

    Args:
        folder: the folder of all files.
        model: name of the compiled .onnx.
        beside: the other files, by name.
        source_name, source_sha256, versions, soc_models, htp_arch, options, extra: fields of `CompiledManifest`.

    Raises:
        OSError: a file cannot be read, or the manifest cannot be written.
    """
    import datetime

    manifest = CompiledManifest(
        model=model,
        files=tuple(FileRecord.of(folder, name) for name in (model, *beside)),
        source_name=source_name,
        source_sha256=source_sha256,
        versions={"qnnbridge": __version__, **(versions or {})},
        soc_models=tuple(soc_models),
        htp_arch=htp_arch,
        options=dict(options or {}),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        extra=dict(extra or {}),
    )
    _write(manifest, os.path.join(folder, model))
    return manifest


def _write(manifest: CompiledManifest, model: str) -> None:
    # Write ASCII with escapes, because UTF-8 refuses lone surrogates in a name. Refuse NaN, which is not valid
    # JSON.
    document = {"schema": SCHEMA, **dataclasses.asdict(manifest)}
    text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    write_whole(manifest_path(model), text.encode("ascii"), durable=True)


def add_verdict(model: str | os.PathLike[str], verified: Mapping[str, Any]) -> bool:
    """Add `prepare`'s comparison with the CPU to the manifest of a compiled model.

    Args:
        model: path of the compiled model.
        verified: a `NumbersReport` as JSON.

    Returns:
        Whether the manifest was changed; False if it contains this verdict already, or does not exist.

    Raises:
        OSError: the manifest cannot be written.
        ContextUnusable: the manifest cannot be read.
    """
    manifest = read_manifest(model)
    if manifest is None or manifest.extra.get(VERIFIED) == verified:
        return False
    _write(dataclasses.replace(manifest, extra={**manifest.extra, VERIFIED: dict(verified)}), os.fsdecode(model))
    return True


def shipped_numbers(model: str) -> NumbersReport | None:
    """Return the comparison with the CPU from the manifest of a compiled model; ``None`` if there is none."""
    from qnnbridge_protocol.model_records import NumbersReport, Validation

    try:
        manifest = read_manifest(model)
        if manifest is None or manifest.record_of(os.path.basename(model)) is None:
            return None
        verified, validation = manifest.extra.get(VERIFIED), manifest.extra.get(VALIDATION)
        if verified is not None:
            return NumbersReport.from_wire({**verified, "kept": True})
        if validation is None or validation.get("skipped"):
            return None
        found = Validation.from_wire({"differences": validation["outputs"]})
    except (BridgeError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return found.numbers(f"qnnbridge compile, onnxruntime-qnn {manifest.versions.get('onnxruntime_qnn', '?')}")


def read_manifest(path: str | os.PathLike[str]) -> CompiledManifest | None:
    """Read a manifest, given the path of the manifest or of the compiled model; return ``None`` if there is no
    manifest.

    Raises:
        ContextUnusable: the manifest is unreadable. The manifest is not ignored, because possibly only its hashes
            reveal a damaged binary.
    """
    file = os.fsdecode(path)
    if not file.endswith(SUFFIX):
        file = manifest_path(file)
    try:
        with io.BufferedReader(open_regular(file)) as stream:
            # One byte more than allowed reveals a manifest that is too long.
            data = stream.read(_LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(file, f"it cannot be read ({error.strerror or error})") from None
    try:
        if len(data) > _LARGEST_BYTES:
            raise ValueError("it is too long")
        document = json.loads(data)
        schema = document["schema"]
        # Compare types, because `isinstance` would accept `true`.
        if type(schema) is not int:
            raise ValueError(f"schema {schema!r}")
        if schema > SCHEMA:
            raise _unreadable(
                file,
                f"a newer qnnbridge wrote it (schema {schema})",
                f"Upgrade qnnbridge: {install_command(options='--upgrade')}",
            )
        return _from_document(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(file, f"it is damaged ({error})") from None


def _from_document(document: Mapping[str, Any]) -> CompiledManifest:
    manifest = read_document(CompiledManifest, document, "manifest")
    # Accept upper case, because some tools print hashes in upper case.
    files = tuple(dataclasses.replace(record, sha256=record.sha256.lower()) for record in manifest.files)
    # The manifest comes from the model's author, who may be an attacker, so check each file name first.
    for record in files:
        problem = path_problem(record.name)
        if problem is not None:
            raise ValueError(f"the file name {record.name!r} in it: {problem}")
    return dataclasses.replace(manifest, files=files)


def _unreadable(file: str, why: str, fix: str | None = None) -> ContextUnusable:
    return ContextUnusable(
        f"The manifest {os.path.basename(file)} of the compiled model cannot be used: {why}.",
        cause="Without the manifest it is impossible to detect a damaged context binary.",
        fix=fix
        or "Compile the original model again, or copy the compiled model with its manifest again. "
        "To use it unchecked, delete the manifest.",
        details={"path": file},
    )
