"""How ONNX Runtime cuts a graph: which nodes on QNN become one part, given where each node runs. Pure functions.

The same walk as ONNX Runtime's: nodes are taken as soon as all of their inputs are there; a node that QNN does not
take and that depends on the part at hand waits until the part is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from qnnbridge_tools.models.analyze.graph_view import GraphView
from qnnbridge_tools.models.analyze.verdicts import Place


def parts_of(view: GraphView, places: Sequence[Place]) -> list[list[int]]:
    """Indexes of the nodes of each part on QNN, in the order in which they run. Folded nodes are no nodes."""
    live = [index for index, place in enumerate(places) if place != "folded"]
    alive = set(live)
    before: dict[int, set[int]] = {index: set() for index in live}
    behind: dict[int, list[int]] = {index: [] for index in live}
    for index in live:
        for tensor in view.nodes[index].given:
            maker = view.maker.get(tensor.name)
            if maker is not None and maker.index in alive and maker.index not in before[index]:
                before[index].add(maker.index)
                behind[maker.index].append(index)
    waiting = {index: len(before[index]) for index in live}
    ready = deque(index for index in live if not waiting[index])
    later: deque[int] = deque()
    parts: list[list[int]] = []
    part: list[int] = []
    border: set[int] = set()
    while ready or later:
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
            if on_qnn:
                border.add(user)
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if part:
        parts.append(part)
    return parts
