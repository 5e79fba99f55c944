"""What several rewrites use: the frame of a rewrite of nodes, nodes made one behind the other, attributes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.graph_index import GraphNode

Change = Callable[[Editor, Any, GraphNode], list[Any] | None]
# Changes the model, and gives a line for each kind of change.
Rewriting = Callable[[Editor], list[str]]

# QNN computes exp(x) as 131008 or -131008 where the result is no normal float, from x = -88.03 down (measured with
# 2.3.0 to 2.7.0, V68 to V81). exp(-87) is 2e-38; half floats end at 6e-8, so QNN makes a zero of it.
LEAST_ARGUMENT = -87.0


def for_nodes(
    op: str | Collection[str], what_changed: str, domains: Sequence[str] = graphs.ONNX_DOMAINS
) -> Callable[[Callable[[Editor, Any], list[Any] | None]], Rewriting]:
    """Makes a rewrite of the nodes of an operator, or of several, from what changes one of them.

    The function gives the nodes that stand in its place, None to keep it.
    """
    return lambda change: (
        lambda editor: editor.replace(op, lambda node: change(editor, node), what_changed, domains)
    )


def for_matches(op: str | Collection[str], rows: Sequence[str], what_changed: str) -> Callable[[Change], Rewriting]:
    """`for_nodes`, of those nodes that one of the rows of the table of known-wrong operators matches."""
    return lambda change: lambda editor: rewrite_matched(editor, op, rows, change, what_changed)


def rewrite_matched(
    editor: Editor, op: str | Collection[str], rows: Sequence[str], change: Change, what_changed: str
) -> list[str]:
    """Changes the nodes of an operator that one of the rows of the table of known-wrong operators matches."""
    faults = [one for one in known_wrong.table() if one.name in rows and one.name not in editor.right_here]

    def of_node(node: Any) -> list[Any] | None:
        # By a result: nodes may have no names, and the index finds places by tensors.
        record = editor.node(next(editor.makers[name] for name in node.output if name))
        if not any(known_wrong.matches(fault, record, editor) for fault in faults):
            return None
        return change(editor, node, record)

    return editor.replace(op, of_node, what_changed)


class NodeChain:
    """Nodes that stand for `node`, made one behind the other."""

    def __init__(self, editor: Editor, node: Any) -> None:
        self.editor, self.node = editor, node
        self.made: list[Any] = []
        self.x = node.input[0]

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.made.append(self.editor.make(op, inputs, self.node, **attributes))
        return str(self.made[-1].output[0])

    def constant(self, value: float) -> str:
        return self.editor.like(self.x, value, f"{self.node.output[0]}/{value:g}")

    def exp(self, value: str) -> str:
        """Exp of a value that may lie below `LEAST_ARGUMENT`."""
        return self("Exp", self("Max", value, self.constant(LEAST_ARGUMENT)))

    def reduce(self, op: str, value: str) -> str:
        # Axes may be an input or an attribute, depending on the opset: both are passed on.
        result = self(op, value, *self.node.input[1:])
        self.made[-1].attribute.extend(self.node.attribute)
        return result

    def nodes(self) -> list[Any]:
        self.made[-1].output[0] = self.node.output[0]
        return self.made


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
    """A Slice along one axis. hints: for the names of its limits."""
    numbers = zip((start, end, axis), hints, strict=True)
    limits = [editor.add_constant(np.array([number], np.int64), hint) for number, hint in numbers]
    return editor.make("Slice", [value, *limits], node, output)


def reshaped(editor: Editor, node: Any, shape: Sequence[int]) -> Any:
    """The Reshape that gives a node's result its shape back."""
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/flat")
    # With its type, since that of an empty list would be float.
    sizes = editor.add_constant(np.array(shape, np.int64), "back")
    return editor.make("Reshape", [node.output[0], sizes], node, output)


def dtype_of(editor: Editor, name: str) -> Any:
    """The numpy type of a tensor's elements."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(editor.element(name))


def set_attribute(node: Any, name: str, value: Any) -> None:
    from onnx import helper

    drop_attribute(node, name)
    node.attribute.append(helper.make_attribute(name, value))


def drop_attribute(node: Any, name: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
