"""Replace operators that exporters write and QNN refuses by operators that QNN supports, with the same results.

Most rewrites need fixed shapes. Tensors without elements are not rewritten, because a size of 0 in a Reshape copies
the size of the input.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import FLOATS, Editor
from qnnbridge_host.model.operator_tables import FAILS_BEYOND
from qnnbridge_host.rewrite.rewriting import NodeChain, drop_attribute, for_nodes, sliced
from qnnbridge_protocol.elements import ElementType

# ONNX's default activations for one direction.
_DEFAULT_ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "GRU": ("sigmoid", "tanh"),
    "LSTM": ("sigmoid", "tanh", "tanh"),
}
# Maximum number of elements of a constant (indices, sizes of parts) that a rewrite reads, to save memory.
_MOST_ELEMENTS: Final = 1 << 20


@for_nodes(tuple(_DEFAULT_ACTIVATIONS), "stated defaults")
def drop_default_activations(editor: Editor, node: Any) -> list[Any] | None:
    """Remove explicit default activations of GRU and LSTM: QNN refuses the attribute."""
    given = graphs.attribute_values(node)
    stated = [one.decode("utf-8", "replace").lower() for one in given.get("activations", ())]
    directions = 2 if given.get("direction", "forward") == "bidirectional" else 1
    if not stated or tuple(stated) != _DEFAULT_ACTIVATIONS[node.op_type] * directions:
        return None
    for name in ("activations", "activation_alpha", "activation_beta"):
        drop_attribute(node, name)  # sigmoid and tanh do not use the parameters in these attributes
    return [node]


@for_nodes("GatherND", "GatherND with constant indices")
def gather_nd_by_gather(editor: Editor, node: Any) -> list[Any] | None:
    """Replace GatherND with constant indices by Reshape, Gather and Reshape.

    The Gather is omitted if the indices select all elements in their order, as in ``mask[batch, positions]``, which
    PyTorch's newer exporter writes for every transformer.
    """
    shape, indices = editor.shape(node.input[0]), editor.constant(node.input[1], _MOST_ELEMENTS)
    if shape is None or indices is None or graphs.attribute_values(node).get("batch_dims", 0):
        return None
    depth = indices.shape[-1] if indices.ndim else 0
    outer = shape[:depth]
    if not 1 <= depth <= len(shape) or not indices.size or 0 in shape:
        return None
    counted = np.where(indices < 0, indices + np.array(outer), indices)
    if (counted < 0).any() or (counted >= np.array(outer)).any():
        return None  # an index is out of range: ONNX Runtime will report it
    flat = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), outer).ravel()
    made_shape = [*indices.shape[:-1], *shape[depth:]]
    chain = NodeChain(editor, node)
    value = node.input[0]
    if not np.array_equal(flat, np.arange(math.prod(outer))):
        is_bool = editor.element(value) == ElementType.BOOL
        if is_bool:  # QNN's Gather does not support booleans
            value = chain("Cast", value, to=ElementType.INT32.value)
        value = chain("Reshape", value, _sizes(editor, [math.prod(outer), *shape[depth:]]))
        value = chain("Gather", value, editor.add_constant(flat.astype(np.int64), "flat"), axis=0)
        if is_bool:
            value = chain("Cast", value, to=ElementType.BOOL.value)
    chain("Reshape", value, _sizes(editor, made_shape))
    return chain.nodes()


# Position of the mask among the inputs of Attention.
_MASK: Final = 3


@for_nodes("Attention", "mask of truth values")
def add_attention_mask(editor: Editor, node: Any) -> list[Any] | None:
    """Replace a boolean mask of Attention, which QNN does not support, by a float mask that is added."""
    if len(node.input) <= _MASK or editor.element(node.input[_MASK]) != ElementType.BOOL:
        return None
    if editor.element(node.input[0]) not in (ElementType.FLOAT, ElementType.FLOAT16):
        return None
    kept, masked = (editor.like(node.input[0], value, "mask") for value in (0.0, -graphs.ENOUGH_FOR_MASK))
    mask = editor.make("Where", [node.input[_MASK], kept, masked], node)
    node.input[_MASK] = mask.output[0]
    return [mask, node]


def _sizes(editor: Editor, sizes: Sequence[int]) -> str:
    return editor.add_constant(np.array(sizes, np.int64), "sizes")


@for_nodes("DequantizeLinear", "rows of a quantised table")
def dequantize_before_gather(editor: Editor, node: Any) -> list[Any] | None:
    """Move DequantizeLinear before a Gather from a table of 8-bit integers: QNN's Gather does not support these
    integers.
    """
    gather = editor.maker_of(node.input[0], "Gather")
    if gather is None or editor.tensor(gather.input[0]) is None:
        return None
    # The table needs a single scale: if it had several, each scale would have to be gathered with its rows.
    if any(editor.shape(name) not in ((), (1,)) for name in node.input[1:] if name):
        return None
    if editor.element(gather.input[0]) not in (ElementType.INT8, ElementType.UINT8):
        return None
    dequantized = editor.make("DequantizeLinear", [gather.input[0], *node.input[1:]], node)
    dequantized.attribute.extend(node.attribute)
    axis = graphs.attribute_values(gather).get("axis", 0)
    rows = editor.make("Gather", [dequantized.output[0], gather.input[1]], node, node.output[0], axis=axis)
    return [dequantized, rows]


@for_nodes("SequenceAt", "part of a sequence")
def slice_of_a_sequence(editor: Editor, node: Any) -> list[Any] | None:
    """Replace SequenceAt of SplitToSequence by a Slice: QNN does not support sequences."""
    split = editor.maker_of(node.input[0], "SplitToSequence")
    number = editor.constant(node.input[1], 1)
    if split is None or number is None:
        return None
    given = graphs.attribute_values(split)
    shape = editor.dims(split.input[0])
    axis = given.get("axis", 0)
    if shape is None or 0 in shape or not -len(shape) <= axis < len(shape):
        return None
    length = shape[axis]
    if length is None:
        return None
    sizes: Any = None
    drops_axis = False
    if len(split.input) > 1 and split.input[1]:
        sizes = editor.constant(split.input[1], _MOST_ELEMENTS)
        # With sizes and keepdims=0 ONNX Runtime drops the axis, but ONNX keeps it.
        if sizes is None or not given.get("keepdims", 1):
            return None
        if not sizes.ndim:  # a scalar is the size of each part; the last part may be smaller
            each = int(sizes)
            sizes = np.array([min(each, length - start) for start in range(0, length, each)]) if each > 0 else None
    else:
        sizes, drops_axis = np.ones(length, np.int64), not given.get("keepdims", 1)
    part = int(number.reshape(()))
    if sizes is None or int(sizes.sum()) != length or not -len(sizes) <= part < len(sizes):
        return None
    start = int(sizes[: part % len(sizes)].sum())
    end = start + int(sizes[part])
    if not drops_axis:
        return [sliced(editor, node, split.input[0], axis % len(shape), start, end, node.output[0])]
    kept = [size for at, size in enumerate(shape) if at != axis % len(shape)]
    known = [size for size in kept if size is not None]
    if len(known) < len(kept):
        return None
    slice_node = sliced(editor, node, split.input[0], axis % len(shape), start, end)
    return [slice_node, editor.make("Reshape", [slice_node.output[0], _sizes(editor, known)], node, node.output[0])]


@for_nodes("ScatterElements", "ScatterElements of whole rows")
def scatter_rows(editor: Editor, node: Any) -> list[Any] | None:
    """Replace ScatterElements by ScatterND if all indices of a row are equal, as in graph networks.

    Rewrite only the reductions add and mul of floats: QNN's ScatterND lacks other reductions and computes
    integers as floats, and without a reduction the order of updates would matter for a repeated index.
    """
    given = graphs.attribute_values(node)
    reduction = given.get("reduction", "none")
    shapes = [editor.shape(name) for name in node.input]
    if reduction not in ("add", "mul") or any(shape is None for shape in shapes):
        return None
    if editor.element(node.input[0]) not in FLOATS:
        return None
    data, indices, updates = (shape for shape in shapes if shape is not None)
    if (
        not data
        or given.get("axis", 0) % len(data)
        or updates != indices
        or updates[1:] != data[1:]
        or 0 in updates
    ):
        return None
    column = _column_of(editor, node.input[1], indices, data[0])
    if column is None:
        return None
    before, name = column
    return [
        *before,
        editor.make("ScatterND", [node.input[0], name, node.input[2]], node, node.output[0], reduction=reduction),
    ]


# Maximum number of compared elements, because every row of the data is compared with every update.
_MOST_COMPARED: Final = 1 << 22
_EXTREMES: Final[Mapping[str, str]] = {"max": "ReduceMax", "min": "ReduceMin"}


@for_nodes("ScatterElements", "ScatterElements of extremes")
def scatter_extremes(editor: Editor, node: Any) -> list[Any] | None:
    """Replace ScatterElements with the reduction max or min by Where and ReduceMax or ReduceMin.

    All indices of a row must be equal. Each row of the data is combined with each row of the updates; updates for
    other rows are replaced by the row itself, which does not change the extreme.
    """
    given = graphs.attribute_values(node)
    reduce = _EXTREMES.get(given.get("reduction", "none"))
    data, indices, updates = (editor.shape(name) for name in node.input)
    if reduce is None or not data or indices is None or updates != indices:
        return None
    if editor.element(node.input[0]) not in FLOATS:
        return None
    if given.get("axis", 0) % len(data) or updates[1:] != data[1:] or 0 in updates or 0 in data:
        return None
    rows, count, width = data[0], updates[0], math.prod(data[1:])
    column = _column_of(editor, node.input[1], indices, rows) if rows * count * width <= _MOST_COMPARED else None
    if column is None:
        return None
    before, name = column
    chain = NodeChain(editor, node)
    places = editor.add_constant(np.arange(rows, dtype=np.int64).reshape(rows, 1, 1), "places")
    belongs = chain("Equal", chain("Reshape", name, _sizes(editor, [1, count, 1])), places)
    own = chain("Reshape", node.input[0], _sizes(editor, [rows, 1, width]))
    value = chain("Where", belongs, chain("Reshape", node.input[2], _sizes(editor, [1, count, width])), own)
    value = chain(reduce, value, editor.add_constant(np.array([1], np.int64), "along"), keepdims=0)
    chain("Reshape", value, _sizes(editor, data))
    return [*before, *chain.nodes()]


def _column_of(editor: Editor, indices: str, shape: Sequence[int], rows: int) -> tuple[list[Any], str] | None:
    """Return nodes that compute one index for each row, in the shape [count, 1], and the name of their result.

    Return ``None`` if the indices of a row may differ. rows: number of rows of the data.
    """
    value = editor.constant(indices, _MOST_ELEMENTS)
    if value is not None:
        flat = value.reshape(shape[0], -1)
        same = bool((flat == flat[:, :1]).all() and (flat >= 0).all())
        return ([], editor.add_constant(flat[:, :1].astype(np.int64), "rows")) if same else None
    # Skip Identity nodes, which inlining the branch of an If leaves.
    while (copy := editor.maker_of(indices, "Identity")) is not None:
        indices = copy.input[0]
    maker = editor.maker_of(indices, "Expand")
    if maker is None:
        return None
    source = editor.shape(maker.input[0])
    if source is None or source != (shape[0], *[1] * (len(shape) - 1)):
        return None
    chain = NodeChain(editor, maker)
    column = chain("Reshape", maker.input[0], _sizes(editor, [shape[0], 1]))
    if editor.element(maker.input[0]) != ElementType.INT64:
        column = chain("Cast", column, to=ElementType.INT64.value)
    # Convert negative indices, which count from the end: QNN ignores updates with a negative index (2.7.0).
    zero, count = (editor.add_constant(np.array(value, np.int64), "number") for value in (0, rows))
    column = chain("Where", chain("Less", column, zero), chain("Add", column, count), column)
    return chain.made, column


# ONNX Runtime lacks a kernel for these operators and replaces them by ONNX's definition while it partitions the
# model. Such a model runs but cannot be compiled ("Encountered an invalid node"; 1.32 with onnxruntime-qnn 2.7).
_WRITTEN_OUT: Final = ("Mish", "GroupNormalization")
_GROUP_NORMALIZATION_CHANGED = 21  # the first opset for which ONNX Runtime has a kernel


def write_out_definitions(editor: Editor) -> list[str]:
    """Replace Mish, and GroupNormalization of opset 18 or of five dimensions, by their ONNX definitions."""
    changes = []
    for name in _WRITTEN_OUT:
        has_kernel = name == "GroupNormalization" and editor.opset >= _GROUP_NORMALIZATION_CHANGED
        if has_kernel and not _fails_by_rank(editor):
            continue
        # Replace each operator separately, so that a failure for one operator does not prevent the others.
        before = _count_of(editor, name)
        if before and _write_out(editor, name) and (done := before - _count_of(editor, name)):
            changes.append(f"{done} {name}")
    return changes


def _fails_by_rank(editor: Editor) -> bool:
    """Return whether a GroupNormalization has too many dimensions for a session.

    A Reshape to fewer dimensions does not help: sessions of the reshaped model also fail (onnxruntime-qnn 2.7.0).
    """
    most = FAILS_BEYOND["GroupNormalization"]
    nodes = (node for node in editor.protos if node.op_type == "GroupNormalization")
    return any((editor.rank(node.input[0]) or 0) > most for node in nodes)


def _count_of(editor: Editor, op: str) -> int:
    return sum(node.op_type == op and node.domain in graphs.ONNX_DOMAINS for node in editor.protos)


def _write_out(editor: Editor, op: str) -> bool:
    """Replace an operator by its definition. Return False if onnx cannot provide the definition."""
    from onnx import helper, inliner

    # Omit the weights, because only their types are needed and the weights may exceed protobuf's limit.
    graph = editor.graph
    known = {value.name for value in (*graph.input, *graph.output)}
    types = {name: found for name, found in editor.types.items() if name not in known and found[0]}
    values = [helper.make_tensor_value_info(name, element, shape) for name, (element, shape) in types.items()]
    outline = helper.make_graph(
        list(graph.node), graph.name, list(graph.input), list(graph.output), value_info=values
    )
    model = helper.make_model(
        outline,
        ir_version=editor.model.ir_version,
        opset_imports=list(editor.model.opset_import),
        functions=list(editor.model.functions),
    )
    try:
        domains = [(domain, op) for domain in graphs.ONNX_DOMAINS]
        written = inliner.inline_selected_functions(model, domains, False, True)
    except (RuntimeError, TypeError, ValueError):  # onnx is too old, or cannot infer the type
        return False
    editor.set_nodes(written.graph.node)
    editor.changed(shapes=True)
    return True


# --- Col2Im ----------------------------------------------------------------------------------------------


@for_nodes("Col2Im", "Col2Im")
def columns_by_transposed_conv(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Col2Im (PyTorch's `fold`) by a ConvTranspose that adds each value at its position.

    The channels become the batch, because all channels have the same weights, one for each position of the window.
    """
    shape, made = editor.shape(node.input[0]), editor.shape(node.output[0])
    image, window = (editor.constant(name, 8) for name in node.input[1:3])
    if shape is None or made is None or image is None or window is None or len(window) > 2 or 0 in (*shape, *made):
        return None
    given, axes = graphs.attribute_values(node), range(len(window))
    strides, dilations = (given.get(name, [1] * len(window)) for name in ("strides", "dilations"))
    pads = list(given.get("pads", [0] * 2 * len(window)))
    if max(dilations) > 1:
        return None  # QNN's transposed convolution does not support dilations
    size, places = [int(length) for length in window], math.prod(map(int, window))
    padded = [int(image[at]) + pads[at] + pads[at + len(window)] for at in axes]
    steps = [(padded[at] - size[at]) // strides[at] + 1 for at in axes]
    # ConvTranspose does not compute positions at the end that no window reaches, so reduce the padding there.
    beyond = [padded[at] - (steps[at] - 1) * strides[at] - size[at] for at in axes]
    for at in axes:
        cut = min(beyond[at], pads[at + len(window)])
        pads[at + len(window)] -= cut
        beyond[at] -= cut
    if shape[-2] % places or math.prod(steps) != shape[-1]:
        return None
    chain = NodeChain(editor, node)
    value = chain("Reshape", node.input[0], _sizes(editor, [math.prod(shape[:-1]) // places, places, *steps]))
    weight = editor.like(node.input[0], np.eye(places).reshape(places, 1, *size), "places")
    more = {"output_padding": beyond} if any(beyond) else {}
    value = chain("ConvTranspose", value, weight, strides=strides, pads=pads, **more)
    chain("Reshape", value, _sizes(editor, made))
    return chain.nodes()


# --- DFT -------------------------------------------------------------------------------------------------

_AXIS_IS_AN_INPUT = 20  # first opset in which the axis is an input
# Maximum number of elements of the matrix, which becomes a weight: enough for a DFT of 1,024 complex values.
_MOST_OF_DFT: Final = 1 << 22


@for_nodes("DFT", "DFT")
def dft_by_matmul(editor: Editor, node: Any) -> list[Any] | None:
    """Replace DFT of a known length by a product with its matrix, because QNN has no Fourier transform along one
    axis."""
    given = graphs.attribute_values(node)
    inverse, onesided = bool(given.get("inverse", 0)), bool(given.get("onesided", 0))
    shape, others = editor.shape(node.input[0]), [*node.input[1:], "", ""]
    # The last axis contains the real part, or the real and the imaginary part.
    if shape is None or len(shape) < 2 or shape[-1] not in (1, 2) or (onesided and (inverse or shape[-1] == 2)):
        return None
    axis: Any = given.get("axis", 1)
    if editor.opset >= _AXIS_IS_AN_INPUT:
        axis = editor.constant(others[1], 1) if others[1] else -2
    wanted = editor.constant(others[0], 1) if others[0] else None
    if axis is None or (others[0] and wanted is None):
        return None
    axis = int(np.asarray(axis).reshape(())) % len(shape)
    length = shape[axis] if wanted is None else int(wanted.reshape(()))
    made = length // 2 + 1 if onesided else length
    size = shape[axis] * shape[-1]
    if axis == len(shape) - 1 or length < 1 or not math.prod(shape) or size * made * 2 > _MOST_OF_DFT:
        return None
    if shape[axis] == 2:  # only the last size would change in the last Reshape below, which QNN cannot finalize
        return None
    matrix = _dft_matrix(shape[axis], length, made, inverse)[:, : shape[-1]].reshape(size, 2 * made)
    last = len(shape) - 1
    kept = [at for at in range(last) if at != axis]
    sizes = [shape[at] for at in kept]
    chain = NodeChain(editor, node)
    value = node.input[0]
    if axis != last - 1:
        value = chain("Transpose", value, perm=[*kept, axis, last])
    value = chain("Reshape", value, _sizes(editor, [math.prod(sizes), size]))
    value = chain("MatMul", value, editor.like(node.input[0], matrix, "dft"))
    # Put the axis of real and imaginary parts first: QNN 2.7.0 cannot finalize Reshape, MatMul and
    # Reshape if only the last size changes.
    value = chain("Reshape", value, _sizes(editor, [*sizes, 2, made]))
    order = [*kept, last, axis]
    chain("Transpose", value, perm=[order.index(at) for at in range(len(shape))])
    return chain.nodes()


def _dft_matrix(count: int, length: int, made: int, inverse: bool) -> np.ndarray[Any, Any]:
    """Return the contribution of each value to each frequency, as an array of shape [count, 2, 2, made].

    The axes of size 2 are the real and imaginary parts of value and frequency. Values after `length` contribute 0.
    """
    # Reduce the number of turns modulo `length`, so that the angles stay small and exact.
    turns = np.outer(np.arange(count), np.arange(made)) % length
    angles = 2 * np.pi / length * turns * (1 if inverse else -1)
    cos, sin = np.cos(angles), np.sin(angles)
    parts: np.ndarray[Any, Any] = np.array([[cos, sin], [-sin, cos]]).transpose(2, 0, 1, 3)
    parts[length:] = 0
    if inverse:
        parts /= length
    return parts


@for_nodes(("Loop", "Scan", "If"), "body with weights of the model")
def weights_by_sequence(editor: Editor, node: Any) -> list[Any] | None:
    """Pass weights that a body reads from the main graph through a sequence.

    A compiled model contains only weights that nodes of the main graph read on the CPU. If a body reads another
    weight, ONNX Runtime cannot load its own compiled model. QNN does not support sequences, so the new node that
    reads the weight stays on the CPU. Moving the weight into the body does not help: ONNX Runtime cannot write
    such a weight of more than 127 bytes.
    """
    bodies = list(graphs.graphs_in(node))
    own = {name for body in bodies for one in body.node for name in one.output}
    own.update(value.name for body in bodies for value in (*body.input, *body.initializer))
    constants = editor.constants.keys() - own
    wanted = dict.fromkeys(name for name in graphs.captured_by(node) if name in constants)
    if not wanted:
        return None
    first = editor.add_constant(np.array(0), "first")
    chain = NodeChain(editor, node)
    kept = {name: chain("SequenceAt", chain("SequenceConstruct", name), first) for name in wanted}
    for body in bodies:
        for one in body.node:
            one.input[:] = [kept.get(name, name) for name in one.input]
    return [*chain.made, node]


# --- Einsum ----------------------------------------------------------------------------------------------


@for_nodes("Einsum", "Einsum")
def einsum_by_matmul(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Einsum of floats by transposes, reshapes and products, one operand after the other.

    QNN supports only a few equations, and no products of integers.
    """
    equation = graphs.attribute_values(node).get("equation", "").replace(" ", "")
    shapes = [editor.shape(name) for name in node.input]
    parsed = _parsed(equation, shapes)
    if parsed is None:
        return None
    terms, result, size = parsed
    element = editor.element(node.input[0])
    # QNN does not support matrix products of integers, so an equation of integers must not sum over a letter.
    if element not in FLOATS and (element not in _WHOLE or set("".join(terms)) != set(result)):
        return None
    chain = NodeChain(editor, node)
    value, letters = node.input[0], terms[0]
    for number, other in enumerate(terms[1:], 1):
        needed = set(result).union(*terms[number + 1 :])
        value, letters = _product(chain, (value, letters), (node.input[number], other), needed, size)
    value, letters = _summed(chain, value, letters, set(result), size)
    if letters != result:
        chain("Transpose", value, perm=[letters.index(letter) for letter in result])
    elif not chain.made:
        chain("Identity", value)
    return chain.nodes()


def _parsed(
    equation: str, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[list[str], str, dict[str, int]] | None:
    """Return the letters of the operands and the result, and their sizes; ``None`` for diagonals and
    broadcasting."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    dotted = _without_dots(terms, result, arrow, shapes) if _DOTS in equation else None
    if dotted is not None:
        (terms, result), arrow = dotted, "->"
    if len(terms) != len(shapes) or not all(term.isalpha() and len(set(term)) == len(term) for term in terms):
        return None
    if not arrow:  # the result has the letters that occur once in the operands, in alphabetical order
        result = "".join(sorted(letter for letter in set("".join(terms)) if "".join(terms).count(letter) == 1))
    size: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(shape) != len(term) or 0 in shape:
            return None
        for letter, length in zip(term, shape, strict=True):
            if size.setdefault(letter, length) != length:
                return None
    # A scalar result would need a Reshape to a shape without axes, which QNN does not support.
    if not result or len(set(result)) != len(result) or not set(result) <= size.keys():
        return None
    return terms, result, size


_DOTS: Final = "..."
_WHOLE: Final = (ElementType.INT32.value, ElementType.INT64.value)


def _without_dots(
    terms: Sequence[str], result: str, arrow: str, shapes: Sequence[tuple[int, ...] | None]
) -> tuple[list[str], str] | None:
    """Return an equation's terms and result with letters instead of "..."; ``None`` if "..." represents different
    axes."""
    counts = {
        len(shape) - len(term.replace(_DOTS, ""))
        for term, shape in zip(terms, shapes, strict=False)
        if _DOTS in term and shape is not None
    }
    free = [letter for letter in string.ascii_letters if not any(letter in term for term in terms)]
    if len(counts) != 1 or not 0 <= min(counts) <= len(free):
        return None
    if not arrow:  # the axes of "..." come first
        plain = "".join(terms).replace(_DOTS, "")
        result = _DOTS + "".join(sorted(letter for letter in set(plain) if plain.count(letter) == 1))
    named = "".join(free[: min(counts)])
    return [term.replace(_DOTS, named) for term in terms], result.replace(_DOTS, named)


def _summed(
    chain: NodeChain, value: str, letters: str, needed: set[str], size: Mapping[str, int]
) -> tuple[str, str]:
    """Sum over the letters that are not needed later, as a product with ones; return the result and its letters.

    ReduceSum is not used, because its axes are an attribute or an input depending on the opset.
    """
    over = "".join(letter for letter in letters if letter not in needed)
    if not over:
        return value, letters
    kept = "".join(letter for letter in letters if letter in needed)
    ones = chain.editor.like(chain.x, np.ones((math.prod(size[letter] for letter in over), 1)), "ones")
    value = _arranged(chain, value, letters, (kept, over), size)
    value = chain("MatMul", value, ones)
    return chain("Reshape", value, _sizes(chain.editor, [size[letter] for letter in kept] or [1])), kept


def _product(
    chain: NodeChain, one: tuple[str, str], other: tuple[str, str], needed: set[str], size: Mapping[str, int]
) -> tuple[str, str]:
    """Multiply two operands; return the result and its letters."""
    (a, in_a), (b, in_b) = one, other
    a, in_a = _summed(chain, a, in_a, needed | set(in_b), size)
    b, in_b = _summed(chain, b, in_b, needed | set(in_a), size)
    if set(in_a) == set(in_b) <= needed:  # no summed letters: multiply element by element
        if in_b != in_a:
            b = chain("Transpose", b, perm=[in_b.index(letter) for letter in in_a])
        return chain("Mul", a, b), in_a
    batch = "".join(letter for letter in in_a if letter in in_b and letter in needed)
    over = "".join(letter for letter in in_a if letter in in_b and letter not in needed)
    rows = "".join(letter for letter in in_a if letter not in in_b)
    columns = "".join(letter for letter in in_b if letter not in in_a)
    if not over:  # nothing to sum: an outer product
        left = _arranged(chain, a, in_a, (batch, rows, ""), size)
        value = chain("Mul", left, _arranged(chain, b, in_b, (batch, "", columns), size))
        return chain("Reshape", value, _sizes(chain.editor, [size[letter] for letter in batch + rows + columns])), (
            batch + rows + columns
        )
    left = _arranged(chain, a, in_a, (batch, rows, over), size)
    right = _arranged(chain, b, in_b, (batch, over, columns), size)
    result = batch + rows + columns
    value = chain("MatMul", left, right)
    return chain("Reshape", value, _sizes(chain.editor, [size[letter] for letter in result])), result


def _arranged(chain: NodeChain, value: str, letters: str, groups: Sequence[str], size: Mapping[str, int]) -> str:
    """Transpose and reshape an operand so that each group of letters becomes one axis."""
    order = "".join(groups)
    if order != letters:
        value = chain("Transpose", value, perm=[letters.index(letter) for letter in order])
    sizes = [math.prod(size[letter] for letter in group) for group in groups]
    return chain("Reshape", value, _sizes(chain.editor, sizes))
