"""Finds out how the outputs of a model follow from its sizes: from what the model declares, else by running it.

The model is run on the CPU, with inputs of zeros, at a few small sizes: what it returns is the truth, whatever its
author or a shape inference say. What cannot be found out is left uncut, with the reason. Pure functions around a
`Run`, which is the only thing here that touches a host.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets.arguments import BucketArguments
from qnnbridge._buckets.cutting import OutputShapes, Relations
from qnnbridge._buckets.plan import Plan, Sizes
from qnnbridge._buckets.relation import MAX_DENOMINATOR, Relation, fit
from qnnbridge._feed_rules import make_rule
from qnnbridge._suggestions import suggest
from qnnbridge_protocol.elements import LAYOUTS
from qnnbridge_protocol.errors import OptionError, OrtError, RemoteError
from qnnbridge_protocol.specs import NodeInfo

_log = logging.getLogger("qnnbridge.buckets")

# Shapes of the outputs for these sizes; ``None`` for an output that is no tensor. Raises `BridgeError`.
Run = Callable[[Sizes], Mapping[str, tuple[int, ...] | None]]

# What a run raises because of the model and its inputs. Deadlines and dead hosts are told as they are.
OF_THE_MODEL: Final = (OrtError, RemoteError, OptionError)

# Besides the smallest bucket: with three sizes a straight line is told from anything else.
FURTHER_SIZES: Final = 2
# Sizes in a row, for a dimension that is rounded: with as many as the divisor is, all of its rounding is seen.
CONSECUTIVE: Final = MAX_DENOMINATOR


@dataclasses.dataclass(slots=True)
class _Findings:
    relations: dict[str, list[Relation | None]]
    # Axes that are not known yet; for an output whose shape is not declared the list is empty and it is in
    # `undeclared`.
    open: dict[str, list[int]]
    undeclared: set[str]
    uncut: dict[str, str]


def find_shapes(
    plan: Plan, arguments: BucketArguments, outputs: Sequence[NodeInfo], others: Iterable[str], run: Run
) -> OutputShapes:
    """others: free dimensions of the inputs without buckets. What `arguments` say of outputs was checked."""
    findings = _declared(plan, arguments, outputs, frozenset(others))
    if findings.open or findings.undeclared:
        _probe(plan, findings, run)
    found: dict[str, Relations] = {name: tuple(relations) for name, relations in findings.relations.items()}
    for name, reason in findings.uncut.items():
        found.pop(name, None)
        _log.warning("The output %r is not cut back to the size of the inputs: %s", name, reason)
    given = frozenset(arguments.cut)
    for name, relations in found.items():
        odd = [str(relation) for relation in relations if relation is not None and not relation.is_identity]
        if odd and name not in given:
            _log.warning(
                "The output %r is as long as %s and is cut at its end; verify_padding() tells if that is right",
                name,
                ", ".join(odd),
            )
    return OutputShapes(found, findings.uncut, given)


def zeros(inputs: Sequence[NodeInfo], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Feeds for a probe. sizes: of the free dimensions that have a name; the others are 1."""
    feeds: dict[str, Any] = {}
    for node in inputs:
        rule = make_rule(node.name, node.type, tuple(node.shape or ()))
        if not rule.required:
            continue
        if rule.inner.kind != "tensor" or rule.inner.element is None or not LAYOUTS[rule.inner.element].named:
            raise OptionError(f"It has the input {node.name!r}, which is {rule.declared}.")
        shape = [dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in node.shape or ()]
        dtype = LAYOUTS[rule.inner.element].storage
        feeds[node.name] = np.full(shape, "", object) if dtype.kind == "O" else np.zeros(shape, dtype)
    return feeds


def check_cut(plan: Plan, arguments: BucketArguments, outputs: Sequence[NodeInfo]) -> None:
    """Raises `OptionError` for outputs and dimensions that the model does not have."""
    known = {node.name: node for node in outputs}
    for name, relations in arguments.cut.items():
        node = known.get(name)
        if node is None:
            raise OptionError(
                f"cut: the model has no output {name!r}.",
                fix=f"Its outputs are {', '.join(map(repr, known))}.{suggest(str(name), known)}",
            )
        if node.shape is not None and len(node.shape) != len(relations):
            raise OptionError(
                f"cut: the output {name!r} has {len(node.shape)} dimensions, {len(relations)} are given.",
                fix="Give one entry for each dimension, None for one that is left as it is.",
            )
        for relation in relations:
            if relation is not None and relation.symbol not in plan.symbols:
                raise OptionError(
                    f"cut: {relation.symbol!r} has no buckets.",
                    fix=f"Give a name out of buckets: {', '.join(plan.symbols)}."
                    f"{suggest(relation.symbol, plan.symbols)}",
                )


def _declared(
    plan: Plan, arguments: BucketArguments, outputs: Sequence[NodeInfo], others: frozenset[str]
) -> _Findings:
    findings = _Findings({}, {}, set(), {})
    for node in outputs:
        given = arguments.cut.get(node.name)
        if given is not None:
            findings.relations[node.name] = list(given)
        elif "tensor" not in node.type or node.type.startswith(("seq", "map", "optional")):
            findings.uncut[node.name] = f"It is {node.type}, and only tensors can be cut."
        elif node.shape is None:
            findings.undeclared.add(node.name)
        else:
            findings.relations[node.name] = [
                Relation(dim) if isinstance(dim, str) and dim in plan.symbols else None for dim in node.shape
            ]
            unknown = [
                axis
                for axis, dim in enumerate(node.shape)
                if not isinstance(dim, int) and dim not in plan.symbols and dim not in others
            ]
            if unknown:
                findings.open[node.name] = unknown
    return findings


def _probe(plan: Plan, findings: _Findings, run: Run) -> None:
    wanted = (*findings.open, *findings.undeclared)
    base = plan.smallest()
    try:
        first = run(base)
    except OF_THE_MODEL as error:
        for name in wanted:
            findings.uncut[name] = (
                f"The model does not declare its size, and running it on the CPU to see it failed ({error.message})"
            )
        return
    # A declared shape with another number of dimensions than the model returns is no shape.
    wrong = {name for name in findings.open if len(first.get(name) or ()) != len(findings.relations[name])}
    for name in sorted(findings.undeclared | wrong):
        shape = first.get(name)
        if shape is None:
            findings.uncut[name] = "It is no tensor."
        else:
            findings.relations[name] = [None] * len(shape)
            findings.open[name] = list(range(len(shape)))
    dependent: dict[tuple[str, int], list[Relation | str]] = {}
    for number in range(len(plan.symbols)):
        symbol = plan.symbols[number]
        observed = {base[number]: first, **_observe(plan, number, base, run)}
        row = 0
        if _is_rounded(symbol, findings, observed):
            seen = _observe_row(number, base, run)
            observed |= seen
            row = len(seen)
        for (name, axis), relation in _fit_all(symbol, findings, observed).items():
            # Without a row of sizes nobody knows how it is rounded between those that were seen.
            known = isinstance(relation, Relation) and relation.divisor <= max(row, 1)
            dependent.setdefault((name, axis), []).append(relation if known else symbol)
    for (name, axis), found in dependent.items():
        texts = " and ".join(map(str, found))
        if len(found) > 1:
            findings.uncut[name] = f"Its axis {axis} depends on more than one size at once ({texts})."
        elif isinstance(found[0], str):
            findings.uncut[name] = f"Its axis {axis} follows from {found[0]} in no simple way."
        else:
            findings.relations[name][axis] = found[0]


Observed = Mapping[int, Mapping[str, "tuple[int, ...] | None"]]


def _observe(plan: Plan, number: int, base: Sizes, run: Run) -> dict[int, Mapping[str, tuple[int, ...] | None]]:
    """A few other sizes of one symbol. Models that take multiples of something only get their buckets."""
    size, buckets = base[number], plan.buckets[number]
    candidates = [size - 1, size // 2, *buckets[1:2], size + 1, 2 * size, *buckets[2:3]]
    seen: dict[int, Mapping[str, tuple[int, ...] | None]] = {}
    for candidate in dict.fromkeys(one for one in candidates if 0 < one != size):
        if len(seen) == FURTHER_SIZES:
            break
        result = _try(run, (*base[:number], candidate, *base[number + 1 :]))
        if result is not None:
            seen[candidate] = result
    return seen


def _observe_row(number: int, base: Sizes, run: Run) -> dict[int, Mapping[str, tuple[int, ...] | None]]:
    seen = {}
    for candidate in range(base[number] + 1, base[number] + 1 + CONSECUTIVE):
        result = _try(run, (*base[:number], candidate, *base[number + 1 :]))
        if result is not None:
            seen[candidate] = result
    return seen


def _try(run: Run, sizes: Sizes) -> Mapping[str, tuple[int, ...] | None] | None:
    try:
        return run(sizes)
    except OF_THE_MODEL as error:
        _log.debug("The model does not run with the sizes %s: %s", sizes, error.message)
        return None


def _is_rounded(symbol: str, findings: _Findings, observed: Observed) -> bool:
    """Whether some dimension is not a whole multiple: a few sizes do not tell how it is rounded."""
    fits = _fit_all(symbol, findings, observed).values()
    return any(isinstance(found, str) or found.divisor > 1 for found in fits)


def _fit_all(symbol: str, findings: _Findings, observed: Observed) -> dict[tuple[str, int], Relation | str]:
    """For each dimension that depends on the symbol: how, or the symbol alone if that is not simple."""
    fits: dict[tuple[str, int], Relation | str] = {}
    for name, axes in findings.open.items():
        if name in findings.uncut:
            continue
        for axis in axes:
            dims = {size: (shapes.get(name) or ())[axis : axis + 1] for size, shapes in observed.items()}
            values = {size: dim[0] for size, dim in dims.items() if dim}
            if len(values) < 2:
                fits[name, axis] = symbol  # nothing but one size can be run: nobody knows
            elif len(set(values.values())) > 1:
                fits[name, axis] = fit(symbol, values) or symbol
    return fits
