"""Makes an entry: compiles the model in a process of its own, in a draft, and publishes what came of it."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._providers import QNN
from qnnbridge_host.cache.files import hash_file
from qnnbridge_host.cache.manifest import STEM, EntryManifest, FileRecord
from qnnbridge_host.cache.policy import size_of
from qnnbridge_host.cache.store import Entry, Store
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._compiling.job import CompiledFiles
    from qnnbridge._host import Host
    from qnnbridge._remote_session import SessionRecipe

_EDGES: Final = "offload_graph_io_quantization"


class NothingTold(Exception):
    """The compiler died before it could tell what the model looks like: its files cannot stand for the model."""


class CannotStandFor(Exception):
    """What compiling makes of the model is not the model. The text says why."""


def build_entry(
    store: Store,
    key: str,
    parts: Mapping[str, Any],
    manifest: SessionRecipe,
    host: Host,
    *,
    timeout_s: float | None,
    on_progress: Callable[[float], None] | None,
) -> Entry:
    """Compile and publish; the caller holds the key's lock.

    Raises what compiling raises, `NothingTold`, `CannotStandFor`, and `OSError` if the disk does not do its part.
    """
    from qnnbridge._compiling.compiler import compile_into
    from qnnbridge._compiling.job import CompileJob, HostSettings

    with store.draft() as draft:
        job = CompileJob(
            manifest.source,
            _spec(manifest.spec),
            file_stem=STEM,
            host=HostSettings.of(host),
            initializers=tuple(manifest.initializers),
        )
        made = compile_into(job, os.fspath(draft.folder), timeout_s=timeout_s, on_progress=on_progress)
        return store.publish(draft, _described(key, parts, manifest, made))


def _described(key: str, parts: Mapping[str, Any], manifest: SessionRecipe, made: CompiledFiles) -> EntryManifest:
    if made.info is None:
        raise NothingTold
    if made.info.overridable_initializers:
        raise CannotStandFor("some of its initializers can be given as inputs, those of a compiled model cannot")
    source = manifest.source
    return EntryManifest(
        key=key,
        id=secrets.token_hex(16),
        # All that is there: QNN's two files, and what ONNX Runtime may have put beside them for nodes on the CPU.
        files=tuple(_record(Path(made.folder), name) for name in sorted(os.listdir(made.folder))),
        label=source.label,
        fingerprint=source.fingerprint,
        parts=parts,
        info=made.info,
        created=time.time(),
        compile_seconds=made.seconds,
        source_path=source.path,
        source_bytes=size_of(source),
        salvaged=made.died_at_teardown,
    )


def _record(folder: Path, name: str) -> FileRecord:
    path = folder / name
    return FileRecord(name, path.stat().st_size, hash_file(path))


def _spec(spec: SessionSpec) -> SessionSpec:
    """The session to compile as: exactly as it would be made without the cache.

    Where the CPU is allowed QNN leaves quantization at the graph's edges to it; the compiler by itself does not.
    """
    if spec.fallback == "error":
        return spec
    providers = [
        ProviderSpec(p.name, {_EDGES: "1", **p.options}) if p.name == QNN else p
        for p in spec.providers or (ProviderSpec(QNN),)
    ]
    return dataclasses.replace(spec, providers=tuple(providers))
