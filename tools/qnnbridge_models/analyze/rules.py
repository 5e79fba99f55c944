"""Rules that return why QNN does not support a node, or None. All functions are pure.

`RULES` are applied in order until one of them objects. Most rules read a table of `tables`; this file starts with
checks of single operators that fit no table. Nodes that QNN runs but computes wrong have similar rules, with a
condition instead of a function: the rows of `qnnbridge_host.model.known_wrong`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model import double_edges, known_wrong
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.model.graph_index import GraphNode, GraphTensor, rules_about
from qnnbridge_host.model.known_wrong import KnownWrong, WrongOperator
from qnnbridge_host.model.merged import WIDE_ON_QNN, fails_with_wide_integers
from qnnbridge_host.model.qnn_operators import REGISTERED, REPLACED
from qnnbridge_host.rewrite import rank
from qnnbridge_models.analyze.analysis import Advice, NodePlace, NodeVerdict
from qnnbridge_protocol.shell import fix_command
from qnnbridge_protocol.shown import listed
from qnnbridge_tools import output

# An objection is its reason, or (reason, fix), or None if the rule does not object.
Objection = str | tuple[str, str] | None

_FLOATS = ("float", "float16")

_REDUCTIONS: Final = ("ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "Softsign", "Celu", "Sinh", "Cosh"),
        "qnnbridge fix (missing-operators)",
    ),
    "Erf": "qnnbridge fix (gelu, erf), or export Gelu as a single ONNX operator",
    "Trilu": "qnnbridge fix (trilu)",
    "com.microsoft.SkipLayerNormalization": "qnnbridge fix (skip-norm)",
    "Loop": "export the model with the loop unrolled, or run the loop in the application",
    "Scan": "export the model with the loop unrolled, or run the loop in the application",
    **dict.fromkeys(
        (
            *("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "com.microsoft.MatMulIntegerToFloat"),
            *("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.QAttention", "com.microsoft.QLinearAdd"),
        ),
        "quantise the float model with qnnbridge quantize instead",
    ),
    "com.microsoft.DynamicQuantizeLSTM": "use the float model, or quantise it with qnnbridge quantize",
    "RNN": "use LSTM or GRU",
    "ConstantOfShape": "qnnbridge fix (shape-computations) with fixed sizes",
    "Size": "qnnbridge fix (shape-computations) with fixed sizes",
    "BitShift": "multiply or divide by powers of two",
    "MeanVarianceNormalization": "use InstanceNormalization or LayerNormalization",
}


@dataclasses.dataclass(frozen=True, slots=True)
class RuleContext:
    """Facts about the model and the chip that rules need.

    Args:
        view: index of the graph.
        arch: architecture of the chip's HTP: 73 for V73.
    """

    view: ModelIndex
    arch: int


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementRule:
    """A rule that decides whether a node can run on QNN.

    Args:
        name: name of the rule.
        place: where a node runs if the rule objects to it.
        check: returns the objection.
        fix: default remedy, if the objection does not contain one.
        operators: operators that the rule applies to; None for all.
    """

    name: str
    place: NodePlace
    check: Callable[[GraphNode, RuleContext], Objection]
    fix: str = ""
    operators: Collection[str] | None = None

    def verdict(self, node: GraphNode, context: RuleContext) -> NodeVerdict | None:
        found = self.check(node, context)
        if found is None:
            return None
        reason, fix = found if isinstance(found, tuple) else (found, "")
        return NodeVerdict(self.place, self.name, reason, fix or self.fix)


def _wrong_type(node: GraphNode, context: RuleContext) -> Objection:
    """Return an objection to a type that QNN lacks or that this operator does not support."""
    if node.op in ("Cast", "CastLike"):
        return _cast(node, context)
    found = tables.refused_type(node)
    if found is None:
        return None
    data, allowed = found
    words = " and ".join([", ".join(allowed[:-1]), allowed[-1]] if len(allowed) > 1 else allowed)
    return f"{data.name} is {data.type}; {node.op} takes {words}", _type_fix(data.type)


def _type_fix(element: str) -> str:
    if element in ("double", "bfloat16"):
        return "convert the model to float"
    if element in ("int8", "uint8", "int16", "uint16"):
        return "insert a DequantizeLinear before this node and a QuantizeLinear after it, or compute in int32"
    if element == "uint64":
        return "compute in int32"
    return "do this computation outside of the model"


def _cast(node: GraphNode, context: RuleContext) -> Objection:
    if tables.refused_at_the_end(node, context.view.outputs):
        name, source = node.made[0].name, node.given[0].type
        reason = (
            f"output {name} is cast from {source} to int64, which QNN does not support for outputs of the model"
        )
        return reason, "make the output int32, or cast to int32 first"
    types = tables.refused_cast(node)
    if types is None:
        return None
    source, made = types
    return f"QNN does not convert {source} to {made}", "make the result int32" if made == "int64" else ""


def _layer_normalization(node: GraphNode, context: RuleContext) -> Objection:
    data = node.input(0)
    axis = node.get("axis", -1)
    if data is None or data.rank is None or axis in (-1, data.rank - 1):
        return None
    return f"axis is {axis}: QNN normalises along the last axis only", _FOLD


def _reduce(node: GraphNode, context: RuleContext) -> Objection:
    axes = node.get("axes", None)
    given = node.input(1)
    # An empty constant means "no axes", like a missing input.
    if given is not None and given.elements == 0:
        axes = []
    none_given = (axes is None and given is None) or axes == []
    if none_given and node.get("noop_with_empty_axes", 0):
        return "the operator has no axes, and noop_with_empty_axes makes it do nothing", "remove the node"
    return None


def _resize(node: GraphNode, context: RuleContext) -> Objection:
    scales, data = node.input(2), node.input(0)
    if node.get("mode", "nearest") != "cubic" or scales is None or data is None:
        return None
    if not scales.constant and scales.elements:
        return "with the mode cubic the scales must be a constant"
    if scales.values is not None and any(
        scale * size != int(scale * size) for scale, size in zip(scales.values, data.fixed or (), strict=False)
    ):
        return "with the mode cubic, each input size multiplied by its scale must be an integer"
    return None


def _einsum(node: GraphNode, context: RuleContext) -> Objection:
    if str(node.get("equation", "")).replace(" ", "") in ("i,i", "i,i->"):
        return "QNN does not support this equation", "use MatMul or ReduceSum"
    return None


def _attention_mask(node: GraphNode, context: RuleContext) -> Objection:
    mask = node.input(3)
    if mask is not None and mask.type == "bool":
        return "QNN does not support a boolean mask", "qnnbridge fix (attention-mask)"
    if node.input(6) is not None:
        return "QNN does not support nonpad_kv_seqlen", "give a mask instead"
    if node.get("softmax_precision", None) is not None:
        return "QNN does not support softmax_precision"
    return None


def _pad(node: GraphNode, context: RuleContext) -> Objection:
    if node.input(3) is not None:
        return "QNN does not support the input axes", "give paddings for all axes"
    return None


def _pooling(node: GraphNode, context: RuleContext) -> Objection:
    data = node.input(0)
    if data is not None and data.rank == 5:
        return f"QNN does not support 3D pooling{' of floats' if node.op == 'LpPool' else ''}"
    return None


def _if(node: GraphNode, context: RuleContext) -> Objection:
    # QNN places a branch together with its If, so one unsupported operator keeps the whole If on the CPU.
    for op in node.inner_ops:
        if op not in REGISTERED and op not in REPLACED and op != "Constant":
            return f"a branch of the If contains {op}, which QNN does not support"
    return None


def _rotary(node: GraphNode, context: RuleContext) -> Objection:
    cache = node.input(1)
    if cache is not None and cache.constant:
        return (
            "the operator's tables of cosines and sines are constants, which QNN does not support",
            "give the tables as inputs, or replace the operator by simpler ones",
        )
    return None


def _standalone(node: GraphNode, context: RuleContext) -> Objection:
    """Return an objection to a Quantize or Dequantize node that does not belong to a quantised operator."""
    scale = node.input(1)
    if scale is not None and (scale.elements or 1) > 1:
        return "QNN supports scales per channel only as part of a quantised operator"
    # Tensor with quantised values: the output of a Quantize node, or the input of a Dequantize node.
    small = node.made[0] if node.op.endswith("QuantizeLinear") and "De" not in node.op else node.input(0)
    if small is not None and small.type.startswith("float8"):
        return f"QNN does not support {small.type}"
    if context.view.operators <= _ALONE:
        return "ONNX Runtime leaves a graph that only quantises and dequantises on the CPU"
    return None


def _pow(node: GraphNode, context: RuleContext) -> Objection:
    exponent = node.input(1)
    if exponent is not None and exponent.type and exponent.type not in _FLOATS:
        return f"the exponent is {exponent.type}", "qnnbridge fix (integer-exponent)"
    return None


# Operators that stay on the CPU if the graph contains no other operators.
_ALONE: Final = frozenset((*tables.PAIRS, "Constant"))


def _wide_type(node: GraphNode, context: RuleContext) -> Objection:
    for tensor in (*node.given, *node.made):
        if tensor.type in ("double", "uint64"):
            return f"{tensor.name} is {tensor.type}; QNN accepts {node.op} but fails when it builds the graph"
    return None


def empty_tensors(node: GraphNode) -> list[GraphTensor]:
    """Return non-constant tensors without elements, which make QNN divide by zero."""
    if node.op in ("Constant", "CastLike", "Shape", "Size"):
        return []
    return [tensor for tensor in (*node.given, *node.made) if tensor.is_empty and not tensor.constant]


# With a NaN or infinite scale QNN crashes with SIGFPE while preparing the graph, without a message (onnxruntime-qnn
# 2.4.0, 2.6.0 and 2.7.0).
def _scale_not_finite(node: GraphNode, context: RuleContext) -> Objection:
    scale = node.input(1)
    if scale is None or scale.values is None or all(math.isfinite(value) for value in scale.values):
        return None
    return f"the scale {scale.name} is {scale.values[0]}, so the results are NaN or infinite, on the CPU as well"


def _zero_size(node: GraphNode, context: RuleContext) -> Objection:
    for tensor in empty_tensors(node):
        if tensor.name not in _parameters(node):
            reason = f"{tensor.name} has no elements (shape {_shape_text(tensor.shape)}); QNN divides by zero"
            # Do not recommend the rewrite zero-size for an empty model input: removing all nodes without results
            # would leave an empty model.
            return (
                (reason, f"give {tensor.name} at least one element")
                if tensor.name in context.view.inputs
                else reason
            )
    return None


def _parameters(node: GraphNode) -> set[str]:
    """Return the names of those inputs that are parameters, such as axes, sizes and paddings."""
    numbers = tables.CONSTANT_INPUTS.get(node.op, ())
    return {tensor.name for number in numbers if (tensor := node.input(number)) is not None}


def _crashes(node: GraphNode, context: RuleContext) -> Objection:
    sizes = (node.input(number) for number in tables.CRASHES[node.op])
    if all(tensor is None or tensor.constant for tensor in sizes):
        return None
    return f"{node.op} crashes the process when QNN compiles it with a step or length that is not constant"


def _not_registered(node: GraphNode, context: RuleContext) -> Objection:
    if not tables.is_missing(node.op):
        return None
    otherwise = f"replace {node.op}, or let the application compute it before or after the model"
    return f"QNN has no operator {node.op}", _INSTEAD.get(node.op, otherwise)


def _refused(node: GraphNode, context: RuleContext) -> Objection:
    return f"the NPU has no {node.op}", tables.REFUSED_BY_HTP[node.op]


def _not_a_tensor(node: GraphNode, context: RuleContext) -> Objection:
    for tensor in node.made:
        if not tensor.type and tensor.shape is None:
            return f"{tensor.name} is a sequence, a map or another non-tensor, or its type and shape are unknown"
    return None


def _free_shape(node: GraphNode, context: RuleContext) -> Objection:
    for tensor in (*node.given, *node.made):
        if tensor.fixed is None:
            return f"the shape of {tensor.name} is not fixed ({_shape_text(tensor.shape)})"
    return None


def _type(node: GraphNode, context: RuleContext) -> Objection:
    if node.op in tables.FAILS_UNLESS_FLOAT:
        return None  # the rule "rearranged" checks types for the operators in this table
    return _wrong_type(node, context)


def _rank(node: GraphNode, context: RuleContext) -> Objection:
    if node.op in tables.FAILS_BEYOND or node.op in ("Einsum", "Gemm"):
        return None
    most = tables.most_dimensions(node.op, node.given[0].type if node.given else "")
    for tensor in (*node.given, *node.made):
        if tensor.rank is not None and tensor.rank > most:
            reason = f"{tensor.name} has {tensor.rank} dimensions; {node.op} supports at most {most}"
            # An integer Transpose supports fewer dimensions than a float one. Folding to meet this lower limit does
            # not help: ONNX Runtime restores the dimensions.
            folds = node.op in rank.FOLDED and tensor.rank > tables.most_dimensions(node.op, "float")
            return (reason, _FOLD) if folds else reason
    data = node.input(0)
    least = tables.LEAST_DIMENSIONS.get(node.op, 0)
    if data is not None and data.rank is not None and data.rank < least:
        return f"{data.name} has {data.rank} dimensions; {node.op} needs {least}"
    return None


def _constant_inputs(node: GraphNode, context: RuleContext) -> Objection:
    # Constants computed from fixed shapes have been folded before the rules are applied.
    for number in tables.CONSTANT_INPUTS.get(node.op, ()):
        tensor = node.input(number)
        if tensor is not None and not tensor.constant and tensor.elements != 0:
            return f"input {tensor.name} is computed at run time; it must be a constant"
    return None


def _counts(node: GraphNode, context: RuleContext) -> Objection:
    least, most = tables.LEAST_INPUTS.get(node.op, 0), tables.MOST_OUTPUTS.get(node.op, 99)
    if len(node.given) < least:
        return f"{node.op} needs at least {least} inputs"
    if len(node.made) > most:
        if node.get("training_mode", 0):
            return "the operator computes its own statistics (training_mode)", "export the model in inference mode"
        unused = all(t.name not in context.view.users for t in node.made[most:])
        fix = "qnnbridge fix (unused-outputs)" if unused else ""
        return f"QNN computes only {most} output of {node.op}, and this node has more", fix
    return None


def _attributes(node: GraphNode, context: RuleContext) -> Objection:
    found = tables.refused_attribute(node)
    if found is None:
        return None
    rule, value = found
    return f"{rule.name} is {value}: {rule.reason}", rule.fix


def _wide_result(node: GraphNode, context: RuleContext) -> Objection:
    if fails_with_wide_integers(context.view, node) != "output":
        return None
    return f"{_wide_text(node.made)} is an output of QNN's graph; such an output crashes the process"


def _wide_input(node: GraphNode, context: RuleContext) -> Objection:
    if fails_with_wide_integers(context.view, node) != "input":
        return None
    return f"{_wide_text(node.given)} is an input of QNN's graph; QNN cannot finalize a graph with such an input"


def _wide_text(tensors: Sequence[GraphTensor]) -> str:
    name = next(one.name for one in tensors if one.type == "int64" and one.rank == tables.MOST_DIMENSIONS)
    return f"{name}, int64 with {tables.MOST_DIMENSIONS} dimensions,"


def _fails(node: GraphNode, context: RuleContext) -> Objection:
    most = tables.FAILS_BEYOND.get(node.op)
    data = node.input(0)
    if data is not None and most is not None and (data.rank or 0) > most:
        reason = f"{data.name} has {data.rank} dimensions; QNN accepts {node.op} but fails to compile it"
        return (reason, _FOLD) if node.op in rank.FOLDED else reason
    return None


def _chip(node: GraphNode, context: RuleContext) -> Objection:
    if context.arch >= tables.FIRST_FLOAT_ARCH:
        return None
    if all(tensor.type not in ("float", "float16") for tensor in node.given):
        return None
    reason = f"{node.op} of float needs V{tables.FIRST_FLOAT_ARCH} or newer; this chip has V{context.arch}"
    # Do not suggest `qnnbridge quantize`, which refuses a model that is already quantised.
    if not context.view.operators.isdisjoint(tables.PAIRS):
        return reason, "quantise this operator like the others, or choose a newer chip with --soc-model"
    return reason


_NO_DOUBLES: Final = "qnnbridge fix (inner-doubles) computes the node in 32-bit floats"
_NARROW: Final = "qnnbridge fix (wide-integers) computes the node in int32"
_FOLD: Final = "qnnbridge fix (rank) folds dimensions together"
QUANTISE_AGAIN: Final = (
    "quantise the float model with qnnbridge quantize, which first reduces the huge values in masks"
)
_SHAPES_FIX = "fix the sizes of the inputs: qnnbridge fix --shape INPUT=..."

# Only the first objection to a node is reported, so the order matters:
# - First come operators that crash the process, which matters more than any other objection.
# - Unsupported operators come before sizes, because no size makes QNN support them.
# - "free-shape" comes before "constant-inputs": with fixed sizes, values computed from shapes become constants.
RULES: Final = (
    PlacementRule("crashing-operator", "crash", _crashes, "make step and length constants", tables.CRASHES),
    PlacementRule("not-registered", "cpu", _not_registered),
    PlacementRule("refused-operator", "cpu", _refused, operators=tables.REFUSED_BY_HTP),
    PlacementRule("not-a-tensor", "cpu", _not_a_tensor, operators=("If", "Identity")),
    PlacementRule("free-shape", "cpu", _free_shape, _SHAPES_FIX),
    PlacementRule(
        "constant-inputs",
        "cpu",
        _constant_inputs,
        "qnnbridge fix (shape-computations), or export this input as a constant",
        tables.CONSTANT_INPUTS,
    ),
    PlacementRule("type", "cpu", _type),
    PlacementRule("rank", "cpu", _rank),
    PlacementRule("counts", "cpu", _counts, operators={*tables.LEAST_INPUTS, *tables.MOST_OUTPUTS}),
    PlacementRule(
        "attributes", "cpu", _attributes, operators={op for one in tables.ATTRIBUTES for op in one.operators}
    ),
    PlacementRule("special", "cpu", _layer_normalization, operators=("LayerNormalization", "RMSNormalization")),
    PlacementRule("special", "cpu", _reduce, operators=_REDUCTIONS),
    PlacementRule("special", "cpu", _resize, operators=("Resize",)),
    PlacementRule("special", "cpu", _einsum, operators=("Einsum",)),
    PlacementRule("special", "cpu", _attention_mask, operators=("Attention",)),
    PlacementRule("special", "cpu", _pad, operators=("Pad",)),
    PlacementRule("special", "cpu", _pooling, operators=("MaxPool", "LpPool")),
    PlacementRule("special", "cpu", _if, operators=("If",)),
    PlacementRule("special", "cpu", _pow, operators=("Pow",)),
    PlacementRule("special", "cpu", _rotary, operators=("RotaryEmbedding",)),
    PlacementRule("endless-scale", "fails", _scale_not_finite, QUANTISE_AGAIN, tables.PAIRS),
    PlacementRule("special", "cpu", _standalone, operators=tables.PAIRS),
    # The following rules come after all rules about unsupported nodes: a node that stays on the CPU cannot fail or
    # crash on QNN.
    PlacementRule("rearranged", "fails", _wrong_type, operators=tables.FAILS_UNLESS_FLOAT),
    PlacementRule("wide-integers", "crash", _wide_result, _NARROW, WIDE_ON_QNN),
    PlacementRule("wide-integers", "fails", _wide_input, _NARROW, WIDE_ON_QNN),
    PlacementRule("zero-size", "crash", _zero_size, "qnnbridge fix (zero-size) removes it"),
    PlacementRule("fails", "fails", _fails, operators=tables.FAILS_BEYOND),
    # QNN accepts these operators with 64-bit types, but fails when it builds the graph.
    PlacementRule("fails", "fails", _wide_type, operators=tables.WIDE),
    PlacementRule("fails", "fails", _wide_type, _NO_DOUBLES, ("Expand",)),
    PlacementRule(
        "chip",
        "fails",
        _chip,
        "quantise the model, or choose a newer chip with --soc-model",
        tables.NEEDS_V73,
    ),
)


placement_rules = functools.cache(functools.partial(rules_about, RULES))


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    return "unknown" if shape is None else output.shape_text(shape)


# --- 64-bit floats at the inputs and outputs of a model ------------------------------------------------


def bare_edges(view: ModelIndex) -> frozenset[str]:
    """Return the inputs and outputs that are 64-bit floats and are not converted on the CPU."""
    nodes = [(node.op, [one.name for one in node.given], [one.name for one in node.made]) for node in view.nodes]
    varies = double_edges.varying(nodes, view.inputs)
    edges = {name for name in (*view.inputs, *view.outputs) if name in varies and view.about(name).type == "double"}
    converted = {
        tensor.name
        for node in view.nodes
        if double_edges.is_conversion(node.name)
        for tensor in (*node.given, *node.made)
    }
    return frozenset(edges - converted)


def failing_edges(
    view: ModelIndex, verdicts: Sequence[NodeVerdict], edges: Collection[str], command: str
) -> tuple[NodeVerdict, ...]:
    """Return the verdicts, with "fails" for nodes on QNN that read or write a tensor in `edges`.

    Args:
        edges: result of `bare_edges`.
        command: `qnnbridge fix` command without the name of the rewrite.
    """

    def judged(node: GraphNode, verdict: NodeVerdict) -> NodeVerdict:
        names = [tensor.name for tensor in (*node.given, *node.made) if tensor.name in edges]
        if verdict.place != "qnn" or not names:
            return verdict
        reason = f"{names[0]} is a 64-bit float (double) input or output of the model, on which QNN fails"
        return NodeVerdict("fails", double_edges.REWRITE, reason, command + double_edges.REWRITE)

    return tuple(judged(node, verdict) for node, verdict in zip(view.nodes, verdicts, strict=True))


# --- advice about nodes that QNN runs but computes wrong ------------------------------------------------

_NAMED = 3
Evidence = Callable[[Sequence[str]], str]


def _no_evidence(_rows: Sequence[str]) -> str:
    """Default of `evidence`: return no text about where a fault was measured."""
    return ""


def inside_branches(left: Any, numbers: Sequence[int], rows: Sequence[WrongOperator]) -> list[KnownWrong]:
    """Return known-wrong operators inside branches of If nodes, each with the index of its outermost If.

    Args:
        left: a model in which each If with a known condition contains only the branch that is taken.
        numbers: index of each node of `left`.
        rows: rows of the table of known faults that apply.
    """
    if all(node.op_type != "If" for node in left.graph.node):
        return []
    found = known_wrong.find_in_model(left.SerializeToString(), arch=0, rows=rows)
    return [dataclasses.replace(one, index=numbers[one.top]) for one in found if one.inside]


def wrong_numbers(
    view: ModelIndex,
    verdicts: Sequence[NodeVerdict],
    rows: Sequence[WrongOperator],
    path: str,
    evidence: Evidence = _no_evidence,
    sizes: str = "",
    inside: Sequence[KnownWrong] = (),
) -> list[Advice]:
    """Return one recommendation for each row of the table that applies to nodes on QNN.

    Args:
        view: index of the graph.
        verdicts: place of each node.
        rows: rows that apply to the chip and the release.
        path: path of the model, for the command that fixes it.
        evidence: returns where the rows with these names were measured; empty if there is nothing to add.
        sizes: the `--dim` options that the user gave.
        inside: result of `inside_branches`.
    """
    by_row: dict[tuple[str, str], list[KnownWrong]] = {}
    for one in (*known_wrong.find(view, rows), *inside):
        # Skip nodes on the CPU: QNN's faults do not affect them.
        if verdicts[one.index].place == "qnn":
            by_row.setdefault((one.fault.name, one.inside), []).append(one)
    return [_advice(view, found, path, evidence([name]), sizes) for (name, _), found in by_row.items()]


def _advice(view: ModelIndex, found: Sequence[KnownWrong], path: str, evidence: str, sizes: str) -> Advice:
    fault = found[0].fault
    names = listed([one.node for one in found], _NAMED)
    # The rewrite that avoids the fault needs constant sizes and paddings. If nodes compute them, recommend the
    # rewrite shape-computations first.
    given = [tensor for one in found if not one.inside for tensor in view.node(one.index).given]
    computed = any(tensor.values is not None and not tensor.constant for tensor in given)
    first = "--only shape-computations " if computed else ""
    if sizes:
        first = f"{sizes} --only fixed-shapes {first}"
    first += " ".join(f"--only {name}" for name in found[0].rewrites)
    what = fix_command(path, first) if fault.rewrite else fault.advice
    op = found[0].op
    fault_text = f"QNN fails with {op} here" if fault.fails else f"QNN computes {op} wrong here"
    return Advice(
        what,
        f"{fault_text}: {fault.says}. In: {names}{evidence and f'.{evidence}'}",
        tuple(dict.fromkeys(one.index for one in found)),
        severity="fails" if fault.fails else known_wrong.CODE,
        code=known_wrong.CODE,
    )
