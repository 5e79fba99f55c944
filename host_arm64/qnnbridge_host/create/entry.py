"""Makes an entry of the cache: compiles the model in a worker, in a draft, and publishes the result."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.entry import STEM, CacheEntry, EntryFile, EntryManifest
from qnnbridge_host.cache.key import size_of
from qnnbridge_host.cache.store import Store
from qnnbridge_host.create.compiler import compile_together
from qnnbridge_host.create.jobs import CompiledFiles, CompilerInput
from qnnbridge_host.create.lookup import CannotStandFor, ModelNotDescribed
from qnnbridge_host.create.worker import WorkOrder, ticking
from qnnbridge_host.model.source import ModelSource, hash_file
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

_EDGES: Final = "offload_graph_io_quantization"


def build_entry(
    store: Store,
    key: str,
    parts: Mapping[str, Any],
    job: CompilerInput,
    order: WorkOrder,
    on_progress: Callable[[float], None],
    warn: Callable[[str | None], str],
) -> CacheEntry:
    """Compile and publish; the caller holds the key's lock. warn: what is known against the model on a chip.

    Raises:
        ModelNotDescribed, CannotStandFor: the compiled model cannot replace the model.
        OSError: of the cache's disk.
        BridgeError: the errors of compiling.
    """
    with store.draft() as draft:
        job = dataclasses.replace(job, spec=_spec(job.spec), file_stem=STEM)
        with ticking(on_progress):
            (made,) = compile_together((job,), os.fspath(draft.folder), order)
        order.stop.check()
        described = dataclasses.replace(_described(key, parts, job.source, made), warning=warn(made.soc_model))
        return store.publish(draft, described)


def _described(key: str, parts: Mapping[str, Any], source: ModelSource, made: CompiledFiles) -> EntryManifest:
    if made.info is None:
        raise ModelNotDescribed
    if made.info.overridable_initializers:
        raise CannotStandFor("some of its initializers can be given as inputs, those of a compiled model cannot")
    return EntryManifest(
        key=key,
        id=secrets.token_hex(16),
        # All files: QNN's two, and those that ONNX Runtime may have put beside them for nodes on the CPU.
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


def _record(folder: Path, name: str) -> EntryFile:
    path = folder / name
    return EntryFile(name, path.stat().st_size, hash_file(path))


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
