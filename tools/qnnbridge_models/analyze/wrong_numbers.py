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
    for one in known_wrong.find(view, arch=arch, release=release):
        if verdicts[one.index].place == "qnn":
            by_row.setdefault(one.fault.name, []).append(one)
    return [_advice(view, found, path) for found in by_row.values()]


def _advice(view: ModelIndex, found: Sequence[KnownWrong], path: str) -> Advice:
    fault = found[0].fault
    names = ", ".join(one.node for one in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    # The rewrite finds a node whose sizes or paddings the model computes only after they are constants.
    given = [tensor for one in found for tensor in view.node(one.index).given]
    computed = any(tensor.values is not None and not tensor.constant for tensor in given)
    first = "--only shape-computations " if computed else ""
    what = f"qnnbridge fix {path} -o OUT {first}--only {fault.rewrite}" if fault.rewrite else fault.advice
    return Advice(
        what,
        f"QNN computes {found[0].op} wrong here: {fault.says}. In: {names}{more}",
        tuple(one.index for one in found),
        severity=known_wrong.CODE,
        code=known_wrong.CODE,
    )
