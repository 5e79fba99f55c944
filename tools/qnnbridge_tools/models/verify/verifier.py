"""`verify_model`: the work of the command, for programs."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.engine.cpu import require_models_extra
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.graph.shapes import as_dimensions
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.refusals import refuse_scanned
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools.models.shared import progress
from qnnbridge_tools.models.shared.progress import OnProgress
from qnnbridge_tools.models.shared.sessions import CPU, NO_FINDING, QNN, SessionSettings, opened
from qnnbridge_tools.models.verify import input_sets, traps, trying
from qnnbridge_tools.models.verify.bisection import BisectionResult, Cutter, DivergenceNotFound, DivergenceSearch
from qnnbridge_tools.models.verify.input_sets import FixedSizes
from qnnbridge_tools.models.verify.result import InputSetResult, TrapFound, Verification, VerificationVerdict
from qnnbridge_tools.models.verify.trying import Trial, TrialSet, try_on_qnn

if TYPE_CHECKING:
    from qnnbridge_host.compile.compare import Tolerance

COMMAND = "qnnbridge verify"
BISECT_S = 60.0
CALL_S = 300.0

# Of the rows that do not count: with NaN and beyond half floats values differ from the first node on.
_WORTH_BISECTING = ("large: up to 1e4",)


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    Args:
        extreme: also try extreme inputs.
        bisect: look for the first node that differs.
        strict: extreme inputs count as others do.
        bisect_s: seconds for that search.
        timeout_s: seconds for each call of the host.
    """

    seed: int = 0
    extreme: bool = True
    strict: bool = False
    bisect: bool = True
    bisect_s: float = BISECT_S
    timeout_s: float | None = CALL_S
    host_python: str | None = None


def verify_model(
    source: str | os.PathLike[str],
    *,
    soc_model: str | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
    dims: Mapping[str, int] | Dimensions | None = None,
    provider_options: Mapping[str, str] | None = None,
    how: VerifyOptions | None = None,
    on_progress: OnProgress = progress.ignore,
) -> Verification:
    """Runs a model on QNN and on the CPU of the host, and tells where they differ, and why.

    A model that raises, hangs or kills the host is a finding, not an error.

    Args:
        source: path of the model.
        soc_model: number or name of the chip; default the host's.
        inputs: files with real inputs.
        dims: sizes of free dimensions; given inputs have them, too.
        provider_options: options of QNN.
        how: seed, extremes, search and deadlines.
        on_progress: called with the stage and how far it is.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: an option or an input is wrong.
        NoSuchFile: the model or its weights are not there.
        InvalidProtobuf: the file is no model.
        HostStartFailed: there is no host.
        OrtError: the CPU does not take the model.
    """
    begun = time.monotonic()
    how = how or VerifyOptions()
    path = files.existing_model(Path(source))
    scan = _scanned(path)
    from qnnbridge_host.compile.compare import TOLERANCES, precision_of_operators

    files.weight_files(path, scan.external_files)
    given = input_sets.read_given([Path(one) for one in inputs], scan.inputs)
    sizes = input_sets.sizes_of(scan.inputs, as_dimensions(dims), given)
    tolerance = TOLERANCES[precision_of_operators(scan.ops)]
    options = {**(provider_options or {}), **({"soc_model": soc_model} if soc_model else {})}
    with tempfile.TemporaryDirectory(prefix="qnnbridge-verify-") as folder:
        model = path if sizes.all_named else _with_sizes(path, scan, sizes, Path(folder) / "sized")
        settings = SessionSettings(options, sizes.by_name if sizes.all_named else {}, how.timeout_s)
        tried = _tried(model, scan, given, settings, tolerance, how, on_progress)
        if how.bisect and tried.worst() is not None:
            on_progress("looking for the first node that differs", 0, 0)
        found, not_bisected = _bisected(path, scan, sizes, tried, settings, tolerance, how, Path(folder))
    verdict, reason = _verdict(tried)
    return Verification(
        source=path,
        verdict=verdict,
        reason=reason,
        precision=tolerance.precision,
        tolerance=f"{tolerance.usual.of_range:.0%} of the output's range, cosine {tolerance.usual.cosine:g}",
        sizes=sizes.told(),
        rows=tried.rows,
        placement=tried.placement,
        versions=tried.versions,
        divergence=found.divergence if found is not None else None,
        not_bisected=not_bisected,
        node_traps=_once(found.traps if found is not None else _of_extremes(scan, tried.rows), tried.rows),
        error=tried.error,
        seconds=time.monotonic() - begun,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Tried:
    """The answers of both sides. error: why QNN made no session."""

    prepared: TrialSet
    rows: tuple[InputSetResult, ...]
    placement: Placement | None
    versions: Mapping[str, str]
    error: BridgeError | None = None

    def worst(self) -> Trial | None:
        """The inputs to look for the first node with."""
        by_name = {trial.name: trial for trial in self.prepared.trials}
        if self.error is not None:
            return next((trial for trial in self.prepared.trials if trial.feeds), None)
        bad = [row for row in self.rows if row.is_bad and by_name[row.name].expected.values is not None]
        for row in sorted(bad, key=lambda one: (not one.counts, not one.died)):
            if row.counts or row.died or row.name in _WORTH_BISECTING:
                return by_name[row.name]
        return None


def _scanned(path: Path) -> ModelScan:
    refuse_scanned(scan_model(path, count_nodes=False), COMMAND)  # before anything is counted in a large one
    return scan_model(path)


def _with_sizes(path: Path, scan: ModelScan, sizes: FixedSizes, folder: Path) -> Path:
    """A copy with fixed sizes, for dimensions that a session cannot be told: they have no name, or one for two."""
    require_models_extra(f"{COMMAND} of a model whose free dimensions have no names of their own")
    folder.mkdir()
    model = graphs.load(path)
    shapes.fix(model, sizes.dimensions)
    files.link_files(path.parent, scan.external_files, folder)
    copy = folder / path.name
    copy.write_bytes(model.SerializeToString())
    return copy


def _tried(
    model: Path,
    scan: ModelScan,
    given: Sequence[Any],
    settings: SessionSettings,
    tolerance: Tolerance,
    how: VerifyOptions,
    on_progress: OnProgress,
) -> _Tried:
    from qnnbridge import Host

    with Host(python=how.host_python) as host:
        on_progress("running on the CPU", 0, 0)
        versions = dict(host.info.versions)
        with opened(host, model, CPU, settings) as side:
            prepared = trying.prepare_trials(
                side, given, scan.ops, seed=how.seed, extreme=how.extreme, strict=how.strict
            )
        if not prepared.stable:
            return _Tried(prepared, (), None, versions)
        on_progress("compiling for QNN", 0, 0)
        try:
            with opened(host, model, QNN, settings) as side:
                placement = side.placement
                if placement.known and not placement.qnn_nodes:
                    return _Tried(prepared, (), placement, versions)
                return _Tried(prepared, _rows(side, prepared, tolerance, on_progress), placement, versions)
        except NO_FINDING:
            raise
        except BridgeError as error:
            return _Tried(prepared, (), None, versions, error)


def _rows(
    side: Any, prepared: TrialSet, tolerance: Tolerance, on_progress: OnProgress
) -> tuple[InputSetResult, ...]:
    """Ordinary inputs first. After a death nothing more is tried: a second would put the model in quarantine."""
    rows: list[InputSetResult] = []
    for number, trial in enumerate(prepared.trials):
        on_progress("running on QNN", number, len(prepared.trials))
        if any(row.died for row in rows):
            reason = "not tried any more"
            rows.append(InputSetResult(trial.name, trial.kind, trial.counts, "skipped", reason=reason))
        else:
            rows.append(try_on_qnn(side, trial, prepared, tolerance))
    return tuple(rows)


def _bisected(
    path: Path,
    scan: ModelScan,
    sizes: FixedSizes,
    tried: _Tried,
    settings: SessionSettings,
    tolerance: Tolerance,
    how: VerifyOptions,
    folder: Path,
) -> tuple[BisectionResult | None, str]:
    """The first node that differs; or why it is not known, empty if nothing had to be looked for."""
    trial = tried.worst()
    if trial is None:
        return None, ""
    if not how.bisect:
        return None, "--no-bisect"
    try:
        import onnx  # noqa: F401 - only whether it is there
    except ImportError:
        return None, 'the application\'s Python lacks the package onnx: pip install "qnnbridge[models]"'
    deadline = time.monotonic() + how.bisect_s
    cuts = folder / "cuts"
    cuts.mkdir()
    try:
        model = graphs.load(path)
        shapes.fix(model, sizes.dimensions)
        cutter = Cutter(model, path, scan.external_files, cuts)
        search = DivergenceSearch(cutter, trial.name, trial.feeds, settings, tolerance, how.host_python, deadline)
        row = next((row for row in tried.rows if row.name == trial.name), None)
        return search.run(dies=row is None or row.status == "failed"), ""
    except (DivergenceNotFound, BridgeError) as error:
        return None, str(error).splitlines()[0]


def _verdict(tried: _Tried) -> tuple[VerificationVerdict, str]:
    if tried.error is not None:
        return "failed", f"QNN makes no session of it: {tried.error.message}"
    if not tried.prepared.stable:
        return "not compared", "The model gives another result every time it runs, on the CPU alone, too."
    if tried.placement is not None and tried.placement.known and not tried.placement.qnn_nodes:
        cause = f": {tried.placement.cause}" if tried.placement.cause else "."
        return "not compared", f"No node of it runs on QNN, so there is nothing to compare{cause}"
    bad = [row for row in tried.rows if row.is_bad]
    if any(row.died for row in bad):
        return "differs", "QNN ends the host, or does not come back."
    if any(row.counts for row in bad):
        return "differs", "QNN computes something else than the CPU."
    if bad:
        return "agrees", "QNN computes what the CPU does on ordinary inputs; extreme ones show the limits of QNN."
    return "agrees", "QNN computes what the CPU does."


def _of_extremes(scan: ModelScan, rows: Sequence[InputSetResult]) -> tuple[TrapFound, ...]:
    differing = [row.name for row in rows if row.kind == "extreme" and row.status == "differs"]
    return traps.of_operators(scan.ops, differing[0]) if differing else ()


def _once(found: Sequence[TrapFound], rows: Sequence[InputSetResult]) -> tuple[TrapFound, ...]:
    named = {trap.name for row in rows for trap in row.traps}
    return tuple(trap for trap in found if trap.name not in named)
