"""Create entries of the cache for tests, as the compiler does, with any bytes instead of a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from qnnbridge_host.cache.entry import MODEL, CacheEntry, EntryFile, EntryManifest
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.specs import NodeInfo, SessionInfo

BLOB = "model_ctx_qnn.bin"
INFO = SessionInfo(
    inputs=(NodeInfo("x", "tensor(float)", (1, 3)),),
    outputs=(NodeInfo("y", "tensor(float)", (1, None, "N")),),
    modelmeta={"producer_name": "somebody", "version": 2**63 - 1},
    providers=("QNNExecutionProvider",),
)


def key_number(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def put(
    store: Store,
    key: str,
    blob: bytes = b"blob" * 1000,
    *,
    label: str = "m.onnx",
    created: float = 1.0,
    warning: str = "",
) -> CacheEntry:
    """Create an entry. Its .onnx file differs for each key."""
    store.prepare()
    files = {MODEL: f"model {key}".encode(), BLOB: blob}
    with store.draft() as draft:
        for name, data in files.items():
            (draft.folder / name).write_bytes(data)
        records = tuple(
            EntryFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()
        )
        manifest = EntryManifest(
            key=key,
            id=hashlib.sha256(key.encode()).hexdigest()[:32],
            files=records,
            label=label,
            fingerprint="f" * 64,
            parts={"model": "f" * 64, "host": {"versions": {"onnxruntime": "1.31.1", "qnn_sdk": "2.51.0"}}},
            info=INFO,
            created=created,
            compile_seconds=1.5,
            source_path="/models/m.onnx",
            source_bytes=1234,
            warning=warning,
        )
        return store.publish(draft, manifest)


def tree(folder: Path) -> set[str]:
    """Return all files under a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
