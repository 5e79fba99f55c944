"""Functions on a `ModelProto`: loading, counting and iterating over nodes, types and shapes of tensors, small
repairs.

Subgraphs are included everywhere.
"""

from __future__ import annotations

import io
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.graph.bounds import bytes_of, check_functions, check_nodes, check_tensors, computes_many_sizes
from qnnbridge_host.graph.files import TOO_LARGE_FOR_ONE_MESSAGE, inside_folder
from qnnbridge_host.model import node_count
from qnnbridge_host.model.node_count import Operator, operator_of, written_out
from qnnbridge_host.model.paths import open_regular
from qnnbridge_host.model.scan import WEIGHTS_OUTSIDE, weights_outside_fix
from qnnbridge_protocol.errors import InvalidGraph, InvalidProtobuf

# TensorProto.DataLocation.
_EXTERNAL = 1
ONNX_DOMAINS = node_count.ONNX_DOMAINS
_MICROSOFT = "com.microsoft"
# TensorProto.DataType.
_FLOAT, _UINT8, _FLOAT16 = 1, 2, 10
_CONSTANT_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
# ONNX's QuantizeLinear supports 16 and 4 bits since this opset; older models need the operator of com.microsoft.
NEWEST_QDQ_OPSET = 21

# A value of at least this magnitude in a mask represents minus infinity.
HUGE_MASK = 1e6
# Magnitude that suffices to mask a value: exp(-1e4) is 0 in every float type.
ENOUGH_FOR_MASK = 1e4
# Operators through which an attention mask reaches the attention scores. A huge constant that other operators read,
# such as a limit of Clip, is not a mask.
MASK_ADDING_OPS = ("Add", "Sub", "Mul", "Where", "Expand")
# Type of a tensor: its TensorProto.DataType (0: unknown), and its shape (None for an unknown rank, None in it for a
# free axis).
TensorType = tuple[int, tuple[int | None, ...] | None]
_SAME_SHAPE = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Gelu", "QuickGelu", "FastGelu", "BiasGelu", "SkipLayerNormalization"}
)
# Constants up to this size keep their values: sizes and axes, from which shapes follow, are smaller.
SMALL_BYTES = 1 << 12


def load(path: Path, *, weights: bool = False) -> Any:
    """Load a `ModelProto` from a file. weights: also load tensors from external files.

    Raises:
        InvalidProtobuf: the file is not an ONNX model.
        InvalidGraph: functions are recursive, a tensor lacks its data, or a node cannot be read.
    """
    import onnx

    try:
        model = onnx.load_model(str(path), load_external_data=weights)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - protobuf's DecodeError, and onnx's own errors for unsafe files
        raise InvalidProtobuf(
            f"{path} cannot be read as an ONNX model.",
            cause=str(error)[:500],
            fix="Check that all files of the model exist and are complete.",
            details={"path": str(path)},
        ) from None
    check_functions(model)
    check_nodes(model)
    check_tensors(model)
    return model


def inlined(model: Any) -> Any:
    """Inline the bodies of a model's functions, as ONNX Runtime does, and return the model.

    Raises:
        InvalidGraph: inlining fails.
    """
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # noqa: BLE001 - onnx's C++ may raise any exception
        raise InvalidGraph(
            "The functions of the model cannot be inlined.",
            cause=str(error)[:500],
            fix="Export the model again, or without functions.",
        ) from None


def load_weights(model: Any, folder: Path) -> None:
    """Load all external tensors from files of `folder` into the model.

    onnx's own function is not used, because it refuses files with several hard links, which package caches create.
    """
    for tensor in _tensors(model.graph):
        load_tensor(tensor, folder)


def load_tensor(tensor: Any, folder: Path) -> None:
    """Load a tensor into the model if it is external."""
    if tensor.data_location != _EXTERNAL:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    if not inside_folder(name):
        raise InvalidProtobuf(
            f'Tensor {tensor.name} refers to the file "{name}", which is outside of the model\'s folder.',
            cause=WEIGHTS_OUTSIDE,
            fix=weights_outside_fix(None),
        )
    needed = bytes_of(tensor)
    offset, length = (entries.get(key, default) for key, default in (("offset", "0"), ("length", str(needed))))
    # ONNX Runtime also treats a length of 0 as missing. Numbers are strings in a model; `int` alone would also
    # accept signs, blanks and underscores.
    if not (offset.isdecimal() and length.isdecimal() and int(length) in (0, needed)):
        raise InvalidGraph(
            f"Tensor {tensor.name} has an invalid location: {length} bytes at offset {offset} of the file {name}.",
            cause=f"The tensor's shape {list(tensor.dims)} requires {needed:,} bytes.",
            fix="The model is damaged: export it again.",
        )
    with open_regular(folder / name) as file:
        there = os.fstat(file.fileno()).st_size - int(offset)
        if there < needed:
            raise InvalidGraph(
                f"The file {name} of the model is cut off.",
                cause=f"Tensor {tensor.name} requires {needed:,} bytes at offset {int(offset):,}; from this offset "
                f"on, the file has only {max(0, there):,} bytes.",
                fix="Copy or download the file again, or export the model again.",
            )
        file.seek(int(offset))
        # Open with buffering, which reads all requested bytes. An unbuffered file may return fewer.
        tensor.raw_data = io.BufferedReader(file).read(needed)
    tensor.data_location = 0
    del tensor.external_data[:]


def is_too_large(model: Any) -> bool:
    """Return whether a model with its embedded tensors exceeds protobuf's limit, beyond which `ByteSize` fails."""
    return sum(len(tensor.raw_data) for tensor in _tensors(model.graph)) > TOO_LARGE_FOR_ONE_MESSAGE


def _tensors(graph: Any) -> Iterator[Any]:
    for inner in subgraphs(graph):
        yield from inner.initializer
        for node in inner.node:
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def subgraphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and all graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        yield from graphs_in(node)


def graphs_in(node: Any) -> Iterator[Any]:
    """Yield all graphs inside of a node, with their subgraphs."""
    for body in bodies_of(node):
        yield from subgraphs(body)


def bodies_of(node: Any) -> Iterator[Any]:
    """Yield the direct subgraphs of a node: the branches of an If, the body of a loop."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def nodes(model: Any) -> Iterator[Any]:
    for graph in subgraphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def op_name(node: Any) -> str:
    """Return the operator, with its domain unless it is ONNX's own: `Conv`, `com.microsoft.FusedConv`."""
    return node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


def count_ops(model: Any) -> dict[str, int]:
    """Return the number of nodes of each operator before optimisation, most frequent first."""
    functions = {operator_of(one.name, one.domain): _operators(one.node) for one in model.functions}
    counted = written_out(_operators(model.graph.node), functions)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _operators(nodes: Iterable[Any]) -> Counter[Operator]:
    """Count the operators of `nodes` and of their subgraphs."""
    found: Counter[Operator] = Counter()
    for node in nodes:
        found[operator_of(node.op_type, node.domain)] += 1
        for inner in graphs_in(node):
            found.update(operator_of(one.op_type, one.domain) for one in inner.node)
    return found


def opset_of(model: Any) -> int | None:
    """Return the version of ONNX's own operator set; None if the model does not import the set."""
    return next((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), None)


def trim_opsets(model: Any, wanted: Any = None) -> None:
    """Remove unused domains, which ONNX Runtime adds to every model that it writes.

    Keep the domains that the original model `wanted` imports.
    """
    used = {node.domain for node in nodes(model)} | set(ONNX_DOMAINS)
    if wanted is not None:
        used |= {entry.domain for entry in wanted.opset_import}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def has_float16(model: Any) -> bool:
    """Return whether a weight, an input or an output has half floats."""
    return any(
        tensor.data_type == _FLOAT16 for graph in subgraphs(model.graph) for tensor in graph.initializer
    ) or any(value.type.tensor_type.elem_type == _FLOAT16 for value in [*model.graph.input, *model.graph.output])


def weights_out_of_inputs(model: Any) -> int:
    """Remove initializers from the inputs, so that no caller can override them; return their number."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in defaults]
    moved = len(model.graph.input) - len(kept)
    if moved:
        del model.graph.input[:]
        model.graph.input.extend(kept)
    return moved


def constant_tensor(node: Any) -> Any | None:
    """Return a copy of `tensor_inside(node)` with the name of the node's output; None if that returns None."""
    found = tensor_inside(node)
    if found is None:
        return None
    tensor = type(found)()
    tensor.CopyFrom(found)
    tensor.name = node.output[0]
    return tensor


def constants(graph: Any) -> dict[str, Any]:
    """Return the tensors of initializers and Constant nodes, by the names that other nodes use for them."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = tensor_inside(node)
        if tensor is not None:
            found[node.output[0]] = tensor
    return found


def tensor_inside(node: Any) -> Any | None:
    """Return the tensor of a Constant node; None for other operators and for strings and sparse values."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS or not node.attribute or not node.output:
        return None
    # ONNX allows exactly one attribute for a Constant.
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    if attribute.name not in _CONSTANT_TYPES:
        return None
    from onnx import helper, numpy_helper

    value = np.asarray(helper.get_attribute_value(attribute), _CONSTANT_TYPES[attribute.name])
    return numpy_helper.from_array(value)


def attribute_values(node: Any) -> dict[str, Any]:
    """Return the attributes by name, strings as `str`, without tensors and graphs."""
    found: dict[str, Any] = {}
    if not node.attribute:
        return found
    from onnx import helper

    for attribute in node.attribute:
        if attribute.HasField("t") or attribute.HasField("g") or attribute.graphs or attribute.tensors:
            continue
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return found


# The quantizer excludes single nodes by name, but ONNX does not require that a node has a name.
def name_nodes(model: Any) -> int:
    """Give every node of the graph a unique name, in place; return the number of changed nodes."""
    taken = Counter(node.name for node in model.graph.node)
    seen: set[str] = set()
    named = 0
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            named += 1
            node.name = f"{node.op_type}_{number}"
            while node.name in taken or node.name in seen:
                node.name += "_"
        seen.add(node.name)
    return named


def captured_by(node: Any) -> Iterator[str]:
    """Yield the names of the tensors that the subgraphs of a node use."""
    for inner in graphs_in(node):
        for one in inner.node:
            yield from one.input
        for value in inner.output:
            yield value.name


def reads(node: Any) -> list[str]:
    """Return the names of the tensors that a node or its subgraphs read."""
    return [*node.input, *captured_by(node)]


def shrink_masks(model: Any, huge_from: float = HUGE_MASK, size: float = ENOUGH_FOR_MASK) -> int:
    """Replace the huge values of attention masks, so that the masks can be quantised, in place; return the number
    of masks.

    An initializer is a mask if it contains only 0, 1 and huge values. A mask is added to scores with a magnitude
    below 100. If the mask contains -3.4e38, the quantisation range of the sum leaves no resolution for the scores:
    the cosine similarity of a sentence encoder to its float model was 0.48 with -3.4e38, and 0.98 with -1e4, for
    which the softmax is 0 as well.

    Args:
        model: the model to change.
        huge_from: magnitude from which values count as huge.
        size: magnitude that replaces huge values.
    """
    from onnx import numpy_helper

    used_by: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            used_by.setdefault(name, set()).add(node.op_type)
    shrunk = 0
    for tensor in model.graph.initializer:
        if tensor.data_type != _FLOAT or not used_by.get(tensor.name, set()) & set(MASK_ADDING_OPS):
            continue
        # Skip masks that other operators read, because these need the original values.
        if used_by[tensor.name] - set(MASK_ADDING_OPS):
            continue
        values = numpy_helper.to_array(tensor)
        huge = np.abs(values) >= huge_from
        if not huge.any() or not (huge | (values == 0) | (values == 1)).all():
            continue
        tensor.CopyFrom(
            numpy_helper.from_array(np.where(huge, np.sign(values) * size, values).astype(np.float32), tensor.name)
        )
        shrunk += 1
    return shrunk


def types_of(model: Any) -> dict[str, TensorType]:
    """Return the types of inputs, outputs, initializers and inner tensors, as far as onnx can infer them."""
    found = _declared(infer(model))
    if any(shape is None or None in shape for _, shape in found.values()) and _has_stale_sizes(model):
        # Converters to float16 write free sizes (`unk__3`) for tensors whose sizes follow from constants. onnx
        # keeps a declared free size even if it could compute the number, so a second inference runs without the
        # declarations.
        bare = without_weights(model)
        known = [value for value in bare.graph.value_info if not _has_free_size(value)]
        del bare.graph.value_info[:]
        bare.graph.value_info.extend(known)
        for name, (element, shape) in _declared(infer(bare)).items():
            if shape is not None and None not in shape and name in found:
                found[name] = (found[name][0] or element, shape)
    return found


def _declared(model: Any) -> dict[str, TensorType]:
    """Return the types of the model's tensors, as the model declares them."""
    # Read initializers first, because their shapes are exact, while a declared shape may have free axes.
    found: dict[str, TensorType] = {
        tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer
    }
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        # A name may occur in several lists; the first entry with a shape is used.
        if value.name not in found or found[value.name][1] is None:
            found[value.name] = type_of_value(value)
    return found


def _has_stale_sizes(model: Any) -> bool:
    """Return whether inner tensors have free sizes although no input has a free size."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = (value for value in model.graph.input if value.name not in weights)
    return not any(map(_has_free_size, inputs)) and any(map(_has_free_size, model.graph.value_info))


def _has_free_size(value: Any) -> bool:
    return any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)


def infer(model: Any) -> Any:
    """Return a copy with inferred shapes and without weights; the model itself if the inference fails."""
    from onnx import shape_inference

    light = without_weights(model, plain=True)
    # Drop declarations of initializers: they may have free sizes, and onnx prefers them over the tensor's shape.
    weights = {tensor.name for tensor in light.graph.initializer}
    if any(value.name in weights for value in light.graph.value_info):
        between = [value for value in light.graph.value_info if value.name not in weights]
        del light.graph.value_info[:]
        light.graph.value_info.extend(between)
    # First try with data propagation, which follows computed sizes, unless it would create large tensors.
    for data_prop in (False,) if computes_many_sizes(light) else (True, False):
        try:
            # Do not use strict_mode, with which an operator that onnx cannot infer would prevent the inference of
            # all other types.
            return shape_inference.infer_shapes(light, strict_mode=False, data_prop=data_prop)
        except Exception:  # noqa: BLE001, S112 - any exception of onnx's C++; declared shapes remain
            continue
    return model


def without_weights(model: Any, *, plain: bool = False) -> Any:
    """Return a copy of a model without the data of large tensors, because copying that data would take most of the
    time.

    Args:
        model: the model to copy.
        plain: replace operators of ONNX Runtime for which onnx cannot infer shapes by operators with the same
            shapes, and write out default attributes that onnx gets wrong.
    """
    light = type(model)()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = model.graph
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(graph, field))
    light.graph.name = graph.name
    foreign = [node for node in light.graph.node if node.domain == _MICROSOFT] if plain else []
    if plain:
        _write_out_defaults(light.graph.node)
    if foreign:
        elements = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in foreign:
            _make_inferable(node, elements)
    for tensor in graph.initializer:
        stub = light.graph.initializer.add()
        if len(tensor.raw_data) <= SMALL_BYTES and math.prod(tensor.dims) <= SMALL_BYTES:
            stub.CopyFrom(tensor)
        else:
            # Mark the tensor as external, or readers would take the missing data for zeros.
            stub.name, stub.data_type, stub.data_location = tensor.name, tensor.data_type, _EXTERNAL
            stub.dims.extend(tensor.dims)
    return light


def _write_out_defaults(nodes: Any) -> None:
    """Write out a default attribute that onnx 1.23 infers wrong: STFT is one-sided without the attribute."""
    from onnx import helper

    for node in nodes:
        if node.op_type == "STFT" and all(attribute.name != "onesided" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))


def _make_inferable(node: Any, elements: Mapping[str, int]) -> None:
    """Replace an operator for which onnx cannot infer shapes by an operator with the same shapes. elements: types
    of the initializers."""
    if node.op_type not in _SAME_SHAPE:
        return
    from onnx import helper

    element = _FLOAT
    if node.op_type == "QuantizeLinear":
        element = elements.get(node.input[2] if len(node.input) > 2 else "", _UINT8)
    # Cast and Identity have one input and one output.
    del node.input[1:], node.output[1:], node.attribute[:]
    node.domain = ""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        node.op_type = "Cast"
        node.attribute.append(helper.make_attribute("to", element))
    else:
        node.op_type = "Identity"


def type_of_value(value: Any) -> TensorType:
    """Return the type that an input, an output or a value_info declares."""
    if not value.type.HasField("tensor_type"):
        return 0, None
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    # A dimension that is not set also has dim_value 0, so check whether the field exists.
    dims = tuple(
        size if (size := dim.dim_value) > 0 or (size == 0 and dim.HasField("dim_value")) else None
        for dim in tensor.shape.dim
    )
    return tensor.elem_type, dims
