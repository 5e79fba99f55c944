"""`quantize_model`: the work of the command, for programs.

Models that cannot be quantised are refused before any work is done. All these errors are `OptionError`: another
model is needed, or another option.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.numerics.comparing import compare
from qnnbridge_protocol.errors import ModelError, OptionError, OrtError
from qnnbridge_tools.models.quantize import ort_quantizer
from qnnbridge_tools.models.quantize import settings as settings_module
from qnnbridge_tools.models.quantize.preparing import prepare
from qnnbridge_tools.models.quantize.qnn_check import QnnCheck, QnnHostOptions, check_on_qnn
from qnnbridge_tools.models.quantize.result import QuantizeResult
from qnnbridge_tools.models.quantize.samples import SampleSets, gather, shapes_in
from qnnbridge_tools.models.shared import progress
from qnnbridge_tools.models.shared.progress import OnProgress

_QUANTIZED_OPS = ("ConvInteger", "MatMulInteger", "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized")
_TEXT = 8
# TensorProto.DataType from float to uint64 without text: what a .npy file and onnxruntime's Python can hold.
_HAS_NUMPY_TYPE = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
_SHOWN = 4

COMMAND = "qnnbridge quantize"
PathLike = str | os.PathLike[str]


def refuse_unsuitable(model: Any, label: str) -> None:
    """Whatever no option can change."""
    ops = graphs.count_ops(model)
    _refuse_quantized(ops, label)
    if graphs.opset_of(model) is None:
        raise OptionError(
            f"{label} has no neural network in it: it uses none of ONNX's own operators.",
            cause=f"Its operators: {_counts_text(ops)}.",
            fix="Classic machine learning models run on the CPU; there is nothing that QNN could do.",
        )
    inputs = shapes.real_inputs(model.graph)
    if not inputs:
        raise OptionError(
            f"{label} has no input, so there is nothing to calibrate.", fix="Export it with its input as an input."
        )
    for value in inputs:
        _refuse_input(value, label)


def refuse_free_dimensions(
    model: Any, label: str, shapes_of_samples: Callable[[], Mapping[str, tuple[int, ...]]]
) -> None:
    """QNN needs every size. The message gives the options that fix them, with the samples' sizes if they fit."""
    free = shapes.free_dimensions(model.graph)
    if not free:
        return
    known = shapes_of_samples()
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}
    sizes = {
        (dimension.input, dimension.axis): known[dimension.input][dimension.axis]
        for dimension in free
        if len(known.get(dimension.input, ())) == ranks[dimension.input]
    }
    places = ", ".join(f"{dimension.input} axis {dimension.axis}" for dimension in free[:_SHOWN])
    told = " These are the sizes of the calibration samples." if sizes else ""
    raise OptionError(
        f"{label} has inputs with free dimensions, and QNN needs fixed ones.",
        cause=f"Without a size: {places}{' and more' if len(free) > _SHOWN else ''}.",
        fix=f"{shapes.options_text(free, sizes)}{told}",
    )


def _refuse_quantized(ops: Mapping[str, int], label: str) -> None:
    found = {op: count for op, count in ops.items() if _is_quantized(op.rpartition(".")[2])}
    if found:
        raise OptionError(
            f"{label} is quantised already.",
            cause=f"It holds {_counts_text(found)}.",
            fix="Quantise the float model that it was made from, or use this one as it is: qnnbridge run tells "
            "whether QNN takes it.",
        )


def _is_quantized(op: str) -> bool:
    return (
        op.endswith(("QuantizeLinear", "DequantizeLinear"))
        or op.startswith(("QLinear", "Qlinear"))
        or op in _QUANTIZED_OPS
    )


def _refuse_input(value: Any, label: str) -> None:
    if not value.type.HasField("tensor_type"):
        kind = str(value.type.WhichOneof("value") or "value").replace("_type", "")
        raise OptionError(
            f'Input "{value.name}" of {label} is a {kind}, not a tensor.',
            fix="QNN computes tensors only. Export the part of the model behind this input.",
        )
    element = value.type.tensor_type.elem_type
    if element == _TEXT:
        raise OptionError(
            f'Input "{value.name}" of {label} is text.',
            fix="QNN computes numbers only. Export the part of the model behind the tokenizer.",
        )
    if element not in _HAS_NUMPY_TYPE:
        raise OptionError(
            f'Input "{value.name}" of {label} is of a type that calibration files cannot hold ({element}).',
            fix="Convert the model to float32 first.",
        )
    if not shapes.has_shape(value):
        raise OptionError(
            f'Input "{value.name}" of {label} does not say how many dimensions it has.',
            fix="Export the model with the shape of its inputs.",
        )
    if any(dimension.HasField("dim_value") and dimension.dim_value == 0 for dimension in _dims(value)):
        raise OptionError(
            f'Input "{value.name}" of {label} has a dimension of size 0.',
            cause="A tensor without elements has no range, and QNN's compiler dies of it.",
            fix="Export the model without this input, or with a real size.",
        )


def _dims(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _counts_text(ops: Mapping[str, int]) -> str:
    shown = ", ".join(f"{count} {op}" for op, count in list(ops.items())[:_SHOWN])
    return shown + (" and others" if len(ops) > _SHOWN else "") if ops else "none"


def quantize_model(
    source: PathLike,
    target: PathLike,
    calibration: PathLike | Iterable[PathLike] = (),
    *,
    random: int = 0,
    seed: int = 0,
    held_out: int | None = None,
    dims: Mapping[str, int] | Dimensions | None = None,
    activation_type: str = "uint16",
    weight_type: str | None = None,
    per_channel: bool | None = None,
    symmetric_activations: bool = False,
    symmetric_weights: bool | None = None,
    method: str = "minmax",
    percentile: float = 99.999,
    check_qnn: QnnHostOptions | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = progress.ignore,
    own_process: bool = False,
) -> QuantizeResult:
    """Writes a quantised model (QDQ, for QNN) at `target` and compares it with the float model on the CPU.

    Args:
        source: path of the float model.
        target: where to write the result.
        calibration: folders and files of samples, see `samples`.
        random: so many made-up samples instead, which are for trying things out only.
        seed: of the made-up samples.
        held_out: so many samples are kept for the comparison; default a fifth, at most 10.
        dims: sizes of free dimensions.
        activation_type: of everything that flows.
        weight_type: of constants; default int8, or uint8 per tensor.
        per_channel: scales of Conv weights; default wherever the weight type can be.
        symmetric_activations: zero in the middle of each range.
        symmetric_weights: the same for weights; default if the type has a sign.
        method: how ranges are found: "minmax", "entropy" or "percentile".
        percentile: of the values that count, for that method.
        check_qnn: also run it on the host; the result never undoes the written model.
        overwrite: replace an existing target.
        on_progress: called with the stage and how far it is.
        own_process: nothing else uses onnxruntime in this process, so its log may be turned down.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: the model cannot be quantised, or an option or a sample is wrong.
        ModelError: preparing or quantising the model failed.
    """
    begun = time.perf_counter()
    settings = settings_module.resolve(
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        symmetric_activations=symmetric_activations,
        symmetric_weights=symmetric_weights,
        method=method,
        percentile=percentile,
    )
    given = files.given_model(source, COMMAND)
    path, scan, weights = given.path, given.scan, given.weights
    if own_process:
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # the quantizer's own sessions
    sources = _paths(calibration)
    with files.Output(
        path, Path(target), overwrite=overwrite, source_files=weights, external=bool(weights)
    ) as output:
        model = graphs.load(path)
        refuse_unsuitable(model, path.name)
        fixed = shapes.fix(model, shapes.as_dimensions(dims))
        refuse_free_dimensions(
            model, path.name, lambda: shapes_in(sources, [value.name for value in shapes.real_inputs(model.graph)])
        )
        samples = gather(model, sources, random=random, seed=seed, held_out=held_out)
        on_progress("running the float model", 0, 0)
        resized = output.resized(model, path, scan.external_files) if fixed else path
        names, expected = _float_results(resized, samples)
        _refuse_not_finite(path.name, names, expected)
        on_progress("preparing", 0, 0)
        prepared = prepare(_with_weights(model, path), output.work, samples.compared[0], expected[0], names)
        ort_quantizer.quantize(prepared.path, output.model, samples.calibration, settings, on_progress)
        result = _finish(model, output.model)
        on_progress("comparing", 0, 0)
        found = _quantized_results(output.model, samples, names)
        written = output.commit()
    qnn: QnnCheck | None = None
    if check_qnn is not None:
        on_progress("running on QNN", 0, 0)
        qnn = check_on_qnn(written[0], samples.compared, names, expected, found, check_qnn)
    outputs = compare(names, expected, found)
    return QuantizeResult(
        path,
        Path(target),
        written,
        settings,
        len(samples.calibration),
        len(samples.compared),
        samples.held_out,
        outputs,
        graphs.count_ops(model),
        graphs.count_ops(result),
        files.total_size([path, *weights]),
        files.total_size(written),
        prepared.changes,
        (
            *samples.warnings,
            *settings_module.type_warnings(settings),
            *settings_module.result_warnings(settings, outputs, model, samples, qnn),
        ),
        qnn,
        time.perf_counter() - begun,
    )


def _paths(calibration: PathLike | Iterable[PathLike]) -> list[Path]:
    if isinstance(calibration, (str, os.PathLike)):
        return [Path(calibration)]
    return [Path(one) for one in calibration]


def _with_weights(model: Any, path: Path) -> Any:
    """A copy that may be changed, with the tensors that are in other files."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graphs.load_weights(copy, path.parent)
    return copy


def _float_results(path: Path, samples: SampleSets) -> tuple[list[str], list[list[Any]]]:
    session = cpu.open_session(path, path.name)
    names = [node.name for node in session.get_outputs()]
    return names, [cpu.run(session, feeds, path.name, names) for feeds in samples.compared]


def _refuse_not_finite(label: str, names: Sequence[str], expected: Sequence[Sequence[Any]]) -> None:
    import numpy as np

    for number, name in enumerate(names):
        values = [np.asarray(sample[number]) for sample in expected]
        if all(value.dtype.kind == "f" and value.size and not np.isfinite(value).any() for value in values):
            raise ModelError(
                f'Output "{name}" of {label} is nothing but NaN or infinite, before anything is quantised.',
                cause="The float model gives that on the CPU for the samples.",
                fix="Check the samples: their scale, and inputs like masks and lengths.",
            )


def _quantized_results(path: Path, samples: SampleSets, names: Sequence[str]) -> list[list[Any]]:
    """Exactly as the file says: optimised for the CPU, quantised operators saturate on processors without VNNI."""
    label = "the quantised model"
    try:
        session = cpu.open_session(path, label)
        return [cpu.run(session, feeds, label, names) for feeds in samples.compared]
    except OrtError as error:
        raise ModelError(
            "onnxruntime's quantizer wrote a model that does not run. Nothing was written.",
            cause=error.cause,
            fix="Try --per-tensor or 8-bit types; or export the model again with a newer opset (17 to 21).",
        ) from None


def _finish(original: Any, path: Path) -> Any:
    """Puts the metadata back as it was, and leaves only domains that are used."""
    import onnx

    model = graphs.load(path)
    if not any(graphs.op_name(node).endswith("QuantizeLinear") for node in graphs.nodes(model)):
        raise OptionError(
            "There is nothing in this model that can be quantised. Nothing was written.",
            cause="The quantizer found no operator that computes with float32.",
            fix="Run it as it is: qnnbridge run tells whether QNN takes it.",
        )
    del model.metadata_props[:]
    model.metadata_props.extend(original.metadata_props)
    graphs.trim_opsets(model)
    onnx.save_model(model, os.fspath(path))
    return model
