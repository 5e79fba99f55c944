"""`optimize_model`: what the command does, for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from qnnbridge_protocol.errors import ModelError, OptionError, OrtError
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.models.optimize import levels
from qnnbridge_tools.models.optimize.result import OptimizeResult
from qnnbridge_tools.models.shared import cpu, files, graphs, shapes
from qnnbridge_tools.models.shared.checking import Check, check_same, evidence, tolerance_of
from qnnbridge_tools.models.shared.extra import require_models_extra

COMMAND = "qnnbridge optimize"
_DATA_FILE = "session.optimized_model_external_initializers_file_name"


def optimize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    level: str = levels.DEFAULT,
    dims: Mapping[str, int] | Dimensions | None = None,
    if_compiled: Literal["error", "skip"] = "error",
    check: bool = True,
    seed: int = 0,
    overwrite: bool = False,
) -> OptimizeResult:
    """Writes the model at `target` as ONNX Runtime's graph optimisation leaves it. The original is never changed.

    level: one of `LEVELS`; only "basic" is for QNN. dims: sizes for free dimensions, ``{"batch": 1, "x:2": 48}``.
    check: compare with the original on the CPU; if they disagree, `ModelError` and nothing is written.
    if_compiled: "skip" copies a compiled model unchanged, with its context binary. Raises `CompiledModelRefused`,
    `OptionError`, `OrtError` classes and `ModelError`.
    """
    begun = time.perf_counter()
    if if_compiled not in ("error", "skip"):
        raise OptionError(f'if_compiled is "{if_compiled}".', fix='One of "error", "skip".')
    from qnnbridge_host.model.guard import refuse_compiled
    from qnnbridge_host.model.scan import scan_model

    model_path, target_path = files.existing_model(Path(source)), Path(target)
    scan = scan_model(model_path, count_nodes=False)
    if scan.is_compiled and if_compiled == "skip":
        from qnnbridge_tools.models.optimize.passing import pass_through

        return pass_through(model_path, target_path, scan, level, overwrite=overwrite)
    refuse_compiled(model_path, COMMAND)
    require_models_extra(COMMAND)  # behind the guard: nobody should install it to be refused then
    ort_level = levels.ort_level(level)
    weight_files = files.weight_files(model_path, scan.external_files)
    external = bool(weight_files) or scan.size_bytes > graphs.TOO_LARGE_FOR_ONE_MESSAGE
    with files.Output(
        model_path, target_path, overwrite=overwrite, source_files=weight_files, external=external
    ) as output:
        original = graphs.load(model_path)
        given = model_path
        if shapes.fix(original, shapes.as_dimensions(dims)):
            given = output.resized(original, model_path, scan.external_files)
        _optimize(given, output, ort_level, external)
        changes = _finish(original, output.model)
        result = graphs.load(output.model)
        before, after = graphs.count_ops(original), graphs.count_ops(result)
        checked = _checked(given, output.model, tolerance_of(original, before), seed) if check else None
        free = shapes.free_dimensions(result.graph)
        written = output.commit()
    return OptimizeResult(
        model_path,
        target_path,
        level,
        written,
        nodes_before=before,
        nodes_after=after,
        bytes_before=files.total_size([model_path, *weight_files]),
        bytes_after=files.total_size(written),
        changes=tuple(changes),
        warnings=(*levels.warnings(level, before, after), *_free_warning(free)),
        check=checked,
        seconds=time.perf_counter() - begun,
    )


def _optimize(given: Path, output: files.Output, ort_level: Any, external: bool) -> None:
    options = cpu.quiet_options()
    options.graph_optimization_level = ort_level
    options.optimized_model_filepath = os.fspath(output.model)
    if external:
        options.add_session_config_entry(_DATA_FILE, output.data_name)
    try:
        cpu.open_session(given, given.name, options)
    except OrtError as error:
        if external or "protobuf" not in (error.cause or "").lower() or "2GB" not in (error.cause or ""):
            raise
        # Folding made a small model larger than one protobuf message can be.
        _optimize(given, output, ort_level, True)
    if not output.model.is_file():
        raise ModelError(f"ONNX Runtime wrote no optimised model for {given.name}, and gave no reason.")


def _finish(original: Any, path: Path) -> list[str]:
    """Undoes what ONNX Runtime adds for itself when it writes a model; says what that was."""
    import onnx

    model = graphs.load(path)
    graphs.trim_opsets(model, original)
    casts = graphs.strip_inserted_casts(model)
    onnx.save_model(model, os.fspath(path))
    if not casts:
        return []
    return [f"{casts} casts to float32 left out that ONNX Runtime inserts for the CPU: QNN computes float16 itself"]


def _checked(given: Path, result: Path, tolerance: float, seed: int) -> Check:
    check = check_same(
        lambda: cpu.open_session(given, given.name),
        lambda: cpu.open_session(result, "the optimised model"),
        tolerance=tolerance,
        seed=seed,
    )
    if check.compared and not check.agrees:
        raise ModelError(
            f"The optimised {given.name} does not compute what the original computes. Nothing was written.",
            cause="An optimisation of ONNX Runtime is wrong for this model, or the model amplifies rounding.",
            evidence=evidence(check),
            fix="Use the original, or another --level; --no-check writes the result all the same.",
            details={"check": check.document()},
        )
    return check


def _free_warning(free: list[shapes.FreeDimension]) -> list[str]:
    if not free:
        return []
    return [f"Inputs have free dimensions, and QNN needs fixed ones: {shapes.options_text(free)}"]
