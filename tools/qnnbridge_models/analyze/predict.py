"""Predict where each node of a model runs, without QNN and without running the model. All functions are pure.

The rules judge each operator. Three further steps find the nodes that ONNX Runtime computes or removes in advance,
find the groups of nodes that QNN merges into one operator, and divide the graph into parts as ONNX Runtime does.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor, ModelIndex
from qnnbridge_host.model.graph_index import GraphNode, GraphTensor
from qnnbridge_host.rewrite.constants import fold
from qnnbridge_host.rewrite.removals import taken_branch
from qnnbridge_models.analyze import rules
from qnnbridge_models.analyze.analysis import ON_QNN, NodePlace, NodeVerdict
from qnnbridge_models.analyze.rules import RuleContext, placement_rules

# Operators that are not folded even if all inputs are constant, because ONNX Runtime never computes them in
# advance.
_NEVER_COMPUTED = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
        *("If", "Loop", "Scan", "CastLike", "Size"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
    )
)
_COMPUTED_AHEAD = "computed once when the model is loaded"
_PASSED = "has no effect, and is removed"
_UNUSED = "nothing uses its results"

# Operators that ONNX Runtime removes if they return their input unchanged.
_PASSING = frozenset({"Identity", "Dropout", "Cast"})
_CLOSE = 1e-3
# Permutations that correspond to DepthToSpace with the modes DCR and CRD.
_SHUFFLES = {(0, 3, 4, 1, 5, 2), (0, 1, 4, 2, 5, 3)}
_COMPUTED = NodeVerdict("folded", reason=_COMPUTED_AHEAD)
# Operators that `fold` must not compute, because ONNX Runtime does not compute them in advance.
_NOT_COMPUTED = frozenset({"CastLike", "Size"})


def folded(view: ModelIndex) -> Mapping[int, str]:
    """Return the nodes that ONNX Runtime computes or removes before it places nodes, by index, with the reason."""
    found: dict[int, str] = {}
    known = set(view.sizes)
    for node in view.nodes:
        if _is_computed(node, known):
            found[node.index] = _COMPUTED_AHEAD
            known.update(tensor.name for tensor in node.made)
        elif _does_nothing(node, view):
            found[node.index] = _PASSED
    _add_unused(view, found)
    return found


def _is_computed(node: GraphNode, known: set[str]) -> bool:
    # A Shape node can be computed if its input has a fixed shape, even if the values of the input are unknown.
    if node.op == "Shape":
        return bool(node.given) and node.given[0].fixed is not None
    if node.op in _NEVER_COMPUTED:
        return False
    if not node.given:
        return node.op == "Constant" or bool(node.made and node.made[0].fixed is not None)
    return all(tensor.name in known for tensor in node.given) and not node.inner_ops


def _does_nothing(node: GraphNode, view: ModelIndex) -> bool:
    if node.op not in _PASSING or not node.given or not node.made:
        return False
    source, result = node.given[0], node.made[0]
    # The names of a graph's inputs and outputs are fixed, so a node that directly connects an input and an output
    # cannot be removed.
    at_edge = result.name in view.outputs and (source.name in view.inputs or len(view.readers(source.name)) > 1)
    if at_edge or result.name in view.captured:
        return False
    if node.op == "Identity":
        return bool(source.type)
    if node.op == "Dropout":
        return not any(tensor.name in view.users or tensor.name in view.outputs for tensor in node.made[1:])
    return bool(source.type) and source.type == result.type


def _add_unused(view: ModelIndex, found: dict[int, str]) -> None:
    needed = set(view.outputs) | set(view.captured)
    # Process nodes in reverse order, so that a tensor's readers are decided before its producer.
    for node in reversed(view.nodes):
        # A folded node does not read its inputs at run time, so the nodes that compute them may be unused.
        if node.index in found and found[node.index] == _COMPUTED_AHEAD:
            continue
        if any(tensor.name in needed for tensor in node.made):
            needed.update(tensor.name for tensor in node.given)
        else:
            found[node.index] = _UNUSED


def fusions_of(view: ModelIndex) -> dict[int, str]:
    """Return the nodes that QNN supports only if they are merged into one operator, with this operator's name."""
    found: dict[int, str] = {}
    for node in view.nodes:
        if node.op == "Erf" and _is_gelu(node, view):
            found[node.index] = "Gelu"
        elif node.op == "Transpose" and (around := _depth_to_space(node, view)):
            found.update(dict.fromkeys(around, "DepthToSpace"))
    return found


def _depth_to_space(turn: GraphNode, view: ModelIndex) -> tuple[int, ...] | None:
    """Return the nodes of a pixel shuffle as exporters write it (Reshape to six dimensions, Transpose, Reshape to
    four), or None.
    """
    before, behind = view.origin(turn.given[0].name), _only_user(turn, view)
    if before is None or behind is None or before.op != "Reshape" or behind.op != "Reshape":
        return None
    if tuple(turn.get("perm", ())) not in _SHUFFLES or before.given[0].rank != 4 or behind.made[0].rank != 4:
        return None
    return before.index, turn.index, behind.index


def _is_gelu(erf: GraphNode, view: ModelIndex) -> bool:
    """Return whether QNN merges this Erf into Gelu: 0.5 * x * (1 + Erf(x / sqrt(2))), with the outer factors in any
    order.

    Either no tensor of the pattern may be quantised, or both x and the result must be; otherwise QNN refuses the
    Erf.
    """
    if not erf.given or not erf.made:
        return False
    before = view.origin(erf.given[0].name)
    add = _only_user(erf, view)
    if before is None or before.op not in ("Div", "Mul") or add is None or add.op != "Add":
        return False
    if not _has_number(add, 1.0):
        return False
    last = _only_user(add, view)
    if last is None or last.op != "Mul":
        return False
    behind = _only_user(last, view)
    # The factor 0.5 may come before or after the factor x, depending on the exporter.
    if behind is not None and behind.op == "Mul" and (_has_number(last, 0.5) or _has_number(behind, 0.5)):
        last = behind
    makers = [view.origin(tensor.name) for tensor in before.given if not tensor.constant]
    begins = any(one is not None and one.op in DEQUANTIZE for one in makers)
    users = [user for tensor in last.made for user in view.readers(tensor.name)]
    return begins == any(user.op in QUANTIZE for user in users)


def _only_user(node: GraphNode, view: ModelIndex) -> GraphNode | None:
    users = view.readers(node.made[0].name)
    return users[0] if len(users) == 1 and node.made[0].name not in view.outputs else None


def _has_number(node: GraphNode, number: float) -> bool:
    for tensor in node.given:
        if tensor.values is not None and len(tensor.values) == 1 and abs(float(tensor.values[0]) - number) < _CLOSE:
            return True
    return False


def parts_of(view: ModelIndex, places: Sequence[NodePlace]) -> list[list[int]]:
    """Return the nodes of each part on QNN by index, in order of execution. Folded nodes are skipped.

    Like ONNX Runtime, visit a node as soon as all of its inputs are available, and append nodes on QNN to the
    current part. If a node on the CPU reads from the current part, close the part before visiting the node.
    """
    before, behind = view.links
    alive = [place != "folded" for place in places]
    waiting = [sum([alive[maker] for maker in makers]) for makers in before]
    ready = deque(index for index, count in enumerate(waiting) if alive[index] and not count)
    later: deque[int] = deque()
    parts: list[list[int]] = []
    part: list[int] = []
    # Nodes that read from the current part. If such a node runs on the CPU, it must wait until the part is closed.
    border: set[int] = set()
    while ready or later:
        # All remaining nodes wait for the current part, so close the part and continue with these nodes.
        if not ready:
            if part:
                parts.append(part)
                part, border = [], set()
            ready, later = later, deque()
            continue
        index = ready.popleft()
        on_qnn = places[index] == "qnn"
        if not on_qnn and index in border:
            later.append(index)
            continue
        if on_qnn:
            part.append(index)
            border.discard(index)
        for user in behind[index]:
            if not alive[user]:
                continue
            if on_qnn:
                border.add(user)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if part:
        parts.append(part)
    return parts


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """Result of the rules for one model.

    Args:
        verdicts: one for each node of the main graph, in order.
        view: index of the graph, with all known shapes.
        empty: tensors without elements. QNN may crash the process on a node that reads or writes such a tensor.
        no_input: true if the folded model has no inputs.
        decided: indexes of If nodes with a known condition. ONNX Runtime replaces each by its taken branch.
        left: the folded model, without large weights. In each If of `decided`, both branches are copies of the
            taken branch.
        numbers: for each node of `left`, its index in the original model.
    """

    verdicts: tuple[NodeVerdict, ...]
    view: ModelIndex
    empty: tuple[str, ...]
    no_input: bool
    decided: frozenset[int]
    left: Any
    numbers: tuple[int, ...]


def predict_model(model: Any, arch: int, folder: Path | None = None) -> Prediction:
    """Predict where each node runs.

    Args:
        model: `ModelProto`; it is not changed, and its weights need not be loaded.
        arch: architecture of the HTP: 73 for V73.
        folder: folder of external tensors; small ones are read.
    """
    light = graphs.without_weights(model)
    # Identify nodes by number: nodes are removed below, and names may be missing or duplicate.
    for index, node in enumerate(light.graph.node):
        node.name = str(index)
    # Without a folder, external tensors cannot be read, so remove the references to their files.
    if folder is None:
        for tensor in light.graph.initializer:
            del tensor.external_data[:]
    editor = Editor(light, folder or Path())
    fold(editor, _NOT_COMPUTED)
    decided = _drop_untaken_branches(editor)
    if _has_folded(light, model):
        left = ModelIndex(light, editor.types)
        original = graphs.without_weights(model)
        for node in light.graph.node:
            if int(node.name) in decided:
                del original.graph.node[int(node.name)].attribute[:]
                original.graph.node[int(node.name)].attribute.extend(node.attribute)
        whole = ModelIndex(original, editor.types, follows=left)
        found = dict(zip((int(node.name) for node in left.nodes), predict(left, arch), strict=True))
        verdicts = tuple(found.get(node.index, _COMPUTED) for node in whole.nodes)
    else:
        # If nothing was folded (the usual case), use one index for both the model and the folded copy.
        left = whole = ModelIndex(light, editor.types, [node.name for node in model.graph.node])
        verdicts = tuple(predict(left, arch))
    numbers = tuple(int(node.name) for node in light.graph.node)
    prediction = Prediction(
        verdicts,
        whole,
        tuple(dict.fromkeys(tensor.name for node in left.nodes for tensor in rules.empty_tensors(node))),
        not left.inputs,
        decided,
        light,
        numbers,
    )
    for number, node in zip(numbers, light.graph.node, strict=True):
        node.name = model.graph.node[number].name
    return prediction


def _drop_untaken_branches(editor: Editor) -> frozenset[int]:
    """In each If with a known condition, replace the branch that never runs by a copy of the taken branch.

    The branch that never runs then affects neither shapes nor placement, and the nodes keep their order and number.
    Return the indexes of these If nodes.
    """
    decided = set()
    for node in editor.graph.node:
        if (branch := taken_branch(editor, node)) is not None:
            decided.add(int(node.name))
            for attribute in node.attribute:
                if attribute.g is not branch:
                    attribute.g.CopyFrom(branch)
    if decided:
        editor.changed(shapes=True)
    return frozenset(decided)


def _has_folded(light: Any, model: Any) -> bool:
    """Return whether the copy has a constant that is computed by a node in the original model."""
    return [one.name for one in light.graph.initializer] != [one.name for one in model.graph.initializer]


def predict(view: ModelIndex, arch: int) -> list[NodeVerdict]:
    """Return one verdict for each node, in order. Everything that can be computed in advance must already be a
    constant.
    """
    context = RuleContext(view, arch)
    gone = folded(view)
    units = _units_of(view)
    fusions = fusions_of(view)
    verdicts = [
        NodeVerdict("folded", reason=gone[node.index])
        if node.index in gone
        else _verdict_on(node, context, units, fusions)
        for node in _with_constants(view, gone)
    ]
    return _spread_to_edges(verdicts, units)


def _verdict_on(node: GraphNode, context: RuleContext, units: QdqUnits, fusions: dict[int, str]) -> NodeVerdict:
    if node.index in fusions:
        return ON_QNN
    quantized_unit = units.get(node.index)
    # For a quantised operator, skip the rules about float operators: `_unit_verdict` checks the quantised types,
    # and chips before V73 lack only float operators.
    for rule in placement_rules(node.op):
        if quantized_unit is not None and rule.name in ("type", "rearranged", "chip"):
            continue
        verdict = rule.verdict(node, context)
        if verdict is not None:
            return verdict
    if quantized_unit is not None:
        return _unit_verdict(node, quantized_unit, context.arch)
    return ON_QNN


def _with_constants(view: ModelIndex, gone: Mapping[int, str]) -> list[GraphNode]:
    """Return the nodes, and mark the inputs that ONNX Runtime computes in advance as constant."""
    computed = {
        tensor.name for node in view.nodes if gone.get(node.index) == _COMPUTED_AHEAD for tensor in node.made
    }
    return [
        dataclasses.replace(
            node,
            inputs=tuple(
                dataclasses.replace(tensor, constant=True)
                if tensor is not None and tensor.name in computed
                else tensor
                for tensor in node.inputs
            ),
        )
        if any(tensor.name in computed for tensor in node.given)
        else node
        for node in view.nodes
    ]


# --- quantised operators: a node with its Dequantize and Quantize nodes forms one unit -------------------------

QUANTIZE: Final = frozenset({"QuantizeLinear", "com.microsoft.QuantizeLinear"})
DEQUANTIZE: Final = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})
EDGES: Final = QUANTIZE | DEQUANTIZE

_V73 = 73
_SHORT: Final = {"uint8": "u8", "int8": "s8", "uint16": "u16", "int16": "s16", "int4": "s4", "uint4": "u4"}

# Types of the second operand that QNN supports for each activation type; types after "|" need V73. Measured with
# 231 one-operator models on the simulator, for V68, SoC 60 and SoC 88; SoC 60 and SoC 88 support the same types.
_CONV: Final = {"u8": "u8 s8 s4", "s8": "u8 s8 s4 u16 s16", "u16": "u8 s8 s4 | u16 s16", "s16": "s8 s4"}
_CONV_PER_CHANNEL: Final = {"u8": "s8 s4", "s8": "s8", "u16": "s8 s4 | s16", "s16": "s8 s4"}
_MATMUL: Final = {"u8": "u8 s8", "s8": "u8 s8 u16 s16", "u16": "u8 s8 | u16 s16", "s16": "s8"}
_MATMUL_PER_CHANNEL: Final = {"u8": "s8 s4", "s8": "s8", "u16": "s8 s4", "s16": "s8 s4"}
_MATMUL_DYNAMIC: Final = {"u8": "u8 s8", "s8": "u8 s8 u16 s16", "u16": "u8 s8 u16 | s16", "s16": "s8 | s16"}
_LAYER_NORM: Final = {"u8": "u8", "s8": "s8", "u16": "u8 | s16", "s16": ""}
_RMS_NORM: Final = {"u8": "u8", "s8": "", "u16": "u8 u16 s16", "s16": "u8 s16"}
_NOT_INT16: Final = frozenset({"HardSwish", "Exp", "Round", "Sin", "GlobalAveragePool"})


@dataclasses.dataclass(frozen=True, slots=True)
class QdqUnit:
    """An operator with the Dequantize and Quantize nodes around it.

    Types are abbreviated, for example u8 and s16.

    Args:
        edges: indexes of the Quantize and Dequantize nodes.
        activation: type of the first input.
        weight: type of the second input.
        per_channel: the weight has a scale per channel.
        weight_is_constant: the second input is a constant.
    """

    edges: tuple[int, ...]
    activation: str
    weight: str
    per_channel: bool
    weight_is_constant: bool


QdqUnits = Mapping[int, QdqUnit]


def _units_of(view: ModelIndex) -> dict[int, QdqUnit]:
    """Return the quantised units of the graph, by the index of their operator."""
    found: dict[int, QdqUnit] = {}
    for node in view.nodes:
        if node.op in EDGES or not node.made:
            continue
        before = [view.origin(tensor.name) for tensor in node.given]
        sources = [one for one in before if one is not None and one.op in DEQUANTIZE]
        users = [user for tensor in node.made for user in view.readers(tensor.name)]
        # If a node other than QuantizeLinear reads the output, ONNX Runtime does not form a unit.
        if not sources or not users or any(user.op not in QUANTIZE for user in users):
            continue
        # The application reads a model output as float, so the operator does not form a unit either.
        if any(tensor.name in view.outputs for tensor in node.made):
            continue
        found[node.index] = _unit(node, view, tuple(one.index for one in (*sources, *users)))
    return found


def _unit_verdict(node: GraphNode, unit: QdqUnit, arch: int) -> NodeVerdict:
    """Return the verdict on a unit whose operator passed all other rules."""
    table = _table(node, unit)
    if node.op in _NOT_INT16 and unit.activation == "s16":
        return NodeVerdict(
            "cpu",
            "quantised-types",
            f"QNN does not support {node.op} with int16 activations",
            "quantise the float model with uint16 activations",
        )
    if table is None or unit.activation not in table or not unit.weight:
        return ON_QNN
    always, _, newer = table[unit.activation].partition("|")
    if unit.weight in always.split():
        return ON_QNN
    pair = f"{node.op} with {unit.activation} activations and {unit.weight} weights"
    pair += " per channel" if unit.per_channel else ""
    if unit.weight in newer.split():
        if arch >= _V73:
            return ON_QNN
        return NodeVerdict(
            "cpu",
            "quantised-types",
            f"{pair} needs a V{_V73} or newer",
            "quantise the float model with int8 weights",
        )
    # The rewrite "weight-type" converts weights of these types to int8 or int4.
    stored = unit.weight in ("u4", "s4") or (unit.weight == "u8" and unit.activation in ("s8", "s16"))
    cured = stored and unit.weight_is_constant and node.op in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    return NodeVerdict(
        "cpu",
        "quantised-types",
        f"QNN does not support {pair}",
        "qnnbridge fix (weight-type)"
        if cured
        else "quantise the float model with qnnbridge quantize, which chooses supported types",
    )


def _spread_to_edges(verdicts: list[NodeVerdict], units: QdqUnits) -> list[NodeVerdict]:
    """Place Quantize and Dequantize nodes where their operators run."""
    result = list(verdicts)
    places: dict[int, list[NodeVerdict]] = {}
    for index, unit in units.items():
        for edge in unit.edges:
            places.setdefault(edge, []).append(verdicts[index])
    for edge, around in places.items():
        # Keep the verdict "fails": the scale of the node itself is invalid.
        if verdicts[edge].place == "fails":
            continue
        # A node may belong to two operators: it runs on QNN if one of the operators does.
        if any(one.place == "qnn" for one in around):
            result[edge] = ON_QNN
        elif all(one.place == "cpu" for one in around):
            # Repeat the operator's verdict: these nodes move to QNN together with the operator.
            result[edge] = around[0]
    return result


def _unit(node: GraphNode, view: ModelIndex, edges: tuple[int, ...]) -> QdqUnit:
    first, second = (_quantised(node.input(number), view) for number in (0, 1))
    weight = node.input(1)
    maker = view.origin(weight.name) if weight is not None else None
    scale = maker.input(1) if maker is not None and maker.op in DEQUANTIZE else None
    constant = bool(maker and maker.op in DEQUANTIZE and maker.given[0].constant)
    return QdqUnit(edges, first, second, bool(scale and (scale.elements or 1) > 1), constant)


def _quantised(tensor: GraphTensor | None, view: ModelIndex) -> str:
    maker = view.origin(tensor.name) if tensor is not None else None
    if maker is None or maker.op not in DEQUANTIZE:
        return ""
    return _SHORT.get(maker.given[0].type, maker.given[0].type)


def _table(node: GraphNode, unit: QdqUnit) -> Mapping[str, str] | None:
    if node.op in ("Conv", "ConvTranspose"):
        return _CONV_PER_CHANNEL if unit.per_channel else _CONV
    if node.op in ("MatMul", "Gemm"):
        if not unit.weight_is_constant:
            return _MATMUL_DYNAMIC
        return _MATMUL_PER_CHANNEL if unit.per_channel else _MATMUL
    return {"LayerNormalization": _LAYER_NORM, "RMSNormalization": _RMS_NORM}.get(node.op)
