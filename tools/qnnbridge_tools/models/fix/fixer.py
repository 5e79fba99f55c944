"""`fix_model`: what the command does, for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.models.fix import sizes as size_rules
from qnnbridge_tools.models.fix.result import FixResult, Step
from qnnbridge_tools.models.fix.rewrites import FIXED_SHAPES, Rewrite, chosen
from qnnbridge_tools.models.fix.working import Checking, Work, dims_of
from qnnbridge_tools.models.shared import files, graphs
from qnnbridge_tools.models.shared import shapes as model_shapes
from qnnbridge_tools.models.shared.extra import require_models_extra

COMMAND = "qnnbridge fix"


def fix_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    shapes: size_rules.Shapes | None = None,
    dims: Mapping[str, int] | Dimensions | None = None,
    constants: Mapping[str, float] | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    check: bool = True,
    seed: int = 0,
    overwrite: bool = False,
) -> FixResult:
    """Writes a model at `target` that QNN takes, as far as rewriting can help. The original is never changed.

    shapes: all sizes of an input, ``{"x": [1, 3, 48, 192]}``. dims: sizes by name or by ``"x:2"``. constants:
    inputs that are a number from now on, ``{"sr": 16000}``. only, skip: names of rewrites. A rewrite after which
    the model does not compute the same is taken back and told as such. Raises `CompiledModelRefused`,
    `OptionError`, `InvalidProtobuf`, and `ModelError` if the result does not load.
    """
    begun = time.perf_counter()
    wanted = chosen(only, skip)
    from qnnbridge_host.model.guard import refuse_scanned
    from qnnbridge_host.model.scan import scan_model

    model_path, target_path = files.existing_model(Path(source)), Path(target)
    scan = scan_model(model_path, count_nodes=False)
    refuse_scanned(scan, COMMAND)
    require_models_extra(COMMAND)  # behind the guard: nobody should install it to be refused then
    weights = files.weight_files(model_path, scan.external_files)
    external = bool(weights) or scan.size_bytes > graphs.TOO_LARGE_FOR_ONE_MESSAGE
    with files.Output(
        model_path, target_path, overwrite=overwrite, source_files=weights, external=external
    ) as output:
        model = graphs.load(model_path)
        before = graphs.count_ops(model)
        decided = size_rules.decide(model.graph, shapes or {}, model_shapes.as_dimensions(dims))
        _refuse_unwanted_sizes(decided, constants, wanted)
        work = Work(
            model, model_path, output, output.candidate(model_path, scan.external_files), Checking(check, seed)
        )
        steps = work.do(wanted, decided, constants or {})
        work.write(external=external)
        written = output.commit()
    return FixResult(
        model_path,
        target_path,
        written,
        _input_shapes(work.model),
        tuple(steps),
        before,
        graphs.count_ops(work.model),
        tuple(_warnings(work.model, steps)),
        time.perf_counter() - begun,
    )


def _refuse_unwanted_sizes(
    decided: Dimensions, constants: Mapping[str, float] | None, wanted: list[Rewrite]
) -> None:
    given = decided.by_name or decided.by_axis or constants
    if given and all(rewrite.name != FIXED_SHAPES for rewrite in wanted):
        raise OptionError(
            f'Sizes are given, and the rewrite "{FIXED_SHAPES}" that sets them is left out.',
            fix=f"Add --only {FIXED_SHAPES}, or leave the sizes away.",
        )


def _warnings(model: Any, steps: list[Step]) -> list[str]:
    told = [f'Rewrite "{step.rewrite}" was taken back: {step.reason}.' for step in steps if not step.kept]
    free = model_shapes.free_dimensions(model.graph)
    if free:
        told.append(f"Inputs have free dimensions, and QNN needs fixed ones: {model_shapes.options_text(free)}")
    return told


def _input_shapes(model: Any) -> dict[str, tuple[int | str | None, ...] | None]:
    return {value.name: dims_of(value) for value in model_shapes.real_inputs(model.graph)}
