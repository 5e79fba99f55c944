"""Operators of a model that QNN is known to compute wrong, as things to do about it. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.known_wrong import KnownWrong
from qnnbridge_models.analyze.analysis import Advice, NodeVerdict

_NAMED = 3


def wrong_numbers(
    view: ModelIndex, verdicts: Sequence[NodeVerdict], arch: int, release: str, path: str
) -> list[Advice]:
    """One thing to do for each row of the table that matches nodes on QNN.

    Args:
        arch: of the chip, 73 for V73.
        release: of onnxruntime-qnn; "" if it is not known.
        path: of the model, for the command that cures it.
    """
    by_row: dict[str, list[KnownWrong]] = {}
    known = {one.index: one for one in known_wrong.find(view, arch=arch, release=release)}
    # The file's own search knows sizes and paddings that the model computes from fixed shapes.
    plain = frozenset(known)
    for one in known_wrong.find_in_model(path, arch=arch, release=release):
        if one.index < len(view.nodes) and view.nodes[one.index].label == one.node:
            known.setdefault(one.index, one)
    for _, one in sorted(known.items()):
        if verdicts[one.index].place == "qnn":
            by_row.setdefault(one.fault.name, []).append(one)
    return [_advice(found, path, plain) for found in by_row.values()]


def _advice(found: Sequence[KnownWrong], path: str, plain: frozenset[int]) -> Advice:
    """plain: nodes that the rewrite finds without computing sizes first."""
    fault = found[0].fault
    names = ", ".join(one.node for one in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    first = "" if plain.issuperset(one.index for one in found) else "--only shape-computations "
    what = f"qnnbridge fix {path} -o OUT {first}--only {fault.rewrite}" if fault.rewrite else fault.advice
    return Advice(
        what,
        f"QNN computes {found[0].op} wrong here: {fault.says}. In: {names}{more}",
        tuple(one.index for one in found),
        severity=known_wrong.CODE,
        code=known_wrong.CODE,
    )
