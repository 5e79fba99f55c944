"""Operators that QNN is known to compute wrong: the table, and the search for them in a model. Nothing is run.

The table is `known_wrong.json`; `python -m tests.sweep` measures it. A row matches a node only if all that its
condition asks for is known: a shape that depends on the input never gives an alarm. Pure functions; any thread.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Final

from qnnbridge_host.model.node_graph import StaticNode, StaticTensor, nodes_of, read_graph
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_host.model.static_shapes import complete, window_of

CODE: Final = "known-wrong"
_DATA: Final = os.path.join(os.path.dirname(__file__), "known_wrong.json")
_SHOWN: Final = 3
_QUANTISED: Final = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
_WINDOWS: Final = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool"})
_WEIGHTED: Final = ("Conv", "ConvTranspose")


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFault:
    """A row of the table.

    Args:
        operators: that the row is about.
        form: "float" or "quantised", the models that it was seen in; "" for both.
        when: expressions that are all true of a node that is computed wrong.
        says: the condition in words.
        least_arch: of the chip, 73 for V73.
        first, last: releases of onnxruntime-qnn that were found wrong; newer ones than those that were tried count
            as wrong, too.
        snr: decibels of the worst case that was measured.
        rewrite: of `qnnbridge fix`, "" if there is none.
        advice: what to do where no rewrite cures it.
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
    tried: int = 0
    wrong: int = 0
    right_outside: int = 0
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def remedy(self) -> str:
        """What to do, in words."""
        return f"qnnbridge fix ({self.rewrite})" if self.rewrite else self.advice

    def applies(self, arch: int, release: str) -> bool:
        """Whether the chip and the release have the fault. release: "" if it is not known."""
        return arch >= self.least_arch and (not release or _number(release) >= _number(self.first))


@dataclasses.dataclass(frozen=True, slots=True)
class KnownWrong:
    """A node that a row matches."""

    fault: KnownFault
    index: int
    node: str
    op: str

    @property
    def text(self) -> str:
        """One sentence for a person, with the remedy."""
        return f"{self.op} {self.node}: {self.fault.says}; remedy: {self.fault.remedy}"


@functools.cache
def table() -> tuple[KnownFault, ...]:
    """All rows."""
    with open(_DATA, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    return tuple(KnownFault(**{**row, "operators": tuple(row["operators"]), "when": tuple(row["when"])}) for row in rows)


def find(
    nodes: Iterable[StaticNode], *, arch: int, release: str = "", rows: Sequence[KnownFault] | None = None
) -> tuple[KnownWrong, ...]:
    """The nodes that a row matches, each once.

    Args:
        arch: of the chip, 73 for V73.
        release: of onnxruntime-qnn; "" if it is not known.
        rows: default those of the table.
    """
    by_operator: dict[str, list[KnownFault]] = {}
    for fault in table() if rows is None else rows:
        if fault.applies(arch, release):
            for op in fault.operators:
                by_operator.setdefault(op, []).append(fault)
    found = []
    for node in nodes:
        for fault in by_operator.get(node.op, ()):
            if matches(fault, node):
                found.append(KnownWrong(fault, node.index, node.label, node.op))
                break
    return tuple(found)


def find_in_model(
    source: str | os.PathLike[str] | bytes,
    *,
    arch: int,
    release: str = "",
    sizes: Mapping[str, int] | None = None,
) -> tuple[KnownWrong, ...]:
    """Of a model file, or a model's bytes. A file that is no model gives nothing: others say so.

    Args:
        sizes: of free dimensions by name, as a session fixes them.
    """
    if isinstance(source, bytes):
        return _find_in(io.BytesIO(source), len(source), arch, release, sizes)
    try:
        with open(source, "rb", buffering=0) as file:
            return _find_in(file, os.fstat(file.fileno()).st_size, arch, release, sizes)
    except OSError:
        return ()


def _find_in(
    file: BinaryIO, size: int, arch: int, release: str, sizes: Mapping[str, int] | None
) -> tuple[KnownWrong, ...]:
    try:
        graph = read_graph(file, size, sizes)
    except Garbage:
        return ()
    wanted = {op for fault in table() for op in fault.operators}
    if not any(op in wanted for op, *_ in graph.nodes):
        return ()
    complete(graph)
    return find(nodes_of(graph), arch=arch, release=release)


def warning_of(label: str, found: Sequence[KnownWrong], path: str | None = None) -> str:
    """The sentences for a person about a model, "" for nothing found."""
    if not found:
        return ""
    shown = "; ".join(f"{one.op} {one.node} ({one.fault.says})" for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    rewrites = list(dict.fromkeys(one.fault.rewrite for one in found if one.fault.rewrite))
    only = " ".join(f"--only {name}" for name in rewrites)
    advice = list(dict.fromkeys(one.fault.advice for one in found if not one.fault.rewrite and one.fault.advice))
    fixes = [f"run: qnnbridge fix {path or 'MODEL'} -o OUT {only}"] if rewrites else []
    count = "one operator" if len(found) == 1 else f"{len(found)} operators"
    return f"{label}: QNN is known to compute {count} of it wrong: {shown}{more}. Fix: {'; '.join(fixes + advice)}."


# --- conditions -------------------------------------------------------------------------------------------


class _Unknown(Exception):
    """What the condition asks for is not known of the node."""


def matches(fault: KnownFault, node: StaticNode) -> bool:
    """Whether all expressions of a row are true of a node. What is unknown is not true."""
    first = node.inputs[0] if node.inputs else None
    quantised = first is not None and first.maker in _QUANTISED
    if fault.form and (fault.form == "quantised") != quantised:
        return False
    names = _Facts(node)
    try:
        return all(_value(_parsed(text), names) for text in fault.when)
    except (_Unknown, LookupError, TypeError, ValueError, ZeroDivisionError):
        return False


class _Facts:
    """The names that an expression may use, computed when they are asked for."""

    def __init__(self, node: StaticNode) -> None:
        self._node = node
        self._window: Mapping[str, list[int]] | None = None

    def __getitem__(self, name: str) -> Any:
        node = self._node
        if name in node.attributes:
            return node.attributes[name]
        if name == "users":
            return node.users
        if name in _FUNCTIONS:
            return functools.partial(_FUNCTIONS[name], node)
        if name in _PLAIN:
            return _PLAIN[name]
        if node.op in _WINDOWS and name in ("sizes", "kernel", "strides", "dilations", "before", "after"):
            if self._window is None:
                weights = node.inputs[1] if node.op in _WEIGHTED else None
                self._window = window_of(_shape(node, 0)[2:], node.attributes, weights)
            return self._window[name]
        if (node.op, name) in _DEFAULTS:
            return _DEFAULTS[node.op, name]
        raise _Unknown(name)


def _input(node: StaticNode, number: int) -> StaticTensor:
    found = node.inputs[number] if number < len(node.inputs) else None
    if found is None:
        raise _Unknown
    return found


def _shape(node: StaticNode, number: int) -> tuple[int, ...]:
    sizes = _input(node, number).shape
    if sizes is None or None in sizes:
        raise _Unknown
    return tuple(size for size in sizes if size is not None)


def _values(node: StaticNode, number: int) -> tuple[Any, ...]:
    values = _input(node, number).values
    if values is None:
        raise _Unknown
    return values


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    # Of an input by its number: all sizes, known for sure; the values of a small constant.
    "shape": _shape,
    "values": _values,
    "maker": lambda node, number: _input(node, number).maker,
    "type": lambda node, number: _input(node, number).type,
    "constant": lambda node, number: _input(node, number).constant,
    "given": lambda node, number: number < len(node.inputs) and bool(node.inputs[number] and node.inputs[number].name),
}
_PLAIN: Final[Mapping[str, Any]] = {
    **{"len": len, "min": min, "max": max, "sum": sum, "any": any, "all": all, "zip": zip, "range": range},
    **{"abs": abs, "int": int, "True": True, "False": False},
}
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    **{(op, name): value for op in ("AveragePool", "MaxPool", "LpPool") for name, value in (("ceil_mode", 0),)},
    ("AveragePool", "count_include_pad"): 0,
    **{(op, "group"): 1 for op in _WEIGHTED},
    ("ConvTranspose", "output_padding"): [],
    ("Pad", "mode"): "constant",
    ("Resize", "mode"): "nearest",
    ("Resize", "coordinate_transformation_mode"): "half_pixel",
    ("Resize", "nearest_mode"): "round_prefer_floor",
    **{(op, "axis"): 0 for op in ("Gather", "GatherElements", "ScatterElements")},
    **{(op, "axis"): -1 for op in ("Softmax", "LogSoftmax", "RMSNormalization", "LayerNormalization", "OneHot")},
    ("GridSample", "mode"): "linear",
    ("GridSample", "padding_mode"): "zeros",
    ("GridSample", "align_corners"): 0,
}
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}


@functools.cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, names: Any) -> Any:
    """The value of an expression: numbers, names, comparisons, arithmetic, calls, one `for` in a generator."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BoolOp):
        wanted = isinstance(node.op, ast.Or)
        return wanted if any(bool(_value(one, names)) is wanted for one in node.values) else not wanted
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, names))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.Compare):
        values = [_value(one, names) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if isinstance(node, ast.Slice):
        return slice(*(None if one is None else _value(one, names) for one in (node.lower, node.upper, node.step)))
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.Call):
        return _value(node.func, names)(*(_value(one, names) for one in node.args))
    if isinstance(node, ast.GeneratorExp):
        (loop,) = node.generators
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        keys = [target.id for target in targets if isinstance(target, ast.Name)]
        return [
            _value(node.elt, _Scope(names, dict(zip(keys, one if len(keys) > 1 else (one,), strict=True))))
            for one in _value(loop.iter, names)
        ]
    raise _Unknown(ast.dump(node))


class _Scope:
    """Names of a loop in front of those around it."""

    def __init__(self, around: Any, inner: Mapping[str, Any]) -> None:
        self._around = around
        self._inner = inner

    def __getitem__(self, name: str) -> Any:
        return self._inner[name] if name in self._inner else self._around[name]


def _number(release: str) -> tuple[int, ...]:
    """2.7.0 as (2, 7, 0); what is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in release.split(".")[:3])
