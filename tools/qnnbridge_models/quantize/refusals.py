"""Models that cannot be quantised, refused before any work is done.

All these errors are `OptionError`: another model is needed, or another option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qnnbridge_host.graph import graphs, shapes
from qnnbridge_protocol.errors import ModelError, OptionError

_DYNAMIC_OPS = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QAttention")
_QUANTIZED_OPS = (*_DYNAMIC_OPS, "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QGemm")
_TEXT = 8
# TensorProto.DataType from float to uint64 without text: what a .npy file and onnxruntime's Python can hold.
_HAS_NUMPY_TYPE = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
_SHOWN = 4


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
    whose_sizes = " These are the sizes of the calibration samples." if sizes else ""
    raise OptionError(
        f"{label} has inputs with free dimensions, and QNN needs fixed ones.",
        cause=f"Without a size: {places}{' and more' if len(free) > _SHOWN else ''}.",
        fix=f"{shapes.options_text(free, sizes)}{whose_sizes}",
    )


def _refuse_quantized(ops: Mapping[str, int], label: str) -> None:
    found = {op: count for op, count in ops.items() if _is_quantized(op.rpartition(".")[2])}
    if found:
        dynamic = any(_is_dynamic(op.rpartition(".")[2]) for op in found)
        raise OptionError(
            f"{label} is quantised already{', dynamically' if dynamic else ''}.",
            cause=f"It holds {_counts_text(found)}."
            + (" QNN leaves most of what such a model computes to the CPU." if dynamic else ""),
            fix="Quantise the float model that it was made from, or use this one as it is: qnnbridge run tells "
            "whether QNN takes it.",
        )


def _is_quantized(op: str) -> bool:
    return (
        # Also com.microsoft.QuantizeLinear and its like: the domain was taken off.
        op.endswith(("QuantizeLinear", "DequantizeLinear"))
        or op.startswith(("QLinear", "Qlinear"))
        or op in _QUANTIZED_OPS
        or _is_dynamic(op)
    )


def _is_dynamic(op: str) -> bool:
    """Scales are computed while it runs, as onnxruntime's `quantize_dynamic` makes it."""
    return op.startswith("DynamicQuantize") or op in _DYNAMIC_OPS


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


def refuse_not_finite(label: str, names: Sequence[str], expected: Sequence[Sequence[Any]]) -> None:
    import numpy as np

    for number, name in enumerate(names):
        values = [np.asarray(sample[number]) for sample in expected]
        # All of it in all samples: single NaN may be meant.
        if all(value.dtype.kind == "f" and value.size and not np.isfinite(value).any() for value in values):
            raise ModelError(
                f'Output "{name}" of {label} is nothing but NaN or infinite, before anything is quantised.',
                cause="The float model gives that on the CPU for the samples.",
                fix="Check the samples: their scale, and inputs like masks and lengths.",
            )
