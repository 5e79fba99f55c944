"""Find patterns of operators that QNN merges or reorders so that the result changes.

The provider's `qnn_node_group` (onnxruntime-qnn 2.7) merges Gelu, Softmax and L2 normalization. The module includes
a fault of ONNX Runtime itself (`parts_transposes`), because it occurs only where QNN requests another layout. The
functions are pure; they take a graph's index and raise one of `DOES_NOT_FOLLOW` if a size or value is unknown.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, GraphTensor, Unknown, sizes_of
from qnnbridge_host.model.operator_tables import refused_at_the_end
from qnnbridge_protocol.records import NamedTuple

# Constants count as equal up to this relative difference, which corresponds to an SNR of 48 dB.
_CLOSE: Final = 0.004


class _Product(NamedTuple):
    """The product x * factor * (shift + Erf(x * scale or x / scale)).

    shared: whether a node outside of the product reads one of its inner tensors, which the merge removes.
    """

    scale: GraphTensor
    divides: bool
    shift: GraphTensor
    least_shift: float
    factor: GraphTensor
    shared: bool


def gelu_of(graph: GraphIndex, erf: GraphNode) -> Literal["", "gelu", "other", "shared"]:
    """Return what QNN does with the operators around an Erf, which it may merge into a Gelu.

    Returns:
        "" if QNN merges nothing; "gelu" for a Gelu; "other" if QNN computes Gelu for another function;
        "shared" if a node outside of the Gelu reads an inner tensor, so QNN cannot compose the graph.
    """
    found = next(_products(graph, erf), None)
    if found is None:
        return ""
    if found.shared:
        return "shared"
    scale = math.sqrt(2) if found.divides else math.sqrt(0.5)
    wanted = ((found.scale, scale), (found.shift, found.least_shift), (found.factor, 0.5))
    return "gelu" if all(_is_number(tensor, number) for tensor, number in wanted) else "other"


def _products(graph: GraphIndex, erf: GraphNode) -> Iterator[_Product]:
    scaled = graph.origin(_name(erf.input(0)))
    if scaled is None or scaled.op not in ("Div", "Mul") or len(scaled.given) != 2:
        return
    # QNN takes the first operand for the tensor x, even if it is the constant.
    root, scale = scaled.given
    many = len(graph.readers(scaled.made[0].name)) > 1
    first = _only_reader(graph, erf)
    if first is not None and first.op == "Mul" and not _reads(first, root):
        # x * (0.5 + 0.5 * Erf)
        added = _only_reader(graph, first)
        last = _only_reader(graph, added) if added is not None and added.op == "Add" else None
        if added is not None and last is not None and last.op == "Mul" and _reads(last, root):
            yield _Product(scale, scaled.op == "Div", _other(added, first), 0.5, _other(first, erf), many)
        return
    product = _only_reader(graph, first) if first is not None and first.op == "Add" else None
    if first is None or product is None or product.op != "Mul":
        return
    shift = _other(first, erf)
    for tensor in product.given:
        # (x * 0.5) * (1 + Erf)
        maker = graph.origin(tensor.name)
        if maker is not None and maker.op == "Mul" and _reads(maker, root) and tensor != first.made[0]:
            factor = next((one for one in maker.given if one.name != root.name), root)
            twice = len(graph.readers(tensor.name)) > 1
            yield _Product(scale, scaled.op == "Div", shift, 1.0, factor, many or twice)
            return
    last = _only_reader(graph, product)
    if last is not None and last.op == "Mul" and _reads(product, root) != _reads(last, root):
        # x * (1 + Erf) * 0.5, or x * ((1 + Erf) * 0.5)
        outer = _reads(product, root)
        factor = _other(last, product) if outer else _other(product, first)
        yield _Product(scale, scaled.op == "Div", shift, 1.0, factor, many)


def softmax_factor(graph: GraphIndex, softmax: GraphNode) -> float:
    """Return the number that QNN merges into a Softmax: the scalar constant of the Mul in front of the Softmax."""
    given = softmax.given[0]
    product = graph.origin(given.name)
    if product is None or product.op != "Mul" or len(graph.readers(given.name)) != 1:
        raise Unknown
    left, right = product.given
    # QNN looks for the number in the second operand first. It does not merge float16.
    number = right if right.shape == () else left
    if number.shape != () or not number.constant or number.type != "float" or not number.values:
        raise Unknown
    return float(number.values[0])


def l2_offset(graph: GraphIndex, norm: GraphNode) -> float:
    """Return the number e that QNN drops in x / (ReduceL2(x) + e)."""
    added = _only_reader(graph, norm)
    divided = _only_reader(graph, added) if added is not None and added.op == "Add" else None
    if added is None or divided is None or divided.op != "Div" or norm.attributes.get("keepdims", 1) != 1:
        raise Unknown
    if not (norm.attributes.get("axes") or (norm.input(1) or GraphTensor("")).constant):
        raise Unknown  # without axes QNN does not merge the pattern
    if [tensor.name for tensor in divided.given] != [norm.given[0].name, added.made[0].name]:
        raise Unknown
    number = _other(added, norm)
    if not number.constant or number.values is None or len(number.values) != 1:
        raise Unknown
    return float(number.values[0])


# Operators that may lie between the Add or Mul of `repeats_rows` and one of `_READERS_OF_ROWS`. Sub and Relu are
# not included, because the results with them were measured as right.
_PASS_ROWS: Final = frozenset(("Add", "Mul", "MatMul", "Gelu", "Identity", "Reshape", "Transpose"))
_READERS_OF_ROWS: Final = frozenset(("LayerNormalization", "RMSNormalization", "Sigmoid"))
_MOST_STEPS: Final = 3


def repeats_rows(graph: GraphIndex, node: GraphNode) -> bool:
    """Return whether QNN reads the wrong rows of an operand that an Add or Mul broadcasts along dimension -3.

    Raises:
        Unknown: a size is not known.
    """
    left, right = (sizes_of(tensor) for tensor in node.given)
    rank = max(len(left), len(right))
    if rank not in (3, 4):
        return False
    one, other = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (left, right))
    if one[-2:] != other[-2:] or one[-2] % 8 or one[-2] < 16 or one[-1] < 17:
        return False
    fewest, most = sorted((one[-3], other[-3]))
    return fewest == 1 and 2 <= most <= 7 and _reaches(graph, node, _MOST_STEPS)


def _reaches(graph: GraphIndex, node: GraphNode, steps: int) -> bool:
    """Return whether a normalization or a Sigmoid reads the node's result, after at most `steps` other nodes."""
    readers = graph.readers(node.made[0].name)
    # Ignore x * Sigmoid(x), which QNN merges and computes right.
    products = {reader.made[0].name for reader in readers if reader.op == "Mul"}
    for reader in readers:
        own = {user.made[0].name for user in graph.readers(reader.made[0].name)}
        if reader.op in _READERS_OF_ROWS and not (reader.op == "Sigmoid" and own and own <= products):
            return True
    return steps > 0 and any(_reaches(graph, reader, steps - 1) for reader in readers if reader.op in _PASS_ROWS)


# Operators that only change the shape. QNN has one operator for all of them, and ONNX Runtime removes an Identity.
_RESHAPES: Final = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))
# If one of these operators reads the result of a MatMul whose reshapes QNN dropped, QNN finalizes the graph, but
# computes wrong results.
_MERGED_BEHIND: Final = frozenset(("Relu", "Sigmoid", "Tanh"))
# Maximum rank of the tensor before the reshapes: wrong results were measured up to this rank.
_MOST_MERGED: Final = 4


def loses_reshapes(graph: GraphIndex, product: GraphNode) -> Literal["", "wrong", "fails"]:
    """Return what QNN does to a MatMul by a constant matrix between reshapes.

    If the reshapes and the product together change only the last dimension of a tensor, QNN drops the reshapes. The
    number of rows of the matrix then differs from the size of the tensor's last dimension.

    Returns:
        "" if the result is right; "wrong" if it is wrong; "fails" if the graph cannot be finalized.
    """
    left, right = product.given
    if not right.constant or len(sizes_of(right)) != 2:
        return ""
    source = left
    while (maker := graph.origin(source.name)) is not None and maker.op in _RESHAPES and not source.constant:
        source = maker.given[0]
    before, length = sizes_of(source), sizes_of(right)[0]
    if source.name == left.name or not 0 < len(before) <= _MOST_MERGED or before[-1] == length:
        return ""
    # Ignore leading dimensions of 1. If at most two dimensions remain, the result is right if the reshapes change
    # the number of rows by a factor of 2 or 4.
    rows, products = math.prod(before[:-1]), math.prod(sizes_of(left)) // length
    if sum(size > 1 for size in before[:-1]) < 2 and not _is_long(before) and _is_near(rows, products):
        return ""
    found = {_kept(graph, end, before) for end in _reshaped(graph, product)}
    return "wrong" if "wrong" in found else "fails" if "fails" in found else ""


def _is_long(sizes: tuple[int, ...]) -> bool:
    """Return whether more than two dimensions remain after removing leading dimensions of 1."""
    return len(sizes) - next((place for place, size in enumerate(sizes) if size > 1), len(sizes)) > 2


def _is_near(one: int, other: int) -> bool:
    low, high = sorted((one, other))
    return low * 4 >= high and high % low == 0 and high // low != 3


def _reshaped(graph: GraphIndex, product: GraphNode) -> Iterator[GraphTensor]:
    """Yield the last tensor of each chain of reshapes that follows a node."""
    waiting = [(product.made[0], 0)]
    while waiting:
        tensor, steps = waiting.pop()
        behind = [reader for reader in graph.readers(tensor.name) if reader.op in _RESHAPES]
        waiting += [(reader.made[0], steps + 1) for reader in behind if steps < _MOST_BETWEEN]
        if steps and not behind:
            yield tensor


def _kept(graph: GraphIndex, end: GraphTensor, before: tuple[int, ...]) -> Literal["", "wrong", "fails"]:
    after = sizes_of(end)
    if len(after) != len(before) or after[:-1] != before[:-1]:
        return ""
    readers = graph.readers(end.name)
    return "wrong" if after[-1] == 1 or any(reader.op in _MERGED_BEHIND for reader in readers) else "fails"


def joins_edges(graph: GraphIndex, product: GraphNode) -> bool:
    """Return whether a float16 product is connected to an input and an output of the model by reshapes only.

    QNN drops the reshapes and computes wrong results if the input (a, b, c, d) is reshaped to (a*b, c*d) for the
    product, and the output is (a, b, n) or (a, b, c, d).
    """
    source = product.given[0]
    while (maker := graph.origin(source.name)) is not None and maker.op in _RESHAPES:
        source = maker.given[0]
    before = sizes_of(source)
    if maker is not None or source.constant or source.type != "float16" or len(before) != 4 or before[0] == 1:
        return False
    if sizes_of(product.given[0]) != (before[0] * before[1], before[2] * before[3]):
        return False
    ends = [end for end in _reshaped(graph, product) if not graph.readers(end.name)]
    return any(sizes_of(end)[:-1] == before[:2] or sizes_of(end) == before for end in ends)


# Type numbers of TensorProto: float, float16, bfloat16.
_FLOATS: Final = frozenset((1, 10, 16))
# Type numbers: uint8, int32, int64, uint32.
_WHOLE: Final = frozenset((2, 6, 7, 12))
# Operators that ONNX Runtime removes if one operand is this constant: (constant, index of the first operand that
# may be the constant).
_DOES_NOTHING: Final[Mapping[str, tuple[int, int]]] = {"Add": (0, 0), "Mul": (1, 0), "Sub": (0, 1), "Div": (1, 1)}


def cancels_casts(graph: GraphIndex, cast: GraphNode) -> bool:
    """Return whether a Cast to float follows a Cast, with only reshapes, casts and removable operators in between.

    QNN drops such a pair of casts, and with it the rounding to integers.
    """
    waiting, seen = [cast], {cast.index}
    while waiting and len(seen) <= _MOST_BETWEEN:
        for reader in graph.readers(waiting.pop().made[0].name):
            to = reader.attributes.get("to") if reader.op == "Cast" else None
            if to in _FLOATS:
                return True
            passes = reader.op in _RESHAPES or to in _WHOLE or _does_nothing(reader)
            if passes and reader.index not in seen:
                seen.add(reader.index)
                waiting.append(reader)
    return False


# Operators that copy values of their input without changing them.
_MOVES_VALUES: Final = _RESHAPES | frozenset(("Expand", "Gather", "Slice", "Tile", "Transpose"))


# Operators whose result is negative only if one of the inputs is.
_KEEPS_SIGN: Final = frozenset(("Add", "Concat", "Max", "Min", "Mul"))
# `_POSITIVE`: operators on floats whose result is never negative. `_ROUNDS`: operators that do not
# make a number negative.
_POSITIVE: Final = frozenset(("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"))
_ROUNDS: Final = frozenset(("Cast", "Ceil", "Floor", "Round"))


def may_be_negative(graph: GraphIndex, node: GraphNode, number: int) -> bool:
    """Return whether an integer input may be negative because of a Cast of floats, Neg, Sub or negative constant.

    On the way to the input, the integers may pass through sums, products, Where, and operators that only move
    values. Integer inputs of the model are usually masks and indices; they count as not negative.
    """
    waiting = [node.given[number]]
    for _ in range(_MOST_BETWEEN):
        if not waiting:
            return False
        tensor = waiting.pop()
        maker = None if tensor.constant else graph.origin(tensor.name)
        if maker is None:
            if _is_below_zero(tensor):
                return True
        elif maker.op in _MOVES_VALUES or _does_nothing(maker):
            waiting += [one for one in maker.given if not one.constant][:1]
        elif maker.op == "Cast":
            if maker.given[0].type in ("", "float", "float16"):
                if not _has_lower_limit(graph, maker.given[0]):
                    return True
            else:
                waiting.append(maker.given[0])
        elif maker.op in ("Neg", "Sub"):
            return True
        elif maker.op == "Where":
            waiting += () if _counts_from_start(graph, maker) else maker.given[1:]
        elif maker.op in _KEEPS_SIGN and not (maker.op == "Max" and _has_lower_limit(graph, tensor)):
            waiting += maker.given
    return False


def _is_below_zero(tensor: GraphTensor) -> bool:
    return bool(tensor.values) and any(isinstance(one, (int, float)) and one < 0 for one in tensor.values or ())


def _has_lower_limit(graph: GraphIndex, tensor: GraphTensor) -> bool:
    """Return whether a tensor cannot be negative because of a Clip, a Max or an operator like Relu."""
    for _ in range(_MOST_BETWEEN):
        maker = graph.origin(tensor.name)
        if maker is None:
            return False
        if maker.op in _POSITIVE:
            return True
        if maker.op in ("Clip", "Max"):
            limits = maker.given if maker.op == "Max" else maker.given[1:2]
            numbers = [min(one.values) for one in limits if one.constant and one.values]
            return bool(max(numbers, default=maker.get("min", -1)) >= 0)
        if maker.op not in _MOVES_VALUES | _ROUNDS:
            return False
        tensor = maker.given[0]
    return False


def _counts_from_start(graph: GraphIndex, where: GraphNode) -> bool:
    """Return whether a Where replaces negative indices: Where(Less(i, 0), i + size, i)."""
    condition = graph.origin(where.given[0].name)
    return condition is not None and condition.op == "Less" and condition.given[0].name == where.given[-1].name


def _does_nothing(node: GraphNode) -> bool:
    number, first = _DOES_NOTHING.get(node.op, (0, 2))
    return any(one.constant and one.values == (number,) for one in node.given[first:])


# ONNX Runtime puts a Transpose before and after these operators, because QNN computes them in another layout.
_LAYOUT_NAMES: Final = """
AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
GlobalMaxPool GridSample InstanceNormalization LpPool LRN MaxPool Resize SpaceToDepth Transpose Upsample
"""
_LAYOUTS: Final = frozenset(_LAYOUT_NAMES.split())
# ONNX Runtime moves a Transpose past these operators.
_MOVES_PAST_NAMES: Final = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift Cast CastLike Ceil Celu Clip Concat
Cos Cosh DequantizeLinear Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
Hardmax Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean Min Mod Mul Neg Not Or
PRelu Pad Pow QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Round Selu Shrink Sigmoid Sign Sin Sinh
Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile Unsqueeze Where
Xor
"""
_MOVES_PAST: Final = frozenset(_MOVES_PAST_NAMES.split())
# Operators whose inputs are all data. For other operators only the first input is data: a Transpose does not pass
# through pads, sizes or indices.
_ALL_DATA_NAMES: Final = """
Add And BitShift Concat Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow PRelu Sub Sum
Where Xor
"""
_ALL_DATA: Final = frozenset(_ALL_DATA_NAMES.split())
# Operators that ONNX Runtime moves a Transpose past, upstream and downstream of a Reshape to a vector. Upstream a
# Transpose also moves past other Reshapes, because consecutive Reshapes are merged; downstream it also moves past a
# Gather (since ONNX Runtime 1.28).
_MOVES_PAST_IN_FRONT: Final = (_MOVES_PAST | {"Reshape"}) - {"Concat"}
_MOVES_PAST_BEHIND: Final = _MOVES_PAST | {"Gather"}
# Maximum number of nodes that are visited in each direction.
_MOST_BETWEEN: Final = 64


def parts_transposes(graph: GraphIndex, node: GraphNode) -> bool:
    """Return whether there is a Transpose before and one after a node, and ONNX Runtime can move both up to the
    node.

    A Reshape to a vector at this position crashes the process: the layout optimizer treats the vector as a tensor
    with the rank of the Transpose (ONNX Runtime 1.24 to 1.32).
    """

    def readers(one: GraphNode) -> list[GraphNode]:
        found = ((tensor, reader) for tensor in one.made for reader in graph.readers(tensor.name))
        return [reader for tensor, reader in found if tensor.name in {data.name for data in _data_of(reader)}]

    in_front = _leads_to(node, functools.partial(_makers_of, graph), _LAYOUTS, _MOVES_PAST_IN_FRONT)
    return in_front and _leads_to(node, readers, _LAYOUTS, _MOVES_PAST_BEHIND)


# Type number of int64 in TensorProto.
_INT64: Final = 7
_MOST_CURED: Final = 4
_PASSED_BY_TRANSPOSES: Final = frozenset({"Identity", "Squeeze", "Unsqueeze"})
_INT64_MAKERS: Final = _PASSED_BY_TRANSPOSES | {"ArgMax", "ArgMin", "Cast", "Transpose"}
# Minimum rank of an int64 output with this fault: after a Conv, an output of lower rank keeps its layout.
_FEWEST_MOVED: Final = 3


def transposes_int64_output(graph: GraphIndex, node: GraphNode) -> bool:
    """Return whether an int64 output of the model comes from a Transpose, which the model contains or ONNX Runtime
    inserts.

    QNN computes int64 in 32 bits. For such an output the provider still expects 64 bits, so each run fails because
    the sizes differ.
    """
    # Ignore an output with five dimensions: the rewrite (a Flatten before the output) does not prevent its crash.
    if graph.readers(node.made[0].name) or len(sizes_of(node.made[0])) > _MOST_CURED:
        return False
    # Follow the tensor backwards through the operators that ONNX Runtime moves a Transpose past.
    squeezed = False
    while node.op in _PASSED_BY_TRANSPOSES:
        maker = graph.origin(node.given[0].name)
        if maker is None or maker.op not in _INT64_MAKERS:
            return False
        squeezed |= node.op == "Squeeze"
        node = maker
    if node.op == "Transpose":
        return node.given[0].type == "int64" and graph.origin(node.given[0].name) is not None
    if node.op == "Cast":
        rank, moves = len(sizes_of(node.given[0])), node.attributes.get("to") == _INT64
    else:
        keeps = node.attributes.get("keepdims", 1) == 1
        rank = len(sizes_of(node.given[0]))
        axis = int(node.attributes.get("axis", 0)) % rank
        # If a reduction removes the channel axis, the other axes have the same order in both layouts.
        moves, rank = (keeps and not squeezed) or axis != 1, rank - (not keeps)
    layouts = _LAYOUTS - {"Transpose"}
    return (
        moves
        and rank >= _FEWEST_MOVED
        and _leads_to(node, functools.partial(_makers_of, graph), layouts, _MOVES_PAST)
    )


# Operators that QNN supports for int64 with five dimensions, computed in 32 bits. QNN refuses Transpose and Tile.
WIDE_ON_QNN: Final[Mapping[str, tuple[int, ...] | None]] = {
    **dict.fromkeys(("Abs", "Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"), (0,)),
    **dict.fromkeys(("Flatten", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Add", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), None),
    **dict.fromkeys(("Max", "Min", "Mul", "Sub"), None),
    "Where": (1, 2),
}
_WIDE: Final = 5
# Limit on the operators between a tensor and the constants it is computed from.
_MOST_KNOWN: Final = 8


def is_wide(graph: GraphIndex, tensor: GraphTensor) -> bool:
    """Return whether a tensor is int64 with five dimensions and is computed in each run."""
    return tensor.type == "int64" and tensor.rank == _WIDE and not _is_known(graph, tensor, _MOST_KNOWN)


def _is_known(graph: GraphIndex, tensor: GraphTensor, steps: int) -> bool:
    """Return whether ONNX Runtime computes a tensor only once, when the session is created."""
    if tensor.constant or tensor.values is not None:
        return True
    maker = graph.origin(tensor.name)
    return maker is not None and steps > 0 and all(_is_known(graph, one, steps - 1) for one in maker.given)


def fails_with_wide_integers(graph: GraphIndex, node: GraphNode) -> Literal["", "input", "output"]:
    """Return the side of a node on which an int64 tensor with five dimensions enters or leaves QNN's graph.

    A tensor between two operators that QNN supports does not cause a fault.

    Returns:
        "output" if such a result leaves QNN's graph, which crashes the process; "input" if such an input enters
            QNN's graph, so that the graph cannot be finalized; else "".
    """
    # Return early: few nodes have an int64 tensor of five dimensions.
    if not any(tensor.type == "int64" and tensor.rank == _WIDE for tensor in (*node.given, *node.made)):
        return ""
    if not takes_wide_integers(graph, node):
        return ""
    for tensor in node.made:
        if is_wide(graph, tensor) and (
            tensor.name in graph.outputs
            or not all(takes_wide_integers(graph, one) for one in graph.readers(tensor.name))
        ):
            return "output"
    for tensor in node.given:
        maker = graph.origin(tensor.name)
        if is_wide(graph, tensor) and (maker is None or not takes_wide_integers(graph, maker)):
            return "input"
    return ""


def takes_wide_integers(graph: GraphIndex, node: GraphNode) -> bool:
    """Return whether QNN supports an operator on int64 with five dimensions."""
    # QNN does not support operators with six dimensions.
    wider = any((tensor.rank or 0) > _WIDE for tensor in (*node.given, *node.made))
    at_the_end = node.op == "Cast" and refused_at_the_end(node, graph.outputs)
    return node.op in WIDE_ON_QNN and not wider and not at_the_end


def _makers_of(graph: GraphIndex, node: GraphNode) -> list[GraphNode]:
    found = (graph.origin(tensor.name) for tensor in _data_of(node) if not tensor.constant)
    return [maker for maker in found if maker is not None]


def _data_of(node: GraphNode) -> tuple[GraphTensor, ...]:
    return node.given if node.op in _ALL_DATA else node.given[:1]


def _leads_to(
    node: GraphNode,
    following: Callable[[GraphNode], list[GraphNode]],
    wanted: frozenset[str],
    passed: frozenset[str],
) -> bool:
    """Return whether one of the `wanted` operators is reachable from a node through `passed` operators only."""
    waiting, seen = following(node), {node.index}
    while waiting and len(seen) <= _MOST_BETWEEN:
        one = waiting.pop()
        if one.op in wanted:
            return True
        if one.op in passed and one.index not in seen:
            seen.add(one.index)
            waiting += following(one)
    return False


def _only_reader(graph: GraphIndex, node: GraphNode) -> GraphNode | None:
    readers = graph.readers(node.made[0].name)
    return readers[0] if len(readers) == 1 else None


def _reads(node: GraphNode, tensor: GraphTensor) -> bool:
    return any(one.name == tensor.name for one in node.given)


def _other(node: GraphNode, operand: GraphNode) -> GraphTensor:
    """Return the second operand of a node with two operands, given the first."""
    left, right = node.given
    return right if left.name == operand.made[0].name else left


def _is_number(tensor: GraphTensor, number: float) -> bool:
    """Return whether a tensor is a constant whose values all equal the number, within `_CLOSE`."""
    # Return False for a large constant, because the index does not contain its values. Exporters write a scalar.
    values = tensor.values if tensor.constant else None
    return bool(values) and all(abs(float(value) / number - 1) < _CLOSE for value in values or ())


def _name(tensor: GraphTensor | None) -> str:
    if tensor is None:
        raise Unknown
    return tensor.name
