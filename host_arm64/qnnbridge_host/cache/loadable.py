"""An entry in the place of the model it was compiled from: what the host is told, and what the application sees.

Immutable; any thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os

from qnnbridge_host.cache.manifest import MODEL
from qnnbridge_host.cache.store import Entry
from qnnbridge_host.model.native_path import native_path
from qnnbridge_protocol.specs import SessionInfo, SessionSpec

DISABLE_COMPILE = "session.disable_model_compile"
"""With it ONNX Runtime refuses what it would have to compile: a host that loads an entry never compiles."""

_OF_THE_ORIGINAL = ("session.model_external_initializers_file_folder_path",)


class Differs(Exception):
    """The compiled model has other inputs or outputs than the original. The text says which."""


def fingerprint_of(entry: Entry) -> str:
    """By which a crash is booked: on this very entry, never on the model."""
    return hashlib.sha256(f"context {entry.manifest.key} {entry.manifest.id}".encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Loadable:
    """An entry that has been checked. folder: by which QNN can open it (`native_path`)."""

    entry: Entry
    folder: str

    @classmethod
    def of(cls, entry: Entry) -> Loadable:
        """Raises `OSError` if QNN could not open it."""
        return cls(entry, native_path(entry.folder))

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.entry)

    def spec(self, spec: SessionSpec) -> SessionSpec:
        """How the host makes the session that `spec` describes from the entry.

        Fixed dimensions and given initializers are compiled in.
        """
        entries = {key: text for key, text in spec.config_entries.items() if key not in _OF_THE_ORIGINAL}
        model = os.path.join(self.folder, MODEL)
        files = tuple(os.path.join(self.folder, file.name) for file in self.entry.manifest.files)
        return dataclasses.replace(
            spec,
            model_path=model,
            model_files=tuple(file for file in files if file != model),
            config_entries={**entries, DISABLE_COMPILE: "1"},
            free_dimensions_by_name={},
            free_dimensions_by_denotation={},
            initializers=(),
            external_initializers=(),
        )

    def restore(self, loaded: SessionInfo) -> SessionInfo:
        """What the session of the original would show. Raises `Differs`.

        An EPContext model has lost the producer, the version and the domain, and it counts a whole partition as one
        node.
        """
        original = self.entry.manifest.info
        for what in ("inputs", "outputs", "overridable_initializers"):
            if getattr(loaded, what) != getattr(original, what):
                raise Differs(f"its {what.replace('_', ' ')} are not those of the model")
        ours, theirs = loaded.placement, original.placement
        if ours.known and theirs.known and ours.cpu_nodes != theirs.cpu_nodes:
            raise Differs("other nodes of it are on the CPU than of the model")
        return dataclasses.replace(
            original,
            provider_options=loaded.provider_options,
            profiling_start_time_ns=loaded.profiling_start_time_ns,
            create_seconds=loaded.create_seconds,
        )
