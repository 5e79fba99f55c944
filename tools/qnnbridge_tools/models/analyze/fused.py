"""Groups of nodes that QNN takes as one operator, though it does not have all of them alone. Pure functions."""

from __future__ import annotations

from qnnbridge_tools.models.analyze.graph_view import GraphView, Node

_CLOSE = 1e-3
_SHUFFLES = {(0, 3, 4, 1, 5, 2), (0, 1, 4, 2, 5, 3)}
"""The orders of the modes DCR and CRD."""


def fusions_of(view: GraphView) -> dict[int, str]:
    """Index of a node that would be refused alone -> the operator that it is a part of."""
    found: dict[int, str] = {}
    for node in view.nodes:
        if node.op == "Erf" and _is_gelu(node, view):
            found[node.index] = "Gelu"
        elif node.op == "Transpose" and (around := _depth_to_space(node, view)):
            found.update(dict.fromkeys(around, "DepthToSpace"))
    return found


def _depth_to_space(turn: Node, view: GraphView) -> tuple[int, ...] | None:
    """Reshape to six dimensions, Transpose, Reshape to four: how exporters write a pixel shuffle."""
    before, behind = view.maker.get(turn.given[0].name), _only_user(turn, view)
    if before is None or behind is None or before.op != "Reshape" or behind.op != "Reshape":
        return None
    if tuple(turn.get("perm", ())) not in _SHUFFLES or before.given[0].rank != 4 or behind.made[0].rank != 4:
        return None
    return before.index, turn.index, behind.index


def _is_gelu(erf: Node, view: GraphView) -> bool:
    """x / sqrt(2), Erf, + 1, * x, * 0.5, the last two in either order."""
    if not erf.given or not erf.made:
        return False
    before = view.maker.get(erf.given[0].name)
    add = _only_user(erf, view)
    if before is None or before.op not in ("Div", "Mul") or add is None or add.op != "Add":
        return False
    if not _has_number(add, 1.0, view):
        return False
    first = _only_user(add, view)
    return first is not None and first.op == "Mul"


def _only_user(node: Node, view: GraphView) -> Node | None:
    users = view.users.get(node.made[0].name, ())
    return users[0] if len(users) == 1 and node.made[0].name not in view.output_names else None


def _has_number(node: Node, number: float, view: GraphView) -> bool:
    for tensor in node.given:
        value = view.value(tensor)
        if value is not None and value.size == 1 and abs(float(value.reshape(-1)[0]) - number) < _CLOSE:
            return True
    return False
