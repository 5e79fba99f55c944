"""Rewrites of ConvTranspose that QNN computes wrong: output_padding, groups, and padding of three dimensions.

Each rewrite changes only nodes that match a row of the known-wrong table (`qnnbridge_host.model.known_wrong`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.conditions import window_of_node
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewriting import drop_attribute, dtype_of, for_matches, set_attribute, sliced


def replace_output_padding(editor: Editor) -> list[str]:
    """Replace output_shape, auto_pad and output_padding of ConvTranspose by pads, and Concat for missing values."""
    return [*_pad_to_shape(editor), *_pad_transposed(editor), *_append_output_padding(editor)]


@for_matches("ConvTranspose", ("conv-transpose-output-shape",), "output_shape of a ConvTranspose")
def _pad_to_shape(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the output_shape of a ConvTranspose by the equivalent pads and output_padding."""
    window = window_of_node(record)
    asked = record.attributes["output_shape"][-len(window["sizes"]) :]
    heads, tails, added = [], [], []
    names = ("sizes", "kernel", "strides", "dilations")
    for size, kernel, step, dilation, out in zip(*(window[name] for name in names), asked, strict=True):
        reached = (size - 1) * step + (kernel - 1) * dilation + 1
        cut = max(0, reached - out)
        upper = record.attributes.get("auto_pad") == "SAME_UPPER"
        heads.append(cut // 2 if upper else cut - cut // 2)
        tails.append(cut - heads[-1])
        added.append(max(0, out - reached))
    drop_attribute(node, "output_shape")
    drop_attribute(node, "auto_pad")
    set_attribute(node, "pads", [*heads, *tails])
    set_attribute(node, "output_padding", added)
    return [node]


@for_matches(
    "ConvTranspose",
    ("conv-transpose-same-output-padding", "conv-transpose-depthwise-output-padding"),
    "auto_pad of a ConvTranspose",
)
def _pad_transposed(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the auto_pad of a ConvTranspose by the equivalent pads."""
    if "output_shape" in record.attributes or not str(record.attributes.get("auto_pad")).startswith("SAME"):
        return None
    heads, tails = _pads_of_same(record)
    drop_attribute(node, "auto_pad")
    set_attribute(node, "pads", [*heads, *tails])
    return [node]


def _pads_of_same(record: GraphNode) -> tuple[list[int], list[int]]:
    """Return the pads before and after each dimension that are equivalent to auto_pad with an output_padding."""
    window = window_of_node(record)
    heads, tails = [], []
    # In QNN and onnx output_padding enlarges the result. In ONNX Runtime the result has the input's size times the
    # stride.
    added = record.attributes["output_padding"]
    names = ("kernel", "strides", "dilations")
    for kernel, step, dilation, more in zip(*(window[name] for name in names), added, strict=True):
        cut = max(0, (kernel - 1) * dilation + 1 + more - step)
        less, larger = cut // 2, cut - cut // 2
        upper = record.attributes["auto_pad"] == "SAME_UPPER"
        heads.append(less if upper else larger)
        tails.append(larger if upper else less)
    return heads, tails


@for_matches(
    "ConvTranspose",
    ("conv-transpose-output-padding", "conv-transpose-depthwise-output-padding"),
    "output_padding",
)
def _append_output_padding(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace output_padding: reduce the pads at the end, and append the positions that no window reaches."""
    made_shape = editor.shape(node.output[0])
    has_bias = len(node.input) > 2 and bool(node.input[2])
    bias = editor.constant(node.input[2]) if has_bias else np.zeros(1)
    by_size = record.attributes.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in record.attributes
    if made_shape is None or by_size:
        return None
    # QNN returns garbage at positions that no window reaches.
    added = record.attributes["output_padding"]
    pads = list(record.attributes.get("pads", [0] * 2 * len(added)))
    begins, ends = pads[: len(added)], pads[len(added) :]
    # The pads at the end remove computed values. Smaller pads keep some of these values, which replace
    # output_padding. Append only the positions that are still missing.
    extra = [max(0, more - cut) for more, cut in zip(added, ends, strict=True)]
    # Keep a node with a quantised result: its rewrite adds a Concat whose constant would need its own scale.
    if any(extra) and (bias is None or _is_quantised(editor, node)):
        return None
    set_attribute(node, "pads", [*begins, *(max(0, cut - more) for more, cut in zip(added, ends, strict=True))])
    drop_attribute(node, "output_padding")
    if bias is None or not any(extra):
        return [node]
    sizes = [*made_shape[:2], *(size - more for size, more in zip(made_shape[2:], extra, strict=True))]
    output = node.output[0]
    value = node.output[0] = editor.fresh(f"{output}/reached")
    made: list[Any] = [node]
    # At positions that no window reaches, the result is the bias.
    fill = bias.reshape(1, -1, *(1 for _ in extra)).astype(dtype_of(editor, output))
    for axis, more in enumerate(extra, 2):
        if not more:
            continue
        block = np.broadcast_to(fill, (*sizes[:axis], more, *sizes[axis + 1 :]))
        end = editor.add_constant(block, f"{output}/end")
        made.append(editor.make("Concat", [value, end], node, axis=axis))
        value, sizes[axis] = made[-1].output[0], sizes[axis] + more
    made[-1].output[0] = output
    return made


@for_matches("ConvTranspose", ("conv-transpose-four-groups",), "ConvTranspose of groups")
def split_groups(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace ConvTranspose of four groups by four ConvTranspose and a Concat."""
    weights, shape = editor.constant(node.input[1]), editor.shape(node.input[0])
    bias = editor.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if weights is None or shape is None or (bias is None and len(node.input) > 2):
        return None
    # In one dimension QNN's results are wrong for 4 groups and at most 32 channels.
    many = int(record.attributes["group"])
    # The first axis of the weights contains the input channels, so a group is a range of that axis. The bias has
    # one value for each output channel.
    width, made, results = shape[1] // many, [], []
    for number in range(many):
        part = sliced(editor, node, node.input[0], 1, number * width, (number + 1) * width)
        given = [part.output[0]]
        given.append(editor.add_constant(weights[number * width : (number + 1) * width], f"{node.input[1]}/part"))
        if bias is not None:
            given.append(editor.add_constant(np.split(bias, many)[number], f"{node.input[2]}/part"))
        attributes = {name: value for name, value in record.attributes.items() if name != "group"}
        made += [part, editor.make("ConvTranspose", given, node, **attributes)]
        results.append(made[-1].output[0])
    return [*made, editor.make("Concat", results, node, node.output[0], axis=1)]


def _is_quantised(editor: Editor, node: Any) -> bool:
    return any(graphs.op_name(user) == "QuantizeLinear" for user in editor.uses(node.output[0]))


def crop_and_turn(editor: Editor) -> list[str]:
    """Replace the padding of a three-dimensional ConvTranspose by a Slice, and reorder its dimensions so that equal
    strides are last."""
    return [*_crop_same(editor), *_crop(editor), *_equal_strides_last(editor)]


@for_matches("ConvTranspose", ("conv-transpose-3d-same-output-padding",), "auto_pad of a ConvTranspose in space")
def _crop_same(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace auto_pad and output_padding of a ConvTranspose by a Slice after it."""
    shape = editor.shape(node.input[0])
    if shape is None or "output_shape" in record.attributes:
        return None
    heads, _ = _pads_of_same(record)
    strides = window_of_node(record)["strides"]
    return _cut_off(editor, node, heads, [size * step for size, step in zip(shape[2:], strides, strict=True)])


@for_matches("ConvTranspose", ("conv-transpose-3d-pads",), "padding of a ConvTranspose in three dimensions")
def _crop(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the padding of a ConvTranspose, which differs between the sides, by a Slice after it."""
    made_shape = editor.shape(node.output[0])
    if made_shape is None or "output_shape" in record.attributes:
        return None
    return _cut_off(editor, node, window_of_node(record)["before"], made_shape[2:])


def _cut_off(editor: Editor, node: Any, before: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """Return nodes that compute the result without padding, and a Slice of it that starts at `before`."""
    # Remove all padding, because QNN applies the padding of one side to all sides.
    for name in ("auto_pad", "pads", "output_padding"):
        drop_attribute(node, name)
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/whole")
    ends = [start + size for start, size in zip(before, sizes, strict=True)]
    limits = [editor.add_constant(np.array(one), "crop") for one in (before, ends, [2, 3, 4])]
    return [node, editor.make("Slice", [node.output[0], *limits], node, output)]


@for_matches("ConvTranspose", ("conv-transpose-3d-strides",), "ConvTranspose in three dimensions")
def _equal_strides_last(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Move two equal strides of a ConvTranspose in three dimensions to the end, with transposes around it."""
    weights = editor.constant(node.input[1])
    strides = window_of_node(record)["strides"]
    # The dimension with the different stride becomes the first.
    other = next((place for place in (1, 2) if strides.count(strides[place]) == 1), None)
    if weights is None or other is None:
        return None
    order = [other, *(place for place in range(3) if place != other)]
    perm = [0, 1, *(place + 2 for place in order)]
    for name, given in record.attributes.items():
        if name in _OF_DIMENSIONS:
            values = list(given)
            parts = [values[start : start + 3] for start in range(0, len(values), 3)]
            set_attribute(node, name, [part[place] for part in parts for place in order])
    first = editor.make("Transpose", [node.input[0]], node, perm=perm)
    node.input[0] = first.output[0]
    node.input[1] = editor.add_constant(np.ascontiguousarray(weights.transpose(perm)), f"{node.input[1]}/order")
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/order")
    back = [int(place) for place in np.argsort(perm)]
    return [first, node, editor.make("Transpose", [node.output[0]], node, output, perm=back)]


# The attributes of a ConvTranspose with one or two numbers for each dimension.
_OF_DIMENSIONS = ("kernel_shape", "strides", "dilations", "output_padding", "output_shape", "pads")
