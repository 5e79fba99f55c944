"""Table of operators that QNN is known to compute wrong, and the search for them in a model. The model is not run.

The table is `known_wrong.json`; `python -m lab.sweep` measures it. A row matches a node only if all values in its
condition are known: a shape that depends on the input never causes a warning. The second part of this module
defines the names that a condition may use. Pure functions; any thread.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.model.chips import chip_named, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.graph_index import (
    DOES_NOT_FOLLOW,
    GraphIndex,
    GraphNode,
    GraphTensor,
    NodeEntry,
    Unknown,
    read_model,
    rules_about,
    sizes_of,
)
from qnnbridge_host.model.merged import (
    cancels_casts,
    fails_with_wide_integers,
    gelu_of,
    joins_edges,
    l2_offset,
    loses_reshapes,
    may_be_negative,
    parts_transposes,
    repeats_rows,
    softmax_factor,
    transposes_int64_output,
)
from qnnbridge_host.model.quantised_steps import DEQUANTIZE, scale_count, scales_of, stored_type
from qnnbridge_host.model.static_shapes import complete, in_float32, scaled_sizes, slid_sizes, window_of
from qnnbridge_protocol.shell import NO_FILE, ModelInCommands
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.specs import QNN
from qnnbridge_protocol.version_numbers import numbers_of

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.specs import SessionSpec


CODE: Final = "known-wrong"
_DATA: Final = os.path.join(os.path.dirname(__file__), "known_wrong.json")
# Maximum number of faults in a warning, and of operators for each, so that the warning stays one sentence.
_SHOWN: Final = 3
_FIRST_HALF_FLOAT_ARCH: Final = 69


@dataclasses.dataclass(frozen=True, slots=True)
class WrongOperator:
    """A row of the table.

    Args:
        operators: operators to which the row applies.
        form: "float" or "quantised", the models in which the fault occurs; "" for all models.
        when: expressions that are all true for a node that is computed wrong.
        says: description of the fault.
        least_arch: first architecture with the fault, 73 for V73.
        first, last: first and last release of onnxruntime-qnn with the fault; releases newer than all tested
        releases count as faulty, too.
        snr: lowest measured SNR in decibels.
        rewrite: name of the rewrite of `qnnbridge fix`, "" if there is none.
        advice: what to do if no rewrite fixes the fault.
        on_cpu: the rewrite moves the operator to the CPU, which a session must allow (`fallback="cpu"`).
    """

    name: str
    operators: tuple[str, ...]
    form: str
    when: tuple[str, ...]
    says: str
    least_arch: int
    first: str
    last: str
    snr: float
    largest: float
    rewrite: str = ""
    advice: str = ""
    on_cpu: bool = False
    tried: int = 0
    wrong: int = 0
    right_outside: int = 0
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def remedy(self) -> str:
        """Description of the remedy."""
        then = ", and a session that allows the CPU" if self.on_cpu else ""
        return f"qnnbridge fix ({self.rewrite}){then}" if self.rewrite else self.advice

    @property
    def fails(self) -> bool:
        """Whether the fault is an error of the session or of each run instead of a wrong result."""
        return "no session is made" in self.says or "each run fails" in self.says

    def applies(self, arch: int, release: str) -> bool:
        """Return whether a chip and a release have the fault. release: "" if it is unknown."""
        # A string that is not a version counts as unknown. `last` is ignored for untested releases, which are
        # presumed to have the fault.
        number = numbers_of(release)
        return arch >= self.least_arch and (not number or number >= numbers_of(self.first))


@dataclasses.dataclass(frozen=True, slots=True)
class KnownWrong:
    """A node that a row matches.

    Args:
        inside: the branch or function that contains the node, "" for a node of the main graph.
        top: position in the main graph of the node, or of the node that contains it; set by `find_in_model`.
        before: rewrites that must run first, so that the rewrite of the fault reaches the node.
    """

    fault: WrongOperator
    index: int
    node: str
    op: str
    inside: str = ""
    top: int = 0
    before: tuple[str, ...] = ()

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Rewrites of `qnnbridge fix` that fix the node, in their order."""
        return (*self.before, self.fault.rewrite) if self.fault.rewrite else ()

    @property
    def text(self) -> str:
        """Fault and remedy as one sentence."""
        return f"{self.op} {self.node}: {self.fault.says}; remedy: {self.fault.remedy}"


@functools.cache
def table() -> tuple[WrongOperator, ...]:
    """Return all rows of the table."""
    with open(_DATA, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    return tuple(
        WrongOperator(**{**row, "operators": tuple(row["operators"]), "when": tuple(row["when"])}) for row in rows
    )


@functools.cache
def operators() -> frozenset[str]:
    """Return all operators of the table."""
    return frozenset(op for fault in table() for op in fault.operators)


@functools.cache
def rewrites_of_failures() -> frozenset[str]:
    """Return the rewrites that only fix faults that prevent a session."""
    rewrites = {fault.rewrite for fault in table()}
    return frozenset(rewrites - {fault.rewrite for fault in table() if "no session is made" not in fault.says})


def rows_for(arch: int, release: str = "") -> tuple[WrongOperator, ...]:
    """Return the rows for an architecture (73 for V73) and a release of onnxruntime-qnn ("" if it is not known)."""
    return tuple(fault for fault in table() if fault.applies(arch, release))


def find(graph: GraphIndex, faults: Sequence[WrongOperator]) -> tuple[KnownWrong, ...]:
    """Return the nodes that match one of the rows, without duplicates."""
    # Select the rows once for each operator instead of for each node.
    about = functools.cache(lambda op: rules_about(faults, op))
    found = []
    for place, op in enumerate(graph.ops()):
        for fault in about(op):
            node = graph.node(place)
            if matches(fault, node, graph):
                found.append(KnownWrong(fault, node.index, node.label, node.op))
                break
    return tuple(found)


def find_in_model(
    source: str | os.PathLike[str] | bytes,
    *,
    arch: int,
    release: str = "",
    sizes: Mapping[str, int] | None = None,
    rows: Sequence[WrongOperator] | None = None,
) -> tuple[KnownWrong, ...]:
    """Search a model for nodes that match the table. The result is empty for a file that is not a model.

    Args:
        source: the model's path, or its bytes.
        arch, release: see `rows_for`.
        sizes: sizes of free dimensions by name, as the session sets them.
        rows: rows to search for; default: the table's rows for the chip and the release.
    """
    if rows is None:
        rows = rows_for(arch, release)
    graph = read_model(source, sizes)
    if graph is None:
        return ()
    # Fast path: without an operator of the table no shapes are needed.
    wanted = operators()
    if not any(op in wanted for op in graph.ops()):
        return ()
    complete(graph)
    return tuple(_where_it_is(one, graph.entries[one.index]) for one in find(graph, rows))


# Rewrites that replace an If by the branch that is always executed.
BRANCH_REWRITES: Final = ("shape-computations", "untaken-branches")


def _where_it_is(found: KnownWrong, entry: NodeEntry) -> KnownWrong:
    """Add the position to a match. Drop the fix if no rewrite reaches the position because it is outside of the
    main graph."""
    if not entry.inside:
        return dataclasses.replace(found, top=entry.top)
    # The name of an inner node begins with a prefix that the index adds.
    node = entry.name or found.node.partition("/")[2]
    found = dataclasses.replace(found, node=node, inside=entry.inside, top=entry.top)
    if entry.always_taken and found.fault.rewrite:
        return dataclasses.replace(found, before=BRANCH_REWRITES)
    advice = f"it is in {entry.inside}, which qnnbridge fix does not change: export the model without it"
    fault = dataclasses.replace(found.fault, rewrite="", advice=advice)
    return dataclasses.replace(found, fault=fault)


def warning_of(
    label: str,
    found: Sequence[KnownWrong],
    model: ModelInCommands = NO_FILE,
    evidence: Callable[[Sequence[str]], str] = lambda rows: "",
) -> str:
    """Return a warning about a model, "" without matches.

    Args:
        label: name of the model.
        found: the matches.
        model: the model in the suggested command.
        evidence: function that describes where the given rows were measured.
    """
    if not found:
        return ""
    measured = evidence(list(dict.fromkeys(one.fault.name for one in found)))
    return f"{label}: {fault_text(found)}{measured} Fix: {cure_text(found, model)}."


def fault_text(found: Sequence[KnownWrong]) -> str:
    """Return the known faults of a model's operators as a sentence."""
    # Group by fault, because a model with many layers has the same fault in each layer.
    by_fault: dict[tuple[str, str], list[str]] = {}
    for one in found:
        by_fault.setdefault((one.op, one.fault.says), []).append(one.node)
    kinds = list(by_fault.items())[:_SHOWN]
    shown = "; ".join(f"{op} {listed(nodes, _SHOWN)} ({says})" for (op, says), nodes in kinds)
    left = len(found) - sum(len(nodes) for _, nodes in kinds)
    more = f"; and {left} more" if left else ""
    count = "one operator" if len(found) == 1 else f"{len(found)} operators"
    if all(one.fault.fails for one in found):
        return f"QNN is known to fail with {count} of it: {shown}{more}."
    return f"QNN is known to compute {count} of it wrong: {shown}{more}."


def cure_text(found: Sequence[KnownWrong], model: ModelInCommands) -> str:
    """Return the remedies for the matches, without a full stop."""
    rewrites = list(dict.fromkeys(name for one in found if one.fault.rewrite for name in one.rewrites))
    advice = list(dict.fromkeys(one.fault.advice for one in found if not one.fault.rewrite and one.fault.advice))
    fixes = [f"run: {model.fix(*rewrites)}"] if rewrites else []
    if any(one.fault.on_cpu and one.fault.rewrite for one in found):
        fixes.append('create the session with fallback="cpu", which leaves the random operators to the CPU')
    return "; ".join(fixes + advice)


def find_for_session(
    source: ModelSource,
    spec: SessionSpec,
    versions: Mapping[str, str],
    *,
    simulator: bool,
    soc_model: str | None = None,
    rows: Callable[[int, str], Sequence[WrongOperator]] = rows_for,
) -> tuple[KnownWrong, ...]:
    """Run `find_in_model` for a session of a model. The result is empty if the session does not use QNN's HTP.

    Args:
        source: the model.
        spec: the session's providers and sizes of free dimensions.
        versions: versions of the host's packages.
        simulator: whether QNN computes on the simulator.
        soc_model: the chip, if the caller knows it.
    """
    if not computes_on_htp(spec):
        return ()
    options = [provider.options for provider in spec.providers if provider.name == QNN]
    # The options of the first QNN provider take precedence.
    given = {name: text for one in reversed(options) for name, text in one.items()}
    arch = arch_of(soc_model or given.get("soc_model"), given.get("htp_arch"), simulator=simulator)
    release = versions.get("onnxruntime_qnn", "")
    sizes = spec.free_dimensions_by_name
    return find_in_model(source.given, arch=arch, release=release, sizes=sizes, rows=rows(arch, release))


def computes_on_htp(spec: SessionSpec) -> bool:
    """Return whether a session uses QNN's HTP, which is the default without providers."""
    from qnnbridge_host.model.compatibility import backend_of

    options = [provider.options for provider in spec.providers if provider.name == QNN]
    return not spec.providers or any(backend_of(one) == "htp" for one in options)


def arch_of(soc_model: str | None, htp_arch: str | None = None, *, simulator: bool) -> int:
    """Return the architecture for which a session computes: of its chip, else of this computer or the simulator.

    An unknown chip counts as the first architecture that computes in half floats.
    """
    if simulator:
        number = simulated_chip(soc_model, htp_arch)
        chip = chip_of(number) if number else None
    else:
        first = (soc_model or "").split(",")[0]
        # For QNN, 0 means that no chip is set.
        chip = chip_named(first) if first.strip(" 0") else chip_of_this_computer()
    return chip.arch if chip is not None else _FIRST_HALF_FLOAT_ARCH


def matches(fault: WrongOperator, node: GraphNode, graph: GraphIndex) -> bool:
    """Return whether a row matches a node. Unknown facts of the node prevent a match."""
    first = node.inputs[0] if node.inputs else None
    # Operators have the same types in QDQ models as in float models; only the producer of the input shows whether
    # it is quantised.
    quantised = first is not None and maker_of(first, graph) in DEQUANTIZE
    if fault.form and (fault.form == "quantised") != quantised:
        return False
    return all_true(fault.when, node, graph)


# --- conditions ------------------------------------------------------------------------------------------
# Expressions over attributes, shapes and constants of a node. Names: the node's attributes; for windows `sizes`,
# `kernel`, `strides`, `dilations`, `before` and `after` (the pads, also those of auto_pad); for poolings `made`,
# the sizes of the result; `users`, the operators that read the result, and `beside`, the inputs of each; `output`,
# the result's name; `node_name`, the node's own name; for reductions `reduced`, their axes. Functions of the index
# of an input: `shape(0)`, `values(1)`, `type(0)`, `maker(0)`, `constant(1)`, `given(2)`, `name(0)`, `quantised(0)`;
# `scales(0)`, the scales of a quantised input, and `scale_count(1)`, their number; `least(0)` and `most(0)`, the
# limits that a Max, Min or Clip in front of the input sets; `fed(1)`, the type of the model input whose values
# input 1 has, "" if they are computed; `way(1, 0)`, the operator that computes input 1 and the operator that
# computes input 0 of that operator, if they exist. `merged_gelu()` and similar functions return what QNN merges
# (`qnnbridge_host.model.merged`). Python evaluates an expression after a check that it contains only arithmetic,
# comparisons, calls of these functions and comprehensions, so that the table cannot run code.

_POOLS: Final = frozenset({"AveragePool", "MaxPool", "LpPool"})
_WINDOWS: Final = _POOLS | {"Conv", "ConvTranspose"}
_WEIGHTED: Final = ("Conv", "ConvTranspose")
# Maximum output size of a Resize in one direction. No real image is larger, but a malicious model may request it.
_MOST_PLACES: Final = 2**14


def all_true(expressions: Sequence[str], node: GraphNode, graph: GraphIndex) -> bool:
    """Return whether every expression is true for a node. An unknown fact makes an expression false."""
    names = _Facts(node, graph)
    try:
        return all(eval(_parsed(text), names) for text in expressions)  # noqa: S307 - `_parsed` refuses unsafe code
    except (NameError, *DOES_NOT_FOLLOW):
        return False


class _Facts(dict[str, Any]):
    """Names that an expression may use. Their values are computed on access."""

    # `eval` looks a name up here and then among the built-in functions. Comprehensions look up only globals, so
    # `eval` gets this dict as globals; its `__missing__` is called for them as well.
    def __init__(self, node: GraphNode, graph: GraphIndex) -> None:
        super().__init__(__builtins__=_PLAIN)
        self._node = node
        self._graph = graph

    def __missing__(self, name: str) -> Any:
        node = self._node
        if name in node.attributes:
            return node.attributes[name]
        if name in _OF_NODE:
            return _OF_NODE[name](self._graph, node)
        if name in _OF_INPUT:
            return functools.partial(_OF_INPUT[name], self._graph, node)
        if node.op in _WINDOWS and name in ("sizes", "kernel", "strides", "dilations", "before", "after"):
            return self._window[name]
        if node.op in _POOLS and name == "made":
            return slid_sizes([_input(node, 0)], node.attributes)
        # Use the defaults last, because exporters omit an attribute that has ONNX's default.
        return _DEFAULTS[node.op, name]

    # Cache the values, because a condition uses most of them.
    @functools.cached_property
    def _window(self) -> Mapping[str, list[int]]:
        return window_of_node(self._node)


def _input(node: GraphNode, number: int) -> GraphTensor:
    found = node.inputs[number] if number < len(node.inputs) else None
    if found is None:
        raise Unknown
    return found


def _values(node: GraphNode, number: int) -> tuple[Any, ...]:
    values = _input(node, number).values
    if values is None:
        raise Unknown
    return values


def maker_of(tensor: GraphTensor, graph: GraphIndex) -> str:
    """Return the operator that computes a tensor, "" for an input or a constant."""
    maker = None if tensor.constant else graph.origin(tensor.name)
    return "" if maker is None else maker.op


# Operators that do not change the values between an input of the model and a node.
_ONLY_SHAPES: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
# int32 and int64, as numbers in `to` of a Cast.
_WHOLE: Final = (6, 7)
# Maximum number of nodes to follow, because a damaged model may contain cycles.
_MOST_BETWEEN: Final = 64


def _fed(graph: GraphIndex, node: GraphNode, number: int) -> str:
    """Return the type of the model input whose values reach an input unchanged; "" if the values are computed.

    Casts between int32 and int64 are ignored: QNN computes both in 32 bits.
    """
    tensor = _input(node, number)
    for _ in range(_MOST_BETWEEN):
        maker = None if tensor.constant else graph.origin(tensor.name)
        if maker is None:
            return "" if tensor.constant else tensor.type
        if maker.op not in _ONLY_SHAPES and not (maker.op == "Cast" and maker.attributes.get("to") in _WHOLE):
            return ""
        tensor = _input(maker, 0)
    raise Unknown


def _least(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """Return the lower bound that a constant Max or Clip sets for an input."""
    found = _limits(graph, node, number, "Max", "min", 1)
    # The smallest value of a constant is the bound for all elements. If there are several bounds, the largest
    # applies.
    return max(map(min, found), default=-math.inf)


def _most(graph: GraphIndex, node: GraphNode, number: int) -> float:
    """Return the upper bound that a constant Min or Clip sets for an input."""
    found = _limits(graph, node, number, "Min", "max", 2)
    return min(map(max, found), default=math.inf)


def _limits(
    graph: GraphIndex, node: GraphNode, number: int, op: str, of_clip: str, place: int
) -> list[tuple[float, ...]]:
    maker = graph.origin(_input(node, number).name)
    if maker is None or maker.op not in (op, "Clip"):
        return []
    # The constant of a Max or Min may be any input; a Clip has its minimum second and its maximum third.
    given = maker.inputs if maker.op == op else maker.inputs[place : place + 1]
    found = [one.values for one in given if one is not None and one.constant and one.values]
    # Before opset 11 the limits of a Clip are attributes.
    if maker.op == "Clip" and of_clip in maker.attributes:
        found.append((float(maker.attributes[of_clip]),))
    return found


def _way(graph: GraphIndex, node: GraphNode, *numbers: int) -> list[str]:
    found: list[str] = []
    for number in numbers:
        tensor = node.input(number)
        maker = graph.origin(tensor.name) if tensor is not None else None
        if maker is None:
            break  # the tensor is an input of the model or a constant
        node = maker
        found.append(node.op)
    return found


def _users(graph: GraphIndex, node: GraphNode) -> tuple[GraphNode, ...]:
    """Return the readers of a node's result. Raise `Unknown` if a damaged model computes it several times."""
    result = node.outputs[0]
    if result is None or graph.makers[result.name] != node.index:
        raise Unknown
    return graph.readers(result.name)


def window_of_node(node: GraphNode) -> dict[str, list[int]]:
    """Return `window_of` of a convolution or pooling. Raise `Unknown` if a size is not known."""
    weights = node.inputs[1] if node.op in _WEIGHTED else None
    return window_of(sizes_of(_input(node, 0))[2:], node.attributes, weights)


def reduced_axes(node: GraphNode) -> list[int]:
    """Return the dimensions that a reduction reduces. Raise `Unknown` if the axes are computed."""
    rank = len(sizes_of(_input(node, 0)))
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"])
    else:
        axes = [int(axis) for axis in _values(node, 1)] if node.input(1) is not None else []
    if not axes:
        return [] if node.attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in axes)


def nearest_places(node: GraphNode) -> list[tuple[list[int], list[int]]]:
    """Return the source indices of a nearest Resize in each direction, by ONNX's definition and as QNN computes
    them.

    QNN rounds half up, and for asymmetric coordinates rounds down; it computes pytorch_half_pixel as asymmetric.

    Raises:
        Unknown: a size is not known; malformed nodes raise other errors of `DOES_NOT_FOLLOW`.
    """
    attributes, shape = node.attributes, sizes_of(_input(node, 0))
    coordinate = attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    if coordinate not in _COORDINATES:
        raise Unknown
    axes = [axis % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    scales = [1.0] * len(shape)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        made = list(shape)
        wanted = dict(zip(axes, map(int, _values(node, 3)), strict=True))
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        ratios = [in_float32(out / shape[axis]) for axis, out in wanted.items()]
        ratio = None if policy == "stretch" else (min if policy == "not_larger" else max)(ratios)
        for axis, out in wanted.items():
            made[axis] = out if ratio is None else math.floor(ratio * shape[axis] + 0.5)
            scales[axis] = in_float32(out / shape[axis]) if ratio is None else ratio
    else:
        for axis, scale in zip(axes, _values(node, 2), strict=True):
            scales[axis] = float(scale)
        made = list(scaled_sizes(shape, scales))
    if max(made, default=0) > _MOST_PLACES:
        raise Unknown
    # ONNX Runtime copies the data if no size changes, for any scales.
    if made == list(shape):
        return [(list(range(size)), list(range(size))) for size in shape[2:]]
    found = []
    for size, out, scale in zip(shape[2:], made[2:], scales[2:], strict=True):
        ours = [_ROUNDING[rounding](_coordinate(coordinate, place, scale, size, out)) for place in range(out)]
        # QNN receives the sizes only, so its scale is their quotient, not the model's scale.
        theirs = [_as_qnn(coordinate, place, out / size, size, out) for place in range(out)]
        found.append(([min(max(one, 0), size - 1) for one in ours], [min(max(one, 0), size - 1) for one in theirs]))
    return found


def _coordinate(mode: str, place: int, scale: float, size: int, out: int) -> float:
    # Compute in 32 bits like ONNX Runtime, which rounds a coordinate slightly below an integer to that integer.
    if mode == "asymmetric":
        return in_float32(place / scale)
    if mode == "align_corners":
        return in_float32(place * (size - 1) / (out - 1)) if out > 1 else 0.0
    if mode == "pytorch_half_pixel" and out == 1:
        return 0.0
    return in_float32(in_float32((place + 0.5) / scale) - 0.5)


def _as_qnn(mode: str, place: int, scale: float, size: int, out: int) -> int:
    if mode in ("asymmetric", "pytorch_half_pixel"):
        return math.floor(in_float32(place / scale))
    return math.floor(_coordinate(mode, place, scale, size, out) + 0.5)


_COORDINATES: Final = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDING: Final[Mapping[str, Callable[[float], int]]] = {
    # Python's `round` would round a half to the even neighbour.
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}
# Functions whose argument is the index of an input.
_OF_INPUT: Final[Mapping[str, Callable[..., Any]]] = {
    # `shape` requires that all sizes are known; `values` requires a small constant.
    "shape": lambda _, node, number: sizes_of(_input(node, number)),
    "values": lambda _, node, number: _values(node, number),
    "type": lambda _, node, number: _input(node, number).type,
    "constant": lambda _, node, number: _input(node, number).constant,
    "name": lambda _, node, number: _input(node, number).name,
    "given": lambda _, node, number: (
        number < len(node.inputs) and bool(node.inputs[number] and node.inputs[number].name)
    ),
    "maker": lambda graph, node, number: maker_of(_input(node, number), graph),
    "way": _way,
    "fed": _fed,
    "least": _least,
    "most": _most,
    # Type of the integers of a quantised input, its scales and their number.
    "quantised": stored_type,
    "scales": scales_of,
    "scale_count": scale_count,
    # Functions without an index: whether a nearest Resize differs from ONNX's definition, and what QNN merges or
    # moves.
    "nearest_differs": lambda _, node: any(ours != theirs for ours, theirs in nearest_places(node)),
    "merged_gelu": gelu_of,
    "merged_factor": softmax_factor,
    "merged_offset": l2_offset,
    "loses_reshapes": loses_reshapes,
    "joins_edges": joins_edges,
    "cancels_casts": cancels_casts,
    "may_be_negative": may_be_negative,
    "repeats_rows": repeats_rows,
    "parts_transposes": parts_transposes,
    "transposes_int64_output": transposes_int64_output,
    "fails_with_wide_integers": fails_with_wide_integers,
}
_OF_NODE: Final[Mapping[str, Callable[[GraphIndex, GraphNode], Any]]] = {
    "users": lambda graph, node: [user.op for user in _users(graph, node)],
    "beside": lambda graph, node: [
        [tensor.name if tensor else "" for tensor in user.inputs] for user in _users(graph, node)
    ],
    "output": lambda _, node: node.made[0].name,
    "node_name": lambda _, node: node.name,
    # Dimensions that a reduction reduces.
    "reduced": lambda _, node: reduced_axes(node),
}
_PLAIN: Final[Mapping[str, Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "prod": math.prod,
    # Evaluate all items before the comparison, because one unknown item makes the result unknown.
    "any": lambda found: any([*found]),
    "all": lambda found: all([*found]),
    "zip": zip,
    "range": range,
    "abs": abs,
    "int": int,
}
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    **{(op, name): value for op in ("AveragePool", "MaxPool", "LpPool") for name, value in (("ceil_mode", 0),)},
    ("AveragePool", "count_include_pad"): 0,
    **{(op, "group"): 1 for op in _WEIGHTED},
    ("ConvTranspose", "auto_pad"): "NOTSET",
    ("ConvTranspose", "output_padding"): [],
    ("ConvTranspose", "output_shape"): [],
    ("GatherND", "batch_dims"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("Pad", "mode"): "constant",
    ("Resize", "mode"): "nearest",
    ("Resize", "coordinate_transformation_mode"): "half_pixel",
    ("Resize", "nearest_mode"): "round_prefer_floor",
    **{(op, "axis"): 0 for op in ("ArgMin", "Gather", "GatherElements", "ScatterElements")},
    **{(op, "axis"): -1 for op in ("Softmax", "LogSoftmax", "RMSNormalization", "LayerNormalization", "OneHot")},
    # Opset 16 has the same default under the name bilinear.
    ("GridSample", "mode"): "linear",
    ("GridSample", "padding_mode"): "zeros",
    ("GridSample", "align_corners"): 0,
}
# Attribute access and function definitions are refused: with them an expression could reach all of Python.
_ALLOWED: Final = (
    *(ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Constant, ast.Name),
    *(ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.GeneratorExp, ast.comprehension),
    *(ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
)


# Cache the parsed expressions: the table has dozens of conditions, and each is evaluated for every node of its
# operators.
@functools.cache
def _parsed(text: str) -> CodeType:
    tree = ast.parse(text, mode="eval")
    if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
        raise ValueError(f"{text!r} is not a valid condition")
    return compile(tree, "known_wrong.json", "eval")
