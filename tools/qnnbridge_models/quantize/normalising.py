"""Rewrites of the float model that avoid errors of onnxruntime's quantizer.

- Gemm: if beta is not 1, the quantizer writes an unscaled bias. It also fails on a bias that does not contain one
  value per column.
- Shared weights: the quantizer gives each weight a single scale or scale array, even if nodes use the weight in
  different roles. A Gather table that is also the weight of a Gemm gets scales per channel, which Gather does not
  support.
- Clip: the quantizer removes a Clip if the quantised range of its output has the same effect. QNN computes the
  remaining Clip nodes of a quantised model wrong (5 to 13 dB), so they become Max and Min, which QNN computes
  correctly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import FLOATS, Editor
from qnnbridge_host.rewrite.operators import fold_gemm_scale
from qnnbridge_host.rewrite.rewriting import for_nodes


def normalise(model: Any, folder: Path, symmetric: bool) -> list[str]:
    """Rewrite the model in place; return one line per change for the report.

    Args:
        model: `ModelProto` with its weights.
        folder: folder that external tensors are relative to.
        symmetric: activations have symmetric ranges, so the quantizer does not remove Clip nodes.
    """
    editor = Editor(model, folder)
    scaled, apart = fold_gemm_scale(editor), _bias_along_columns(editor)
    clips = for_nodes("Clip", "Clip")(lambda editor, node: _by_max_and_min(editor, node, symmetric))(editor)
    copied = _unshare(model)
    return [
        *(f"{line}: alpha and beta are folded into the constants" for line in scaled),
        *(f"{line}: the bias is expanded to one value per column, or added by a separate Add" for line in apart),
        *(
            f"{line} replaced by Max and Min, because no quantisation range limits the values as Clip does"
            for line in clips
        ),
        *(
            [f"copied {copied} weights, because the operators that share them need different scales"]
            if copied
            else []
        ),
    ]


@for_nodes("Gemm", "Gemm")
def _bias_along_columns(editor: Editor, node: Any) -> list[Any] | None:
    if len(node.input) < 3 or not node.input[2]:
        return None
    bias, weight = editor.constant(node.input[2]), editor.shape(node.input[1])
    if weight is None or (bias is None and editor.tensor(node.input[2]) is not None):
        return None
    columns = weight[0 if graphs.attribute_values(node).get("transB", 0) else 1]
    if bias is not None and bias.shape == (columns,):
        return None
    # Accept a bias with one value, or with one value per column (its last axis).
    if bias is not None and (bias.size == 1 or (bias.size == columns and bias.shape[-1] == columns)):
        flat = np.broadcast_to(bias.reshape(-1), (columns,))
        node.input[2] = editor.add_constant(np.ascontiguousarray(flat), f"{node.input[2]}/columns")
        return [node]
    # The bias has a value per row or per element, or is computed at run time. Use an Add, because the quantizer
    # would keep a computed bias of a Gemm in float.
    product = editor.fresh(f"{node.output[0]}/product")
    added = editor.make("Add", [product, node.input[2]], node, node.output[0])
    node.output[0] = product
    del node.input[2]
    return [node, added]


def _by_max_and_min(editor: Editor, node: Any, symmetric: bool) -> list[Any] | None:
    limits = [editor.constant(name, 1) if name else None for name in node.input[1:3]]
    if editor.element(node.input[0]) not in FLOATS or all(limit is None for limit in limits):
        return None
    low, high = ([None if limit is None else float(limit.reshape(-1)[0]) for limit in limits] + [None])[:2]
    single = len(editor.uses(node.input[0])) == 1 and editor.is_free(node.input[0])
    if not symmetric and single and (low is None or low <= 0.0) and (high is None or high >= 0.0):
        return None
    made: list[Any] = []
    value = node.input[0]
    for op, limit, name in zip(("Max", "Min"), (low, high), node.input[1:3], strict=False):
        if limit is not None:
            made.append(editor.make(op, [value, name], node))
            value = made[-1].output[0]
    made[-1].output[0] = node.output[0]
    return made


# Index of the weight input and of the bias input, by operator.
_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
_BIASES = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "InstanceNormalization": 2, "LayerNormalization": 2}


def _role(node: Any, number: int) -> str:
    """Return the role of a node's input. Nodes can share a weight only if it has the same role in all of them."""
    if _BIASES.get(node.op_type) == number:
        # No other node can share a bias: its scale depends on the other scales of the node.
        return f"bias of {node.output[0]}"
    if _WEIGHTS.get(node.op_type) == number:
        turned = bool(graphs.attribute_values(node).get("transB", 0))
        return f"weight of {node.op_type}{' transposed' if turned else ''}"
    if node.op_type == "LayerNormalization" and number == 1:
        return "scale"
    return "values"


def _unshare(model: Any) -> int:
    """Copy each shared float constant once for every additional role; return the number of copies."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in FLOATS}
    taken = {
        name for inner in graphs.subgraphs(graph) for node in inner.node for name in (*node.input, *node.output)
    }
    taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in (*graph.input, *graph.output)}
    # A constant that is a model output, or that a subgraph reads, keeps its name.
    roles: dict[str, dict[str, str]] = {value.name: {"": value.name} for value in graph.output}
    for node in graph.node:
        for name in graphs.captured_by(node):
            roles.setdefault(name, {"": name})
    copies = 0
    for node in graph.node:
        for number, name in enumerate(node.input):
            if name not in constants:
                continue
            known, role = roles.setdefault(name, {}), _role(node, number)
            if role not in known:
                known[role] = name if not known else _fresh(f"{name}/copy", taken)
                if known[role] != name:
                    copy = graph.initializer.add()
                    copy.CopyFrom(constants[name])
                    copy.name = known[role]
                    copies += 1
            node.input[number] = known[role]
    return copies


def _fresh(hint: str, taken: set[str]) -> str:
    name, number = hint, 1
    while name in taken:
        number += 1
        name = f"{hint}_{number}"
    taken.add(name)
    return name
