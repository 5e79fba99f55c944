"""How the outputs of a model follow from its sizes, and whether padding changes them.

The relation is taken from the model's declarations, else found by running it on the CPU, with inputs of zeros, at a
few small sizes: its results are the truth, whatever its author or a shape inference say. An output whose relation
cannot be found is left uncut, with the reason. Pure functions around a `Run`, which alone touches a host.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets.arguments import MAX_DENOMINATOR, BucketArguments, Relation, fit
from qnnbridge._buckets.batches import (
    OutputShapes,
    Relations,
    cut,
    pad_feeds,
    refuse_too_large,
    sizes_of,
    too_large,
    variant_for,
)
from qnnbridge._buckets.plan import BucketPlan, Sizes
from qnnbridge._feed_rules import Array, make_rule
from qnnbridge._option_fields import suggest
from qnnbridge_protocol.elements import LAYOUTS
from qnnbridge_protocol.errors import ModelError, OptionError, OrtError, RemoteError
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
    plan: BucketPlan, arguments: BucketArguments, outputs: Sequence[NodeInfo], others: Iterable[str], run: Run
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


def check_cut(plan: BucketPlan, arguments: BucketArguments, outputs: Sequence[NodeInfo]) -> None:
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
    plan: BucketPlan, arguments: BucketArguments, outputs: Sequence[NodeInfo], others: frozenset[str]
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


def _probe(plan: BucketPlan, findings: _Findings, run: Run) -> None:
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
            # Without a row of sizes the rounding between the sizes that were seen is unknown.
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


def _observe(
    plan: BucketPlan, number: int, base: Sizes, run: Run
) -> dict[int, Mapping[str, tuple[int, ...] | None]]:
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
                fits[name, axis] = symbol  # only one size can be run: unknown
            elif len(set(values.values())) > 1:
                fits[name, axis] = fit(symbol, values) or symbol
    return fits


# Relative to the largest result. Sums of other lengths are rounded otherwise: some 1e-6 for 32 bits.
TOLERANCE: Final = 1e-3

# All outputs, in order, of the model on the CPU.
RunFree = Callable[[Mapping[str, Any]], "list[Any]"]


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingDifference:
    """One output, of one input, in one variant.

    sizes: of the input. bucket: of the variant. difference: the largest, absolute; ``nan`` for what has no numbers.
    largest: result without padding, absolute. where: in words, empty where all is equal.
    """

    output: str
    sizes: Mapping[str, int]
    bucket: Mapping[str, int]
    ok: bool
    difference: float
    largest: float
    where: str = ""

    def __str__(self) -> str:
        case = f"{self.output!r}, {_named(self.sizes)} padded to {_named(self.bucket)}"
        if self.ok:
            return f"{case}: the same" + (f" (difference {self.difference:.2g})" if self.difference else "")
        return f"{case}: {self.where}"


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingReport:
    """ok: padding changed nothing. outputs: each output in each case. masks: inputs of the model that are named so.
    As text: in words, with advice."""

    outputs: tuple[PaddingDifference, ...]
    tolerance: float
    masks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        bad = [output for output in self.outputs if not output.ok]
        if not bad:
            cases = len({(_named(o.sizes), _named(o.bucket)) for o in self.outputs})
            return f"Padding does not change the results ({cases} cases, {len(self.outputs)} outputs compared)."
        return "\n".join(
            ["Padding changes the results:", *(f"  {output}" for output in bad), *_advice(bad, self.masks)]
        )


def verify_padding(
    plan: BucketPlan,
    shapes: OutputShapes,
    names: Sequence[str],
    samples: Sequence[Mapping[str, Any]],
    run_free: RunFree,
    tolerance: float,
) -> PaddingReport:
    """samples: checked feeds. Raises `OptionError` if none of them would be padded."""
    found: list[PaddingDifference] = []
    for feeds in samples:
        true = sizes_of(plan, {name: feeds[name].shape for name in plan.inputs if feeds.get(name) is not None})
        for number in too_large(plan, true):
            raise refuse_too_large(plan, true, number)
        fitting = variant_for(plan, true)
        largest = plan.largest()
        assert fitting is not None
        variants = [variant for variant in dict.fromkeys((fitting, largest)) if variant != true]
        if not variants:
            continue
        whole = _run_unpadded(plan, true, feeds, run_free)
        for variant in variants:
            padded = run_free(pad_feeds(plan, feeds, variant))
            for name, expected, value in zip(names, whole, padded, strict=True):
                if shapes.relations(name) is not None:
                    result = cut(plan, shapes, [name], [value], true, variant)[0]
                    found.append(_compare(plan, name, expected, result, true, variant, tolerance))
    if not found:
        raise OptionError(
            "None of these feeds is padded, so there is nothing to compare.",
            fix=f"Give feeds that are smaller than their bucket; the largest is {plan.text(plan.largest())}.",
        )
    return PaddingReport(tuple(found), tolerance, tuple(name for name in plan.inputs if "mask" in name.lower()))


def _run_unpadded(plan: BucketPlan, true: Sizes, feeds: Mapping[str, Any], run_free: RunFree) -> list[Any]:
    try:
        return run_free(feeds)
    except (OrtError, RemoteError) as error:
        raise ModelError(
            f"The model does not run with the sizes themselves ({plan.text(true)}), so there is nothing to compare "
            "padded results with.",
            cause=error.message,
            fix="Give feeds of sizes that the model takes.",
        ) from None


def _compare(
    plan: BucketPlan, name: str, expected: Any, value: Any, true: Sizes, variant: Sizes, tolerance: float
) -> PaddingDifference:
    sizes, bucket = plan.named(true), plan.named(variant)

    def told(ok: bool, difference: float = 0.0, largest: float = 0.0, where: str = "") -> PaddingDifference:
        return PaddingDifference(name, sizes, bucket, ok, difference, largest, where)

    if expected is None or value is None:
        return told(expected is value, where="there is a result in one case only")
    one, other = np.asarray(expected), np.asarray(value)
    if one.shape != other.shape:
        return told(False, where=f"the shape is {other.shape}, without padding it is {one.shape}")
    if one.dtype.kind not in "biuf":
        same = bool(np.array_equal(one, other))
        return told(same, float("nan"), where="" if same else "the values are others")
    if one.size == 0:
        return told(True)
    exact = one.dtype.kind in "biu"
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.abs(a[np.isfinite(a)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    difference[np.isnan(difference)] = np.inf
    limit = 0.0 if exact else tolerance * max(largest, np.finfo(np.float32).tiny)
    wrong = difference > limit
    worst = float(difference.max())
    if not wrong.any():
        return told(True, worst, largest)
    return told(False, worst, largest, _where(wrong, worst, largest))


def _where(wrong: Array, worst: float, largest: float) -> str:
    share = int(wrong.sum())
    size = f"by up to {worst:.3g} where the largest result is {largest:.3g}"
    text = f"{share} of {wrong.size} values differ, {size}"
    places = []
    for axis in range(wrong.ndim):
        length = wrong.shape[axis]
        hit = np.flatnonzero(wrong.any(tuple(other for other in range(wrong.ndim) if other != axis)))
        if length <= 1:
            continue
        if len(hit) < length and hit[-1] == length - 1 and hit[0] == length - len(hit):
            return f"{text}; only the last {len(hit)} of {length} of axis {axis}, beside the padding"
        if len(hit) < length:
            places.append(f"{len(hit)} of {length} of axis {axis}, from {hit[0]} to {hit[-1]}")
    return f"{text}; {'; '.join(places)}" if places else f"{text}, from the first to the last"


def _advice(bad: Sequence[PaddingDifference], masks: Sequence[str]) -> list[str]:
    edges = all("beside the padding" in output.where for output in bad)
    if edges:
        return [
            "  Cause: The model looks at neighbours (a convolution, a recurrence backwards), and at the end of the "
            "input these are padding now.",
            "  Fix: Pad with what the model itself pads with (pad=), use more buckets, or drop the last values.",
        ]
    if masks:
        named = " and ".join(repr(name) for name in masks)
        return [
            f"  Cause: Values far from the padding change, although the model has {named}: it is padded with "
            "something that does not mask, or does not reach everything that runs over the whole length.",
            f"  Fix: Pad {named} with the value that masks (pad=, mostly 0), or give buckets of exactly the sizes "
            "that are needed.",
        ]
    return [
        "  Cause: Values far from the padding change: something in the model runs over the whole length, padding "
        "included, as a mean, a maximum, a normalization, an attention or a recurrence does.",
        "  Fix: Pad with a value that the model ignores (pad=), export the model with a mask as an input, or give "
        "buckets of exactly the sizes that are needed.",
    ]


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
