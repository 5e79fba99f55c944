"""The rules: each looks at one node and says why QNN would not take it, or nothing. Pure functions.

`RULES` are asked in their order; the first objection counts. Most read a table of `tables`; what no table can hold
is in `special`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from qnnbridge_tools.models.analyze import special, tables
from qnnbridge_tools.models.analyze.graph_view import GraphView, Node, Tensor
from qnnbridge_tools.models.analyze.verdicts import Place, Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at besides its node. arch: of the chip's HTP, 73 for V73."""

    view: GraphView
    arch: int


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """check: gives the reason, or (reason, fix), or None. place: what becomes of the node."""

    name: str
    place: Place
    check: Callable[[Node, Context], str | tuple[str, str] | None]
    fix: str = ""

    def verdict(self, node: Node, context: Context) -> Verdict | None:
        found = self.check(node, context)
        if found is None:
            return None
        reason, fix = found if isinstance(found, tuple) else (found, "")
        return Verdict(self.place, self.name, reason, fix or self.fix)


def empty_tensors(node: Node) -> list[Tensor]:
    """Tensors without elements that QNN would divide by zero over. As a constant one is harmless, or left out."""
    if node.op in ("Constant", "CastLike", "Shape", "Size"):
        return []
    return [tensor for tensor in (*node.given, *node.made) if tensor.is_empty and not tensor.constant]


def _zero_size(node: Node, context: Context) -> str | None:
    for tensor in empty_tensors(node):
        if tensor.name not in _parameters(node):
            return f"{tensor.name} has no elements (shape {_shape_text(tensor.shape)}); QNN divides by zero"
    return None


def _parameters(node: Node) -> set[str]:
    """Inputs that are no data: axes, sizes, paddings."""
    numbers = tables.CONSTANT_INPUTS.get(node.op, ())
    return {tensor.name for number in numbers if (tensor := node.input(number)) is not None}


def _crashes(node: Node, context: Context) -> str | None:
    return f"{node.op} ends the process when QNN compiles it" if node.op in tables.CRASHES else None


def _not_registered(node: Node, context: Context) -> str | tuple[str, str] | None:
    if node.op in tables.REGISTERED or node.op in tables.REFUSED_BY_HTP or node.op in tables.REPLACED:
        return None
    return f"QNN has no operator {node.op}", special.instead_of(node)


def _refused(node: Node, context: Context) -> str | tuple[str, str] | None:
    instead = tables.REFUSED_BY_HTP.get(node.op)
    return None if instead is None else (f"the NPU has no {node.op}", instead)


def _not_a_tensor(node: Node, context: Context) -> str | None:
    for tensor in node.made:
        if not tensor.type and tensor.shape is None and node.op in ("If", "Identity"):
            return f"{tensor.name} is no plain tensor, or its shape is not known"
    return None


def _free_shape(node: Node, context: Context) -> str | None:
    for tensor in (*node.given, *node.made):
        if tensor.fixed is None:
            return f"{tensor.name} has no fixed shape ({_shape_text(tensor.shape)})"
    return None


def _type(node: Node, context: Context) -> str | tuple[str, str] | None:
    if node.op in tables.FAILS_UNLESS_FLOAT:
        return None  # worse: `_rearranged`
    return special.type_objection(node)


def _rearranged(node: Node, context: Context) -> str | tuple[str, str] | None:
    return special.type_objection(node) if node.op in tables.FAILS_UNLESS_FLOAT else None


def _rank(node: Node, context: Context) -> str | None:
    if node.op in tables.FAILS_BEYOND or node.op in ("Einsum", "Gemm"):
        return None
    most = tables.MOST_DIMENSIONS_OF.get(node.op, tables.MOST_DIMENSIONS)
    for tensor in (*node.given, *node.made):
        if tensor.rank is not None and tensor.rank > most:
            return f"{tensor.name} has {tensor.rank} dimensions; {node.op} takes {most} at most"
    data = node.input(0)
    least = tables.LEAST_DIMENSIONS.get(node.op, 0)
    if data is not None and data.rank is not None and data.rank < least:
        return f"{data.name} has {data.rank} dimensions; {node.op} needs {least}"
    return None


def _constant_inputs(node: Node, context: Context) -> str | None:
    for number in tables.CONSTANT_INPUTS.get(node.op, ()):
        tensor = node.input(number)
        if tensor is not None and not tensor.constant and tensor.elements != 0:
            return f"input {tensor.name} is computed while it runs; it must be a constant"
    return None


def _counts(node: Node, context: Context) -> str | tuple[str, str] | None:
    least, most = tables.LEAST_INPUTS.get(node.op, 0), tables.MOST_OUTPUTS.get(node.op, 99)
    if len(node.given) < least:
        return f"{node.op} needs at least {least} inputs"
    if len(node.made) > most:
        unused = all(t.name not in context.view.users for t in node.made[most:])
        fix = "qnnbridge fix (unused-outputs)" if unused else ""
        return f"more than {most} result of {node.op} is asked for", fix
    return None


def _attributes(node: Node, context: Context) -> str | tuple[str, str] | None:
    for one in tables.ATTRIBUTES:
        if one.op != node.op:
            continue
        value = node.get(one.name, one.default)
        if any(part not in one.allowed for part in (value if isinstance(value, (list, tuple)) else [value])):
            if one.name == "beta" and node.input(2) is None:
                continue
            return f"{one.name} is {value}: {one.reason}", one.fix
    return None


def _special(node: Node, context: Context) -> str | tuple[str, str] | None:
    check = special.CHECKS.get(node.op)
    return check(node, context.view) if check else None


def _wide_integers(node: Node, context: Context) -> str | None:
    for tensor in node.made:
        if tensor.type == "int64" and tensor.rank == tables.MOST_DIMENSIONS and node.op in ("Expand", "Unsqueeze"):
            return f"{tensor.name} is int64 with {tables.MOST_DIMENSIONS} dimensions; QNN ends the process over it"
    return None


def _fails(node: Node, context: Context) -> str | tuple[str, str] | None:
    most = tables.FAILS_BEYOND.get(node.op)
    data = node.input(0)
    if data is not None and most is not None and (data.rank or 0) > most:
        return f"{data.name} has {data.rank} dimensions; QNN takes {node.op} and fails when it compiles it"
    check = special.FAILURES.get(node.op)
    return check(node, context.view) if check else None


def _chip(node: Node, context: Context) -> str | None:
    if context.arch >= tables.FIRST_FLOAT_ARCH or node.op not in tables.NEEDS_V73:
        return None
    if all(tensor.type not in ("float", "float16") for tensor in node.given):
        return None
    return f"{node.op} of float needs a V{tables.FIRST_FLOAT_ARCH} or newer; this chip has a V{context.arch}"


_SHAPES_FIX = "fix the sizes of the inputs: qnnbridge fix --shape INPUT=..."

RULES: Final = (
    Rule("crashing-operator", "crash", _crashes, "compute it outside of the model, or with Conv"),
    Rule("not-registered", "cpu", _not_registered),
    Rule("refused-operator", "cpu", _refused),
    Rule("not-a-tensor", "cpu", _not_a_tensor),
    Rule("free-shape", "cpu", _free_shape, _SHAPES_FIX),
    Rule(
        "constant-inputs", "cpu", _constant_inputs, "qnnbridge fix (shape-computations), or export it as a constant"
    ),
    Rule("type", "cpu", _type),
    Rule("rank", "cpu", _rank, "qnnbridge fix (rank) folds dimensions together"),
    Rule("counts", "cpu", _counts),
    Rule("attributes", "cpu", _attributes),
    Rule("special", "cpu", _special),
    Rule("rearranged", "fails", _rearranged),
    Rule("wide-integers", "crash", _wide_integers, "compute it in int32, or with fewer dimensions"),
    Rule("zero-size", "crash", _zero_size, "qnnbridge fix (zero-size) takes it out"),
    Rule("fails", "fails", _fails),
    Rule("chip", "fails", _chip, "quantise the model, or choose a newer chip with --soc-model"),
)


def _shape_text(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "unknown"
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"
