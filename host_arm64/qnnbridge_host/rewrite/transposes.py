"""Rewrites of models that ONNX Runtime breaks by moving transposes.

QNN computes images with the channels last, so ONNX Runtime inserts transposes around QNN's operators and moves them
through the graph. ONNX Runtime never moves a transpose past a Flatten; the rewrites here use this fact.
"""

from __future__ import annotations

from typing import Any

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewriting import NodeChain, for_matches, reshaped


@for_matches("Reshape", ("vector-between-transposes",), "Reshape to one dimension")
def flatten_before_vector(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Flatten before a Reshape to one dimension: ONNX Runtime never moves a Transpose past a Flatten."""
    steps = editor.maker(node.input[0])
    chain = NodeChain(editor, node)
    value = chain("Flatten", node.input[0], axis=0)
    if steps is not None and steps.op_type == "DequantizeLinear":
        # Quantise the Flatten's result like its input, because QNN's quantised operators need this.
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
    """Insert Flatten and Reshape after a transposed int64 result that is an output of the model.

    ONNX Runtime never moves a Transpose past a Flatten, so the output is not the result of a Transpose.
    """
    shape = editor.shape(node.output[0])
    if shape is None:
        return None
    last = reshaped(editor, node, shape)
    flat = editor.make("Flatten", [node.output[0]], node)
    last.input[0] = flat.output[0]
    return [node, flat, last]
