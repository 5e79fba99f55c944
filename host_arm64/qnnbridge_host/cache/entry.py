"""An entry of the cache: its manifest, its files, and the session that is created from it.

The manifest is written last, so a folder with a readable manifest is a finished entry. Records are thread-safe.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import SCHEMA, Damaged, is_time, read_json, write_json
from qnnbridge_host.model.source import KnownFile, take_stamp
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.specs import SessionInfo, SessionSpec

FILE_NAME: Final = "manifest.json"
STEM: Final = "model_ctx"
# Do not use the model's file name: QNN cannot load a file with ``..`` in its name.
MODEL: Final = f"{STEM}.onnx"


@dataclasses.dataclass(frozen=True, slots=True)
class EntryFile:
    """A file of an entry. name: the file's name in the entry's folder."""

    name: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class EntryManifest:
    """Manifest of an entry.

    id: random number that distinguishes compilations of the same key. parts: the parts of the key. label: the
    model's name in messages. source_path: the model's path when it was compiled. source_bytes: size of the model
    with all its files. info: inputs, outputs, metadata and placement that a session of the original model reports.
    created: time in seconds since 1970. compile_seconds: the time that a hit saves. salvaged: the compiler crashed
    after it had written everything. warning: text about operators that QNN is known to compute wrong, which is
    repeated for every hit.
    """

    key: str
    id: str
    files: tuple[EntryFile, ...]
    label: str
    fingerprint: str
    parts: Mapping[str, Any]
    info: SessionInfo
    created: float
    compile_seconds: float
    source_path: str | None = None
    source_bytes: int = 0
    salvaged: bool = False
    warning: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of onnxruntime and QNN with which the entry was compiled."""
        return dict(self.parts.get("host", {}).get("versions", {}))

    def write(self, folder: Path) -> None:
        """Write the manifest. Raise `OSError` if writing fails."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["files"] = [dataclasses.asdict(file) for file in self.files]
        plain["info"] = self.info.to_wire()
        plain["parts"] = dict(self.parts)
        write_json(folder / FILE_NAME, {"schema": SCHEMA, **plain}, durable=True)

    @classmethod
    def read(cls, folder: Path) -> EntryManifest | None:
        """Read the manifest; return ``None`` if it does not exist. Raise `Damaged`, or `OSError` if reading
        fails."""
        content = read_json(folder / FILE_NAME)
        if content is None:
            return None
        try:
            if content.pop("schema") != SCHEMA:
                raise Damaged("the manifest was written by another version of the cache")
            manifest = read_document(cls, content, "the manifest")
        # Another program may have written a manifest with a correct hash but with missing fields or wrong types.
        except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise Damaged(f"the manifest is incomplete ({error})") from None
        manifest._check()
        return manifest

    def _check(self) -> None:
        names = [file.name for file in self.files]
        if not (is_time(self.created) and math.isfinite(self.compile_seconds) and self.source_bytes >= 0):
            raise Damaged("the manifest has impossible numbers")
        # `parts` may contain any JSON; check the types of the values that are displayed.
        host, providers = self.parts.get("host", {}), self.parts.get("providers", [])
        versions = host.get("versions", {}) if isinstance(host, dict) else None
        proper = isinstance(versions, dict) and isinstance(providers, list)
        if not proper or not all(isinstance(p, list) and len(p) == 2 and isinstance(p[1], dict) for p in providers):
            raise Damaged("the parts of the key in the manifest have an unknown format")
        # Refuse a name that contains a folder, because it would let a foreign manifest refer to any file.
        if MODEL not in names or any(name != os.path.basename(name) or name in (".", "..") for name in names):
            raise Damaged(f"the manifest does not list {MODEL}, or lists a path instead of a file name")


# Session config entry with which ONNX Runtime refuses to compile. A host that loads a cache entry must not compile.
DISABLE_COMPILE = "session.disable_model_compile"

_OF_THE_ORIGINAL = ("session.model_external_initializers_file_folder_path",)


class Differs(Exception):
    """The inputs or outputs of the compiled model differ from the original's. The message lists them."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheEntry:
    """An entry on the disk.

    folder: absolute path. checked: stamps (size and times) and hashes of the entry's files when they were last
        verified; empty if they were not verified. native: a path of the folder that QNN can open (`native_path`);
        set only for an entry that is to be loaded.
    """

    folder: Path
    manifest: EntryManifest
    checked: tuple[KnownFile, ...] = dataclasses.field(default=(), compare=False)
    native: str = dataclasses.field(default="", compare=False)

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def fingerprint(self) -> str:
        """Fingerprint under which crashes of this entry are counted, instead of the model's fingerprint."""
        return hashlib.sha256(f"context {self.manifest.key} {self.manifest.id}".encode()).hexdigest()

    def spec(self, spec: SessionSpec) -> SessionSpec:
        """Return `spec` changed so that its session loads the entry instead of the model.

        Fixed dimensions and given initializers are omitted, because the compiled model contains them.
        """
        entries = {key: text for key, text in spec.config_entries.items() if key not in _OF_THE_ORIGINAL}
        return dataclasses.replace(
            spec,
            model_path=os.path.join(self.native, MODEL),
            config_entries={**entries, DISABLE_COMPILE: "1"},
            free_dimensions_by_name={},
            free_dimensions_by_denotation={},
            initializers=(),
            external_initializers=(),
            files_in_memory=(),
        )

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """Files that a session loads. The manifest supplies their hashes until the files are verified."""
        if self.checked:
            return self.checked
        records = self.manifest.files
        paths = [os.path.join(self.native, record.name) for record in records]
        return tuple(KnownFile(p, take_stamp(p), record.sha256) for p, record in zip(paths, records, strict=True))

    def check_unchanged(self) -> None:
        """Raise `Damaged` if a file changed while native code read it, and `OSError` if it cannot be checked."""
        for file in self.checked:
            if file.changed():
                raise Damaged(f"{os.path.basename(file.path)} changed while it was loaded")

    def touched(self) -> bool:
        """Return whether a file may have been written since the verification, even with the same contents.

        Raises:
            OSError: a file cannot be checked.
        """
        for file in self.checked:
            now = take_stamp(file.path)
            if now is None or file.stamp is None or not now.same(file.stamp):
                return True
        return False

    def restore(self, loaded: SessionInfo) -> SessionInfo:
        """Return what a session of the original model would report. Raise `Differs` if the compiled model does not
        match the original model.

        Take producer, version, domain and node counts from the manifest: an EPContext model lacks the first three,
        and counts a whole partition as one node.
        """
        original = self.manifest.info
        for what in ("inputs", "outputs", "overridable_initializers"):
            if getattr(loaded, what) != getattr(original, what):
                raise Differs(f"the compiled model's {what.replace('_', ' ')} differ from the original model's")
        ours, theirs = loaded.placement, original.placement
        if ours.known and theirs.known and ours.cpu_nodes != theirs.cpu_nodes:
            raise Differs("the compiled model has a different number of nodes on the CPU than the original model")
        return dataclasses.replace(
            original,
            placement=dataclasses.replace(theirs, npu_bytes=ours.npu_bytes, npu_memory=ours.npu_memory),
            provider_options=loaded.provider_options,
            profiling_start_time_ns=loaded.profiling_start_time_ns,
            create_seconds=loaded.create_seconds,
        )
