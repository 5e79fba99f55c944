"""Find the quantisation step of a model's tensors: the scale of the DequantizeLinear that computes each.

A value between two steps may be rounded to either, so a difference of one step between two computations is not an
error of either.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Final

from qnnbridge_host.model.graph_index import FileGraph, read_graph
from qnnbridge_host.model.protobuf import Garbage

_DEQUANTIZE: Final = frozenset(("DequantizeLinear", "com.microsoft.DequantizeLinear"))
# Operators that move values without changing them.
_MOVES: Final = frozenset(
    ("Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)


def quantised_steps(source: str | bytes) -> Mapping[str, float]:
    """Return the step of each tensor with a single step for all of its values, by name.

    Args:
        source: path of a model file, or its bytes. The result is empty for a file that is not a model.
    """
    try:
        if isinstance(source, bytes):
            return _steps_in(read_graph(io.BytesIO(source), len(source)))
        # The file is not buffered, because the reader reads large blocks.
        with open(source, "rb", buffering=0) as file:
            return _steps_in(read_graph(file, os.fstat(file.fileno()).st_size))
    except (OSError, Garbage):
        return {}


def _steps_in(graph: FileGraph) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in graph.entries:
        if not entry.inputs or not entry.outputs:
            continue
        if entry.op in _DEQUANTIZE and len(entry.inputs) > 1:
            scale = graph.about(entry.inputs[1]).values
            # Per-channel scales give no single step for the tensor.
            if scale is not None and len(scale) == 1:
                found[entry.outputs[0]] = abs(float(scale[0]))
        elif entry.op in _MOVES and entry.inputs[0] in found:
            found[entry.outputs[0]] = found[entry.inputs[0]]
    return found
