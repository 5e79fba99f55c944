"""Count the nodes in a model file, with the definition that `inspect`, `analyze`, `fix` and `optimize` share.

A node in the file is a node of the main graph or of a graph inside of an If, Loop or Scan. A call of a function
that the model defines counts as the nodes of the function's body, which is what ONNX Runtime runs. Constant nodes
count.

A session reports different numbers (`Placement`), because it counts the nodes after optimisation: ONNX Runtime
folds constant nodes, merges nodes and inserts others before it assigns nodes to providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ONNX_DOMAINS = ("", "ai.onnx")
# (domain, operator)
Operator = tuple[str, str]


def operator_of(op_type: str, domain: str) -> Operator:
    return "" if domain in ONNX_DOMAINS else domain, op_type


# Maximum count, the largest integer that all JSON readers represent exactly. A chain of a thousand functions, each
# of which calls the next twice, exceeds it.
_MOST = 2**53


def written_out(
    nodes: Mapping[Operator, int], functions: Mapping[Operator, Mapping[Operator, int]]
) -> dict[str, int]:
    """Return the number of nodes by operator (with the domain unless it is ONNX's own), with function bodies
    instead of calls.

    Args:
        nodes: node counts of the main graph and of the graphs inside of it.
        functions: node counts of each function's body.
    """
    bodies: dict[Operator, Counter[str]] = {}
    for function in functions:
        # Use a stack instead of recursion, because a model may chain more functions than Python has frames.
        waiting = [function]
        entered: set[Operator] = set()
        while waiting:
            current = waiting[-1]
            # Count the inner call of a recursive function as one node, so that counting ends. No runtime accepts
            # such a function.
            called = [] if current in entered else [one for one in functions[current] if one in functions]
            entered.add(current)
            missing = [one for one in called if one not in bodies and one not in entered]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if current not in bodies:
                bodies[current] = _counted(functions[current], bodies)
    return dict(_counted(nodes, bodies))


def _counted(nodes: Mapping[Operator, int], bodies: Mapping[Operator, Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for operator, count in nodes.items():
        domain, op_type = operator
        body = bodies.get(operator)
        for name, number in (
            {f"{domain}.{op_type}" if domain else op_type: 1}.items() if body is None else body.items()
        ):
            total[name] = min(total[name] + number * count, _MOST)
    return total
