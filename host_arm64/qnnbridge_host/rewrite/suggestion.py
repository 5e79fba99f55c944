"""What rewriting would do for a model that QNN does not take, without trying it. In a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.graph import graphs, shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.graph.editor import Editor
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.rewrite.rewrites import FIXED_SHAPES, chosen
from qnnbridge_host.rewrite.rewrites.constants import fix_inputs, fix_values
from qnnbridge_protocol.errors import BridgeError

# Rewrites that tidy, and let QNN take nothing that it would not take without them.
TIDYING: Final = frozenset({"constants", "weights-as-inputs", "unused-outputs", "masks", FIXED_SHAPES})
# Nodes between an input and the condition that it decides.
_MOST_STEPS: Final = 50


def what_would_change(source: str, sizes: Mapping[str, int]) -> tuple[list[str], dict[str, float]]:
    """The changes of rewrites that may let QNN take more, and inputs that choose a branch."""
    path = Path(source)
    model = graphs.load(path)
    constants = deciding_inputs(model)
    editor = Editor(model, path.parent)
    # A size of a name that this model does not have is no error here.
    named = {name for dim in shapes.free_dimensions(model.graph) if (name := dim.name)}
    fix_inputs(editor, Dimensions.of({name: size for name, size in sizes.items() if name in named}))
    with contextlib.suppress(BridgeError):
        fix_values(editor, constants)
    changes: list[str] = []
    editor = Editor(model, path.parent)
    for rewrite in chosen((), ()):
        found = rewrite.apply(editor)
        editor = Editor(model, path.parent) if found else editor
        if rewrite.name not in TIDYING:
            changes += [f"{rewrite.name}: {change}" for change in found]
    return [change for change in changes if "nodes computed" not in change], constants


def deciding_inputs(model: Any) -> dict[str, float]:
    """Scalar inputs that the condition of an If follows from, with a number that they are compared with."""
    index = ModelIndex(model)
    scalars = {
        value.name
        for value in shapes.real_inputs(index.graph)
        if (dims := shapes.dims_of(value)) is not None and all(dim == 1 for dim in dims)
    }
    found: dict[str, float] = {}
    for node in index.protos:
        if node.op_type != "If":
            continue
        waiting, steps = [node.input[0]], 0
        while waiting and steps < _MOST_STEPS:
            steps += 1
            maker = index.maker(waiting.pop())
            if maker is None:
                continue
            inputs = [name for name in maker.input if name in scalars]
            numbers = [value for name in maker.input if (value := index.constant(name, 1)) is not None]
            if maker.op_type == "Equal" and inputs and numbers and numbers[0].size == 1:
                found.setdefault(inputs[0], float(numbers[0].reshape(())))
            waiting += maker.input
    return found
