"""Work around errors of onnxruntime's quantizer, and check that its result computes the same as the float model.

- The quantizer creates names (`x_scale`, `x_QuantizeLinear_Output`) that other tensors may already have. Tensors
  whose created names would clash are renamed while the quantizer runs.
- The quantizer removes a Relu or Clip if the range of its output has the same effect. Every range is extended to
  contain 0, so removing a Clip from 0.1 to 0.6 is wrong. The quantizer also narrows the range of the Relu's or
  Clip's input, which may be an output of the model.
- The written model is compared with the float model operator by operator: attributes must be equal, and constants
  within half a quantisation step. A difference is an error of the quantizer, which more bits or samples do not fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex

# Suffixes that the quantizer appends to a tensor name; to copies of a bias it appends digits.
_LAST_PART = re.compile(
    r"(_(scale|zero_point|quantized|convert|clone|QuantizeLinear|DequantizeLinear|Input|Output|Cast)|\d)$"
)
_SHOWN = 3
# A constant may be off by half a step times this factor, because values are rounded in float32.
_ROUNDING = 1.02
_REMOVABLE = ("Relu", "Clip")


# --- names ---------------------------------------------------------------------------------------------------


def clashing_names(model: Any) -> dict[str, str]:
    """Return a new name for each tensor from which the quantizer would create a name that another tensor has."""
    graph = model.graph
    names = {
        name for inner in graphs.subgraphs(graph) for node in inner.node for name in (*node.input, *node.output)
    }
    names |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    constants = {tensor.name for tensor in graph.initializer}
    found: dict[str, str] = {}
    for name in sorted(names):
        stem = name
        while match := _LAST_PART.search(stem):
            stem = stem[: match.start()]
            # Ignore a suffix of digits unless the tensor is a constant: the quantizer appends digits only to copies
            # of constants.
            if stem in names and stem not in found and (stem in constants or not name[len(stem)].isdigit()):
                found[stem] = _unlike(f"{stem}/renamed", names)
    return found


def _unlike(hint: str, names: Iterable[str]) -> str:
    while any(name.startswith(hint) for name in names):
        hint += "/"
    return hint


def rename(model: Any, names: Mapping[str, str]) -> None:
    """Rename tensors of the model in place."""
    if not names:
        return
    for graph in graphs.subgraphs(model.graph):
        for node in graph.node:
            for field in (node.input, node.output):
                for number, name in enumerate(field):
                    field[number] = names.get(name, name)
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = names.get(value.name, value.name)


def name_apart(model: Any, taken: Iterable[str]) -> None:
    """Rename QuantizeLinear and DequantizeLinear nodes whose names are in `taken` (names of the float model's
    nodes).
    """
    used = set(taken)
    for node in model.graph.node:
        # Only the quantizer adds such nodes: the float model has none.
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            while node.name in used:
                node.name += "_"
            used.add(node.name)


# --- the quantizer -------------------------------------------------------------------------------------------


def faithful(quantizer: type) -> type:
    """Return a subclass of onnxruntime's `QDQQuantizer` that removes a Relu or Clip only if this does not change
    the result.
    """

    class Faithful(quantizer):  # type: ignore[misc]
        def adjust_tensor_ranges(self) -> None:
            # The base class narrows the range of a Relu's input to that of the Relu. Restore the range if the input
            # is a model output, or if a subgraph reads it.
            graph = self.model.model.graph
            kept = {value.name for value in graph.output}
            kept.update(name for node in graph.node for name in graphs.captured_by(node))
            self.read_elsewhere = kept
            ranges = self.tensors_range
            own = {name: ranges[name] for name in kept if ranges is not None and name in ranges}
            super().adjust_tensor_ranges()
            for name, value in own.items():
                ranges[name] = value

        def try_replacing_upstream_output(self, upstream_output_name: str, output_name: str) -> bool:
            if upstream_output_name in getattr(self, "read_elsewhere", ()):
                return False
            for node in self.model.input_name_to_nodes().get(upstream_output_name, ()):
                if output_name in node.output and not _is_done_by_range(node, self.model):
                    return False
            return bool(super().try_replacing_upstream_output(upstream_output_name, output_name))

    return Faithful


def _is_done_by_range(node: Any, model: Any) -> bool:
    """Return whether the output's range, extended to contain 0, clips exactly like this Relu or Clip."""
    if node.op_type != "Clip":
        return True
    attributes = graphs.attribute_values(node)
    limits = [attributes.get("min"), attributes.get("max")]
    for number, name in enumerate(node.input[1:3]):
        if name:
            tensor = model.get_initializer(name)
            if tensor is None:
                return False
            limits[number] = float(_value(tensor))
    low, high = limits
    return (low is None or low <= 0.0) and (high is None or high >= 0.0)


def _value(tensor: Any) -> float:
    from onnx import numpy_helper

    return float(numpy_helper.to_array(tensor).reshape(-1)[0])


# --- comparison with the float model -------------------------------------------------------------------------


def unlike_operators(float_model: ModelIndex, quantised: Any) -> list[str]:
    """Return one line for each operator whose quantised version differs by more than the rounding of its constants.

    Args:
        float_model: float model with its weights; all nodes have names.
        quantised: quantised model with its weights.
    """
    written = ModelIndex(quantised)
    nodes = {node.name: node for node in written.protos}
    lines = []
    for node in float_model.protos:
        other = nodes.get(node.name)
        if other is None:
            if node.op_type not in (*_REMOVABLE, "Identity", "Dropout"):
                lines.append(f"{node.op_type} {node.name} is missing")
            continue
        if (node.op_type, _attributes(node)) != (other.op_type, _attributes(other)):
            lines.append(f"{node.op_type} {node.name} has different attributes")
        for number, (name, there) in enumerate(zip(node.input, other.input, strict=False)):
            off = _off(float_model, name, written, there) if name in float_model.weights else 0.0
            if off > _ROUNDING:
                lines.append(
                    f"{node.op_type} {node.name}: constant {number} ({name}) is off by {off:.1f} times the largest "
                    "rounding error"
                )
    return lines


def shown(lines: list[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"{'; '.join(lines[:_SHOWN])}{more}"


def _attributes(node: Any) -> dict[str, bytes]:
    return {one.name: one.SerializeToString(deterministic=True) for one in node.attribute}


def _off(float_model: ModelIndex, name: str, written: ModelIndex, there: str) -> float:
    """Return the largest error of a constant as a multiple of half its quantisation step; 0 if the constant stays
    float.
    """
    maker = written.maker(there)
    if maker is None or maker.op_type != "DequantizeLinear":
        return 0.0
    known = [_array(written, one) for one in maker.input]
    expected = _array(float_model, name)
    if expected is None or any(one is None for one in known):
        return 0.0
    values, scale = known[0], known[1]
    assert values is not None
    assert scale is not None
    zero = known[2] if len(known) > 2 and known[2] is not None else np.zeros((), np.int32)
    if scale.size > 1 and values.ndim:
        axis = int(graphs.attribute_values(maker).get("axis", 1)) % values.ndim
        if scale.ndim != 1 or values.shape[axis] != scale.size:
            return 0.0  # per-block scales are not compared
        form = [-1 if one == axis else 1 for one in range(values.ndim)]
        scale, zero = scale.reshape(form), zero.reshape(form) if zero.size > 1 else zero
    if values.shape != expected.shape:
        return 0.0
    found = (values.astype(np.float64) - zero.astype(np.float64)) * scale.astype(np.float64)
    half = 0.5 * np.abs(scale.astype(np.float64))
    # Allow for the float32 rounding of the constant itself.
    rounding = np.abs(expected.astype(np.float64)) * 2.0**-22 + 1e-30
    return float((np.maximum(np.abs(found - expected) - rounding, 0.0) / np.maximum(half, 1e-30)).max(initial=0.0))


def _array(index: ModelIndex, name: str) -> npt.NDArray[Any] | None:
    from onnx import numpy_helper

    tensor = index.tensor(name)
    return None if tensor is None else numpy_helper.to_array(tensor)
