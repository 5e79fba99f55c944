"""Models that are loaded instead of the session's model.

`fix=True`: a rewritten copy. A worker rewrites the model, because this needs `onnx`, memory for two copies of the
model, and sessions on the CPU that verify each rewrite. The cache stores the copy. Without the cache the copy is
held in memory while the session is open.

`InferenceSession("model.bin")`: a model that is built for a bare context binary. A worker reads the binary and
builds the model. The cache stores the model, which has a few kilobytes. The binary is never copied or moved: QNN
finds it in the session's folder for context binaries.

Context binaries from a function of the application: QNN reads files only, so they are written to a temporary folder
together with a copy of the model. The folder exists while the session is open. The next host that needs such a
folder removes the folders of crashed hosts.

Thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.files import Damaged, read_json, remove_tree, work_folder, write_json
from qnnbridge_host.cache.key import KEY_DIGITS
from qnnbridge_host.cache.store import Store
from qnnbridge_host.model.scan import refuse_compiled, scan_model
from qnnbridge_host.model.source import ModelSource
from qnnbridge_os.files import enter
from qnnbridge_protocol.errors import (
    BridgeError,
    ContextUnusable,
    DeadlineExceeded,
    InvalidArgument,
    ModelError,
    OptionError,
    PlacementRefused,
    RemoteOSError,
    WorkerDied,
)
from qnnbridge_protocol.input_tensors import options_text
from qnnbridge_protocol.shell import model_command
from qnnbridge_protocol.specs import FixSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_host.request.client import CallsBack
    from qnnbridge_host.wrap.build import WrapRequest
    from qnnbridge_protocol.model_records import CacheSettings


# --- a rewritten copy: `fix=True` ------------------------------------------------------------------------

COMMAND: Final = "fix=True"
WITHOUT_A_NAME: Final = "model.onnx"
# A refusal suggests no rewrites of larger models, because trying rewrites requires reading the whole model.
MAX_BYTES: Final = 512 * 2**20
MOST_CHANGES: Final = 3
# Name of the file that describes a copy in the cache.
RECORD: Final = "fixed.json"
# Largest fraction of the cache's size for all copies of one type.
SHARE_OF_CACHE: Final = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class FixedModel:
    """A rewritten copy. path: the copy's file. changes: descriptions of the rewrites."""

    path: str
    changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSource:
    """A rewritten copy that is loaded instead of the model. spec: the session's description without the sizes of
    dimensions that are fixed in the copy."""

    source: ModelSource
    spec: SessionSpec
    changes: tuple[str, ...]


def fixed_source(
    source: ModelSource,
    spec: SessionSpec,
    settings: CacheSettings | None,
    folder: str,
    order: WorkOrder,
    right_here: Collection[str] = (),
) -> FixedSource:
    """Return the rewritten copy of a model: from the cache, or newly created.

    Args:
        source: the model.
        spec: the session's description with `fix`; its sizes of free dimensions are fixed in the copy.
        settings: the cache's settings; ``None`` without a cache.
        folder: folder of the external files of a model given as bytes.
        order: stop signal, deadline and receiver of progress events for the worker.
        right_here: rows of the table of known-wrong operators that are not rewritten, because QNN's results were
            measured on this computer and were right.

    Raises:
        OptionError: a size or constant of `fix` does not fit the model, or the session passes weights.
        ModelError: the model cannot be rewritten, or the copy cannot be stored.
        DeadlineExceeded: another process was still rewriting the model.
    """
    from qnnbridge_host.create.worker import ticking

    refuse_compiled(source.given, COMMAND)
    if spec.value_names:
        raise OptionError(
            "fix=True rewrites the weights, so weights cannot be passed with the session options.",
            fix="Remove the calls of add_initializer() and add_external_initializers...(), or use qnnbridge fix.",
        )
    fix = spec.fix or FixSpec()
    wanted = {
        "sizes": dict(spec.free_dimensions_by_name),
        "constants": dict(fix.constants),
        "only": list(fix.only),
        "skip": list(fix.skip),
        # Omit an empty field, so that keys from earlier releases remain valid.
        **({"right_here": sorted(right_here)} if right_here else {}),
    }

    def rewrite(target: Path) -> FixedModel:
        made = _rewritten(source, wanted, folder, target, order)
        source.check_unchanged()  # check that the worker has rewritten the hashed contents
        return made

    changed = dataclasses.replace(spec, free_dimensions_by_name={}, fix=None)
    with ticking(functools.partial(order.progress, "rewriting")):
        unusable: ModelError | None = None
        if settings is not None and settings.in_use:
            try:
                made = _kept(source, wanted, settings, rewrite, order)
                # From here on the copy is handled like any model: hashed, compiled, cached and blamed for crashes
                # (ADR 0018).
                found = ModelSource.open(made.path, os.curdir)
                return FixedSource(found, dataclasses.replace(changed, model_path=made.path), made.changes)
            except BridgeError:
                raise  # some `BridgeError`s are also `OSError`s, but do not concern the cache
            except OSError as error:
                # The cache cannot be used, so create the copy without it.
                unusable = _no_room(source, settings.folder, error)
        try:
            found, changes = _in_memory(source, rewrite, unusable)
        except BridgeError:
            raise
        except OSError as error:
            raise unusable or _no_room(source, "the folder for temporary files", error) from None
        return FixedSource(found, dataclasses.replace(changed, model_path=None), changes)


def _in_memory(
    source: ModelSource, rewrite: Callable[[Path], FixedModel], unusable: ModelError | None
) -> tuple[ModelSource, tuple[str, ...]]:
    """Create the copy in memory; return its source and descriptions of the rewrites. unusable: why the cache was
    not used."""
    with work_folder("fix") as work:
        made = rewrite(Path(work))
        # A model in memory cannot have external weights.
        if len(os.listdir(work)) > 1:
            raise unusable or OptionError(
                f"{source.label} has weights in separate files; fix=True needs the cache for such models.",
                fix="Switch the cache on (cache=, QNNBRIDGE_CACHE), or fix the model once: qnnbridge fix.",
            )
        return ModelSource.open(Path(made.path).read_bytes()), made.changes


def _no_room(source: ModelSource, folder: str, error: OSError) -> ModelError:
    return ModelError(
        f"The rewritten copy of {source.label} cannot be stored in {folder}.",
        cause=error.strerror or str(error),
        fix="Free disk space, or set QNNBRIDGE_CACHE_DIR to another folder.",
    )


def _rewritten(
    source: ModelSource, wanted: Mapping[str, Any], folder: str, target: Path, order: WorkOrder
) -> FixedModel:
    """Rewrite a model in a worker. target: an empty folder, which receives the copy."""
    from qnnbridge_host.create.worker import Worker

    with work_folder("fix") as work:
        path = source.path
        if path is None:
            from qnnbridge_host.graph.files import link_files

            path = os.path.join(work, WITHOUT_A_NAME)
            Path(path).write_bytes(source.data or b"")
            names = source.scan.external_files if source.scan is not None else ()
            # The worker reads the model from a file, and the file needs its external weights in the same folder.
            link_files(Path(folder), names, Path(work))
        written = target / os.path.basename(path)
        with Worker(order).running() as worker:
            reply = worker.call({"op": "worker.fix", "source": path, "target": os.fspath(written), **wanted}).header
    return FixedModel(os.fspath(written), tuple(str(change) for change in reply["changes"]))


# --- copies in the cache ---------------------------------------------------------------------------------
#
#     v1/fixed/KEY/NAME.onnx, NAME.onnx.data, fixed.json
#     v1/wrapped/KEY/model.onnx, fixed.json
#
# A copy is created under the lock of its key, is complete or absent, and is used only if it has the recorded
# fingerprint. When the copies have more than a quarter of the cache's size, the least recently used copies are
# removed.


def _kept(
    source: ModelSource,
    wanted: Mapping[str, Any],
    settings: CacheSettings,
    make: Callable[[Path], FixedModel],
    order: WorkOrder,
    kind: str = "fixed",
    words: tuple[str, str] = ("rewriting", "rewritten"),
) -> FixedModel:
    """Return a copy from the cache, or create it there.

    Args:
        source: the model.
        wanted: options of the copy, which are part of its key.
        settings: the cache's settings.
        make: creates the copy in an empty folder.
        order: the task, for its deadline and stop signal.
        kind: type of the copy, one of `COPIES`.
        words: the verb for messages, as present and past participle, such as ("rewriting", "rewritten").

    Raises:
        DeadlineExceeded: another process was still creating the copy.
        OSError: the cache cannot be used.
    """
    from qnnbridge_protocol import __version__

    store = Store(Path(settings.folder))
    # The key contains the version, because versions of qnnbridge may create different copies.
    text = json.dumps([source.fingerprint, wanted, __version__], sort_keys=True, ensure_ascii=True)
    key = hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]
    store.prepare()
    folder = enter(store.part(kind) / key)
    folder.parent.mkdir(exist_ok=True)
    held = store.lock(f"{kind}-{key}", order.deadline, lambda _seconds: order.stop.check())
    if held is None:
        doing, done = words
        raise DeadlineExceeded(
            f"The timeout expired while another process was {doing} {source.label}.",
            fix=f"Use a longer timeout (timeout=): the model is {done} only once.",
            details={"state": "not-started", "model": source.label},
        )
    try:
        found = _read_copy(store, folder)
        if found is not None:
            return found
        remove_tree(folder)
        with store.draft() as draft:
            made = make(draft.folder)
            name = os.path.basename(made.path)
            fingerprint = ModelSource.open(made.path).fingerprint
            record = {"name": name, "fingerprint": fingerprint, "changes": list(made.changes)}
            write_json(draft.folder / RECORD, record)
            os.rename(draft.folder, folder)
            draft.close()
        _shrink(store.listed(kind), int(settings.max_bytes * SHARE_OF_CACHE), keep=key)
        return FixedModel(os.fspath(folder / name), made.changes)
    finally:
        held.release()


def _read_copy(store: Store, folder: Path) -> FixedModel | None:
    try:
        record = read_json(folder / RECORD)
        if record is None:
            return None
        path = os.fspath(folder / str(record["name"]))
        if ModelSource.open(path, os.curdir, store.memo).fingerprint != record["fingerprint"]:
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        return FixedModel(path, tuple(str(change) for change in record["changes"]))
    except (Damaged, OSError, BridgeError, LookupError, TypeError):
        return None


def _shrink(kept: Sequence[Path], most: int, keep: str) -> None:
    with contextlib.suppress(OSError):
        folders = sorted(kept, key=lambda folder: folder.stat().st_mtime)
        sizes = {one: sum(file.stat().st_size for file in one.iterdir()) for one in folders}
        for folder in folders:
            if sum(sizes.values()) <= most:
                return
            if folder.name != keep:
                remove_tree(folder)
                sizes.pop(folder)


# --- advice in a refusal ---------------------------------------------------------------------------------


def suggest_fix(
    refusal: PlacementRefused, source: ModelSource, spec: SessionSpec, order: WorkOrder, *, rewritten: bool = False
) -> None:
    """Add `fix=True` and the command `qnnbridge fix` to a refusal that a rewrite may prevent. Never raises.

    Args:
        refusal: the error, which is changed.
        source: the model.
        spec: the session's description.
        order: stop signal, deadline and receiver of progress events for the worker that tries the rewrites.
        rewritten: whether all rewrites were already applied. Then only fixed values for inputs can help.
    """
    from qnnbridge_host.cache.key import size_of
    from qnnbridge_host.create.worker import Worker

    readable = source.scan is not None and source.scan.format == "onnx"
    if not readable or size_of(source) > MAX_BYTES or importlib.util.find_spec("onnx") is None:
        return
    # An error while the advice is prepared must not replace the refusal.
    with contextlib.suppress(BridgeError, OSError), work_folder("fix") as work:
        path = source.path
        if path is None:
            path = os.path.join(work, WITHOUT_A_NAME)
            Path(path).write_bytes(source.data or b"")
        sizes, constants = spec.free_dimensions_by_name, spec.fix.constants if spec.fix is not None else {}
        nodes = refusal.details.get("cpu_list")
        refused = None if nodes is None else sorted({str(op) for _, op in nodes})
        header: dict[str, Any] = {"op": "worker.fix", "source": path, "refused": refused}
        header |= {"sizes": dict(sizes), "constants": dict(constants)}
        with Worker(order).running() as worker:
            reply = worker.call(header).header
        decides = {str(name): str(what) for name, what in reply["decides"].items()}
        if decides or not rewritten:
            _add(refusal, source, spec, list(reply["changes"]), dict(reply["constants"]), decides)


def _add(
    refusal: PlacementRefused,
    source: ModelSource,
    spec: SessionSpec,
    changes: list[str],
    constants: Mapping[str, Any],
    decides: Mapping[str, str],
) -> None:
    if not changes and not constants:
        return
    argument = repr({"constants": dict(constants)}) if constants else "True"
    command = spec.in_commands(source.path).fix(constants=options_text(constants).strip())
    shown = changes[:MOST_CHANGES] + [f"input {one} determines {what}" for one, what in decides.items()]
    cure = (
        f"To try rewrites, create the session with fix={argument}, or run once: "
        f"{command}. "
        f"The rewrites change nodes that QNN may not support ({'; '.join(shown)})."
    )
    if decides:
        cure += "  The constants are examples: give the values that these inputs always have."
    refusal.fix = f"{cure} {refusal.fix}" if refusal.fix else cure
    refusal.details["rewrites"] = changes
    refusal.details["constants"] = dict(constants)


# --- the model that is built for a bare context binary ---------------------------------------------------

# Configuration entries of a session: the graph to run, if a binary has several; and whether inputs and outputs are
# floats.
GRAPH_ENTRY: Final = "qnnbridge.wrap_graph"
FLOAT_ENTRY: Final = "qnnbridge.wrap_float_io"


def wrapped_source(
    source: ModelSource,
    entries: Mapping[str, str],
    settings: CacheSettings | None,
    order: WorkOrder,
    library: str,
) -> ModelSource:
    """Return a model for a bare context binary, with the fingerprint and the files of the binary.

    Args:
        source: the binary.
        entries: configuration entries of the session.
        settings: the cache's settings; ``None`` without a cache.
        order: stop signal, deadline and receiver of progress events for the worker.
        library: versions of QNN, on which the model depends besides the binary.

    Raises:
        ContextUnusable: QNN's library cannot read the binary, or ONNX Runtime cannot run its graph.
        OptionError: the binary has several graphs, and no entry chooses a graph.
        DeadlineExceeded, Cancelled: the deadline expired, or the request was withdrawn.
    """
    from qnnbridge_host.wrap.build import WrapRequest  # import it only here, because it imports ctypes

    path = source.path or ""
    graph = entries.get(GRAPH_ENTRY, "")
    float_io = _switch(entries)
    # Pass the file name without a folder: QNN searches the session's folder for context binaries.
    request = WrapRequest(path, os.path.basename(path), (graph,) if graph else (), float_io=float_io)
    data: bytes | None = None
    if settings is not None and settings.in_use:
        try:
            data = _kept_wrapped(source, request, settings, order, library)
        except BridgeError:
            raise
        except OSError:
            data = None  # build the model without the cache
    if data is None:
        data = _built(request, order)
    # Keep the path of the binary, which messages mention.
    scan = scan_model(data, count_nodes=False)._replace(path=path)
    return source._replace(path=None, data=data, scan=scan, binary=path)


def _switch(entries: Mapping[str, str]) -> bool:
    value = entries.get(FLOAT_ENTRY, "0")
    if value not in ("0", "1"):
        raise OptionError(f"{FLOAT_ENTRY}={value!r} is not a valid value.", fix="Set it to 0 (default) or 1.")
    return value == "1"


def _kept_wrapped(
    source: ModelSource, request: WrapRequest, settings: CacheSettings, order: WorkOrder, library: str
) -> bytes:
    """Return the model from the cache, or build it there. Raise `OSError` if the cache cannot be used."""

    def build(target: Path) -> FixedModel:
        written = target / WITHOUT_A_NAME
        written.write_bytes(_built(request, order))
        source.check_unchanged()  # check that the worker has read the hashed binary
        return FixedModel(os.fspath(written), ())

    wanted = {
        "name": request.name,
        "graphs": list(request.graphs),
        "float_io": request.float_io,
        "library": library,
    }
    made = _kept(source, wanted, settings, build, order, "wrapped", ("reading", "read"))
    return Path(made.path).read_bytes()


def _built(request: WrapRequest, order: WorkOrder) -> bytes:
    from qnnbridge_host.create.worker import Worker

    try:
        with Worker(order).running() as worker:
            reply = worker.call({"op": "worker.wrap", **request.to_plain()})
    except WorkerDied as died:
        raise ContextUnusable(
            f"The worker process crashed while it read the context binary {order.model.label}.",
            cause="QNN's system library crashes: the binary is damaged, or has an unknown format.",
            evidence=(died.message,),
            fix="Copy or download the binary again.",
            details={"path": request.path},
        ) from None
    graphs = [[str(name) for name in names] for names in reply.header["models"]]
    if len(graphs) != 1:
        names = ", ".join(repr(names[0]) for names in graphs[:8])
        raise OptionError(
            f"The context binary {order.model.label} has {len(graphs)} graphs, but a session runs only one.",
            cause=f"The context binary contains the graphs {names}{' and more' if len(graphs) > 8 else ''}.",
            fix=f"Select a graph with the session config entry {GRAPH_ENTRY}, or create a model for each graph: "
            f"{model_command('wrap', request.path, '-o model_ctx.onnx')}",
            details={"graphs": [names[0] for names in graphs]},
        )
    return bytes(reply.buffers[0])


# --- context binaries from a function of the application -------------------------------------------------

# Name by which the host calls the application's function that returns context binaries.
CONTEXT_READ: Final = "ep_context_read"
_PREFIX: Final = "qnnbridge-context-"


class ContextFolder:
    """A temporary folder with a model and its context binaries. path: path of the .onnx file.

    The folder is removed by `release`, at the latest when the object is deleted.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._remove = weakref.finalize(self, shutil.rmtree, os.path.dirname(path), ignore_errors=True)

    def release(self, *, remove: bool = False) -> None:
        """Remove the folder. remove: ignored, because no other object uses the folder."""
        self._remove()


def fetch_contexts(source: ModelSource, calls_back: CallsBack) -> ContextFolder | None:
    """Write the model and its context binaries, which the application's function returns, to a temporary folder.

    Returns:
        The folder; ``None`` if the model does not refer to context binaries in files.

    Raises:
        InvalidArgument: the model's reference to a context binary is not a plain file name.
        CallBackFailed: the function failed.
        RemoteOSError: a file cannot be written.
    """
    scan = source.scan
    owners = [node for node in scan.ep_contexts if node.owns_blob and not node.embedded] if scan is not None else []
    names = list(dict.fromkeys(node.cache_path for node in owners if node.cache_path))
    if scan is None or not names:
        return None
    _sweep_contexts()
    stem = os.path.basename(source.path) if source.path is not None else "model.onnx"
    # The folder's name contains the id of this process; `_sweep_contexts` in a later host checks whether it still
    # runs.
    made = ContextFolder(os.path.join(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"), stem))
    folder = os.path.dirname(made.path)
    try:
        # QNN searches for the binaries only in the folder of the .onnx file, so copy that file into the folder as
        # well.
        if source.path is not None:
            shutil.copyfile(source.path, made.path)
            for name in scan.external_files:  # these files contain weights of the nodes on the CPU
                beside = os.path.join(os.path.dirname(source.path), name)
                if name not in names and os.path.basename(name) == name and os.path.exists(beside):
                    shutil.copyfile(beside, os.path.join(folder, name))
        else:
            with open(made.path, "wb") as file:
                file.write(source.data or b"")
        for name in names:
            # Refuse a path: the bytes that the function returns must be written only to the temporary folder.
            if os.path.basename(name) != name or name in ("", ".", ".."):
                raise InvalidArgument(
                    f"The model's reference {name!r} to a context binary is not a plain file name."
                )
            values = calls_back.call(CONTEXT_READ, {"name": name}).values
            if len(values) != 1 or not hasattr(values[0], "tobytes"):
                raise calls_back.nonsense(CONTEXT_READ, "not bytes")
            with open(os.path.join(folder, name), "wb") as file:
                file.write(values[0].tobytes())
    except OSError as error:
        made.release()
        raise RemoteOSError(f"A context binary cannot be written: {error}.", details={"type": "OSError"}) from None
    except BaseException:
        made.release()
        raise
    return made


def _sweep_contexts() -> None:
    """Remove the folders of hosts that no longer run."""
    root = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            pid = name[len(_PREFIX) :].partition("-")[0] if name.startswith(_PREFIX) else ""
            # If another process has the same id now, the folder remains until a later sweep.
            if pid.isdecimal() and int(pid) != os.getpid() and not _alive(int(pid)):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def _alive(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))
