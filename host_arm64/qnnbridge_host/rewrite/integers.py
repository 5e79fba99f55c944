"""Rewrites of integers and truth values, for which QNN has fewer operators than for floats."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import INTEGERS, Editor
from qnnbridge_host.model import operator_tables as tables
from qnnbridge_host.rewrite.rewriting import NodeChain, dtype_of, for_nodes
from qnnbridge_protocol.elements import ElementType

_BOOL: Final = ElementType.BOOL.value


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
    sizes, kind = list(shape), dtype_of(editor, node.input[0])
    chain = NodeChain(editor, node)
    name = node.input[0]
    for axis, (front, behind) in enumerate(pads.reshape(2, -1).T.tolist()):
        border = [_filled(editor, value, kind, sizes, axis, size) if size else "" for size in (front, behind)]
        parts = [part for part in (border[0], name, border[1]) if part]
        sizes[axis] += front + behind
        if int(np.prod(sizes)) - int(np.prod(shape)) > _MOST_PADDED:
            return None
        if len(parts) > 1:
            name = chain("Concat", *parts, axis=axis)
    return chain.nodes() if chain.made else None


def _filled(editor: Editor, value: Any, kind: Any, sizes: list[int], axis: int, size: int) -> str:
    shape = [*sizes[:axis], size, *sizes[axis + 1 :]]
    return editor.add_constant(np.full(shape, value.reshape(-1)[0]).astype(kind), "border")


# QNN ends the process over them with int64 and five dimensions (2.7.0).
_WIDE: Final = ("Expand", "Reshape", "Unsqueeze")


def narrow_wide_integers(editor: Editor) -> list[str]:
    """Compute int64 of five dimensions in int32, with which QNN does not end the process."""

    def change(node: Any) -> list[Any] | None:
        shape = editor.shape(node.output[0])
        if editor.element(node.output[0]) != ElementType.INT64.value or shape is None:
            return None
        readers = editor.uses(node.output[0])
        # A Cast behind it takes int32 as well; for others the values would be int64 of five dimensions again.
        if len(shape) < tables.MOST_DIMENSIONS or not editor.is_free(node.output[0]):
            return None
        if not readers or any(one.op_type != "Cast" for one in readers) or node.domain not in graphs.ONNX_DOMAINS:
            return None
        narrow = editor.make("Cast", [node.input[0]], node, to=ElementType.INT32.value)
        node.input[0] = narrow.output[0]
        return [narrow, node]

    count = editor.map_nodes(change, _WIDE)
    if count:
        editor.changed(shapes=True)
    return [f"{count} of int64 and five dimensions"] if count else []
