"""Exponentials whose result is no normal float any more, for which QNN gives 131008 or -131008.

A limit on the argument keeps the result: see `LEAST_ARGUMENT`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qnnbridge_host.graph.editor import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewrites.rewriting import LEAST_ARGUMENT, NodeChain, rewrite_matched

# The opset from which the axes of an operator are an input.
_SINCE = {"Max": 8, "ReduceSum": 13, "ReduceMax": 18}


def limit_arguments(editor: Editor) -> list[str]:
    """Exp, Softplus, Mish and Pow of a constant base get a Max or Min in front; ReduceLogSumExp, and LogSoftmax
    of masked values, become their definitions with one inside."""
    plans = (
        (("Exp", "Softplus", "Mish"), ("exp-underflow",), _limit_input),
        (("Pow",), ("pow-underflow",), _limit_exponent),
        (("ReduceLogSumExp",), ("log-sum-exp-underflow",), _log_sum_exp),
        (("LogSoftmax",), ("log-softmax-masked",), _log_softmax),
    )
    return [
        line for ops, rows, change in plans for op in ops for line in rewrite_matched(editor, op, rows, change, op)
    ]


def _limit_input(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    if not _may_limit(editor, node.input[0]):
        return None
    chain = NodeChain(editor, node)
    node.input[0] = chain("Max", node.input[0], chain.constant(LEAST_ARGUMENT))
    return [*chain.made, node]


def _may_limit(editor: Editor, name: str) -> bool:
    """Its type is known and one of QNN's, and Max broadcasts."""
    return editor.element(name) in (1, 10) and editor.opset >= _SINCE["Max"]


def _limit_exponent(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """base ** x is exp(x * log(base)): a base above 1 has a least exponent, one below 1 a largest."""
    base = editor.constant(node.input[0], 1)
    if base is None or not np.isfinite(base).all() or not _may_limit(editor, node.input[1]):
        return None
    if editor.element(node.input[0]) != editor.element(node.input[1]):
        return None
    factor = math.log(float(base.reshape(-1)[0]))
    chain = NodeChain(editor, node)
    node.input[1] = chain("Max" if factor > 0 else "Min", node.input[1], chain.constant(LEAST_ARGUMENT / factor))
    return [*chain.made, node]


def _log_sum_exp(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """max + log(sum(exp(x - max)))."""
    if len(node.input) > 1 and node.input[1]:
        given = editor.constant(node.input[1], 8)
        if given is None:
            return None
        axes = [int(axis) for axis in given.reshape(-1)]
    else:
        axes = [int(axis) for axis in record.attributes.get("axes", ())]
    rank = editor.rank(node.input[0])
    if not axes and record.attributes.get("noop_with_empty_axes"):
        return None
    if rank is None or not _may_limit(editor, node.input[0]) or not (axes := axes or list(range(rank))):
        return None
    keep = int(record.attributes.get("keepdims", 1))
    chain = NodeChain(editor, node)
    # Infinity minus infinity would be no number.
    most = 3e38 if editor.element(node.input[0]) == 1 else 65504.0
    finite = chain("Min", chain("Max", chain.x, chain.constant(-most)), chain.constant(most))
    top = _reduced(chain, "ReduceMax", finite, axes, 1)
    total = _reduced(chain, "ReduceSum", chain.exp(chain("Sub", chain.x, top)), axes, keep)
    chain("Add", chain("Log", total), top if keep else _reduced(chain, "ReduceMax", finite, axes, 0))
    return chain.nodes()


def _log_softmax(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """(x - max) - log(sum(exp(x - max))). Before opset 13 it takes all dimensions from its axis on as one."""
    if editor.opset < _SINCE["ReduceSum"] or not _may_limit(editor, node.input[0]):
        return None
    axes = [int(record.attributes.get("axis", -1))]
    chain = NodeChain(editor, node)
    below = chain("Sub", chain.x, _reduced(chain, "ReduceMax", chain.x, axes, 1))
    chain("Sub", below, chain("Log", _reduced(chain, "ReduceSum", chain.exp(below), axes, 1)))
    return chain.nodes()


def _reduced(chain: NodeChain, op: str, value: str, axes: list[int], keep: int) -> str:
    if chain.editor.opset < _SINCE[op]:
        return chain(op, value, axes=axes, keepdims=keep)
    listed = chain.editor.add_constant(np.array(axes, np.int64), f"{chain.node.output[0]}/axes")
    return chain(op, value, listed, keepdims=keep)
