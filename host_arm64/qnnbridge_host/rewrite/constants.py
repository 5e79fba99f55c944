"""Create constants from inputs and sizes, fold tensors computed from constants, and change unusable constants.

`fold` computes on the CPU all tensors that depend only on constants and fixed shapes: sizes, axes, conditions,
masks. Weights and quantised tensors are not changed, because QNN needs the pairs of Quantize and Dequantize. A
tensor without elements counts as known if its shape is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs, shapes
from qnnbridge_host.graph.bounds import overflows
from qnnbridge_host.graph.model_index import Array, Editor
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.rewrite.rewriting import for_nodes
from qnnbridge_protocol.errors import OptionError, OrtError
from qnnbridge_protocol.input_constants import shape_of, shown
from qnnbridge_protocol.input_tensors import array_of, resolved


def fix_inputs(editor: Editor, sizes: Dimensions) -> list[str]:
    """Fix dimensions of inputs, infer the shapes of all other tensors, and return descriptions of the changes."""
    free = {(one.input, one.axis): one.name for one in shapes.free_dimensions(editor.graph)}
    if not shapes.fix(editor.model, sizes):
        return []
    editor.changed(shapes=True)
    left = {(one.input, one.axis) for one in shapes.free_dimensions(editor.graph)}
    changed = dict.fromkeys(name for name, axis in free if (name, axis) not in left)
    if not changed:
        return []
    inputs = {value.name: value for value in editor.graph.input}
    return [f"input {name}: {_shape_text(inputs[name])}" for name in changed] + propagate_shapes(editor)


def fix_values(editor: Editor, constants: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Replace inputs by constants.

    Free dimensions of an input get the sizes of its constant, if the constant has as many dimensions.

    Args:
        editor: the model.
        constants: the value of each input, a number or nested lists of numbers.

    Returns:
        Descriptions of the changes, and the values of the inputs by name for a run of the original model.

    Raises:
        OptionError: an input does not exist, or the constant does not fit it.
    """
    values: dict[str, Any] = {}
    changes = []
    inputs = {value.name: value for value in shapes.real_inputs(editor.graph)}
    for name, constant in constants.items():
        value = inputs.get(name)
        if value is None:
            raise shapes.no_input(name, inputs)
        node, own = shapes.declared(value), shape_of(constant)
        dims = node.shape
        free = dims is None or not all(isinstance(dim, int) for dim in dims)
        if value.type.HasField("tensor_type") and free and (dims is None or len(own) != len(dims)):
            raise OptionError(
                f'Input "{name}" has free dimensions, whose sizes do not follow from this constant.',
                fix="Give all values of the input as nested lists with the input's dimensions, or set --shape.",
            )
        values[name] = array_of(constant, name, node.type, resolved(constant, dims, {}))
        # The constant keeps the input's name, so that nodes need not change.
        editor.graph.input.remove(value)
        editor.add_constant(values[name], name, name)
        changes.append(f"input {name} is now the constant {shown(constant)} and no longer an input of the model")
    # Before IR version 4 each initializer had to be an input of the graph as well.
    if changes:
        editor.model.ir_version = max(editor.model.ir_version, 4)
        editor.changed(shapes=True)
    return changes, values


def propagate_shapes(editor: Editor) -> list[str]:
    """Remove declared shapes of intermediate tensors, which may contradict the inputs, and infer all shapes."""
    if shapes.free_dimensions(editor.graph):
        return []
    free = shapes.forget_inferred(editor.graph)
    if not free:
        return []
    editor.changed(shapes=True)
    fixed = []
    for value in free:
        shape = editor.shape(value.name)
        if shape is not None and len(shape) == len(value.type.tensor_type.shape.dim):
            for dimension, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dimension.dim_value = size
            fixed.append(f"output {value.name}: {'x'.join(map(str, shape))}")
    return fixed


def _shape_text(value: Any) -> str:
    dims = value.type.tensor_type.shape.dim
    return "x".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def weights_from_inputs(editor: Editor) -> list[str]:
    """Remove weights from the inputs. Before IR version 4 each weight is also an input, so QNN would not get a
    constant."""
    moved = graphs.weights_out_of_inputs(editor.model)
    if not moved:
        return []
    editor.model.ir_version = max(editor.model.ir_version, 4)  # since version 4 weights need not be inputs
    editor.changed()
    return [f"{moved} weights were also inputs"]


def initializers_from_constants(editor: Editor) -> list[str]:
    """Replace Constant nodes by initializers, even in subgraphs, because the quantizer skips Constant nodes."""
    moved = sum(_moved(graph) for graph in graphs.subgraphs(editor.graph))
    if not moved:
        return []
    editor.model.ir_version = max(editor.model.ir_version, 4)
    editor.changed()
    return [f"{moved} Constant {'node' if moved == 1 else 'nodes'}"]


def _moved(graph: Any) -> int:
    kept: list[Any] = []
    tensors: list[Any] = []
    for node in graph.node:
        tensor = graphs.constant_tensor(node)
        if tensor is None:
            kept.append(node)
        else:
            tensors.append(tensor)
    if tensors:
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(tensors)
    return len(tensors)


def compute_shapes(editor: Editor) -> list[str]:
    """Fold sizes, axes, paddings and masks that are computed from fixed shapes: QNN needs them as constants."""
    saved = fold(editor)
    return [f"{saved} nodes computed"] if saved else []


_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_BY_COORDINATES = frozenset({"GatherND", "ScatterND"})


@for_nodes(_ALONG_AXIS | _BY_COORDINATES, "nodes with negative indices")
def count_constant_indices(editor: Editor, node: Any) -> list[Any] | None:
    """Replace negative constant indices by the equivalent indices from the start: QNN computes some negative
    indices wrong."""
    shape, indices = editor.shape(node.input[0]), editor.constant(node.input[1])
    if not shape or indices is None or not (indices < 0).any():
        return None
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type in _ALONG_AXIS:
        sizes = np.asarray(shape[attributes.get("axis", 0)])
    else:
        # ScatterND has no batch_dims, so its indices count from the first axis.
        first = attributes.get("batch_dims", 0)
        sizes = np.asarray(shape[first : first + indices.shape[-1]])
    counted = np.where(indices < 0, indices + sizes, indices).astype(indices.dtype)
    node.input[1] = editor.add_constant(counted, f"{node.input[1]}/counted")
    return [node]


def shrink_masks(editor: Editor) -> list[str]:
    """Replace attention masks of -3.4e38 by -1e4.

    As a half float -3.4e38 is infinite. In a quantised model it leaves no resolution for the scores: the cosine
    similarity of a sentence encoder to its float model was 0.48 with -3.4e38, and 0.98 with -1e4.
    """
    for tensor in editor.graph.initializer:
        users = editor.uses(tensor.name)
        if users and all(node.op_type in graphs.MASK_ADDING_OPS for node in users):
            graphs.load_tensor(tensor, editor.folder)
    shrunk = graphs.shrink_masks(editor.model)
    return [f"{shrunk} masks are -{graphs.ENOUGH_FOR_MASK:g} now"] if shrunk else []


# --- computing what follows from constants and fixed shapes ----------------------------------------------

# Maximum number of elements of one input, of one result, and of all results of one pass.
INPUT_LIMIT = 1 << 16
OUTPUT_LIMIT = 1 << 20
TOTAL_LIMIT = 1 << 25
# Maximum number of sub-models that ONNX Runtime may refuse before folding stops. Real models have one or two.
MOST_REFUSED = 200

# QNN needs pairs of Quantize and Dequantize, so they are not folded. The results of random operators, and of
# Dropout in training, differ from run to run. Bodies of If, Loop and Scan can read tensors outside of the
# sub-model.
_NEVER = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "If", "Loop", "Scan"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        "Dropout",
    }
)
# Operators whose results can be much larger than their inputs. They are folded only if the result's size is known.
_GROWING = frozenset(
    {"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "OneHot", "Resize", "Upsample", "EyeLike"}
)
# Maximum number of rounds. Each round makes more shapes known; real models need two or three.
_ROUNDS = 20


def fold(editor: Editor, never: frozenset[str] = frozenset()) -> int:
    """Replace tensors that depend only on known values by constants; return the number of removed nodes.

    Args:
        editor: the model.
        never: further operators that are not folded; a Size of a constant is always folded.
    """
    before = len(editor.graph.node)
    elements = 0
    for _ in range(_ROUNDS):
        values = _computed(editor, _NEVER | never) if elements < TOTAL_LIMIT else {}
        if not values:
            break
        elements += sum(value.size for value in values.values())
        for name, value in values.items():
            put_constant(editor, name, value)
        editor.drop_dead()
        editor.changed(shapes=True)
    return before - len(editor.graph.node)


def put_constant(editor: Editor, name: str, value: Array) -> None:
    """Replace the tensor `name` by a constant. The node that computed it stays, for its other outputs."""
    maker = editor.maker(name)
    if maker is not None:
        for number, made in enumerate(maker.output):
            if made == name:
                editor.rename_result(maker, number, editor.fresh(f"{name}/unused"))
    editor.add_constant(value, name, name)


def _computed(editor: Editor, never: frozenset[str]) -> dict[str, Array]:
    """Compute one pass of `fold`: return the tensors, by name, that follow from constants and fixed shapes."""
    known: dict[str, Array] = {}
    taken: list[Any] = []
    made: set[str] = set()
    left_alone = never - {"Size"}
    left = TOTAL_LIMIT
    for node in editor.graph.node:
        if not any(node.output):
            continue
        if shape := _shape_value(editor, node, never):
            known.update(shape)
            made.update(shape)
        elif node.op_type not in left_alone and _foldable(editor, node, made):
            left -= sum(math.prod(editor.shape(name) or ()) for name in node.output if name)
            if left < 0:
                break
            taken.append(node)
            made.update(name for name in node.output if name)
    return {**known, **_Evaluation(editor, known).results_of(taken)}


def _shape_value(editor: Editor, node: Any, never: frozenset[str]) -> dict[str, Array] | None:
    if node.domain not in graphs.ONNX_DOMAINS:
        return None
    if node.op_type == "Gather":
        # If `never` contains Size, do not fold a Gather of a Shape either: ONNX Runtime folds neither.
        return None if "Size" in never else _known_sizes(editor, node)
    if node.op_type not in {"Shape", "Size"} - never:
        return None
    shape = editor.shape(node.input[0])
    if shape is None:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.asarray(np.prod(shape, dtype=np.int64))}
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    return {node.output[0]: np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)}


def _known_sizes(editor: Editor, node: Any) -> dict[str, Array] | None:
    """Return the sizes that a Gather reads from a Shape, if they are known.

    PyTorch exports such nodes to test whether a dimension can be squeezed.
    """
    maker, picked = editor.maker_of(node.input[0], "Shape"), editor.constant(node.input[1], INPUT_LIMIT)
    # With an attribute of Shape (start or end) the positions would count from another dimension.
    if maker is None or maker.attribute or picked is None:
        return None
    sizes = editor.dims(maker.input[0])
    if sizes is None or any(not -len(sizes) <= number < len(sizes) for number in picked.flat):
        return None
    found = [sizes[number] for number in picked.flat]
    if any(size is None for size in found):
        return None
    return {node.output[0]: np.asarray(found, np.int64).reshape(picked.shape)}


def _foldable(editor: Editor, node: Any, made: set[str]) -> bool:
    if node.domain not in graphs.ONNX_DOMAINS:
        return False
    # Do the cheap test first, because most nodes have an input that is not a constant.
    if not all(not name or name in made or _small(editor, name) for name in node.input):
        return False
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return False
    if overflows(node, editor.tensor):
        return False
    for name in node.output:
        shape = editor.shape(name) if name else ()
        # Do not use numpy, whose product of a malicious shape would overflow.
        if shape is not None and math.prod(shape) > OUTPUT_LIMIT:
            return False
    return node.op_type not in _GROWING or all(not name or editor.shape(name) is not None for name in node.output)


def _small(editor: Editor, name: str) -> bool:
    tensor = editor.tensor(name)
    if tensor is None or (tensor.data_location and not tensor.external_data):
        return False
    return int(np.prod(tensor.dims, dtype=np.int64)) <= INPUT_LIMIT


class _Evaluation:
    """Evaluates nodes whose inputs are all known. known: known tensors by name."""

    def __init__(self, editor: Editor, known: dict[str, Array]) -> None:
        self._editor = editor
        self._known = dict(known)
        self._refused = 0

    def results_of(self, nodes: list[Any]) -> dict[str, Array]:
        """Run nodes in their order as one model and return the results. If ONNX Runtime refuses the model, run its
        halves."""
        if not nodes or self._refused >= MOST_REFUSED:
            return {}
        try:
            results = _evaluate(self._editor, nodes, self._known)
        except OrtError:
            # Ignore the error: ONNX Runtime reports it again when it loads the model.
            self._refused += 1
            results = None
        if results is None and len(nodes) > 1:
            # Bisection finds one refused node among n nodes in about 2 log n sessions; all other nodes are
            # computed.
            middle = len(nodes) // 2
            return {**self.results_of(nodes[:middle]), **self.results_of(nodes[middle:])}
        self._known.update(results or {})
        return results or {}


def _evaluate(editor: Editor, nodes: list[Any], known: dict[str, Array]) -> dict[str, Array] | None:
    """Return the results that other nodes need; ``None`` if an input of a node is unknown."""
    from onnx import numpy_helper

    made = dict.fromkeys(name for node in nodes for name in node.output if name)
    inputs = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    constants = []
    for name in inputs:
        value = known.get(name)
        if value is None:
            value = editor.constant(name)
        if value is None:
            return None
        constants.append(numpy_helper.from_array(value, name))
    used = Counter(name for node in nodes for name in dict.fromkeys(node.input))
    # Return only results that other nodes read, because constants for intermediate results would be useless.
    needed = [name for name in made if not editor.is_free(name) or len(editor.uses(name)) > used[name]]
    results = _run_part(editor, nodes, constants, needed) if needed else {}
    if needed and len(results) == len(needed):
        return results
    # Fold the intermediate results if some needed results cannot be constants (strings, types that numpy lacks).
    return _run_part(editor, nodes, constants, list(made))


def _run_part(editor: Editor, nodes: list[Any], constants: list[Any], names: list[str]) -> dict[str, Array]:
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, "constants", [], [onnx.ValueInfoProto(name=name) for name in names], constants)
    # Before IR version 4 each initializer had to be an input as well.
    model = helper.make_model(
        graph, opset_imports=list(editor.model.opset_import), ir_version=max(editor.model.ir_version, 4)
    )
    session = cpu.open_session(model.SerializeToString(), "a part of the model", cpu.silent_options())
    results = cpu.run(session, {}, "a part of the model", names)
    return {
        name: np.asarray(value)
        for name, value in zip(names, results, strict=True)
        if isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "fiub"
    }
