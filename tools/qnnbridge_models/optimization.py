"""`qnnbridge optimize`: apply ONNX Runtime's graph optimisation offline, and compare the result with the original.

>>> from qnnbridge_models.optimization import optimize_model
>>> optimize_model("model.onnx", "optimized.onnx").nodes_after

Measured on the simulator with 8 models: with the level `basic`, as many nodes run on QNN as in the originals.
`extended` fuses Conv and Gemm with their activations into com.microsoft operators that QNN does not support, and
separates QuantizeLinear and DequantizeLinear pairs: up to 7 nodes move to the CPU. `layout` and `all` rearrange
weights into blocks for this machine's CPU: QNN cannot create a session from their results.

A compiled model can be copied unchanged, together with the files that it refers to by name. Only files inside the
model's folder, by the path rules of both POSIX and Windows, are copied.
"""

from __future__ import annotations

import dataclasses
import filecmp
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.bounds import MANY_NODES
from qnnbridge_host.graph.files import Output, inside_folder, total_size
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model import optimizers
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.manifest import manifest_path
from qnnbridge_host.model.qnn_operators import REGISTERED
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.numerics.comparing import ModelCheck, Reference, check_lines, evidence, is_random, tolerance_of
from qnnbridge_host.numerics.sampling import knowledge_of
from qnnbridge_host.rewrite.removals import strip_inserted_casts
from qnnbridge_models import progress
from qnnbridge_models.progress import OnProgress
from qnnbridge_protocol.errors import ModelError, OptionError, OrtError
from qnnbridge_tools import output

LEVELS: Final = ("basic", "extended", "layout", "all")
DEFAULT_LEVEL: Final = "basic"
# If at least this many constants are unused, rewrite the model without them, which takes less time than ONNX
# Runtime needs to remove them.
_MANY_CONSTANTS: Final = 1000
_QUANTIZE_OPS: Final = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_ONNX_ML: Final = "ai.onnx."
COMMAND = "qnnbridge optimize"
_DATA_FILE = "session.optimized_model_external_initializers_file_name"


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizeResult:
    """Result of one optimised or copied model.

    Args:
        files: the written files, the model first.
        passed_through: true if the model is compiled and was copied unchanged.
        nodes_before, nodes_after: number of nodes of each operator, including subgraphs and functions.
        changes: descriptions of changes other than optimisations.
        check: comparison with the original; None if it was disabled.
    """

    source: Path
    target: Path
    level: str
    files: tuple[Path, ...]
    passed_through: bool = False
    nodes_before: Mapping[str, int] = dataclasses.field(default_factory=dict)
    nodes_after: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    check: ModelCheck | None = None
    seconds: float = 0.0


def ort_level(name: str) -> Any:
    """Return onnxruntime's `GraphOptimizationLevel` for a level name. Raise `OptionError` for an unknown name."""
    import onnxruntime as ort

    if name not in LEVELS:
        raise OptionError(f'"{name}" is not a valid level.', fix=f"Give one of {', '.join(LEVELS)}.")
    # Older releases lack ORT_ENABLE_LAYOUT.
    level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{name.upper()}", None)
    if level is None:
        raise OptionError(
            f'onnxruntime {ort.__version__} has no level "{name}".', fix="Use --level all, which includes it."
        )
    return level


def foreign_ops(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the operators outside of ONNX's domains that the optimisation added and QNN does not support."""
    return {
        op: count
        for op, count in after.items()
        # A dot separates the domain from the name; the names of ONNX's own operators contain no dot.
        if "." in op and not op.startswith(_ONNX_ML) and op not in REGISTERED and op not in before
    }


def _level_warnings(level: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return warnings about running the result on QNN."""
    warnings: list[str] = []
    foreign = foreign_ops(before, after)
    if foreign:
        counts = ", ".join(f"{count} {op}" for op, count in foreign.items())
        warnings.append(
            f"The result contains operators of ONNX Runtime that QNN cannot run: {counts}. "
            f"Use --level {DEFAULT_LEVEL} for QNN."
        )
    # Operators of com.microsoft.nchwc need weights in blocks of this processor's vector width.
    if any("nchwc" in op for op in foreign):
        warnings.append(
            "The weights are arranged for this machine's CPU; on other machines the model may be slow or fail to "
            "load."
        )
    lost = sum(before.get(op, 0) for op in _QUANTIZE_OPS) - sum(after.get(op, 0) for op in _QUANTIZE_OPS)
    if lost > 0 and level != DEFAULT_LEVEL:
        warnings.append(
            f"{lost} QuantizeLinear {'node was' if lost == 1 else 'nodes were'} merged into other "
            f"operators, but QNN needs these nodes. Use --level {DEFAULT_LEVEL} for QNN."
        )
    return warnings


def pass_through(source: Path, target: Path, scan: ModelScan, level: str, *, overwrite: bool) -> OptimizeResult:
    """Copy the model to `target`, and its context binaries and weights to the same relative paths next to it."""
    warnings: list[str] = []
    beside = list(_beside(source, scan.files, warnings))
    copies = [(source.parent / name, target.parent / name) for name in beside]
    copies += _manifest(source, target, warnings)
    # Check all targets before writing the first file, so that a refused target leaves no incomplete copy.
    needed = [(here, there) for here, there in copies if _must_copy(here, there, overwrite)]
    written: list[Path] = []
    with Output(source, target, overwrite=overwrite) as output:
        shutil.copyfile(source, output.model)
        # Copy these files before `commit` moves the model to its final path, so that the model never exists without
        # its files.
        for here, there in needed:
            there.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(here, there)
            written.append(there)
        files = (*output.commit(), *written)
    providers = " and ".join(scan.sources)
    return OptimizeResult(
        source,
        target,
        level,
        files,
        passed_through=True,
        bytes_before=total_size([source, *(source.parent / name for name in beside)]),
        bytes_after=total_size([target, *(target.parent / name for name in beside)]),
        changes=(f"copied unchanged: the model was compiled by {providers}",),
        warnings=tuple(warnings),
    )


def _beside(source: Path, names: Iterable[str], warnings: list[str]) -> Iterable[str]:
    for name in names:
        if not inside_folder(name):
            warnings.append(
                f'The file "{name}" was not copied: the model refers to a path outside of the model\'s folder.'
            )
        elif not (source.parent / name).is_file():
            warnings.append(
                f'The model\'s file "{name}" is missing next to {source.name}: neither the original '
                "nor the copy runs."
            )
        else:
            yield name


def _manifest(source: Path, target: Path, warnings: list[str]) -> list[tuple[Path, Path]]:
    manifest = Path(manifest_path(source))
    if not manifest.is_file():
        return []
    if source.name == target.name:
        return [(manifest, Path(manifest_path(target)))]
    warnings.append(f"{manifest.name} was not copied: the manifest contains the old file name {source.name}.")
    return []


def _must_copy(here: Path, there: Path, overwrite: bool) -> bool:
    if not there.exists():
        return True
    # Compare the contents: with `shallow=True`, files of equal size and time would count as equal.
    if here.samefile(there) or filecmp.cmp(here, there, shallow=False):
        return False
    if overwrite:
        return True
    raise OptionError(
        f"{there} already exists and differs from {here}.",
        cause="The model refers to this file by name, so it cannot be renamed.",
        fix="Write to another folder, or give --overwrite to replace it.",
    )


def _copy_whole(here: Path, there: Path) -> None:
    # Copy under a temporary name first, so that the model never refers to an incomplete context binary.
    part = there.with_name(f".{there.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(here, part)
        os.replace(part, there)
    finally:
        part.unlink(missing_ok=True)


def optimize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    level: str = DEFAULT_LEVEL,
    dims: Mapping[str, int] | Dimensions | None = None,
    if_compiled: Literal["error", "skip"] = "error",
    check: bool = True,
    seed: int = 0,
    overwrite: bool = False,
    on_progress: OnProgress = progress.ignore,
) -> OptimizeResult:
    """Write a version of the model optimised by ONNX Runtime to `target`. The original is never changed.

    Args:
        source: path of the model.
        target: path to write the result to.
        level: one of `LEVELS`; only "basic" is for QNN.
        dims: sizes of free dimensions, `{"batch": 1, "x:2": 48}`.
        if_compiled: "skip" copies a compiled model unchanged, with its context binary.
        check: compare with the original on the CPU; raise an error and write nothing if the results differ.
        seed: seed of the generated inputs.
        overwrite: replace an existing target.
        on_progress: called with the name of the stage, for a model with many nodes.

    Raises:
        CompiledModelRefused: the model is compiled, and `if_compiled` is "error".
        OptionError: an option or the target is wrong.
        OrtError: ONNX Runtime cannot load the model.
        ModelError: the result does not compute the same as the original.
    """
    begun = time.perf_counter()
    # Check the option before reading any file, so that a typo is reported immediately.
    if if_compiled not in ("error", "skip"):
        raise OptionError(f'if_compiled is "{if_compiled}".', fix='Give "error" or "skip".')
    model_path, target_path = files.existing_model(Path(source)), Path(target)
    if if_compiled == "skip":
        scan = scan_model(model_path, count_nodes=False)
        if scan.is_compiled:
            return pass_through(model_path, target_path, scan, level, overwrite=overwrite)
    model = files.given_model(model_path, COMMAND)
    graph_level = ort_level(level)
    external = model.needs_external_data
    with files.Output(
        model_path, target_path, overwrite=overwrite, source_files=model.weights, external=external
    ) as output:
        original = graphs.load(model_path)
        given = model_path
        changed = shapes.fix(original, shapes.as_dimensions(dims))
        many = len(original.graph.node) > MANY_NODES
        if many:
            on_progress(f"optimising {len(original.graph.node):,} nodes", 0, 0)
        check_runnable(original)
        # Count the original's operators before `_without_unused` removes nodes.
        before = graphs.count_ops(original)
        tolerance = tolerance_of(original, before)
        written_out = len(original.functions)
        if written_out:
            # If both branches of an If call a function, ONNX Runtime inlines the function twice with the same
            # names, which makes the model invalid.
            original = graphs.inlined(original)
        if changed or written_out:
            given = output.resized(original, model_path, model.scan.external_files)
        used, changes = _without_unused(original, given, output, model.scan.external_files)
        if written_out:
            changes.append(f"inlined {written_out} {'function' if written_out == 1 else 'functions'} of the model")
        # Run the original at most once, and only if it is needed.
        reference = functools.cache(
            lambda: Reference(
                lambda: cpu.open_session(given, given.name),
                tolerance=tolerance,
                seed=seed,
                quantised=knowledge_of(original).quantised,
                random=is_random(before),
            )
        )

        def attempt(disabled: Sequence[str]) -> _Optimised:
            _optimize(used, output, graph_level, external, disabled)
            result = graphs.load(output.model)
            # `original` and the result are comparable: `_without_unused` removed the same nodes from `original`.
            is_same = _is_same(original.graph, result.graph)
            notes: list[str] = []
            # If ONNX Runtime changed nothing, keep the file byte for byte.
            if is_same and not external:
                shutil.copyfile(used, output.model)
            else:
                notes = _finish(result, original, output.model)
            checked: ModelCheck | None = None
            # For a large model, comparing an unchanged graph with itself in two sessions takes too long.
            if check and many and is_same and used is given:
                checked = ModelCheck(False, reason="no node was changed")
            elif check:
                if many:
                    on_progress("comparing with the original", 0, 0)
                checked = _checked(given, reference(), output.model)
            return _Optimised(result, is_same, notes, checked)

        made, left_out = _without_harm(attempt, int(graph_level))
        result, changes, checked = made.model, changes + made.notes, made.check
        after = before if made.is_same and used is given else graphs.count_ops(result)
        warnings = _level_warnings(level, before, after)
        if left_out:
            warnings.append(left_out)
        if free := shapes.free_dimensions(result.graph):
            sizes = shapes.options_text(free)
            warnings.append(
                f"Some inputs have free dimensions, but QNN needs fixed sizes. Set the sizes with: {sizes}"
            )
        written = output.commit()
    return OptimizeResult(
        model_path,
        target_path,
        level,
        written,
        nodes_before=before,
        nodes_after=after,
        bytes_before=files.total_size([model_path, *model.weights]),
        bytes_after=files.total_size(written),
        changes=tuple(changes),
        warnings=tuple(warnings),
        check=checked,
        seconds=time.perf_counter() - begun,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Optimised:
    """Result of one optimisation attempt, whose model is in the output file.

    Args:
        model: the result.
        is_same: true if ONNX Runtime changed nothing.
        notes: lines for the report.
        check: comparison with the original.
    """

    model: Any
    is_same: bool
    notes: list[str]
    check: ModelCheck | None


def _without_harm(attempt: Callable[[Sequence[str]], _Optimised], level: int) -> tuple[_Optimised, str]:
    """Return the result, and a warning if optimizers that make the model invalid or wrong were disabled.

    Raise the first attempt's error if disabling optimizers does not produce a correct result.
    """
    try:
        return attempt(()), ""
    except (OrtError, ModelError) as error:

        def is_right(disabled: Sequence[str]) -> bool:
            try:
                attempt(disabled)
            except (OrtError, ModelError):
                return False
            return True

        names = optimizers.harmful(is_right, optimizers.optimizers_of(level))
        if not names:
            raise
        # An error with evidence means that the values differ; an error without evidence means that the result
        # cannot be loaded.
        what = error.evidence[0] if error.evidence else (error.cause or error.message).rstrip(".")
        does, model = ("changes", "what the model computes") if error.evidence else ("breaks", "the model")
    return attempt(names), f"{optimizers.harm_of(names, does, model)}, and was disabled: {what}."


def _optimize(
    given: Path, output: files.Output, graph_level: Any, external: bool, disabled: Sequence[str] = ()
) -> None:
    options = cpu.quiet_options()
    options.graph_optimization_level = graph_level
    options.optimized_model_filepath = os.fspath(output.model)
    if external:
        options.add_session_config_entry(_DATA_FILE, output.data_name)
    try:
        cpu.open_session(given, given.name, options, disabled)
    except OrtError as error:
        # Retry with a separate weight file only after this error, because it would not avoid other errors.
        if external or "protobuf" not in (error.cause or "").lower() or "2GB" not in (error.cause or ""):
            raise
        # Constant folding made the model larger than protobuf's message limit, so retry with a separate weight
        # file. The recursion ends after one step: with `external`, the error is raised above.
        _optimize(given, output, graph_level, True, disabled)
    if not output.model.is_file():
        raise ModelError(f"ONNX Runtime wrote no optimised model for {given.name}, and reported no reason.")


def _without_unused(
    model: Any, given: Path, output: files.Output, weights: Iterable[str]
) -> tuple[Path, list[str]]:
    """Remove unused nodes and constants in place; return the file to optimise, and lines for the report.

    ONNX Runtime would keep unused nodes in the file, and is slow if there are many unused constants.
    """
    constants = len(model.graph.initializer)
    nodes = Editor(model, given.parent).drop_dead()
    if not nodes and constants - len(model.graph.initializer) < _MANY_CONSTANTS:
        return given, []
    used = output.candidate(given, weights, "used")
    used.write_bytes(model.SerializeToString())
    return used, [f"removed {nodes} unused {'node' if nodes == 1 else 'nodes'}"] if nodes else []


def _finish(result: Any, original: Any, path: Path) -> list[str]:
    """Remove nodes and domains that ONNX Runtime adds for its own use, from the model and its file; return report
    lines.
    """
    import onnx

    # Remove unused domains, which ONNX Runtime also declares in the file.
    graphs.trim_opsets(result, original)
    casts = strip_inserted_casts(result, original)
    onnx.save_model(result, os.fspath(path))
    if not casts:
        return []
    return [f"removed {casts} casts to float32 that ONNX Runtime inserts for the CPU; QNN supports float16"]


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two graphs are identical."""
    fields = ("node", "initializer", "sparse_initializer", "input", "output")
    return all(list(getattr(before, field)) == list(getattr(after, field)) for field in fields)


def _checked(given: Path, reference: Reference, result: Path) -> ModelCheck:
    check = reference.check(lambda: cpu.open_session(result, "the optimised model"))
    # Raise only if a comparison was made; otherwise `ModelCheck.reason` explains why it was not possible.
    if check.compared and not check.agrees:
        raise ModelError(
            f"The optimised {given.name} does not compute the same as the original. Nothing was written.",
            cause="An optimisation of ONNX Runtime is wrong for this model, or the model amplifies rounding "
            "errors.",
            evidence=evidence(check),
            fix="Use the original, or another --level; --no-check writes the result anyway.",
            details={"check": check.document()},
        )
    return check


def print_result(result: OptimizeResult) -> None:
    if not result.passed_through:
        output.print_table(["operator", "before", "after"], _op_rows(result))
        print()
    pairs = output.written_pairs(result.source, result.files)
    pairs.append(("size", f"{result.bytes_before:,} -> {result.bytes_after:,} bytes"))
    if not result.passed_through:
        pairs += [("level", result.level), ("time", output.seconds(result.seconds))]
        pairs += [("check", line) for line in check_lines(result.check, _agreement(result.check))]
    pairs += [("note", change) for change in result.changes]
    pairs += [("warning", warning) for warning in result.warnings]
    output.print_pairs("Passed through" if result.passed_through else "Optimised", pairs)


def _agreement(check: ModelCheck | None) -> str:
    if check is None:
        return ""
    sizes = ", ".join(f"{name}={size}" for name, size in check.sizes.items())
    made_up = f"{check.samples} made-up inputs, on the CPU" + (f" ({sizes})" if sizes else "")
    return f"agrees with the original on {made_up}"


def document(result: OptimizeResult) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "files": [str(path) for path in result.files],
        "passed_through": result.passed_through,
        "level": result.level,
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "check": result.check.document() if result.check else None,
        "notes": list(result.changes),
        "warnings": list(result.warnings),
        "seconds": result.seconds,
    }


def _op_rows(result: OptimizeResult) -> list[list[str]]:
    ops = list(dict.fromkeys([*result.nodes_before, *result.nodes_after]))
    rows = [[op, str(result.nodes_before.get(op, 0)), str(result.nodes_after.get(op, 0))] for op in ops]
    return [*rows, ["all", str(sum(result.nodes_before.values())), str(sum(result.nodes_after.values()))]]
