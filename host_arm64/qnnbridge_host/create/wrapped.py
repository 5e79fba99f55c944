"""`InferenceSession("model.bin")`: the model around a bare context binary, for a session.

A worker reads the binary and builds the model. The cache keeps the model, a few kilobytes; the binary stays where
it is and is never copied: QNN finds it by the session's folder for context binaries. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.wrap.build import WrapRequest
from qnnbridge_protocol.errors import BridgeError, ContextUnusable, DeadlineExceeded, OptionError, WorkerDied

if TYPE_CHECKING:
    from qnnbridge_host.cache.fixed_models import FixedModel
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_protocol.model_records import CacheSettings

# Configuration entries of a session: the graph of a binary that has several, and float inputs and outputs.
GRAPH_ENTRY: Final = "qnnbridge.wrap_graph"
FLOAT_ENTRY: Final = "qnnbridge.wrap_float_io"
FOLDER: Final = "wrapped"
_NAME: Final = "model.onnx"


def wrapped_source(
    source: ModelSource,
    entries: Mapping[str, str],
    settings: CacheSettings | None,
    order: WorkOrder,
    library: str,
) -> ModelSource:
    """The model around a bare binary, in its place: with the fingerprint and the files of the binary.

    Args:
        source: the binary.
        entries: the session's configuration entries.
        settings: of the cache.
        order: for the worker.
        library: what the answer depends on besides the binary: the version of QNN.

    Raises:
        ContextUnusable: QNN's library does not read it, or ONNX Runtime cannot run such a graph.
        OptionError: it has several graphs, and the entries choose none.
        DeadlineExceeded, Cancelled: of the worker.
    """
    path = source.path or ""
    graph = entries.get(GRAPH_ENTRY, "")
    float_io = _switch(entries)
    # The name alone: QNN looks for the binary in the session's folder for context binaries.
    request = WrapRequest(path, os.path.basename(path), (graph,) if graph else (), float_io=float_io)
    data: bytes | None = None
    if settings is not None and settings.in_use:
        try:
            data = _kept(source, request, settings, order, library)
        except BridgeError:
            raise
        except OSError:
            data = None  # then without the cache
    if data is None:
        data = _built(request, order)
    # With the path of the binary, by which messages name it.
    scan = scan_model(data, count_nodes=False)._replace(path=path)
    return source._replace(path=None, data=data, scan=scan, binary=path)


def _switch(entries: Mapping[str, str]) -> bool:
    value = entries.get(FLOAT_ENTRY, "0")
    if value not in ("0", "1"):
        raise OptionError(f"{FLOAT_ENTRY}={value!r} is not known.", fix="Set it to 0 (default) or 1.")
    return value == "1"


def _kept(
    source: ModelSource, request: WrapRequest, settings: CacheSettings, order: WorkOrder, library: str
) -> bytes:
    """From the cache, or built into it. Raises `OSError` where the cache cannot be used."""
    from qnnbridge_host.cache.fixed_models import FixedModel, find_or_make, fixed_key
    from qnnbridge_host.cache.store import Store
    from qnnbridge_protocol import __version__

    def build(target: Path) -> FixedModel:
        written = target / _NAME
        written.write_bytes(_built(request, order))
        source.check_unchanged()  # else the model of another binary would be kept under this one's hash
        return FixedModel(os.fspath(written), ())

    def on_wait(_seconds: float) -> None:
        order.stop.check()

    wanted = {
        "name": request.name,
        "graphs": list(request.graphs),
        "float_io": request.float_io,
        "library": library,
    }
    write: Callable[[Path], FixedModel] = build
    made = find_or_make(
        Store(Path(settings.folder)),
        fixed_key(source.fingerprint, wanted, __version__),
        write,
        max_bytes=settings.max_bytes,
        deadline=order.deadline,
        on_wait=on_wait,
        kind=FOLDER,
    )
    if made is None:
        raise DeadlineExceeded(
            f"The time for {source.label} was over while another process was reading it.",
            fix="Give it more time (timeout=): it is read once.",
            details={"state": "not-started", "model": source.label},
        )
    return Path(made.path).read_bytes()


def _built(request: WrapRequest, order: WorkOrder) -> bytes:
    from qnnbridge_host.create.worker import Worker

    try:
        with Worker(order).running() as worker:
            reply = worker.call({"op": "worker.wrap", **request.to_plain()})
    except WorkerDied as died:
        raise ContextUnusable(
            f"To read the context binary {order.label} ended the process that did it.",
            cause="QNN's system library does not survive it: the binary is damaged, or of a format of its own.",
            evidence=(died.message,),
            fix="Copy or download the binary again.",
            details={"path": request.path},
        ) from None
    graphs = [[str(name) for name in names] for names in reply.header["models"]]
    if len(graphs) != 1:
        names = ", ".join(repr(names[0]) for names in graphs[:8])
        raise OptionError(
            f"The context binary {order.label} has {len(graphs)} graphs, and a session runs one.",
            cause=f"Its graphs: {names}{' and more' if len(graphs) > 8 else ''}.",
            fix=f"Choose one with the session's configuration entry {GRAPH_ENTRY}, or make models of them: "
            f"qnnbridge wrap {order.label} -o model_ctx.onnx",
            details={"graphs": [names[0] for names in graphs]},
        )
    return bytes(reply.buffers[0])
