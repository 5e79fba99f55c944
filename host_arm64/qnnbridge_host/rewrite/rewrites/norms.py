"""The scale of a normalisation in a quantised model gets the type that QNN takes beside its activations.

onnxruntime's quantizer makes weights int8. Beside unsigned activations QNN refuses a LayerNormalization with such a
scale: the operator stays on the CPU and cuts the model in two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_host.graph.editor import Editor

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_DEQUANTIZE = "DequantizeLinear"
_UNSIGNED = frozenset({2, 4})  # TensorProto.UINT8, UINT16
_SHIFT = 128


def unsigned_scales(editor: Editor) -> list[str]:
    """An int8 scale beside unsigned activations becomes uint8: values and zero point are 128 more, so nothing else
    changes."""

    def change(node: Any) -> list[Any] | None:
        if len(node.input) < 2:
            return None
        data, scale = editor.maker(node.input[0]), editor.maker(node.input[1])
        if data is None or scale is None or data.op_type != _DEQUANTIZE or scale.op_type != _DEQUANTIZE:
            return None
        values = editor.constant(scale.input[0])
        if editor.element(data.input[0]) not in _UNSIGNED or values is None or values.dtype != np.int8:
            return None
        zeros = editor.constant(scale.input[2]) if len(scale.input) > 2 and scale.input[2] else None
        steps = editor.constant(scale.input[1])
        if steps is None or (zeros is None and len(scale.input) > 2 and scale.input[2]):
            return None
        zeros = np.zeros(steps.shape, np.int8) if zeros is None else zeros
        shifted = [
            # By way of int16: 128 more does not fit into int8.
            editor.add_constant((part.astype(np.int16) + _SHIFT).astype(np.uint8), f"{name}/unsigned")
            for part, name in ((values, scale.input[0]), (zeros, f"{scale.input[0]}/zero"))
        ]
        made = editor.make(_DEQUANTIZE, [shifted[0], scale.input[1], shifted[1]], node, domain=scale.domain)
        made.attribute.extend(scale.attribute)
        node.input[1] = made.output[0]
        return [made, node]

    count = editor.map_nodes(change, _NORMS)
    if count:
        editor.drop_dead()
    return [f"{count} {'scale' if count == 1 else 'scales'}"] if count else []
