"""Rewrites of what exporters write and QNN refuses, although it has operators that compute the same.

Each needs fixed shapes, which the rewrites in front of it have computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.rewrite.rewriting import NodeChain, drop_attribute, for_nodes, sliced
from qnnbridge_protocol.elements import ElementType

# Of one direction.
_DEFAULT_ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "GRU": ("sigmoid", "tanh"),
    "LSTM": ("sigmoid", "tanh", "tanh"),
}
# A table of more places takes more memory than the operator is worth.
_MOST_PLACES: Final = 1 << 20


@for_nodes(tuple(_DEFAULT_ACTIVATIONS), "stated defaults")
def drop_default_activations(editor: Editor, node: Any) -> list[Any] | None:
    """GRU and LSTM that state the default activations no longer do: QNN refuses the attribute."""
    given = graphs.attribute_values(node)
    stated = [one.decode("utf-8", "replace").lower() for one in given.get("activations", ())]
    directions = 2 if given.get("direction", "forward") == "bidirectional" else 1
    if not stated or tuple(stated) != _DEFAULT_ACTIVATIONS[node.op_type] * directions:
        return None
    for name in ("activations", "activation_alpha", "activation_beta"):
        drop_attribute(node, name)  # neither function has a parameter
    return [node]


@for_nodes("GatherND", "GatherND with constant indices")
def gather_nd_by_gather(editor: Editor, node: Any) -> list[Any] | None:
    """GatherND with constant indices becomes Reshape, with Gather between two if the places are not all in order.

    PyTorch's newer exporter writes ``mask[batch, positions]`` so, for every transformer.
    """
    shape, indices = editor.shape(node.input[0]), editor.constant(node.input[1], _MOST_PLACES)
    if shape is None or indices is None or graphs.attribute_values(node).get("batch_dims", 0):
        return None
    depth = indices.shape[-1]
    outer = shape[:depth]
    if not 1 <= depth <= len(shape) or not indices.size:
        return None
    counted = np.where(indices < 0, indices + np.array(outer), indices)
    if (counted < 0).any() or (counted >= np.array(outer)).any():
        return None  # ONNX Runtime will say so
    places = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), outer).ravel()
    made_shape = [*indices.shape[:-1], *shape[depth:]]
    chain = NodeChain(editor, node)
    value = node.input[0]
    if not np.array_equal(places, np.arange(math.prod(outer))):
        is_bool = editor.element(value) == ElementType.BOOL
        if is_bool:  # QNN gathers no truth values
            value = chain("Cast", value, to=ElementType.INT32.value)
        value = chain("Reshape", value, _sizes(editor, [math.prod(outer), *shape[depth:]]))
        value = chain("Gather", value, editor.add_constant(places.astype(np.int64), "places"), axis=0)
        if is_bool:
            value = chain("Cast", value, to=ElementType.BOOL.value)
    chain("Reshape", value, _sizes(editor, made_shape))
    return chain.nodes()


# The place of the mask among the inputs of Attention.
_MASK: Final = 3


@for_nodes("Attention", "mask of truth values")
def add_attention_mask(editor: Editor, node: Any) -> list[Any] | None:
    """Attention with a mask of truth values gets one of floats, which is added: QNN takes no other."""
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
    """Gather from a table of 8-bit integers and DequantizeLinear change places: QNN gathers no plain integers."""
    gather = editor.maker(node.input[0])
    if gather is None or gather.op_type != "Gather" or editor.tensor(gather.input[0]) is None:
        return None
    # One scale for the table: of several each would have to go with its rows.
    if any(editor.shape(name) not in ((), (1,)) for name in node.input[1:] if name):
        return None
    if editor.element(gather.input[0]) not in (ElementType.INT8, ElementType.UINT8):
        return None
    table = editor.make("DequantizeLinear", [gather.input[0], *node.input[1:]], node)
    axis = graphs.attribute_values(gather).get("axis", 0)
    return [table, editor.make("Gather", [table.output[0], gather.input[1]], node, node.output[0], axis=axis)]


@for_nodes("SequenceAt", "part of a sequence")
def slice_of_a_sequence(editor: Editor, node: Any) -> list[Any] | None:
    """A part of what SplitToSequence splits becomes a Slice: QNN has no sequences."""
    split = editor.maker(node.input[0])
    number = editor.constant(node.input[1], 1)
    if split is None or split.op_type != "SplitToSequence" or number is None:
        return None
    given = graphs.attribute_values(split)
    shape = editor.shape(split.input[0])
    axis = given.get("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    length = shape[axis]
    sizes: Any = None
    drops_axis = False
    if len(split.input) > 1 and split.input[1]:
        sizes = editor.constant(split.input[1], _MOST_PLACES)
        if sizes is None:
            return None
        if not sizes.ndim:  # one number: parts of that size, and a rest
            each = int(sizes)
            sizes = np.array([min(each, length - start) for start in range(0, length, each)]) if each > 0 else None
    else:
        sizes, drops_axis = np.ones(length, np.int64), not given.get("keepdims", 1)
    place = int(number.reshape(()))
    if sizes is None or int(sizes.sum()) != length or not -len(sizes) <= place < len(sizes):
        return None
    start = int(sizes[: place % len(sizes)].sum())
    end = start + int(sizes[place])
    if not drops_axis:
        return [sliced(editor, node, split.input[0], axis % len(shape), start, end, node.output[0])]
    part = sliced(editor, node, split.input[0], axis % len(shape), start, end)
    kept = [size for at, size in enumerate(shape) if at != axis % len(shape)]
    return [part, editor.make("Reshape", [part.output[0], _sizes(editor, kept)], node, node.output[0])]


@for_nodes("ScatterElements", "ScatterElements of whole rows")
def scatter_rows(editor: Editor, node: Any) -> list[Any] | None:
    """ScatterElements whose indices are the same along each row becomes ScatterND, as in graph networks.

    QNN reduces in neither with max or min. Without a reduction the order counts where an index repeats: it stays.
    """
    given = graphs.attribute_values(node)
    reduction = given.get("reduction", "none")
    shapes = [editor.shape(name) for name in node.input]
    if reduction not in ("add", "mul") or any(shape is None for shape in shapes):
        return None
    data, indices, updates = (shape for shape in shapes if shape is not None)
    if given.get("axis", 0) % len(data) or updates != indices or updates[1:] != data[1:]:
        return None
    column = _column_of(editor, node.input[1], indices)
    if column is None:
        return None
    before, name = column
    return [
        *before,
        editor.make("ScatterND", [node.input[0], name, node.input[2]], node, node.output[0], reduction=reduction),
    ]


def _column_of(editor: Editor, indices: str, shape: Sequence[int]) -> tuple[list[Any], str] | None:
    """Nodes that make one index for each row, [rows, 1], and their result."""
    value = editor.constant(indices, _MOST_PLACES)
    if value is not None:
        flat = value.reshape(shape[0], -1)
        same = flat.size and bool((flat == flat[:, :1]).all() and (flat >= 0).all())
        return ([], editor.add_constant(flat[:, :1].astype(np.int64), "rows")) if same else None
    maker = editor.maker(indices)
    if maker is None or maker.op_type != "Expand":
        return None
    source = editor.shape(maker.input[0])
    if source is None or source != (shape[0], *[1] * (len(shape) - 1)):
        return None
    column = editor.make("Reshape", [maker.input[0], _sizes(editor, [shape[0], 1])], maker)
    return [column], str(column.output[0])


# ONNX Runtime has no kernel for them and writes them out by ONNX's definition while it divides the model up. A
# model with one runs, and cannot be compiled ("Encountered an invalid node"; 1.32 with onnxruntime-qnn 2.7).
_WRITTEN_OUT: Final = ("Mish", "GroupNormalization")
_GROUP_NORMALIZATION_CHANGED = 21  # from this opset on there is a kernel


def write_out_definitions(editor: Editor) -> list[str]:
    """Mish, and GroupNormalization of opset 18, become what ONNX defines them by."""
    wanted = [name for name in _WRITTEN_OUT if name in editor.op_types]
    if editor.opset >= _GROUP_NORMALIZATION_CHANGED:
        wanted = [name for name in wanted if name != "GroupNormalization"]
    count = sum(node.op_type in wanted and node.domain in graphs.ONNX_DOMAINS for node in editor.protos)
    if not count:
        return []
    from onnx import helper, inliner

    # Without the weights, which may be larger than protobuf allows at once: their types are all that counts.
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
        written = inliner.inline_selected_functions(model, [("", name) for name in wanted], False, True)
    except (RuntimeError, TypeError, ValueError):  # a type that does not follow, an older onnx
        return []
    editor.set_nodes(written.graph.node)
    editor.changed(shapes=True)
    return [f"{count} {' and '.join(wanted)}"]


# --- Einsum ------------------------------------------------------------------------------------------------


@for_nodes("Einsum", "Einsum")
def einsum_by_matmul(editor: Editor, node: Any) -> list[Any] | None:
    """Einsum becomes transposes, reshapes and a product, operand after operand; QNN takes a few equations alone."""
    equation = graphs.attribute_values(node).get("equation", "").replace(" ", "")
    shapes = [editor.shape(name) for name in node.input]
    parsed = _parsed(equation, shapes)
    if parsed is None:
        return None
    terms, result, size = parsed
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
    """Letters of the operands and of the result, and their sizes. None for diagonals, dots and broadcast sizes."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes) or not all(term.isalpha() and len(set(term)) == len(term) for term in terms):
        return None
    if not arrow:  # the letters that come once, in alphabetic order
        result = "".join(sorted(letter for letter in set("".join(terms)) if "".join(terms).count(letter) == 1))
    size: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(shape) != len(term):
            return None
        for letter, length in zip(term, shape, strict=True):
            if size.setdefault(letter, length) != length:
                return None
    # A scalar result has no axis to reshape to that QNN takes.
    if not result or len(set(result)) != len(result) or not set(result) <= size.keys():
        return None
    return terms, result, size


def _summed(
    chain: NodeChain, value: str, letters: str, needed: set[str], size: Mapping[str, int]
) -> tuple[str, str]:
    """The sum over letters that nothing needs any more, as a product with ones: it has no attributes to differ."""
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
    """The product of two operands, with the letters of its result."""
    (a, in_a), (b, in_b) = one, other
    a, in_a = _summed(chain, a, in_a, needed | set(in_b), size)
    b, in_b = _summed(chain, b, in_b, needed | set(in_a), size)
    batch = "".join(letter for letter in in_a if letter in in_b and letter in needed)
    over = "".join(letter for letter in in_a if letter in in_b and letter not in needed)
    rows = "".join(letter for letter in in_a if letter not in in_b)
    columns = "".join(letter for letter in in_b if letter not in in_a)
    left = _arranged(chain, a, in_a, (batch, rows, over), size)
    right = _arranged(chain, b, in_b, (batch, over, columns), size)
    result = batch + rows + columns
    value = chain("MatMul", left, right)
    return chain("Reshape", value, _sizes(chain.editor, [size[letter] for letter in result])), result


def _arranged(chain: NodeChain, value: str, letters: str, groups: Sequence[str], size: Mapping[str, int]) -> str:
    """The operand with one axis for each group of letters."""
    order = "".join(groups)
    if order != letters:
        value = chain("Transpose", value, perm=[letters.index(letter) for letter in order])
    sizes = [math.prod(size[letter] for letter in group) for group in groups]
    return chain("Reshape", value, _sizes(chain.editor, sizes))
