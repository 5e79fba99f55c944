"""`fix=True`: the rewritten copy of a model that a session is made from in its place.

A worker rewrites: it needs `onnx`, memory for the model twice, and sessions on the CPU that prove each rewrite. The
cache keeps the copy. Without the cache the copy is bytes, which live as long as the session.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded, ModelError, OptionError, PlacementRefused
from qnnbridge_protocol.specs import FixSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.cache.fixed_models import FixedModel
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_protocol.model_records import CacheSettings

COMMAND: Final = "fix=True"
WITHOUT_A_NAME: Final = "model.onnx"
# A larger model takes longer to be read than a refusal may.
MAX_BYTES: Final = 512 * 2**20
MOST_CHANGES: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSource:
    """The copy in place of the model. spec: of the session, whose sizes are in the copy now."""

    source: ModelSource
    spec: SessionSpec
    changes: tuple[str, ...]


def fixed_source(
    source: ModelSource,
    spec: SessionSpec,
    settings: CacheSettings | None,
    folder: str,
    order: WorkOrder,
) -> FixedSource:
    """The rewritten copy of a model.

    Args:
        source: the model.
        spec: of the session, with `fix`; its sizes of free dimensions are fixed in the copy.
        settings: of the cache.
        folder: of the files of a model given as bytes.
        order: for the worker.

    Raises:
        OptionError: sizes or constants do not fit the model.
        ModelError: the rewrites do not do.
        DeadlineExceeded: another process was still at it.
    """
    from qnnbridge_host.create.worker import ticking

    with ticking(functools.partial(order.progress, "rewriting")):
        return _fixed_source(source, spec, settings, folder, order)


def _fixed_source(
    source: ModelSource, spec: SessionSpec, settings: CacheSettings | None, folder: str, order: WorkOrder
) -> FixedSource:
    from qnnbridge_host.model.scan import refuse_compiled

    refuse_compiled(source.path if source.path is not None else source.data or b"", COMMAND)
    if spec.value_names:
        raise OptionError(
            "fix=True rewrites the weights, so none can be given with the session options.",
            fix="Leave add_initializer() and add_external_initializers...() away, or use qnnbridge fix.",
        )
    fix = spec.fix or FixSpec()
    wanted = {
        "sizes": dict(spec.free_dimensions_by_name),
        "constants": dict(fix.constants),
        "only": list(fix.only),
        "skip": list(fix.skip),
    }

    def rewrite(target: Path) -> FixedModel:
        return _rewritten(source, wanted, folder, target, order)

    changed = dataclasses.replace(spec, free_dimensions_by_name={}, fix=None)
    unusable: ModelError | None = None
    if settings is not None and settings.in_use:
        try:
            made = _kept(source, wanted, settings, rewrite, order)
            # From here on the copy is a model like any other: hashed, compiled, cached and blamed (ADR 0018).
            found = ModelSource.open(made.path, os.curdir)
            return FixedSource(found, dataclasses.replace(changed, model_path=made.path), made.changes)
        except BridgeError:
            raise  # some are also an `OSError`
        except OSError as error:
            # As its compiled models, the copy is then made without the cache.
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
    """The copy as bytes, with what was rewritten. unusable: why it is not in the cache."""
    with work_folder("fix") as work:
        made = rewrite(Path(work))
        # Weights in files of their own cannot travel as bytes.
        if len(os.listdir(work)) > 1:
            raise unusable or OptionError(
                f"{source.label} keeps weights in other files, and fix=True needs the cache for such models.",
                fix="Switch the cache on (cache=, QNNBRIDGE_CACHE), or fix the model once: qnnbridge fix.",
            )
        return ModelSource.open(Path(made.path).read_bytes()), made.changes


def _no_room(source: ModelSource, folder: str, error: OSError) -> ModelError:
    return ModelError(
        f"The rewritten copy of {source.label} cannot be kept in {folder}.",
        cause=error.strerror or str(error),
        fix="Make room there, or name another folder in QNNBRIDGE_CACHE_DIR.",
    )


def _kept(
    source: ModelSource,
    wanted: Mapping[str, Any],
    settings: CacheSettings,
    rewrite: Callable[[Path], FixedModel],
    order: WorkOrder,
) -> FixedModel:
    """Raises `OSError` where the cache cannot be used."""
    from qnnbridge_host.cache.fixed_models import find_or_make, fixed_key
    from qnnbridge_host.cache.store import Store
    from qnnbridge_protocol import __version__

    def on_wait(_seconds: float) -> None:
        order.stop.check()

    # Another version may rewrite in another way.
    key = fixed_key(source.fingerprint, wanted, __version__)
    made = find_or_make(
        Store(Path(settings.folder)),
        key,
        rewrite,
        max_bytes=settings.max_bytes,
        deadline=order.deadline,
        on_wait=on_wait,
    )
    if made is None:
        raise DeadlineExceeded(
            f"The time for {source.label} was over while another process was rewriting it.",
            fix="Give it more time (timeout=): it is rewritten once.",
            details={"state": "not-started", "model": source.label},
        )
    return made


def _rewritten(
    source: ModelSource, wanted: Mapping[str, Any], folder: str, target: Path, order: WorkOrder
) -> FixedModel:
    """In a worker. `target` is an empty folder."""
    from qnnbridge_host.cache.fixed_models import FixedModel
    from qnnbridge_host.create.worker import Worker

    with work_folder("fix") as work:
        path = source.path
        if path is None:
            from qnnbridge_host.graph.files import link_files

            path = os.path.join(work, WITHOUT_A_NAME)
            Path(path).write_bytes(source.data or b"")
            names = source.scan.external_files if source.scan is not None else ()
            # The worker reads a file, whose weights have to lie beside it.
            link_files(Path(folder), names, Path(work))
        written = target / os.path.basename(path)
        with Worker(order).running() as worker:
            reply = worker.call({"op": "worker.fix", "source": path, "target": os.fspath(written), **wanted}).header
    return FixedModel(os.fspath(written), tuple(str(change) for change in reply["changes"]))


# --- a refusal -----------------------------------------------------------------------------------------


def suggest_fix(refusal: PlacementRefused, source: ModelSource, spec: SessionSpec, order: WorkOrder) -> None:
    """Name `fix=True`, and the command, in a refusal that rewriting may cure. Never fails."""
    from qnnbridge_host.cache.key import size_of
    from qnnbridge_host.create.worker import Worker

    readable = source.scan is not None and source.scan.format == "onnx"
    if not readable or size_of(source) > MAX_BYTES or importlib.util.find_spec("onnx") is None:
        return
    # A hint that cannot be made is no error of the session.
    with contextlib.suppress(BridgeError, OSError), work_folder("fix") as work:
        path = source.path
        if path is None:
            path = os.path.join(work, WITHOUT_A_NAME)
            Path(path).write_bytes(source.data or b"")
        header = {"op": "worker.fix", "source": path, "sizes": dict(spec.free_dimensions_by_name)}
        with Worker(order).running() as worker:
            reply = worker.call(header).header
        _add(refusal, os.path.basename(path), list(reply["changes"]), dict(reply["constants"]))


def _add(refusal: PlacementRefused, name: str, changes: list[str], constants: Mapping[str, float]) -> None:
    if not changes and not constants:
        return
    argument = repr({"constants": dict(constants)}) if constants else "True"
    options = "".join(f" --constant {one}={value:g}" for one, value in constants.items())
    shown = changes[:MOST_CHANGES] + [f"input {one} decides which part of the model runs" for one in constants]
    cure = (
        f"Create the session with fix={argument}, or once: qnnbridge fix {name} -o fixed.onnx{options}. "
        f"It rewrites what QNN may not take ({'; '.join(shown)})."
    )
    refusal.fix = f"{cure} {refusal.fix}" if refusal.fix else cure
    refusal.details["rewrites"] = changes
    refusal.details["constants"] = dict(constants)
