"""Rewrites of integers and truth values, for which QNN has fewer operators than for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import INTEGERS, Editor
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.rewrite.rewriting import NodeChain, dtype_of, for_nodes
from qnnbridge_protocol.elements import ElementType

_BOOL: Final = ElementType.BOOL.value
_INT32: Final = ElementType.INT32.value
_INT64: Final = ElementType.INT64.value


@for_nodes("Equal", "Equal of truth values")
def equal_by_xor(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Equal of truth values by Xor and Not: QNN compares numbers only."""
    if editor.element(node.input[0]) != _BOOL:
        return None
    chain = NodeChain(editor, node)
    chain("Not", chain("Xor", *node.input))
    return chain.nodes()


@for_nodes("Neg", "Neg of integers")
def negative_by_sub(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Neg of integers by a Sub from 0: QNN negates floats only."""
    if editor.element(node.input[0]) not in INTEGERS:
        return None
    return [editor.make("Sub", [editor.like(node.input[0], 0, "zero"), node.input[0]], node, node.output[0])]


_MOST_PADDED: Final = 1 << 16  # elements of the constants that stand for the border


@for_nodes("Pad", "Pad of integers")
def pad_by_concat(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Pad of integers or truth values by Concat with constants: QNN pads floats only."""
    shape, pads = editor.shape(node.input[0]), editor.constant(node.input[1], 16)
    others = [*node.input[2:], "", ""]
    value = editor.constant(others[0], 1) if others[0] else np.array(0)
    is_whole = editor.element(node.input[0]) in (*INTEGERS, _BOOL)
    if graphs.attribute_values(node).get("mode", b"constant") != b"constant" or others[1] or not is_whole:
        return None
    if not shape or 0 in shape or pads is None or value is None or pads.size != 2 * len(shape) or (pads < 0).any():
        return None
    chain = NodeChain(editor, node)
    name, sizes, kind = node.input[0], list(shape), dtype_of(editor, node.input[0])
    is_bool = editor.element(name) == _BOOL
    if is_bool:  # QNN 2.7.0 takes a constant of truth values in a Concat for False
        name, kind = chain("Cast", name, to=_INT32), np.int32
    for axis, (front, behind) in enumerate(pads.reshape(2, -1).T.tolist()):
        border = [_filled(editor, value, kind, sizes, axis, size) if size else "" for size in (front, behind)]
        parts = [part for part in (border[0], name, border[1]) if part]
        sizes[axis] += front + behind
        if int(np.prod(sizes)) - int(np.prod(shape)) > _MOST_PADDED:
            return None
        if len(parts) > 1:
            name = chain("Concat", *parts, axis=axis)
    if is_bool:
        chain("Cast", name, to=_BOOL)
    return chain.nodes() if chain.made else None


def _filled(editor: Editor, value: Any, kind: Any, sizes: list[int], axis: int, size: int) -> str:
    shape = [*sizes[:axis], size, *sizes[axis + 1 :]]
    return editor.add_constant(np.full(shape, value.reshape(-1)[0]).astype(kind), "border")


# Which inputs are the data; None for all. QNN ends the process over int64 of five dimensions (2.7.0).
_DATA: Final[Mapping[str, tuple[int, ...] | None]] = {
    **dict.fromkeys(("Expand", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Add", "Concat", "Mul", "Sub"), None),
    "Where": (1, 2),
}


def narrow_wide_integers(editor: Editor) -> list[str]:
    """Compute int64 of five dimensions in int32: QNN ends the process over it, and keeps 32 bits in any case."""
    count = editor.map_nodes(lambda node: _in_int32(editor, node), tuple(_DATA))
    if count:
        editor.changed(shapes=True)
        _cast_once(editor)
        editor.drop_dead()
    return [f"{count} of int64"] if count else []


def _in_int32(editor: Editor, node: Any) -> list[Any] | None:
    if node.domain not in graphs.ONNX_DOMAINS or len(node.output) != 1:
        return None
    places = _DATA[node.op_type] or tuple(range(len(node.input)))
    names = [node.output[0], *(node.input[at] for at in places)]
    if any(editor.element(name) != _INT64 for name in names):
        return None
    if max(editor.rank(name) or 0 for name in names) < tables.MOST_DIMENSIONS:
        return None
    made = []
    for at in places:
        value = editor.constant(node.input[at])
        if value is not None:
            if np.abs(value).max(initial=0) > np.iinfo(np.int32).max:
                return None
            node.input[at] = editor.add_constant(value.astype(np.int32), f"{node.input[at]}/int32")
            continue
        made.append(editor.make("Cast", [node.input[at]], node, to=_INT32))
        node.input[at] = made[-1].output[0]
    result = node.output[0]
    node.output[0] = editor.fresh(f"{result}/int32")
    return [*made, node, editor.make("Cast", [node.output[0]], node, result, to=_INT64)]


def _cast_once(editor: Editor) -> None:
    """A Cast of what was cast from int32 to int64 takes the int32."""
    for node in editor.graph.node:
        maker = editor.maker_of(node.input[0], "Cast") if node.op_type == "Cast" else None
        if maker is None or editor.element(node.input[0]) != _INT64:
            continue
        if editor.element(maker.input[0]) == _INT32:
            node.input[0] = maker.input[0]
    for node in editor.graph.node:
        # A Cast from int32 to int32 is none.
        for at, name in enumerate(node.input):
            maker = editor.maker_of(name, "Cast")
            if maker is not None and editor.element(name) == editor.element(maker.input[0]) == _INT32:
                node.input[at] = maker.input[0]
    editor.changed()
