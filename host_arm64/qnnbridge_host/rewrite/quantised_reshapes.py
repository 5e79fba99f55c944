"""Quantise the Reshapes that a rewrite has inserted between quantised operators of a model.

QNN computes an operator in integers if DequantizeLinear is directly before it and QuantizeLinear directly after it.
With a Reshape in between, QNN computes the operator in floats or refuses it, which is worse than before the
rewrite. So a pair of QuantizeLinear and DequantizeLinear is added to each Reshape. The pair does not change values,
because all values are multiples of the scale already.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model import operator_tables as tables

_QUANTIZE: Final = "QuantizeLinear"
_DEQUANTIZE: Final = "DequantizeLinear"
_RESHAPES: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def quantise_reshapes(editor: Editor) -> None:
    """Add a pair of QuantizeLinear and DequantizeLinear to each Reshape next to quantised operators."""
    if _DEQUANTIZE not in editor.op_types:
        return
    # If a pair is between two Reshapes, and its tensor has more dimensions than QNN supports, move the pair after
    # the second Reshape.
    while editor.map_nodes(functools.partial(_past_pair, editor), _RESHAPES):
        editor.changed(shapes=True)
    editor.drop_dead()
    for change in (_close_behind, _close_in_front):
        if editor.map_nodes(functools.partial(change, editor), ("Reshape",)):
            editor.changed(shapes=True)


def _past_pair(editor: Editor, node: Any) -> list[Any] | None:
    back = _of_one_scale(editor, editor.maker_of(node.input[0], _DEQUANTIZE))
    to = None if back is None else _of_one_scale(editor, editor.maker_of(back.input[0], _QUANTIZE))
    before = None if to is None else editor.maker_of(to.input[0], *_RESHAPES)
    shape, rank = editor.shape(node.output[0]), editor.rank(node.input[0])
    if before is None or shape is None or 0 in shape or (rank or 0) <= tables.MOST_DIMENSIONS:
        return None
    sizes = editor.add_constant(np.asarray(shape, np.int64), "sizes")
    reshaped = editor.make("Reshape", [before.input[0], sizes], node)
    return [reshaped, *_pair(editor, node, reshaped.output[0], to, back, node.output[0])]


def _close_behind(editor: Editor, node: Any) -> list[Any] | None:
    back = _of_one_scale(editor, editor.maker_of(node.input[0], _DEQUANTIZE))
    readers = editor.uses(node.output[0])
    if back is None or not readers or all(one.op_type == _QUANTIZE for one in readers):
        return None
    result = node.output[0]
    node.output[0] = editor.fresh(f"{result}/reshaped")
    return [node, *_pair(editor, node, node.output[0], back, back, result)]


def _close_in_front(editor: Editor, node: Any) -> list[Any] | None:
    maker, readers = editor.maker(node.input[0]), editor.uses(node.output[0])
    to = _of_one_scale(editor, readers[0]) if readers and readers[0].op_type == _QUANTIZE else None
    if (
        maker is None
        or maker.op_type == _DEQUANTIZE
        or to is None
        or any(one.op_type != _QUANTIZE for one in readers)
    ):
        return None
    pair = _pair(editor, node, node.input[0], to, to, editor.fresh(f"{node.input[0]}/quantised"))
    node.input[0] = pair[-1].output[0]
    return [*pair, node]


def _of_one_scale(editor: Editor, node: Any | None) -> Any | None:
    """Return the node if it has a single scale, which is valid for each shape of the tensor; else ``None``."""
    if node is None or node.domain not in graphs.ONNX_DOMAINS:
        return None
    scale = editor.shape(node.input[1])
    return node if scale is not None and math.prod(scale) == 1 else None


def _pair(editor: Editor, after: Any, value: str, to: Any, back: Any, result: str) -> list[Any]:
    """Return a QuantizeLinear of `value` with the step of `to`, and a DequantizeLinear with the step of `back`."""
    first = editor.make(_QUANTIZE, [value, *_step(editor, to)], after)
    if to.op_type == _QUANTIZE:
        first.attribute.extend(one for one in to.attribute if one.name != "axis")
    second = editor.make(_DEQUANTIZE, [first.output[0], *_step(editor, back)], after, result)
    if back.op_type == _DEQUANTIZE:
        second.attribute.extend(one for one in back.attribute if one.name != "axis")
    return [first, second]


def _step(editor: Editor, node: Any) -> Sequence[str]:
    """Return scale and zero point of a node. The zero point is always present, because it determines the type."""
    if len(node.input) > 2 and node.input[2]:
        return list(node.input[1:3])
    integers = node.output[0] if node.op_type == _QUANTIZE else node.input[0]
    return [node.input[1], editor.like(integers, 0, "zero_point")]
