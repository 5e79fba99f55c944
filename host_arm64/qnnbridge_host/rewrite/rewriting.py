"""Helpers of rewrites: decorators for rewrites of single nodes, chains of new nodes, attributes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.graph_index import GraphNode

Change = Callable[[Editor, Any, GraphNode], list[Any] | None]
# A function that changes the model and returns a description of each type of change.
Rewriting = Callable[[Editor], list[str]]

# For x <= -88.03, where exp(x) is not a normal float, QNN returns 131008 or -131008 (measured with 2.3.0 to 2.7.0,
# V68 to V81). exp(-87) is 2e-38, for which QNN returns zero: the smallest half float is 6e-8.
LEAST_ARGUMENT = -87.0
# The first opset in which Max supports integers.
_MAX_OF_INTEGERS = 12
# End of a Slice that reaches the end of the axis, whatever its size.
LAST = 2**31 - 1


def for_nodes(
    op: str | Collection[str], what_changed: str, domains: Sequence[str] = graphs.ONNX_DOMAINS
) -> Callable[[Callable[[Editor, Any], list[Any] | None]], Rewriting]:
    """Return a decorator that turns a function for one node into a rewrite of all nodes of an operator.

    The function returns the nodes that replace its node, or ``None`` to keep the node.

    Args:
        op: one operator or several.
        what_changed: description of the nodes for the report of the change.
        domains: domains of the operators.
    """
    return lambda change: (
        lambda editor: editor.replace(op, lambda node: change(editor, node), what_changed, domains)
    )


def for_matches(op: str | Collection[str], rows: Sequence[str], what_changed: str) -> Callable[[Change], Rewriting]:
    """Return a decorator like `for_nodes` for nodes that match one of the given rows of the known-wrong table."""
    return lambda change: lambda editor: rewrite_matched(editor, op, rows, change, what_changed)


def rewrite_matched(
    editor: Editor, op: str | Collection[str], rows: Sequence[str], change: Change, what_changed: str
) -> list[str]:
    """Rewrite the nodes of an operator that match one of the given rows of the known-wrong table.

    Args:
        editor: the model.
        op: one operator or several.
        rows: rows of the table. Rows that QNN was measured to compute right on this computer are skipped.
        change: function that returns the nodes that replace a node, or ``None`` to keep the node.
        what_changed: description of the nodes for the report of the change.
    """
    faults = [one for one in known_wrong.table() if one.name in rows and one.name not in editor.right_here]

    def of_node(node: Any) -> list[Any] | None:
        # Find the record by a result, because nodes may lack a name.
        record = editor.node(next(editor.makers[name] for name in node.output if name))
        if not any(known_wrong.matches(fault, record, editor) for fault in faults):
            return None
        return change(editor, node, record)

    return editor.replace(op, of_node, what_changed)


class NodeChain:
    """New nodes that replace `node`. A new node can read the results of earlier nodes.

    Calling the object appends a node and returns the name of its result.
    """

    def __init__(self, editor: Editor, node: Any) -> None:
        self.editor, self.node = editor, node
        self.made: list[Any] = []
        self.x = node.input[0]

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.made.append(self.editor.make(op, inputs, self.node, **attributes))
        return str(self.made[-1].output[0])

    def constant(self, value: float) -> str:
        """Add a constant of the type of the node's first input; return its name."""
        return self.editor.like(self.x, value, f"{self.node.output[0]}/{value:g}")

    def exp(self, value: str) -> str:
        """Append Exp of a value that may be less than `LEAST_ARGUMENT`."""
        return self("Exp", self("Max", value, self.constant(LEAST_ARGUMENT)))

    def reduce(self, op: str, value: str) -> str:
        """Append a reduction with the axes of `node`."""
        # The axes are an input or an attribute, depending on the opset, so pass both.
        result = self(op, value, *self.node.input[1:])
        self.made[-1].attribute.extend(self.node.attribute)
        return result

    def nodes(self) -> list[Any]:
        """Return the nodes; the last one computes the result of `node`."""
        self.made[-1].output[0] = self.node.output[0]
        return self.made


def unchanged(chain: NodeChain, value: str, kind: Any) -> str:
    """Append nodes that return integers unchanged, and that neither ONNX Runtime nor QNN removes.

    kind: numpy type of the integers, int32 or int64.
    """
    if chain.editor.opset >= _MAX_OF_INTEGERS:
        # The smallest int32, so that Max does not change any value; QNN computes int64 in 32 bits, too.
        return chain("Max", value, chain.editor.add_constant(np.array(-(2**31), kind), "least"))
    one = chain.editor.add_constant(np.array(1, kind), "one")
    return chain("Sub", chain("Add", value, one), one)


def sliced(
    editor: Editor,
    node: Any,
    value: str,
    axis: int,
    start: int,
    end: int,
    output: str | None = None,
    hints: Sequence[str] = ("from", "to", "along"),
) -> Any:
    """Return a Slice along one axis. hints: name hints of the constants for start, end and axis."""
    numbers = zip((start, end, axis), hints, strict=True)
    limits = [editor.add_constant(np.array([number], np.int64), hint) for number, hint in numbers]
    return editor.make("Slice", [value, *limits], node, output)


def with_edges(editor: Editor, node: Any, shape: Sequence[int], pads: Mapping[int, tuple[int, int]]) -> list[Any]:
    """Return nodes that pad a node's first input by copies of its edges. The last node computes the padded tensor.

    Args:
        shape: shape of the input.
        pads: number of copies before and after each padded axis; not empty.
    """
    made: list[Any] = []
    name = node.input[0]
    for axis, (before, after) in pads.items():
        first, end = (
            sliced(editor, node, name, axis, start, start + 1, hints=(f"{node.output[0]}/bound",) * 3)
            for start in (0, shape[axis] - 1)
        )
        # Compute the slice once, and concatenate it as often as the edge is repeated.
        parts = [first.output[0]] * before + [name] + [end.output[0]] * after
        made += [first] if before else []
        made += [end] if after else []
        made.append(editor.make("Concat", parts, node, axis=axis))
        name = made[-1].output[0]
    return made


def reshaped(editor: Editor, node: Any, shape: Sequence[int]) -> Any:
    """Give a node's result a new name, and return a Reshape of this result to `shape` with the original name."""
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/flat")
    # Set the type explicitly, because an array of an empty list would be float.
    sizes = editor.add_constant(np.array(shape, np.int64), "back")
    return editor.make("Reshape", [node.output[0], sizes], node, output)


def dtype_of(editor: Editor, name: str) -> Any:
    """Return the numpy type of a tensor's elements."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(editor.element(name))


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Set an attribute of a node."""
    from onnx import helper

    drop_attribute(node, name)
    node.attribute.append(helper.make_attribute(name, value))


def drop_attribute(node: Any, name: str) -> None:
    """Remove an attribute of a node, if it exists."""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
