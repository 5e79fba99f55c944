"""What ONNX Runtime computes or takes out before anything is placed: no provider ever sees it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_tools.models.analyze.graph_view import GraphView, Node

_NEVER = frozenset(
    {
        *(
            "QuantizeLinear",
            "DequantizeLinear",
            "If",
            "Loop",
            "Scan",
            "RandomNormal",
            "RandomUniform",
            "Multinomial",
        ),
        *("CastLike", "Size", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "DynamicQuantizeLinear"),
        *("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"),
    }
)
_COMPUTED, _PASSED, _UNUSED = (
    "computed once when the model is loaded",
    "does nothing, and is taken out",
    "nobody uses what it makes",
)


def folded(view: GraphView) -> Mapping[int, str]:
    """Index of each such node, and why."""
    found: dict[int, str] = {}
    known = set(view.sizes) - {tensor.name for tensor in view.inputs}
    for node in view.nodes:
        if _is_computed(node, known):
            found[node.index] = _COMPUTED
            known.update(tensor.name for tensor in node.made)
        elif _does_nothing(node, view):
            found[node.index] = _PASSED
    _add_unused(view, found)
    return found


def _is_computed(node: Node, known: set[str]) -> bool:
    if node.op == "Shape":
        return bool(node.given) and node.given[0].fixed is not None
    if node.op in _NEVER:
        return False
    if not node.given:
        return node.op == "Constant" or bool(node.made and node.made[0].fixed is not None)
    return all(tensor.name in known for tensor in node.given) and not node.inner


def _does_nothing(node: Node, view: GraphView) -> bool:
    if not node.given or not node.made:
        return False
    source, result = node.given[0], node.made[0]
    at_edge = result.name in view.output_names and (
        source.name in {tensor.name for tensor in view.inputs} or len(view.users.get(source.name, ())) > 1
    )
    if at_edge or result.name in view.captured:
        return False
    if node.op == "Identity":
        return bool(source.type)
    if node.op == "Dropout":
        return not any(tensor.name in view.users or tensor.name in view.output_names for tensor in node.made[1:])
    if node.op == "Cast":
        return bool(source.type) and source.type == result.type
    return False


def _add_unused(view: GraphView, found: dict[int, str]) -> None:
    needed = set(view.output_names) | set(view.captured)
    for node in reversed(view.nodes):
        if node.index in found and found[node.index] == _COMPUTED:
            continue
        if any(tensor.name in needed for tensor in node.made):
            needed.update(tensor.name for tensor in node.given)
        else:
            found[node.index] = _UNUSED
