"""What an entry of the cache says of itself: its files with their hashes, what it was made from, what it shows.

It is written last, so a folder with a manifest that can be read is an entry that was finished. Frozen data.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import Damaged, read_json, write_json
from qnnbridge_protocol.specs import SessionInfo

SCHEMA: Final = 1
"""Of entries, notes and keys. Another number is another cache: nothing of it is read."""

FILE_NAME: Final = "manifest.json"
STEM: Final = "model_ctx"
MODEL: Final = f"{STEM}.onnx"
"""Our own name, whatever the model is called: QNN cannot load again what has ``..`` in its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the entry, by its name in the entry's folder."""

    name: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class EntryManifest:
    """id: of this making; the same key made again has another one. parts: what the key was computed from.

    label: what messages call the model; source_path: where it was then; source_bytes: its size with all its files.
    info: of a session of the original model. created: seconds since 1970. compile_seconds: what a hit saves.
    salvaged: the compiler died when all was written.
    """

    key: str
    id: str
    files: tuple[FileRecord, ...]
    label: str
    fingerprint: str
    parts: Mapping[str, Any]
    info: SessionInfo
    created: float
    compile_seconds: float
    source_path: str | None = None
    source_bytes: int = 0
    salvaged: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def versions(self) -> dict[str, str]:
        """Of onnxruntime and QNN that made it."""
        return dict(self.parts.get("host", {}).get("versions", {}))

    def write(self, folder: Path) -> None:
        """Raises `OSError`."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["files"] = [dataclasses.asdict(file) for file in self.files]
        plain["info"] = self.info.to_wire()
        plain["parts"] = dict(self.parts)
        write_json(folder / FILE_NAME, {"schema": SCHEMA, **plain}, durable=True)

    @classmethod
    def read(cls, folder: Path) -> EntryManifest | None:
        """``None`` if there is none. Raises `Damaged`, and `OSError` for one that cannot be read."""
        content = read_json(folder / FILE_NAME)
        if content is None:
            return None
        try:
            if content.pop("schema") != SCHEMA:
                raise Damaged("the manifest is of another version of the cache")
            content["files"] = tuple(FileRecord(**file) for file in content["files"])
            content["info"] = SessionInfo.from_wire(content["info"])
            manifest = cls(**content)
        except (TypeError, LookupError, ValueError) as error:
            raise Damaged(f"the manifest lacks something ({error})") from None
        manifest._check()
        return manifest

    def _check(self) -> None:
        names = [file.name for file in self.files]
        # A name with a folder in it would let a foreign manifest point anywhere.
        if MODEL not in names or any(name != os.path.basename(name) or name in (".", "..") for name in names):
            raise Damaged("the manifest names other files than an entry has")
