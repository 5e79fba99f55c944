"""Find inputs whose value determines which branch of a model runs, or the size of its results.

QNN supports neither an If nor a size that is computed from an input's value. Replacing the input by a constant
helps, if the application always passes the same value. This module finds such inputs, and an example value with
which the model runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.graph import graphs
from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.model_index import Editor, ModelIndex
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model import double_edges
from qnnbridge_host.rewrite.catalogue import FIXED_SHAPES, chosen
from qnnbridge_host.rewrite.constants import fix_inputs, fix_values
from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.input_constants import EXAMPLE_SIZES, MOST_SIZES
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.specs import NodeInfo

# Rewrites that only simplify a model: QNN does not support more nodes after them.
TIDYING: Final = frozenset(
    {"constants", "weights-as-inputs", "unused-outputs", "masks", FIXED_SHAPES, double_edges.REWRITE}
)
# Maximum number of nodes between an input and the condition or size that it determines.
_MOST_STEPS: Final = 50
# Positions of the inputs whose value determines the size of the result, by operator.
_SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Expand": (1,),
    "Slice": (1, 2, 3, 4),
    "ConstantOfShape": (0,),
    "Tile": (1,),
    "Range": (0, 1, 2),
    "Pad": (1,),
    "TopK": (1,),
    "OneHot": (1,),
    "Split": (1,),
    "CenterCropPad": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
}
# Operators whose results depend on the shape of the input, and not on its value.
_OF_SHAPES: Final = frozenset({"Shape", "Size"})
# Maximum number of elements of a result whose size an input determines.
_LARGEST_RESULT: Final = 2**24
_RESULTS_SHOWN: Final = 3
# Seconds after which no further example is tried. For a large model an attempt takes seconds.
_SECONDS_OF_TRIALS: Final = 5.0


def what_would_change(
    source: str, sizes: Mapping[str, int], given: Mapping[str, Any], refused: Container[str] | None
) -> tuple[list[str], dict[str, Any], dict[str, str]]:
    """Return changes and constants with which QNN may support more of a model.

    Args:
        source: path of the model.
        sizes: sizes of free dimensions by name.
        given: constants that the caller already uses for inputs.
        refused: operators that QNN has refused, if they are known.

    Returns:
        Three values: descriptions of what rewrites would change; `given` and constants for inputs that determine a
        branch or a size; and for each new constant a description of what it determines.
    """
    path = Path(source)
    model = graphs.load(path)
    # Ignore sizes of dimensions that this model does not have.
    named = {name for dim in model_shapes.free_dimensions(model.graph) if (name := dim.name)}
    known = Dimensions.of({name: size for name, size in sizes.items() if name in named})
    constants: dict[str, Any] = {**deciding_inputs(model), **given}
    decides = {name: "which part of the model runs" for name in constants if name not in given}
    of_sizes = {name: names for name, names in sizing_inputs(model, refused).items() if name not in constants}
    examples = tried_sizes(path, model, of_sizes, known, constants)
    decides |= {name: f"the size of {results_text(of_sizes[name])}" for name in examples}
    constants |= examples
    editor = Editor(model, path.parent)
    fix_inputs(editor, known)
    # An input with free dimensions cannot become a constant, so its branch remains unknown.
    with contextlib.suppress(BridgeError):
        fix_values(editor, constants)
    changes: list[str] = []
    editor = Editor(model, path.parent)
    for rewrite in chosen((), ()):
        found = rewrite.apply(editor)
        editor = Editor(model, path.parent) if found else editor
        if rewrite.name not in TIDYING:
            changes += [f"{rewrite.name}: {change}" for change in found]
    # Omit folded sizes: almost every model has some, and they do not change what QNN supports.
    return [change for change in changes if "nodes computed" not in change], constants, decides


# Operators that pass on a scalar without changing its value.
_PASSING_ONE: Final = frozenset({"Cast", "Flatten", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def _source_of(index: ModelIndex, name: str) -> str:
    """Return the tensor from which operators that change only shape or type compute a scalar."""
    for _ in range(_MOST_STEPS):
        maker = index.maker(name)
        if maker is None or maker.op_type not in _PASSING_ONE:
            break
        name = maker.input[0]
    return name


def deciding_inputs(model: Any) -> dict[str, float]:
    """Return the scalar inputs that decide the condition of an If, each with a number that is compared with it."""
    index = ModelIndex(model)
    scalars = {
        value.name
        for value in model_shapes.real_inputs(index.graph)
        if (dims := model_shapes.dims_of(value)) is not None and all(dim == 1 for dim in dims)
    }
    found: dict[str, float] = {}
    for node in index.protos:
        if node.op_type != "If":
            continue
        # Walk backwards from the condition. Visited nodes are not recorded: the limit ends the walk where many
        # paths meet.
        waiting, steps = [node.input[0]], 0
        while waiting and steps < _MOST_STEPS:
            steps += 1
            maker = index.maker(waiting.pop())
            if maker is None:
                continue
            inputs = [source for name in maker.input if (source := _source_of(index, name)) in scalars]
            numbers = [value for name in maker.input if (value := index.constant(name, 1)) is not None]
            if maker.op_type == "Equal" and inputs and numbers and numbers[0].size == 1:
                found.setdefault(inputs[0], float(numbers[0].reshape(())))
            waiting += maker.input
    return found


def sizing_inputs(model: Any, operators: Container[str] | None = None) -> dict[str, list[str]]:
    """Return the small inputs whose value determines a size, each with the results that have this size.

    operators: the operators whose results are considered; default: all.
    """
    index = ModelIndex(model)
    small = {
        value.name
        for value in model_shapes.real_inputs(index.graph)
        if (node := model_shapes.declared(value)).shape is not None and _holds_sizes(node)
    }
    found: dict[str, list[str]] = {}
    if not small:
        return found
    for node in index.protos:
        counts = node.domain in graphs.ONNX_DOMAINS and (operators is None or node.op_type in operators)
        places = _SIZES.get(node.op_type, ()) if counts else ()
        taken = [node.input[place] for place in places if place < len(node.input) and node.input[place]]
        for name in _followed(index, taken, small):
            found.setdefault(name, []).append(node.output[0])
    return found


def _holds_sizes(node: NodeInfo) -> bool:
    """Return whether an input is a tensor of a few numbers, which may be sizes."""
    count = 1
    for dim in node.shape or ():
        if not isinstance(dim, int):
            return False
        count *= dim
    texts = ("tensor(string)", "tensor(complex")
    return 0 < count <= MOST_SIZES and node.type.startswith("tensor(") and not node.type.startswith(texts)


def _followed(index: ModelIndex, names: Iterable[str], inputs: Iterable[str]) -> Iterator[str]:
    """Yield those of `inputs` whose values determine the values of the tensors `names`."""
    waiting, seen = list(names), set(names)
    steps = 0
    while waiting and steps < _MOST_STEPS:
        steps += 1
        name = waiting.pop()
        if name in inputs:
            yield name
        maker = index.maker(name)
        if maker is not None and maker.op_type not in _OF_SHAPES:
            more = [one for one in maker.input if one and one not in seen]
            seen.update(more)
            waiting += more


def tried_sizes(
    path: Path, model: Any, inputs: Mapping[str, list[str]], sizes: Dimensions, constants: Mapping[str, Any]
) -> dict[str, Any]:
    """Return constants for inputs that determine sizes. With them the model runs on the CPU and all sizes are
    known.

    The result is empty if no example works.

    Args:
        path: the model's file.
        model: the model as `ModelProto`.
        inputs: result of `sizing_inputs`.
        sizes: sizes of free dimensions.
        constants: constants of other inputs.
    """
    if not inputs:
        return {}
    declared = {value.name: model_shapes.declared(value) for value in model_shapes.real_inputs(model.graph)}
    results = {name for names in inputs.values() for name in names}
    begun = time.monotonic()
    with work_folder("sizes") as folder:
        for number in EXAMPLE_SIZES:
            if time.monotonic() - begun > _SECONDS_OF_TRIALS:
                break
            given = {name: _filled(declared[name], number) for name in inputs}
            target = Path(folder) / f"{number}.onnx"
            only = (FIXED_SHAPES, "shape-computations")
            with contextlib.suppress(BridgeError):
                fixed = fix_model(path, target, dims=sizes, constants={**constants, **given}, only=only)
                check = fixed.kept[-1].check if fixed.kept else None
                if check is not None and check.compared and check.agrees and _all_known(target, results):
                    return given
    return {}


def _filled(node: NodeInfo, number: int) -> Any:
    value: Any = float(number)
    for dim in reversed(node.shape or ()):
        value = [value] * int(dim or 0)
    return value


def _all_known(path: Path, results: Iterable[str]) -> bool:
    """Return whether the sizes of all results are known and above 0. A folded result counts as known."""
    index = ModelIndex(graphs.load(path))
    for name in results:
        if index.maker(name) is None:
            continue
        shape, count = index.shape(name), 1
        if shape is None:
            return False
        for size in shape:
            count *= size
        if not 0 < count <= _LARGEST_RESULT:
            return False
    return True


def results_text(names: list[str]) -> str:
    """Return a description of the first few results for a message."""
    return listed(names, _RESULTS_SHOWN)
