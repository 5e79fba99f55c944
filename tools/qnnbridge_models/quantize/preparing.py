"""Prepare a float model for the quantizer by working around each known problem.

- Model functions: the opset converter drops them, so they are inlined.
- float16: the quantizer supports float32 only, so tensors are converted, with casts at inputs and outputs.
- Old opsets: 16-bit types need opset 21 and scales per channel opset 13, so the model is converted to a newer
  opset. The converter fails for IR versions below 4, so the IR version is raised first.
- Weights that are also inputs, or that come from Constant nodes, would not be quantised: they become initializers.
- Attention masks of -3.4e38 make the quantisation step too large for the scores: they are reduced if the
  results stay the same.
- Metadata entries crash onnxruntime's preprocessing: they are removed here and restored in the result.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs, shapes
from qnnbridge_host.model import optimizers
from qnnbridge_host.numerics.comparing import OutputComparison, compare, difference_text
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_host.rewrite.removals import strip_inserted_casts
from qnnbridge_models.quantize.normalising import normalise
from qnnbridge_models.quantize.ort_quantizer import Quiet
from qnnbridge_protocol.errors import ModelError, OptionError, OrtError
from qnnbridge_protocol.shown import with_article

FLOAT, FLOAT16 = 1, 10
# Attributes that contain an element type, as in Cast, EyeLike and RandomNormal.
_TYPE_ATTRIBUTES = ("to", "dtype")

TRIED_OPSETS = (graphs.NEWEST_QDQ_OPSET, 19, 17, 13)
LEAST_IR_VERSION = 8
# Maximum relative difference between the outputs of the original and the prepared float model, for one sample.
ALLOWED_DIFFERENCE = 5e-3


def prepare_as_documented(source: Path, folder: Path) -> Path:
    """Prepare a model as ONNX Runtime's documentation recommends for QNN, without workarounds. Raise
    `ModelError`.
    """
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model

    prepared = folder / "documented.onnx"
    with Quiet():
        try:
            changed = qnn_preprocess_model(source, prepared)
        except MemoryError:
            # Do not report a lack of memory as an error of the model.
            raise
        except Exception as error:  # fusions fail with various exceptions
            raise ModelError("onnxruntime cannot prepare this model for QNN.", cause=str(error)[:1000]) from error
    return prepared if changed else source


def widen(model: Any) -> None:
    """Convert every float16 tensor to float32 in place; add casts so that float16 inputs and outputs keep their
    type.
    """
    for graph in graphs.subgraphs(model.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for value in graph.value_info:
            _widen_value(value)
        for node in graph.node:
            _widen_attributes(node)
        if graph is not model.graph:
            for value in [*graph.input, *graph.output]:
                _widen_value(value)
    for function in model.functions:
        for node in function.node:
            _widen_attributes(node)
    _cast_inputs(model.graph)
    _cast_outputs(model.graph)


def _cast_inputs(graph: Any) -> None:
    from onnx import helper

    initialized = {tensor.name for tensor in graph.initializer}
    casts = []
    for value in graph.input:
        if value.type.tensor_type.elem_type != FLOAT16:
            continue
        # An input with an initializer is a weight, so only its declared type changes.
        if value.name in initialized:
            _widen_value(value)
            continue
        inner = f"{value.name}__float32"
        _rename_tensor(graph, value.name, inner, outputs=False)
        casts.append(helper.make_node("Cast", [value.name], [inner], name=f"{inner}_cast", to=FLOAT))
    # Insert the casts before all other nodes, because a graph lists its nodes in execution order.
    for number, cast in enumerate(casts):
        graph.node.insert(number, cast)


def _cast_outputs(graph: Any) -> None:
    from onnx import helper

    for value in graph.output:
        if value.type.tensor_type.elem_type == FLOAT16:
            inner = f"{value.name}__float32"
            _rename_tensor(graph, value.name, inner, outputs=True)
            graph.node.append(helper.make_node("Cast", [inner], [value.name], name=f"{inner}_cast", to=FLOAT16))


def _rename_tensor(graph: Any, old: str, new: str, *, outputs: bool) -> None:
    """Rename a tensor, also in subgraphs, whose nodes may read tensors of the outer graph."""
    for inner in graphs.subgraphs(graph):
        for node in inner.node:
            for number, name in enumerate(node.input):
                if name == old:
                    node.input[number] = new
            if outputs and inner is graph:
                for number, name in enumerate(node.output):
                    if name == old:
                        node.output[number] = new


def _widen_attributes(node: Any) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i == FLOAT16:
            attribute.i = FLOAT


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type != FLOAT16:
        return
    import numpy as np
    from onnx import numpy_helper

    wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
    tensor.CopyFrom(wide)


def _widen_value(value: Any) -> None:
    if value.type.tensor_type.elem_type == FLOAT16:
        value.type.tensor_type.elem_type = FLOAT


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedModel:
    """A float model that the quantizer can process.

    Args:
        path: the float model to quantise.
        changes: descriptions of the changes, for the report.
    """

    path: Path
    changes: tuple[str, ...]


def prepare(
    model: Any,
    work: Path,
    sample: Feeds,
    expected: list[Any],
    names: list[str],
    *,
    symmetric: bool = False,
    eight_bits: bool = False,
) -> PreparedModel:
    """Prepare a model in the folder `work`, and check that its outputs stay the same.

    Args:
        model: `ModelProto` with its weights; it is changed.
        work: folder for intermediate models.
        sample, expected, names: one sample, the original model's outputs for it, and the outputs' names.
        symmetric: activations have symmetric ranges.
        eight_bits: activations have 8 bits.

    Raises:
        ModelError: the prepared model does not run, or computes different outputs.
    """
    changes: list[str] = []
    if model.functions:
        changes.append(f"inlined {len(model.functions)} functions of the model")
        model = graphs.inlined(model)
    if graphs.has_float16(model):
        widen(model)
        changes.append(
            "computed in float32 instead of float16, which the quantizer does not support; inputs and outputs keep "
            "their type"
        )
    model = _upgraded(model, changes)
    moved = graphs.weights_out_of_inputs(model)
    if moved:
        changes.append(f"removed {moved} weights from the model's inputs, so that the weights are constants")
    path = _folded(model, work, changes, symmetric)
    del model
    small = _masks_of_eight_bits(path, work, sample) if eight_bits else []
    for huge, size in (*small, (graphs.HUGE_MASK, graphs.ENOUGH_FOR_MASK)):
        shrunk = _masks_shrunk(
            path, work, lambda candidate: _differences(candidate, sample, expected, names), huge, size
        )
        if shrunk is not None:
            path = shrunk
            changes.append(
                f"values of -{huge:g} or less in attention masks changed to -{size:g}, so that the scores keep "
                "their precision"
            )
            break
    # Name the nodes last, so that nodes created by fusions also get names.
    path = _named(_preprocessed(path, work), work)
    _refuse_changed(_differences(path, sample, expected, names))
    return PreparedModel(path, tuple(changes))


def save(model: Any, path: Path) -> Path:
    """Write an intermediate model; above protobuf's message limit, its weights go to a file next to the model."""
    import onnx

    if graphs.is_too_large(model):
        onnx.save_model(
            model, os.fspath(path), save_as_external_data=True, location=f"{path.name}.data", convert_attribute=True
        )
    else:
        onnx.save_model(model, os.fspath(path))
    return path


def _upgraded(model: Any, changes: list[str]) -> Any:
    """Return the model in a newer opset, or unchanged if the converter fails."""
    model.ir_version = max(model.ir_version, LEAST_IR_VERSION)
    old = graphs.opset_of(model) or 0
    # The converter needs the model as a single protobuf message, which is limited to 2 GB.
    if old >= TRIED_OPSETS[0] or graphs.is_too_large(model):
        return model
    from onnx import version_converter

    for opset in TRIED_OPSETS:
        if opset <= old:
            break
        try:
            upgraded = version_converter.convert_version(model, opset)
        except Exception:  # noqa: BLE001, S112 - the converter raises whatever its C++ does; the next opset may work
            continue
        changes.append(f"opset {old} converted to {opset}")
        return upgraded
    changes.append(f"opset {old} kept, because ONNX's version converter failed on this model")
    return model


def _folded(model: Any, work: Path, changes: list[str], symmetric: bool) -> Path:
    """Apply ONNX Runtime's basic optimisation: Constant nodes become initializers, and constant expressions are
    folded.
    """
    options = cpu.quiet_options(optimize=True)
    folded = work / "folded.onnx"
    options.optimized_model_filepath = os.fspath(folded)
    if graphs.is_too_large(model):
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{folded.name}.data"
        )
    # The quantizer does not quantise weights of Constant nodes. Without this step a text detector (PP-OCR) grew
    # from 4.75 MB (float) to 5.07 MB, and QNN refused its Conv (error 3110). With it, the model had 1.45 MB and ran
    # completely on QNN.
    constants = sum(node.op_type == "Constant" for node in model.graph.node)
    upgraded = save(model, work / "upgraded.onnx")

    def loads(disabled: Sequence[str]) -> bool:
        try:
            cpu.open_session(upgraded, "the model", options, disabled)
        except OrtError:
            return False
        return True

    broken_by = optimizers.harmful(loads, optimizers.BASIC_OPTIMIZERS)
    # Optimise again and disable only the harmful optimizers: the last attempt of the search disabled others. If no
    # optimizer causes the failure, this call raises the load error.
    if broken_by is None or broken_by:
        cpu.open_session(upgraded, "the model", options, broken_by or ())
        changes.append(
            f"{optimizers.harm_of(broken_by or (), 'breaks', 'the model')}; constants are folded with all other "
            "optimizers"
        )
    result = graphs.load(folded, weights=True)
    graphs.trim_opsets(result, model)
    strip_inserted_casts(result, model)
    # `quantizer._finish` restores the metadata: text recognition models store their alphabet there. With any entry,
    # `qnn_preprocess_model` of onnxruntime 1.31.1 raises a TypeError.
    del result.metadata_props[:]
    convolutions = _normalise_by_convolution(result)
    changes += normalise(result, work, symmetric)
    if convolutions:
        changes.append(
            f"replaced {convolutions} BatchNormalization by Conv, because QNN computes one channel of a quantised "
            "BatchNormalization wrong"
        )
    if constants:
        changes.append(f"converted {constants} Constant nodes to initializers")
    return save(result, work / "plain.onnx")


def _normalise_by_convolution(model: Any) -> int:
    """Replace each BatchNormalization that is not fused into a Conv by a depthwise 1x1 Conv; return their number.

    QNN negates the channel with the largest offset of a quantised BatchNormalization if this offset is positive.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    known, constants = graphs.types_of(model), {tensor.name: tensor for tensor in graph.initializer}
    changed = 0
    for node in graph.node:
        shape = known.get(node.input[0], (0, None))[1] if node.op_type == "BatchNormalization" else None
        settings = {attribute.name: attribute for attribute in node.attribute}
        training = "training_mode" in settings and settings["training_mode"].i
        if shape is None or len(shape) not in (3, 4) or training or len(list(filter(None, node.output))) != 1:
            continue
        if any(name not in constants for name in node.input[1:]):
            continue
        values = [numpy_helper.to_array(constants[name]) for name in node.input[1:]]
        # Compute in float64, so that the result is rounded only once.
        scale, bias, mean, variance = (value.astype(np.float64) for value in values)
        factor = scale / np.sqrt(variance + (settings["epsilon"].f if "epsilon" in settings else 1e-5))
        weights = factor.reshape(-1, 1, *(1 for _ in shape[2:]))
        made = []
        for name, value in (("weight", weights), ("bias", bias - mean * factor)):
            made.append(f"{node.output[0]}/{name}")
            graph.initializer.append(numpy_helper.from_array(value.astype(values[0].dtype), made[-1]))
        inputs = [node.input[0], *made]
        kernel = [1 for _ in shape[2:]]
        node.CopyFrom(
            helper.make_node(
                "Conv", inputs, [node.output[0]], name=node.name, group=len(factor), kernel_shape=kernel
            )
        )
        changed += 1
    return changed


# Mask sizes for 8-bit activations, which have 256 steps. With -1e4 a step is 39, so scores that differ by less
# become equal: a model had 0.6 dB with -1e4, and 21 dB with -128.
_MASKS_OF_EIGHT_BITS: Final = (128.0, 512.0, 2048.0)
# exp(-16) is 1e-7, so a mask this far below all scores has no effect on Softmax.
_BELOW_ALL_SCORES: Final = 16.0


def _masks_of_eight_bits(path: Path, work: Path, sample: Feeds) -> list[tuple[float, float]]:
    """Return [(smallest magnitude of a mask, new magnitude of masks)], or [] if no magnitude fits or no scores are
    found.

    The new magnitude is the smallest that is at least twice the range of the scores, because other samples may have
    larger scores.
    """
    import numpy as np
    from onnx import ValueInfoProto

    model = graphs.load(path, weights=True)
    if not graphs.shrink_masks(model, graphs.ENOUGH_FOR_MASK):
        return []
    made = {name for node in model.graph.node for name in node.output}
    names = list(dict.fromkeys(node.input[0] for node in model.graph.node if node.op_type == "Softmax"))
    names = [name for name in names if name in made]
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in outputs)
    try:
        session = cpu.open_session(save(model, work / "scores.onnx"), "the prepared model")
        found = cpu.run(session, sample, "the prepared model", names) if names else []
    except OrtError:
        return []
    # Ignore masked scores.
    scores = [one[one > -graphs.ENOUGH_FOR_MASK / 2] for one in found]
    most = max((float(np.ptp(one)) for one in scores if one.size), default=None)
    if most is None:
        return []
    needed = 2 * (most + _BELOW_ALL_SCORES)
    return [(graphs.ENOUGH_FOR_MASK, size) for size in _MASKS_OF_EIGHT_BITS if size >= needed][:1]


def _masks_shrunk(
    path: Path,
    work: Path,
    differences: Callable[[Path], tuple[OutputComparison, ...]],
    huge_from: float,
    size: float,
) -> Path | None:
    """Return the model with reduced masks; None if it has no large masks, or if its results would change."""
    # Quantised with the usual mask of -3.4e38, a sentence model (MiniLM) had a cosine similarity of 0.48 to the
    # float model; with -1e4 it had 0.98.
    model = graphs.load(path, weights=True)
    if not graphs.shrink_masks(model, huge_from, size):
        return None
    candidate = save(model, work / "masked.onnx")
    # Run a sample to check that the results stay the same: a large value may be ordinary data and not a mask.
    return candidate if all(d.within(ALLOWED_DIFFERENCE) for d in differences(candidate)) else None


def _preprocessed(path: Path, work: Path) -> Path:
    """Apply onnxruntime's preparation for QNN, which fuses Gelu, LpNormalization, SpaceToDepth and
    LayerNormalization.
    """
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model

    result = work / "preprocessed.onnx"
    large = path.with_name(f"{path.name}.data").exists()
    with Quiet():
        try:
            modified = qnn_preprocess_model(
                path,
                result,
                exclude_initializer_from_input=True,
                fuse_layernorm=True,
                save_as_external_data=large,
                all_tensors_to_one_file=large,
                external_data_location=f"{result.name}.data" if large else None,
            )
        except Exception:  # noqa: BLE001 - a failed fusion only costs speed; use the model without it
            return path
    return result if modified else path


def _named(path: Path, work: Path) -> Path:
    """Give every node a unique name, so that single nodes can be kept float."""
    model = graphs.load(path, weights=True)
    return save(model, work / "named.onnx") if graphs.name_nodes(model) else path


def _differences(path: Path, sample: Feeds, expected: list[Any], names: list[str]) -> tuple[OutputComparison, ...]:
    try:
        session = cpu.open_session(path, "the prepared model")
        return compare(names, [expected], [cpu.run(session, sample, "the prepared model", names)])
    except OrtError as error:
        raise ModelError(
            "The model could not be prepared for quantising: the prepared model does not run.",
            cause=error.cause,
            fix="Run qnnbridge optimize on the model first, or export it again with a newer opset (17 to 21).",
        ) from None


def _refuse_changed(differences: tuple[OutputComparison, ...]) -> None:
    wrong = [difference for difference in differences if not difference.within(ALLOWED_DIFFERENCE)]
    if wrong:
        raise ModelError(
            "The prepared model computes different outputs than the original model.",
            cause="Converting the opset or folding constants changed the results.",
            evidence=[difference_text(difference) for difference in wrong],
            fix="Export the model again with a newer opset (17 to 21).",
        )


# --- models that cannot be quantised -------------------------------------------------------------------------
#
# Such models are refused before any work begins, always with `OptionError`: the user must change the model or an
# option.

_DYNAMIC_OPS = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QAttention")
_QUANTIZED_OPS = (*_DYNAMIC_OPS, "MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QGemm")
_TEXT = 8
# Values of TensorProto.DataType (float to uint64, without strings) that .npy files and onnxruntime's Python API
# support.
_HAS_NUMPY_TYPE = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
_SHOWN = 4


def refuse_unsuitable(model: Any, label: str) -> None:
    """Raise `OptionError` for a model that no options make quantisable."""
    ops = graphs.count_ops(model)
    _refuse_quantized(ops, label)
    if graphs.opset_of(model) is None:
        raise OptionError(
            f"{label} does not contain a neural network: none of its operators is a standard ONNX operator.",
            cause=f"Its operators: {_counts_text(ops)}.",
            fix="Classic machine learning models run on the CPU; QNN does not support their operators.",
        )
    inputs = shapes.real_inputs(model.graph)
    if not inputs:
        raise OptionError(
            f"{label} has no inputs, so there is nothing to calibrate.",
            fix="Export the model so that its data is an input instead of a constant.",
        )
    for value in inputs:
        _refuse_input(value, label)


def refuse_free_dimensions(
    model: Any, label: str, shapes_of_samples: Callable[[], Mapping[str, tuple[int, ...]]]
) -> None:
    """Raise `OptionError` if the model has free dimensions, because QNN needs fixed sizes.

    The message contains the options that fix the dimensions, with the samples' sizes if the ranks match.
    """
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
        cause=f"Dimensions without a size: {places}{' and more' if len(free) > _SHOWN else ''}.",
        fix=f"{shapes.options_text(free, sizes)}{whose_sizes}",
    )


def _refuse_quantized(ops: Mapping[str, int], label: str) -> None:
    found = {op: count for op, count in ops.items() if _is_quantized(op.rpartition(".")[2])}
    if found:
        dynamic = any(_is_dynamic(op.rpartition(".")[2]) for op in found)
        raise OptionError(
            f"{label} is already quantised{', dynamically' if dynamic else ''}.",
            cause=f"It contains {_counts_text(found)}."
            + (" QNN runs few nodes of such a model; the CPU runs the rest." if dynamic else ""),
            fix="Quantise the original float model, or use this model unchanged: qnnbridge run shows whether QNN "
            "supports it.",
        )


def _is_quantized(op: str) -> bool:
    return (
        # `op` contains no domain, so this also matches com.microsoft.QuantizeLinear.
        op.endswith(("QuantizeLinear", "DequantizeLinear"))
        or op.startswith(("QLinear", "Qlinear"))
        or op in _QUANTIZED_OPS
        or _is_dynamic(op)
    )


def _is_dynamic(op: str) -> bool:
    """Return whether the operator's scales are computed at run time, as by onnxruntime's `quantize_dynamic`."""
    return op.startswith("DynamicQuantize") or op in _DYNAMIC_OPS


def _refuse_input(value: Any, label: str) -> None:
    if not value.type.HasField("tensor_type"):
        kind = str(value.type.WhichOneof("value") or "value").replace("_type", "")
        raise OptionError(
            f'Input "{value.name}" of {label} is {with_article(kind)}, not a tensor.',
            fix="QNN supports tensors only. Export only the part of the model after the operators that read this "
            "input.",
        )
    element = value.type.tensor_type.elem_type
    if element == _TEXT:
        raise OptionError(
            f'Input "{value.name}" of {label} is a string tensor.',
            fix="QNN supports numbers only. Export the model without its tokenizer, with token ids as inputs.",
        )
    if element not in _HAS_NUMPY_TYPE:
        raise OptionError(
            f'Input "{value.name}" of {label} has a type that calibration files cannot contain ({element}).',
            fix="Convert the model to float32 first.",
        )
    if not shapes.has_shape(value):
        raise OptionError(
            f'Input "{value.name}" of {label} does not declare its number of dimensions.',
            fix="Export the model with the shape of its inputs.",
        )
    dims = value.type.tensor_type.shape.dim
    if any(dimension.HasField("dim_value") and dimension.dim_value == 0 for dimension in dims):
        raise OptionError(
            f'Input "{value.name}" of {label} has a dimension of size 0.',
            cause="A tensor without elements has no range, and it crashes QNN's compiler.",
            fix="Export the model without this input, or with a fixed size above 0.",
        )


def _counts_text(ops: Mapping[str, int]) -> str:
    shown = ", ".join(f"{count} {op}" for op, count in list(ops.items())[:_SHOWN])
    return shown + (" and others" if len(ops) > _SHOWN else "") if ops else "none"


def refuse_not_finite(label: str, names: Sequence[str], expected: Sequence[Sequence[Any]]) -> None:
    import numpy as np

    for number, name in enumerate(names):
        values = [np.asarray(sample[number]) for sample in expected]
        # Refuse an output only if all its values in all samples are NaN or infinite: single NaN values may be
        # intended.
        if all(value.dtype.kind == "f" and value.size and not np.isfinite(value).any() for value in values):
            raise ModelError(
                f'All values of output "{name}" of {label} are NaN or infinite even before quantising.',
                cause="Run on the CPU with the samples, the float model computes only such values for this output.",
                fix="Check the samples: the scale of their values, and inputs such as masks and lengths.",
            )
