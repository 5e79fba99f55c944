"""From verdicts to things to do: objections of one kind are one thing, the most valuable first. Pure functions.

What is worth most is found by trying: the nodes in question are put on QNN in thought, and the parts counted again.
"""

from __future__ import annotations

from collections.abc import Sequence

from qnnbridge_tools.models.analyze.costs import Cost
from qnnbridge_tools.models.analyze.graph_view import GraphView
from qnnbridge_tools.models.analyze.partitions import parts_of
from qnnbridge_tools.models.analyze.result import Advice
from qnnbridge_tools.models.analyze.verdicts import BAD, Place, Verdict

_NAMED = 3
_MOST_TRIED = 40
"""Kinds of objections for which the parts are counted again; each takes a walk over the graph."""
_ORDER = {"crash": 0, "fails": 1, "cpu": 2, "model": 3}


def advise(
    view: GraphView, verdicts: Sequence[Verdict], costs: Sequence[Cost], notes: Sequence[Advice]
) -> list[Advice]:
    """notes: about the model as a whole."""
    kinds: dict[tuple[str, str, str], list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.place in BAD:
            kinds.setdefault(_kind(view, index, verdict), []).append(index)
    places: list[Place] = [verdict.place for verdict in verdicts]
    now = len(parts_of(view, places))
    found = list(notes)
    largest = sorted(kinds.items(), key=lambda item: -len(item[1]))
    for number, (_, nodes) in enumerate(largest):
        tried = _would_join(view, places, nodes, now) if number < _MOST_TRIED else 0
        found.append(_advice(view, verdicts, costs, nodes, tried))
    return sorted(found, key=lambda one: (_ORDER[one.severity], -one.macs, -one.parts, -len(one.nodes)))


def _kind(view: GraphView, index: int, verdict: Verdict) -> tuple[str, str, str]:
    if verdict.rule == "free-shape":
        return verdict.rule, "", ""
    return verdict.rule, "" if verdict.fix else view.nodes[index].op, verdict.fix


def _would_join(view: GraphView, places: Sequence[Place], nodes: Sequence[int], now: int) -> int:
    moved = list(places)
    for index in nodes:
        moved[index] = "qnn"
    return now - len(parts_of(view, moved))


def _advice(
    view: GraphView, verdicts: Sequence[Verdict], costs: Sequence[Cost], nodes: Sequence[int], parts: int
) -> Advice:
    first = verdicts[nodes[0]]
    ops = list(dict.fromkeys(view.nodes[index].op for index in nodes))
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    names = ", ".join(view.nodes[index].label for index in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    shown = ", ".join(ops[:_NAMED]) + (" and others" if len(ops) > _NAMED else "")
    what = first.fix or f"Replace {shown}, or accept that it stays on the CPU"
    return Advice(
        what[0].upper() + what[1:] if not what.startswith("qnnbridge") else what,
        f"{count} ({shown}): {first.reason}. In: {names}{more}",
        tuple(nodes),
        sum(costs[index].macs for index in nodes),
        max(parts, 0),
        first.place,
    )
