"""Rewrites of models that ONNX Runtime breaks by moving their transposes.

QNN computes pictures with their channels last, so ONNX Runtime puts transposes around its operators and moves them
through the graph. It moves none past a Flatten, which both rewrites here use.
"""

from __future__ import annotations

from typing import Any

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewriting import NodeChain, for_matches, reshaped


@for_matches("Reshape", ("vector-between-transposes",), "Reshape to one dimension")
def flatten_before_vector(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Put Flatten in front of a Reshape to one dimension: ONNX Runtime moves no Transpose past a Flatten."""
    steps = editor.maker(node.input[0])
    chain = NodeChain(editor, node)
    value = chain("Flatten", node.input[0], axis=0)
    if steps is not None and steps.op_type == "DequantizeLinear":
        # QNN computes a quantised operator with its own steps on both sides.
        for op in ("QuantizeLinear", "DequantizeLinear"):
            value = chain(op, value, *steps.input[1:])
    node.input[0] = value
    return [*chain.made, node]


@for_matches(
    ("ArgMax", "ArgMin", "Cast", "Identity", "Squeeze", "Transpose", "Unsqueeze"),
    ("int64-output-transposed",),
    "int64 output",
)
def flatten_before_output(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Put Flatten and Reshape behind an int64 result that is an output of the model and is transposed.

    ONNX Runtime moves no Transpose past a Flatten, so that the output does not come from one.
    """
    shape = editor.shape(node.output[0])
    if shape is None:
        return None
    last = reshaped(editor, node, shape)
    flat = editor.make("Flatten", [node.output[0]], node)
    last.input[0] = flat.output[0]
    return [node, flat, last]
