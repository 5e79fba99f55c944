"""Rewrites of paddings that QNN computes wrong at the border."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.editor import Editor

_AXES_INPUT = 3


def edge_by_concat(editor: Editor) -> list[str]:
    """`Pad` with mode edge becomes the first and the last slice of an axis, joined around it by `Concat`.

    QNN 2.7 writes 131008 or zeros into the border.
    """

    def change(node: Any) -> list[Any] | None:
        mode = graphs.attribute_values(node).get("mode", "constant")
        pads = _pads(editor, node) if mode == "edge" else None
        shape = editor.shape(node.input[0])
        if not pads or shape is None or 0 in shape:
            return None
        made: list[Any] = []
        name, last = node.input[0], list(pads)[-1]
        for axis, (before, after) in pads.items():
            first, made_first = _slice(editor, node, name, axis, 0)
            end, made_end = _slice(editor, node, name, axis, shape[axis] - 1)
            # The slice is computed once, and joined as often as the edge is repeated.
            parts = [first] * before + [name] + [end] * after
            made += made_first if before else []
            made += made_end if after else []
            output = node.output[0] if axis == last else None
            made.append(editor.make("Concat", parts, node, output, axis=axis))
            name = made[-1].output[0]
        return made

    return editor.replace("Pad", change, "Pad with mode edge")


def _slice(editor: Editor, node: Any, name: str, axis: int, start: int) -> tuple[str, list[Any]]:
    """One row of an axis: its name, and what makes it."""
    bounds = (np.asarray([bound], np.int64) for bound in (start, start + 1, axis))
    inputs = [editor.add_constant(bound, f"{node.output[0]}/bound") for bound in bounds]
    made = editor.make("Slice", [name, *inputs], node)
    return made.output[0], [made]


def _pads(editor: Editor, node: Any) -> dict[int, tuple[int, int]] | None:
    """Before and after, of each axis that is padded; ``None`` if they are not known, or cut something off."""
    rank = editor.rank(node.input[0])
    attribute = graphs.attribute_values(node).get("pads")
    values = np.asarray(attribute) if attribute is not None else None
    if values is None and len(node.input) > 1:
        values = editor.constant(node.input[1])
    if rank is None or values is None or (values < 0).any():
        return None
    axes = list(range(rank))
    if len(node.input) > _AXES_INPUT and node.input[_AXES_INPUT]:
        given = editor.constant(node.input[_AXES_INPUT])
        if given is None:
            return None
        axes = [int(axis) % rank for axis in given.ravel()]
    counts = values.ravel()
    pairs = {axis: (int(counts[n]), int(counts[n + len(axes)])) for n, axis in enumerate(axes)}
    return {axis: pair for axis, pair in pairs.items() if any(pair)}
