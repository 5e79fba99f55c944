"""Choose the model to load: the model as given, or a rewritten copy of it.

The choice is made once, before the session is created, from the session's options, the table of known-wrong
operators, and the cache. `SessionMaker` then creates the session from this model. A bare context binary is wrapped
even earlier, when the model is opened (`service`). Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import FixSpec, HostInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.create.lookup import SessionCache
    from qnnbridge_host.create.order import Creation
    from qnnbridge_host.create.parting import Parting

# Larger models are rewritten only on request, because their copies would fill the cache.
MAX_AUTOMATIC_BYTES: Final = 512 * 2**20
# Configuration entries that make ONNX Runtime write files of the model when a session is created.
_WRITES: Final = ("ep.context_enable",)


class ModelChoice(NamedTuple):
    """The model to create a session from, and the reason.

    Attributes:
        fix: the rewrites of the copy to load; ``None`` to load the model as given.
        rewrites: the rewrites that are the reason for the copy (`fix` also contains their prerequisites); empty if
            the application requested the copy.
        parting: the failed accuracy check that is the reason for the copy; ``None`` if known-wrong operators are
            the reason.
    """

    fix: FixSpec | None = None
    rewrites: tuple[str, ...] = ()
    parting: Parting | None = None


AS_GIVEN: Final = ModelChoice()


def choose_model(creation: Creation, host: HostInfo, cache: SessionCache | None) -> ModelChoice:
    """Choose the model for a session that may load a copy although the application requested none (`may_rewrite`).

    Args:
        creation: the creation with the model as given.
        host: the host.
        cache: the cache look-up for the model as given; ``None`` if the session does not use the cache.
    """
    if host.simulator is None:  # without QNN
        return AS_GIVEN
    parting = cache.parting_needed(host) if cache is not None else None
    # If the model's cache entry has no warning, skip the search for known faults, which reads the whole graph.
    if parting is None and cache is not None and cache.has_right_entry(host):
        return AS_GIVEN
    # Rewrite known-wrong operators first: they are the more likely cause of a failed accuracy check.
    if rewrites := curing_rewrites(creation, host):
        return ModelChoice(FixSpec(only=_with_prerequisites(rewrites, creation.spec)), rewrites)
    if parting is not None:
        return ModelChoice(
            FixSpec(only=_with_prerequisites((parting.rewrite,), creation.spec)), (parting.rewrite,), parting
        )
    return AS_GIVEN


def may_rewrite(creation: Creation) -> bool:
    """Return whether the host may load a rewritten copy although the application did not request it."""
    spec, source = creation.spec, creation.source
    if spec.fix is not None and spec.fix.when == "never":
        return False
    # The copy would lack weights that the application passes to the session, and ONNX Runtime would save an
    # optimized file of the copy.
    if spec.value_names or spec.options.get("optimized_model_filepath"):
        return False
    if writes_files(spec):
        return False
    scan = source.scan
    if scan is None or scan.format != "onnx" or scan.is_compiled:
        return False
    from qnnbridge_host.cache.key import size_of

    return size_of(source) <= MAX_AUTOMATIC_BYTES


def writes_files(spec: SessionSpec) -> bool:
    """Return whether creating the session writes files. A second attempt would fail, because the files exist."""
    return any(spec.config_entries.get(name, "0") not in ("", "0") for name in _WRITES)


def curing_rewrites(creation: Creation, host: HostInfo) -> tuple[str, ...]:
    """Return the rewrites for the model's known-wrong operators and for its inputs and outputs of 64-bit floats."""
    from qnnbridge_host.cache.measured import rows_of_session
    from qnnbridge_host.model.double_edges import REWRITE, double_edges
    from qnnbridge_host.model.known_wrong import computes_on_htp, find_for_session

    source, spec = creation.source, creation.spec
    simulator = host.machine != "ARM64"
    here = rows_of_session(spec, host.versions, simulator=simulator)
    found = find_for_session(source, spec, host.versions, simulator=simulator, rows=here.rows)
    cures = (one.fault for one in found if one.fault.rewrite)
    # A strict session cannot use a rewrite that leaves nodes to the CPU.
    allowed = (fault.rewrite for fault in cures if not fault.on_cpu or spec.fallback != "error")
    edges = (REWRITE,) if computes_on_htp(spec) and double_edges(source).bare else ()
    return (*dict.fromkeys(allowed), *edges)


def _with_prerequisites(rewrites: Sequence[str], spec: SessionSpec) -> tuple[str, ...]:
    """Return the rewrites after their prerequisites: fix free dimensions, fold constants, remove branches."""
    from qnnbridge_host.model.known_wrong import BRANCH_REWRITES
    from qnnbridge_host.rewrite.catalogue import FIXED_SHAPES

    sizes = (FIXED_SHAPES,) if spec.free_dimensions_by_name else ()
    return (*sizes, "constants", *BRANCH_REWRITES, *rewrites)
