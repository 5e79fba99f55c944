"""Rewrites of operators on integers and booleans. QNN supports fewer operators for them than for floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import INTEGERS, Editor
from qnnbridge_host.model.double_edges import CONVERSION_OF_INTEGERS, is_conversion
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.merged import WIDE_ON_QNN, fails_with_wide_integers, is_wide, takes_wide_integers
from qnnbridge_host.rewrite.doubles import conversion
from qnnbridge_host.rewrite.rewriting import NodeChain, dtype_of, for_nodes, set_attribute
from qnnbridge_protocol.elements import ElementType

_BOOL: Final = ElementType.BOOL.value
_INT32: Final = ElementType.INT32.value
_INT64: Final = ElementType.INT64.value


@for_nodes("Equal", "Equal of truth values")
def equal_by_xor(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Equal of booleans by Xor and Not: QNN's Equal supports only numbers."""
    if editor.element(node.input[0]) != _BOOL:
        return None
    chain = NodeChain(editor, node)
    chain("Not", chain("Xor", *node.input))
    return chain.nodes()


@for_nodes("Neg", "Neg of integers")
def negative_by_sub(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Neg of integers by a Sub from 0: QNN's Neg supports only floats."""
    if editor.element(node.input[0]) not in INTEGERS:
        return None
    return [editor.make("Sub", [editor.like(node.input[0], 0, "zero"), node.input[0]], node, node.output[0])]


_MOST_PADDED: Final = 1 << 16  # maximum number of elements of the border, which become constants


@for_nodes("Pad", "Pad of integers")
def pad_by_concat(editor: Editor, node: Any) -> list[Any] | None:
    """Replace Pad of integers or booleans by Concat with constants: QNN's Pad supports only floats."""
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
    if is_bool:  # use int32, because QNN 2.7.0 treats a boolean constant in a Concat as False
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


# Operators that only move values. If QNN has computed the values in 32 bits, these operators can move them as
# int32.
_MOVING: Final = frozenset(("Tile", "Transpose"))
_RESHAPES: Final = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
# Position of the input with indices, by operator. The indices may be int32 for any type of data.
_INDICES: Final[Mapping[str, int]] = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1}


def narrow_wide_integers(editor: Editor) -> list[str]:
    """Compute int64 tensors of five dimensions in int32 on QNN, and convert them on the CPU.

    QNN computes in 32 bits anyway. With such an int64 tensor as an input or output of its graph QNN crashes the
    process, or cannot finalize the graph. Tensors that the CPU computes keep their 64 bits.
    """
    narrowing = _Narrowing(editor)
    # Check all nodes before the first change, because a change alters the records of other nodes.
    if not any(fails_with_wide_integers(editor, node) for node in editor.nodes):
        return []
    count = editor.map_nodes(narrowing.change)
    if count:
        editor.changed(shapes=True)
        editor.drop_dead()
    return [f"{count} of int64"] if count else []


class _Narrowing:
    """Conversion of int64 tensors to int32, node by node in the order of the model.

    `_narrow` maps int64 tensors to the corresponding int32 tensors, `_made` each int32 tensor to the node that
    computes it.
    """

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._narrow: dict[str, str] = {}
        self._made: dict[str, Any] = {}

    def change(self, node: Any) -> list[Any] | None:
        """Return the nodes that replace a node; ``None`` to keep it."""
        editor = self._editor
        if node.domain not in graphs.ONNX_DOMAINS or any(True for _ in graphs.graphs_in(node)):
            return None
        made: list[Any] = []
        record = editor.node(next(editor.makers[name] for name in node.output if name))
        places = self._data_of(node, record)
        index = _INDICES.get(node.op_type)
        if index is not None and self._is_wide(node.input[index]):
            places = [*places, index]
        results = [place for place, name in enumerate(node.output) if editor.element(name) == _INT64]
        is_cast = node.op_type == "Cast" and takes_wide_integers(editor, record) and self._is_wide(node.output[0])
        if not places and not is_cast:
            return None
        if not all(self._fits(node.input[place]) for place in places):
            return None
        for place in places:
            node.input[place] = self._int32(node.input[place], node, made)
        made.append(node)
        for place in results if index is None or places != [index] else ():
            made += self._result(node, place)
        return made

    def _data_of(self, node: Any, record: GraphNode) -> list[int]:
        """Return the positions of the inputs to be converted to int32; an empty list if the node is not changed."""
        moves = node.op_type in _MOVING and node.input[0] in self._narrow
        if not moves and not takes_wide_integers(self._editor, record):
            return []
        given = WIDE_ON_QNN.get(node.op_type, (0,))
        places = list(range(len(node.input))) if given is None else list(given)
        places = [place for place in places if self._editor.element(node.input[place]) == _INT64]
        tensors = [*(node.input[place] for place in places), *node.output]
        return places if any(map(self._is_wide, tensors)) else []

    def _is_wide(self, name: str) -> bool:
        return is_wide(self._editor, self._editor.about(name))

    def _fits(self, name: str) -> bool:
        """Return whether a tensor can be converted to int32: a constant within the range of int32, or a tensor of
        known shape."""
        value = self._editor.constant(name)
        if value is None:
            return self._editor.shape(name) is not None
        return bool(np.abs(value).max(initial=0) <= np.iinfo(np.int32).max)

    def _int32(self, name: str, node: Any, made: list[Any]) -> str:
        """Return the int32 tensor for an int64 tensor. made: list to which the nodes of the conversion are
        appended."""
        editor = self._editor
        if name in self._narrow:
            return self._narrow[name]
        value = editor.constant(name)
        if value is not None:
            self._narrow[name] = editor.add_constant(value.astype(np.int32), f"{name}/int32")
        elif self._is_wide(name):
            self._narrow[name] = editor.fresh(f"{name}/int32")
            made += conversion(editor, name, self._narrow[name], editor.shape(name) or (), _INT32)
        else:
            made.append(editor.make("Cast", [name], node, to=_INT32))
            self._narrow[name] = made[-1].output[0]
        return self._narrow[name]

    def _rename_merged(self, node: Any | None) -> None:
        """Name each Reshape before a conversion like a conversion: ONNX Runtime gives the Reshape's name to the
        merged node, which must run on the CPU."""
        while node is not None and node.op_type in _RESHAPES and not is_conversion(node.name):
            node.name = self._editor.fresh(f"{node.output[0]}{CONVERSION_OF_INTEGERS}")
            node = self._made.get(node.input[0])

    def _result(self, node: Any, place: int) -> list[Any]:
        """Return nodes that convert a result back to int64 for nodes that still read int64."""
        editor, name = self._editor, node.output[place]
        shape, wide = editor.shape(name), self._is_wide(name)
        self._narrow[name] = node.output[place] = editor.fresh(f"{name}/int32")
        self._made[node.output[place]] = node
        if node.op_type == "Cast":
            set_attribute(node, "to", _INT32)
        if wide:
            self._rename_merged(node)
            return conversion(editor, node.output[place], name, shape or (), _INT64)
        return [editor.make("Cast", [node.output[place]], node, name, to=_INT64)]
