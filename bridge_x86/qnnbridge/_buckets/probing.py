"""Run a model on the CPU with several sizes, to find how the sizes of its outputs depend on the sizes of its
inputs.

The relation is read from the model's declared shapes. If these are missing or wrong, the model runs with inputs of
zeros in a few sizes, and the sizes of its outputs show the relation. An output whose relation cannot be found is
not cut, and the reason is recorded. All functions are pure, except that they call a `Run` function, which
communicates with a host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets import MAX_DENOMINATOR, BucketArguments, Relation, fit, offsets_of
from qnnbridge._buckets.batches import OutputShapes, Relations
from qnnbridge._buckets.plan import BucketPlan, Sizes
from qnnbridge._options.fields import suggest
from qnnbridge._values.feed_rules import Array, rule_of
from qnnbridge_protocol.elements import LAYOUTS
from qnnbridge_protocol.errors import OptionError, OrtError, RemoteError
from qnnbridge_protocol.input_constants import EXAMPLE_SIZES, MOST_SIZES
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.buckets")

# Shapes of the outputs by name; ``None`` for an output that is not a tensor.
Shapes = Mapping[str, "tuple[int, ...] | None"]
# Function that runs the model with these sizes and returns the shapes of the outputs. Raises `BridgeError`.
Run = Callable[[Sizes], Shapes]

# Errors of a run that the model or its inputs cause. Other errors, such as a missed deadline, propagate.
OF_THE_MODEL: Final = (OrtError, RemoteError, OptionError)

# Number of sizes to run in addition to the smallest bucket. Three sizes show whether the relation is linear.
FURTHER_SIZES: Final = 2
# Number of consecutive sizes to run if a dimension is rounded. For a divisor up to this number, these sizes have
# all remainders, which determine the rounding.
CONSECUTIVE: Final = MAX_DENOMINATOR
# Largest divisor to search for: it covers hop lengths of audio models and ratios of two sampling rates. The search
# takes 20 runs to find two sizes at which the output grows, and up to `MAX_SEARCHED` further runs.
MAX_DIVISOR: Final = 1024
MAX_SEARCHED: Final = 32


@dataclasses.dataclass(slots=True)
class _Findings:
    relations: dict[str, list[Relation | None]]
    # Axes whose relation is still unknown, by output. An output without a declared shape has an empty list and is
    # in `undeclared`.
    open: dict[str, list[int]]
    undeclared: set[str]
    uncut: dict[str, str]


def find_shapes(
    plan: BucketPlan, arguments: BucketArguments, outputs: Sequence[NodeInfo], others: Iterable[str], run: Run
) -> OutputShapes:
    """Return how the sizes of the outputs follow from the sizes of the inputs.

    Args:
        arguments: the arguments of the session, whose `cut` has been checked.
        others: free input dimensions that have no buckets.
    """
    findings = _declared(plan, arguments, outputs, frozenset(others))
    if findings.open or findings.undeclared:
        _probe(plan, findings, run)
    found: dict[str, Relations] = {name: tuple(relations) for name, relations in findings.relations.items()}
    for name, reason in findings.uncut.items():
        found.pop(name, None)
        _log.warning("The output %r is not cut to the size of the inputs: %s", name, reason)
    given = frozenset(arguments.cut)
    for name, relations in found.items():
        odd = [
            str(one)
            for one in relations
            if one is not None and not one.is_identity and plan.symbols.index(one.symbol) not in plan.fixed
        ]
        if odd and name not in given:
            _log.warning(
                "The output %r has the size %s and is cut at its end; check it with verify_padding()",
                name,
                ", ".join(odd),
            )
    return OutputShapes(found, findings.uncut, given)


def zeros(inputs: Sequence[NodeInfo], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return feeds of zeros for a trial run. `sizes` contains the sizes of the named free dimensions; unnamed
    dimensions have the size 1."""
    feeds: dict[str, Any] = {}
    for node in inputs:
        rule = rule_of(node)
        if not rule.required:
            continue
        if rule.inner.kind != "tensor" or rule.inner.element is None or not LAYOUTS[rule.inner.element].named:
            raise OptionError(f"The input {node.name!r} is {rule.declared}, which trial runs do not support.")
        shape = [dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in node.shape or ()]
        dtype = LAYOUTS[rule.inner.element].storage
        feeds[node.name] = np.full(shape, "", object) if dtype.kind == "O" else np.zeros(shape, dtype)
    return feeds


def needed_values(
    inputs: Sequence[NodeInfo], feeds: Mapping[str, Array], runs: Callable[[Mapping[str, Array]], bool]
) -> dict[str, Any]:
    """Find values for the small inputs with which the model runs, if it fails with zeros. Return {} if the model
    runs with zeros, or if no values are found.

    Args:
        feeds: zeros for all inputs.
        runs: function that returns whether the model runs with given feeds.
    """
    small = {
        node.name: feeds[node.name]
        for node in inputs
        if node.name in feeds
        and all(isinstance(dim, int) for dim in node.shape or ())
        and feeds[node.name].dtype.kind in "fiu"
        and 0 < feeds[node.name].size <= MOST_SIZES
    }
    if not small or runs(feeds):
        return {}
    for number in EXAMPLE_SIZES:
        values = {name: np.full_like(value, number) for name, value in small.items()}
        if not runs({**feeds, **values}):
            continue
        # Reset each input to zeros if the model also runs with zeros in this input.
        for name in small:
            others = {one: value for one, value in values.items() if one != name}
            if runs({**feeds, **others}):
                values = others
        return {name: value.tolist() for name, value in values.items()}
    return {}


def check_cut(plan: BucketPlan, arguments: BucketArguments, outputs: Sequence[NodeInfo]) -> None:
    """Raise `OptionError` if ``cut=`` does not fit the outputs and dimensions of the model."""
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
                fix="Give one entry for each dimension, None for a dimension that is not cut.",
            )
        for relation in relations:
            if relation is not None and relation.symbol not in plan.symbols:
                raise OptionError(
                    f"cut: {relation.symbol!r} has no buckets.",
                    fix=f"Give a dimension that has buckets: {', '.join(plan.symbols)}."
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
            findings.uncut[node.name] = f"Its type is {node.type}, and only tensors can be cut."
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


class _Observations:
    """Shapes of the outputs for several sizes of one dimension, with all other sizes as in the smallest variant.

    Args:
        number: index of the dimension.
        first: shapes of the outputs in the smallest variant.
    """

    def __init__(
        self, plan: BucketPlan, number: int, first: Mapping[str, tuple[int, ...] | None], run: Run
    ) -> None:
        self.symbol = plan.symbols[number]
        self.base = plan.smallest()[number]
        self.buckets = plan.buckets[number]
        self._run = run
        self._plan = plan
        self._number = number
        self._shapes: dict[int, Shapes] = {self.base: first}

    def observe(self, size: int) -> bool:
        """Run the model with this size, unless it has been run before. Return whether the model accepts the
        size."""
        if size in self._shapes:
            return True
        sizes = self._plan.smallest()
        try:
            self._shapes[size] = self._run((*sizes[: self._number], size, *sizes[self._number + 1 :]))
        except OF_THE_MODEL as error:
            _log.debug("The model does not run with %s=%s: %s", self.symbol, size, error.message)
            return False
        return True

    def observe_few(self) -> None:
        """Observe a few other sizes. Some of them are bucket sizes, because some models accept only multiples of
        a number."""
        size, seen = self.base, 0
        candidates = [size - 1, size // 2, *self.buckets[1:2], size + 1, 2 * size, *self.buckets[2:3]]
        for candidate in dict.fromkeys(one for one in candidates if 0 < one != size):
            seen += self.observe(candidate)
            if seen == FURTHER_SIZES:
                break

    def observe_consecutive(self) -> int:
        """Observe `CONSECUTIVE` consecutive sizes. Return the number of sizes that the model accepts."""
        return sum(self.observe(size) for size in range(self.base + 1, self.base + 1 + CONSECUTIVE))

    def dimensions(self, name: str, axis: int) -> dict[int, int]:
        """Return the sizes of one dimension of an output, by size of the free dimension."""
        dims = {size: (shapes.get(name) or ())[axis : axis + 1] for size, shapes in self._shapes.items()}
        return {size: dim[0] for size, dim in dims.items() if dim}


def _probe(plan: BucketPlan, findings: _Findings, run: Run) -> None:
    wanted = (*findings.open, *findings.undeclared)
    try:
        first = run(plan.smallest())
    except OF_THE_MODEL as error:
        for name in wanted:
            findings.uncut[name] = (
                "The model does not declare the size of this output, and a trial run on the CPU failed "
                f"({error.message})"
            )
        return
    # Ignore a declared shape whose number of dimensions differs from that of the returned output.
    wrong = {name for name in findings.open if len(first.get(name) or ()) != len(findings.relations[name])}
    for name in sorted(findings.undeclared | wrong):
        shape = first.get(name)
        if shape is None:
            findings.uncut[name] = "The output is not a tensor."
        else:
            findings.relations[name] = [None] * len(shape)
            findings.open[name] = list(range(len(shape)))
    dependent: dict[tuple[str, int], list[Relation | str]] = {}
    for number in range(len(plan.symbols)):
        observed = _Observations(plan, number, first, run)
        observed.observe_few()
        fits = _fit_all(findings, observed)
        row = 0
        if any(isinstance(found, str) or found.divisor > 1 for found in fits.values()):
            # Run consecutive sizes, because a few sizes do not show how a dimension is rounded.
            row = observed.observe_consecutive()
            fits = _fit_all(findings, observed)
        for place, relation in fits.items():
            found: Relation | str | None = relation
            # The rounding is known only if at least as many consecutive sizes as the divisor were observed.
            if isinstance(relation, str) or relation.divisor > max(row, 1):
                found = _search(observed, *place) if row == CONSECUTIVE else None
            dependent.setdefault(place, []).append(found or observed.symbol)
    for (name, axis), relations in dependent.items():
        texts = " and ".join(map(str, relations))
        if len(relations) > 1:
            findings.uncut[name] = f"Axis {axis} depends on more than one size ({texts})."
        elif isinstance(relations[0], str):
            findings.uncut[name] = f"Axis {axis} depends on {relations[0]}, but not as (a * size + b) // c."
        else:
            findings.relations[name][axis] = relations[0]


def _fit_all(findings: _Findings, observed: _Observations) -> dict[tuple[str, int], Relation | str]:
    """Return the relation of each output dimension to the free dimension. If no relation fits, return the free
    dimension's name instead."""
    fits: dict[tuple[str, int], Relation | str] = {}
    for name, axes in findings.open.items():
        if name in findings.uncut:
            continue
        for axis in axes:
            values = observed.dimensions(name, axis)
            if len(values) < 2:
                fits[name, axis] = observed.symbol  # the model accepts only one size, so the relation is unknown
            elif len(set(values.values())) > 1:
                fits[name, axis] = fit(observed.symbol, values) or observed.symbol
    return fits


def _search(observed: _Observations, name: str, axis: int) -> Relation | None:
    """Find the relation of a dimension with a large divisor.

    The dimension increases in steps. The exact positions of two steps, one at small and one at large sizes, leave
    few possible relations. The simplest relation is tested at the sizes that could refute it, until none of these
    sizes is untested.
    """
    # `_find_step` tries sizes up to `start + MAX_DIVISOR`, so start the second search that far below the largest
    # bucket.
    small, large = observed.base, max(2 * observed.base, observed.buckets[-1] - MAX_DIVISOR)
    if not all(_find_step(observed, name, axis, start) for start in (small, large)):
        return None
    divisors = range(1, MAX_DIVISOR + 1)
    for _ in range(MAX_SEARCHED):
        values = observed.dimensions(name, axis)
        relation = fit(observed.symbol, values, divisors)
        if relation is None:
            return None
        divisors = range(relation.divisor, MAX_DIVISOR + 1)
        untried = [size for size in _deciding_sizes(relation, values, observed) if size not in values]
        if not untried:
            return relation
        if not observed.observe(untried[0]):
            return None
    return None


def _find_step(observed: _Observations, name: str, axis: int, start: int) -> bool:
    """Find the smallest size at which the dimension is larger than at `start`, by bisection. Return whether such
    a size exists."""

    def dimension(size: int) -> int | None:
        return observed.dimensions(name, axis).get(size) if observed.observe(size) else None

    low, high = start, start + MAX_DIVISOR
    at_start, at_end = dimension(low), dimension(high)
    if at_start is None or at_end is None or at_end <= at_start:
        return False
    # The bisection takes ten runs, because MAX_DIVISOR is 2**10.
    while high - low > 1:
        middle = (low + high) // 2
        found = dimension(middle)
        if found is None:
            return False
        low, high = (low, middle) if found > at_start else (middle, high)
    return True


def _deciding_sizes(relation: Relation, values: Mapping[int, int], observed: _Observations) -> Iterator[int]:
    """Yield the sizes at which the observed dimension shows whether the relation is correct."""
    factor, divisor = relation.factor, relation.divisor
    first, largest = observed.base, observed.buckets[-1]
    offsets = offsets_of(factor, divisor, values)
    if len(offsets) > 1:
        # Bisect the offsets: yield a size for which the larger half of them predicts a larger output than the rest.
        middle = offsets[len(offsets) // 2]
        for size in range(first, first + divisor):
            if (factor * size + offsets[0]) // divisor < (factor * size + middle) // divisor:
                yield size
                return
    for start in (first, 2 * first, (first + largest) // 2, largest):
        nearby = range(start, start + divisor)
        step = next((size for size in nearby if relation.size(size) > relation.size(size - 1)), start)
        yield from (size for size in (step - 1, step) if size > 0)
    yield largest
    if factor > 1:
        # Two relations with factors above 1 may differ at a single size only. For each larger divisor, yield a size
        # at which the relation with that divisor differs from `relation`.
        sizes = np.arange(first, largest + 1)
        for other in range(divisor + 1, MAX_DIVISOR + 1):
            rival = fit(relation.symbol, values, (other,))
            if rival is not None:
                differs = np.flatnonzero(_sizes(rival, sizes) != _sizes(relation, sizes))
                yield from map(int, sizes[differs[len(differs) // 2 :][:1]])


def _sizes(relation: Relation, of_symbol: Array) -> Array:
    return (relation.factor * of_symbol + relation.offset) // relation.divisor
