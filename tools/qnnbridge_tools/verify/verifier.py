"""`verify_model`: what the command does, for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds as feed_files
from qnnbridge_tools.arguments import Dimensions, InputFile
from qnnbridge_tools.fix import sizes as size_rules
from qnnbridge_tools.model_work import files, graphs, shapes
from qnnbridge_tools.model_work.comparing import OutputDifference, compare
from qnnbridge_tools.model_work.extra import require_models_extra
from qnnbridge_tools.verify import bisection, traps
from qnnbridge_tools.verify.cases import Case, extreme_cases, random_cases
from qnnbridge_tools.verify.result import CaseResult, Culprit, Tolerance, Trap, Verification
from qnnbridge_tools.verify.sides import Sides

COMMAND = "qnnbridge verify"
LEAST_COSINE = 0.99
MOST_RELATIVE = 0.05
"""Half floats move most results by some 1e-3 of the largest value; quantised models by 1e-2."""
ROUNDING = 4e-3
"""One step of half floats between 4 and 8: a probability of 0.002 that comes out as 0 is no error."""


def verify_model(
    source: str | os.PathLike[str],
    *,
    inputs: Sequence[InputFile] = (),
    archive: Path | None = None,
    random: int = 3,
    extreme: bool = True,
    search: bool = True,
    seed: int = 0,
    shapes: size_rules.Shapes | None = None,
    dims: Mapping[str, int] | Dimensions | None = None,
    soc_model: str | None = None,
    provider_options: Mapping[str, str] | None = None,
    host_python: str | None = None,
    timeout_s: float | None = None,
    least_cosine: float = LEAST_COSINE,
    most_relative: float = MOST_RELATIVE,
    rounding: float = ROUNDING,
) -> Verification:
    """Runs a model on QNN and on the CPU and compares every output. Nothing is written.

    inputs, archive: values for inputs, from files; those that are missing are made up. random: how many sets are
    made up. extreme: NaN, infinities, large and tiny values, negative and wide integers, as far as the inputs can
    have them. search: look for the first node that differs. shapes, dims: sizes of free dimensions. An output
    differs if its cosine, or its largest difference relative to its values, says so, and that is no rounding.
    Raises `CompiledModelRefused`, `OptionError`, `HostError` classes, and what the CPU says to a broken model.
    """
    begun = time.perf_counter()
    from qnnbridge.epcontext.guard import refuse_scanned
    from qnnbridge.epcontext.scan import scan_model
    from qnnbridge_tools.analyze.analyzer import chip_options

    path = files.existing_model(Path(source))
    loaded = {feed.name: feed.value for feed in feed_files.load(inputs, archive)}
    number, label, _ = chip_options(soc_model)
    options = {**({"soc_model": number} if number else {}), **(provider_options or {})}
    scan = scan_model(path, count_nodes=False)
    refuse_scanned(scan, COMMAND)
    require_models_extra(COMMAND)  # behind the guard: nobody should install it to be refused then
    files.weight_files(path, scan.external_files)
    model = _sized(graphs.load(path), shapes or {}, dims, loaded)
    with Sides(path, scan.external_files, options, host_python, timeout_s) as sides:
        run = _Run(model, sides, Tolerance(least_cosine, most_relative, rounding))
        results = run.all(loaded, random, extreme, seed)
        culprit = run.culprit() if search else None
        return Verification(
            path,
            label,
            run.error is None and all(one.status == "agrees" for one in results if one.kind != "extreme"),
            tuple(results),
            run.placement,
            culprit,
            run.error,
            {node.name: node.shape for node in run.declared},
            run.tolerance,
            bool(sides.host.info.simulator),
            time.perf_counter() - begun,
        )


class _Run:
    """The sessions of one model, its cases, and the worst of them."""

    def __init__(self, model: Any, sides: Sides, tolerance: Tolerance) -> None:
        self._model, self._sides = model, sides
        self.tolerance = tolerance
        self._path = sides.save(model)
        self._cpu = sides.on_cpu(self._path)
        self.names = [output.name for output in self._cpu.get_outputs()]
        self.declared = [NodeInfo(one.name, one.type, tuple(one.shape)) for one in self._cpu.get_inputs()]
        self.placement: Any = None
        self.error: BridgeError | None = None
        self._worst: tuple[Case, OutputDifference] | None = None

    def all(self, loaded: Mapping[str, Any], random: int, extreme: bool, seed: int) -> list[CaseResult]:
        unknown = set(loaded) - {node.name for node in self.declared}
        if unknown:
            raise OptionError(
                f'The model has no input "{sorted(unknown)[0]}".',
                fix=f"Its inputs: {', '.join(node.name for node in self.declared) or 'none'}.",
            )
        cases: list[Case] = []
        if loaded:
            (case,) = random_cases(self.declared, 1, seed, loaded)
            cases.append(Case("given", "given", case.feeds))
        if len(loaded) < len(self.declared) or not loaded:
            cases += random_cases(self.declared, random, seed, {})
        if extreme:
            cases += extreme_cases(self.declared, seed, {})
        try:
            session = self._sides.on_qnn(self._path)
        except PlacementRefused:
            raise
        except BridgeError as error:
            self.error = error
            return []
        with session:
            self.placement = session.placement
            return [self._one(session, case) for case in cases]

    def _one(self, session: Any, case: Case) -> CaseResult:
        expected, cpu_error = _attempt(lambda: self._sides.run_cpu(self._cpu, case.feeds, self.names))
        found, qnn_error = _attempt(lambda: self._sides.run_qnn(session, case.feeds, self.names))
        if cpu_error is not None:
            if qnn_error is not None:
                return CaseResult(case.name, case.kind, "both-fail", error=cpu_error)
            hit = (traps.INDEX,) if "integers" in case.name else ()
            return CaseResult(case.name, case.kind, "cpu-fails", traps=hit, error=cpu_error)
        if found is None or expected is None:
            return CaseResult(case.name, case.kind, "qnn-fails", error=qnn_error)
        outputs = compare(self.names, [expected], [found])
        wrong = [output for output in outputs if self.tolerance.is_broken_by(output)]
        hits: list[Trap] = []
        for output, a, b in zip(outputs, expected, found, strict=True):
            hits += traps.of_values(a, b, output.name) if self.tolerance.is_doubtful(output) else []
        if wrong and not (hits and case.kind == "extreme"):
            self._remember(case, wrong[0])  # what has a name already need not be searched for
        return CaseResult(case.name, case.kind, "differs" if wrong else "agrees", outputs, tuple(hits))

    def _remember(self, case: Case, output: OutputDifference) -> None:
        """The first ordinary case that differs, else the first extreme one."""
        if self._worst is None or (self._worst[0].kind == "extreme" and case.kind != "extreme"):
            self._worst = (case, output)

    def culprit(self) -> Culprit | None:
        if self._worst is None:
            return None
        case, output = self._worst
        return bisection.find(self._model, self._sides, case, output.name, self.tolerance.is_broken_by)


def _attempt(run: Any) -> tuple[list[Any] | None, BridgeError | None]:
    try:
        return run(), None
    except BridgeError as error:
        return None, error


def _sized(
    model: Any,
    wanted: size_rules.Shapes,
    dims: Mapping[str, int] | Dimensions | None,
    loaded: Mapping[str, Any],
) -> Any:
    """The model with fixed sizes: as asked for, else as the given values have them."""
    from qnnbridge_tools.fix.editor import Editor
    from qnnbridge_tools.fix.rewrites.fixed_shapes import fix_inputs

    taken: dict[str, Iterable[int | None]] = {
        value.name: list(loaded[value.name].shape)
        for value in shapes.real_inputs(model.graph)
        if value.name in loaded and hasattr(loaded[value.name], "shape") and shapes.has_shape(value)
    }
    given = {**taken, **wanted}
    decided = size_rules.decide(model.graph, given, shapes.as_dimensions(dims))  # type: ignore[arg-type]
    fix_inputs(Editor(model, Path()), decided)
    free = shapes.free_dimensions(model.graph)
    if free:
        raise OptionError(
            "The model has free dimensions, and QNN needs fixed ones.", fix=f"Add {shapes.options_text(free)}"
        )
    return model
