"""Pure functions that determine the sizes of a call, pad it, cut its outputs, and divide it into parts or windows.
They also compute the shapes that the session reports.

An input that needs no padding is used without a copy. Each call compares the shapes of the model's outputs with
`OutputShapes` and raises an error if a dimension has an unexpected size.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge._buckets import Relation
from qnnbridge._buckets.plan import BucketPlan, PaddedInput, Sizes
from qnnbridge._options.fields import suggest
from qnnbridge._values.feed_rules import INVALID_ARGUMENT, Array
from qnnbridge_protocol.elements import LAYOUTS
from qnnbridge_protocol.errors import InvalidArgument, ModelError, OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.tensors import Typed


def sizes_of(plan: BucketPlan, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """Return the size of each free dimension in the fed inputs. Raise `InvalidArgument` if inputs have different
    sizes for one dimension.

    ONNX Runtime does not check whether dimensions with the same name have the same size. A session with buckets
    pads them to the same size, so their sizes must be equal. Optional inputs that are not fed are ignored.
    """
    found: list[int | None] = [None] * len(plan.symbols)
    first: list[str] = [""] * len(plan.symbols)
    for name, padded in plan.inputs.items():
        shape = shapes.get(name)
        if shape is None:
            continue
        for axis, number in padded.axes.items():
            size, known = shape[axis], found[number]
            if known is None:
                found[number], first[number] = size, f"{name!r} (axis {axis})"
            elif known != size:
                symbol = plan.symbols[number]
                raise InvalidArgument(
                    f"{INVALID_ARGUMENT}The dimension {symbol!r} is {known} in input {first[number]} and {size} in "
                    f"input {name!r} (axis {axis}).",
                    cause="In the model both dimensions have the same name, so buckets pad them to the same size.",
                    fix="Give inputs of equal sizes. If the sizes may differ, rename a dimension in the model.",
                    details={"symbol": symbol},
                )
    # For a dimension that no fed input contains, use the smallest bucket, which needs the least computation.
    return tuple(buckets[0] if size is None else size for size, buckets in zip(found, plan.buckets, strict=True))


def bucket_for(plan: BucketPlan, number: int, size: int) -> int | None:
    """Return the smallest bucket of at least this size, or ``None``."""
    buckets = plan.buckets[number]
    at = bisect.bisect_left(buckets, size)
    return buckets[at] if at < len(buckets) else None


def variant_for(plan: BucketPlan, sizes: Sizes) -> Sizes | None:
    """Return the variant with the least computation that is large enough for a call of these sizes, or ``None``."""
    if any(sizes[number] != plan.buckets[number][0] for number in plan.fixed):
        return None
    if plan.only is not None:
        fitting = (one for one in plan.variants() if all(a >= b for a, b in zip(one, sizes, strict=True)))
        # `variants` yields the variants in the order of increasing computation.
        return next(fitting, None)
    found = tuple(bucket_for(plan, number, size) for number, size in enumerate(sizes))
    return None if None in found else tuple(size for size in found if size is not None)


def too_large(plan: BucketPlan, sizes: Sizes) -> tuple[int, ...]:
    """Return the indices of the free dimensions that do not fit: the size exceeds the largest bucket, or differs
    from the only size that the dimension permits."""
    return tuple(
        number
        for number, size in enumerate(sizes)
        if size > plan.buckets[number][-1] or (number in plan.fixed and size != plan.buckets[number][0])
    )


def refuse_too_large(plan: BucketPlan, sizes: Sizes, number: int) -> InvalidArgument:
    name, largest = plan.symbols[number], plan.buckets[number][-1]
    if number in plan.fixed:
        return InvalidArgument(
            f"{INVALID_ARGUMENT}The dimension {name!r} is {sizes[number]}, and the session accepts only {largest}.",
            cause="buckets= contains a single size for the dimension, and no padding was specified.",
            fix=f"Add this size (buckets={{{name!r}: {sorted((largest, sizes[number]))}}}). If calls also "
            "have sizes between the two, give pad=, too. Or run calls of other sizes on the CPU: overflow='cpu'.",
            details={"symbol": name, "size": sizes[number], "largest": largest},
        )
    return InvalidArgument(
        f"{INVALID_ARGUMENT}The dimension {name!r} is {sizes[number]}, the largest bucket for it is {largest}.",
        fix=f"Shorten the input to {largest}, give a larger bucket (buckets={{{name!r}: [..., {sizes[number]}]}}), "
        "or run larger calls on the CPU (overflow='cpu'). If the rows of the dimension are independent, "
        f"split={name!r} divides larger calls into parts.",
        details={"symbol": name, "size": sizes[number], "largest": largest},
    )


def refuse_pair(plan: BucketPlan, sizes: Sizes) -> InvalidArgument:
    """Return the error for a call whose sizes each fit into a bucket, although no listed combination is large
    enough for all of them."""
    return InvalidArgument(
        f"{INVALID_ARGUMENT}No combination of buckets is large enough for {plan.text(sizes)}.",
        fix=f"Add a combination to the list: buckets=[..., {plan.named(sizes)!r}].",
        details={"sizes": plan.named(sizes)},
    )


def pad_feeds(plan: BucketPlan, feeds: Mapping[str, Any], variant: Sizes) -> dict[str, Any]:
    """Return the feeds, padded to the sizes of `variant`, which are at least the sizes of the feeds."""
    fed = {name: padded for name, padded in plan.inputs.items() if feeds.get(name) is not None}
    return {**feeds, **{name: _pad(plan, padded, feeds[name], variant) for name, padded in fed.items()}}


def unpadded(plan: BucketPlan, name: str, value: Any, sizes: Sizes) -> Any:
    """Remove the padding from an input. `sizes` are the sizes of the call before padding."""
    axes = plan.inputs[name].axes if name in plan.inputs else {}
    return value[tuple(slice(sizes[axes[axis]]) if axis in axes else slice(None) for axis in range(np.ndim(value)))]


def _pad(plan: BucketPlan, padded: PaddedInput, value: Array, variant: Sizes) -> Array:
    shape = list(value.shape)
    for axis, number in padded.axes.items():
        shape[axis] = variant[number]
    if tuple(shape) == value.shape:
        return value
    # Without a padding value an uninitialized array is sufficient, because `_repeat_last` fills the rest.
    out = np.empty(shape, value.dtype) if padded.value is None else np.full(shape, padded.value, value.dtype)
    given = tuple(slice(0, size) for size in value.shape)
    out[given] = value
    # Fill a batch by repeating the last row, because many models return NaN for a row that consists of padding.
    for axis, number in padded.axes.items():
        if number in plan.split or padded.edge or (padded.value is None and number == plan.chunk):
            _repeat_last(out, axis, value.shape[axis])
    return out


def _repeat_last(out: Array, axis: int, size: int) -> None:
    if size == out.shape[axis]:
        return
    before = (slice(None),) * axis
    if size:
        out[before + (slice(size, None),)] = out[before + (slice(size - 1, size),)]  # noqa: RUF005 - Python 3.10
    else:
        # An empty input has no last row to repeat.
        out[...] = "" if out.dtype.kind == "O" else 0


Relations = tuple["Relation | None", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputShapes:
    """Relations between the dimensions of the outputs and the sizes of the inputs.

    Attributes:
        found: the relations of each output, one per dimension; ``None`` for a dimension that is fixed or not cut.
            An output without an entry is never cut.
        uncut: for each output without an entry in `found`, the reason why it cannot be cut.
        given: outputs whose relations the application specified with `cut`.
    """

    found: Mapping[str, Relations]
    uncut: Mapping[str, str] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def texts(self) -> dict[str, tuple[str | None, ...]]:
        return {
            name: tuple(None if relation is None else str(relation) for relation in relations)
            for name, relations in self.found.items()
        }


def cut(
    plan: BucketPlan, shapes: OutputShapes, names: Sequence[str], values: Sequence[Any], true: Sizes, variant: Sizes
) -> list[Any]:
    """Cut the padding from the outputs of a variant. `true` contains the input sizes before padding. Raise
    `ModelError` if an output cannot be cut."""
    if true == variant:
        return list(values)
    at = {symbol: number for number, symbol in enumerate(plan.symbols)}
    return [_cut(name, value, shapes, at, true, variant) for name, value in zip(names, values, strict=True)]


def _cut(name: str, value: Any, shapes: OutputShapes, at: Mapping[str, int], true: Sizes, variant: Sizes) -> Any:
    relations = shapes.found.get(name)
    if relations is None:
        raise ModelError(
            f"The output {name!r} cannot be cut back to the size of the inputs.",
            cause=shapes.uncut.get(name, "The output is not a tensor."),
            fix="Request other outputs, or feed inputs that fill a bucket, so that nothing is padded.",
        )
    if value is None:
        return None
    if len(value.shape) != len(relations):
        raise _unexpected(name, value.shape, f"{len(relations)} dimensions were expected")
    slices = [slice(None)] * len(relations)
    for axis, relation in enumerate(relations):
        if relation is None:
            continue
        number = at[relation.symbol]
        whole, wanted = relation.size(variant[number]), relation.size(true[number])
        if value.shape[axis] != whole:
            because = f"axis {axis} was expected to be {relation}, which is {whole}"
            raise _unexpected(name, value.shape, because)
        if wanted != whole:
            slices[axis] = slice(0, wanted)
    if all(part == slice(None) for part in slices):
        return value
    if not isinstance(value, Typed):
        # Copy the remaining part, because a view would keep the whole padded array in memory.
        return value[tuple(slices)].copy()
    if LAYOUTS[value.element_type].packed:
        raise ModelError(
            f"The output {name!r} cannot be cut: its elements are smaller than a byte.",
            fix="Request other outputs.",
        )
    data = value.data[tuple(slices)].copy()
    return Typed(data, value.element_type, data.shape)


def _unexpected(name: str, shape: Sequence[int], because: str) -> ModelError:
    return ModelError(
        f"The output {name!r} has the unexpected shape {tuple(shape)} and cannot be cut.",
        cause=f"{because[0].upper()}{because[1:]}.",
        fix=f"Specify its dimensions: cut={{{name!r}: ['seq', None, ...]}}; None for a dimension that is not cut.",
    )


def parts(plan: BucketPlan, feeds: Mapping[str, Any], number: int, size: int) -> Iterator[dict[str, Any]]:
    """Divide a call along one free dimension and yield the feeds of each part.

    Args:
        number: index of the dimension along which the feeds are divided.
        size: size of that dimension in the feeds.
    """
    largest = plan.buckets[number][-1]
    for start in range(0, size, largest):
        part = dict(feeds)
        for name, axis in axes_of(plan, feeds, number):
            part[name] = part[name][(slice(None),) * axis + (slice(start, start + largest),)]
        yield part


def axes_of(plan: BucketPlan, feeds: Mapping[str, Any], number: int) -> Iterator[tuple[str, int]]:
    """Yield (input name, axis) for each axis of the fed inputs that is the free dimension `number`."""
    for name, padded in plan.inputs.items():
        if feeds.get(name) is not None:
            yield from ((name, axis) for axis, symbol in padded.axes.items() if symbol == number)


def joints(plan: BucketPlan, shapes: OutputShapes, names: Sequence[str], number: int) -> list[int]:
    """Return the axis of each output along which the outputs of the parts are joined. Raise `InvalidArgument` if
    an output has no such axis."""
    symbol = plan.symbols[number]
    found = []
    for name in names:
        axes = [
            axis
            for axis, relation in enumerate(shapes.found.get(name) or ())
            if relation is not None and relation.symbol == symbol
        ]
        # If two axes of an output have this dimension, the parts of a call would contain only the diagonal blocks.
        if len(axes) != 1:
            raise InvalidArgument(
                f"The output {name!r} cannot be joined from parts: exactly one of its axes must have the "
                f"dimension {symbol!r}.",
                cause=f"A call whose {symbol!r} is larger than {plan.buckets[number][-1]}, the largest bucket, "
                "runs in several parts.",
                fix=f"Request other outputs, give a larger bucket for {symbol!r}, or state the dimensions of the "
                f"output: cut={{{name!r}: [{symbol!r}, ...]}}.",
            )
        found.append(axes[0])
    return found


def joined(results: Sequence[Sequence[Any]], axes: Sequence[int]) -> list[Any]:
    """Return the outputs of the whole call by joining the outputs of its parts."""
    found: list[Any] = []
    for axis, values in zip(axes, zip(*results, strict=True), strict=True):
        if isinstance(values[0], Typed):
            data = np.concatenate([value.data for value in values], axis)
            found.append(Typed(data, values[0].element_type, data.shape))
        else:
            found.append(np.concatenate(values, axis))
    return found


# --- calls in overlapping windows -------------------------------------------------------------------------

# Windows are for models in which an output depends only on nearby inputs (convolutional decoders). A window is as
# long as a bucket and is never padded. The first window starts at the start of the input and the last window ends
# at its end, so the model's own padding takes effect there as in a run on the whole input. At every other end of a
# window, outputs may depend on inputs outside the window. These outputs are dropped. Their number is the distance
# over which an output depends on inputs (`Context`). The remaining outputs are joined and equal the outputs of a
# run on the whole input.

# Output axis whose size depends on a free dimension: (relation of the axis's size to that dimension, axis index).
End = tuple[Relation, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Distance over which outputs depend on inputs, in steps. left, right: distance to earlier and later inputs."""

    left: int
    right: int

    @property
    def total(self) -> int:
        return self.left + self.right


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Window over the steps of the inputs, and the steps whose outputs are kept.

    Attributes:
        start: first step of the inputs.
        keep_from: first step whose outputs are kept, counted in the whole input.
        keep_to: end of the kept steps, exclusive, counted in the whole input.
    """

    start: int
    keep_from: int
    keep_to: int


def windows(size: int, length: int, context: Context) -> list[Chunk]:
    """Return windows of `length` steps that cover `size` steps. `length` must exceed the context, but not
    `size`."""
    found: list[Chunk] = []
    kept = 0
    # Each window except the last keeps at least `length - context.total` new steps, so the loop ends.
    while kept < size:
        # The last window is moved back so that it ends at the end of the input: it overlaps more, but is never
        # padded.
        start = max(0, min(kept - context.left, size - length))
        to = size if start + length == size else start + length - context.right
        found.append(Chunk(start, kept, to))
        kept = to
    return found


def window_length(buckets: Sequence[int], size: int, context: Context) -> int | None:
    """Return the largest bucket that is at most `size` and larger than the context, or ``None``."""
    fitting = [bucket for bucket in buckets if bucket <= size and (bucket > context.total or bucket == size)]
    return fitting[-1] if fitting else None


def window_feeds(
    plan: BucketPlan, feeds: Mapping[str, Any], number: int, cuts: Sequence[Chunk], length: int
) -> Iterator[dict[str, Any]]:
    """Yield the feeds of each window. `number` is the index of the chunked dimension."""
    for window in cuts:
        part = dict(feeds)
        for name, axis in axes_of(plan, feeds, number):
            inside = (slice(None),) * axis + (slice(window.start, window.start + length),)
            part[name] = np.ascontiguousarray(part[name][inside])
        yield part


def join(results: Sequence[Sequence[Any]], cuts: Sequence[Chunk], ends: Sequence[End], size: int) -> list[Any]:
    """Return the outputs of the whole call by joining the outputs of its windows."""
    joined = []
    for at, (relation, axis) in enumerate(ends):
        kept = []
        for values, window in zip(results, cuts, strict=True):
            # Convert input steps to output steps: a vocoder, for example, computes several samples for each frame.
            begin = 0 if window.keep_from == 0 else relation.factor * (window.keep_from - window.start)
            whole = window.keep_to == size
            end = None if whole else relation.factor * (window.keep_to - window.start)
            kept.append(values[at][(slice(None),) * axis + (slice(begin, end),)])
        joined.append(np.concatenate(kept, axis))
    return joined


@dataclasses.dataclass(frozen=True, slots=True)
class Windowing:
    """Settings for calls in windows, determined when the session is created. number: index of the chunked
    dimension."""

    number: int
    context: Context
    ends: Mapping[str, End]


# --- reported shapes, and variants to create --------------------------------------------------------------------


def shown_inputs(inputs: Sequence[NodeInfo], fixed: Mapping[str, int]) -> list[NodeInfo]:
    """Return the inputs with named free dimensions, as ONNX Runtime reports them. `fixed`: sizes of overridden
    dimensions, by name."""

    return [NodeInfo(node.name, node.type, _with(fixed, node.shape)) for node in inputs]


def shown_outputs(outputs: Sequence[NodeInfo], shapes: OutputShapes, fixed: Mapping[str, int]) -> list[NodeInfo]:
    """Return the outputs as the session reports them: an undeclared dimension gets the name of the input dimension
    that always has the same size."""
    shown = []
    for node in outputs:
        relations = shapes.found.get(node.name)
        declared: tuple[int | str | None, ...] | None = node.shape
        if relations is not None and (declared is None or len(declared) != len(relations)):
            declared = (None,) * len(relations)
        if declared is not None and relations is not None:
            declared = tuple(
                relation.symbol if dim is None and relation is not None and relation.is_identity else dim
                for dim, relation in zip(declared, relations, strict=True)
            )
        shown.append(NodeInfo(node.name, node.type, _with(fixed, declared)))
    return shown


def wanted_variants(plan: BucketPlan, sizes: Any) -> list[Sizes]:
    """Return the variants to create in advance: the variants of the given sizes, or all variants for ``None``.
    Raise `OptionError` for an unknown name or size."""
    if sizes is None:
        return list(plan.variants())
    found = []
    for wanted in [sizes] if isinstance(sizes, Mapping) else sizes:
        if not isinstance(wanted, Mapping):
            raise OptionError(f"sizes: {wanted!r:.100} is not a map of sizes.", fix=_example(plan))
        for name in wanted:
            if name not in plan.symbols:
                known = ", ".join(plan.symbols)
                hint = suggest(str(name), plan.symbols)
                raise OptionError(f"sizes: {name!r} has no buckets.", fix=f"Give {known}.{hint}")
        chosen = []
        for name, buckets in zip(plan.symbols, plan.buckets, strict=True):
            size = wanted.get(name, buckets[0] if len(buckets) == 1 else None)
            if size not in buckets:
                what = f"{size!r} is not a bucket of {name!r}" if name in wanted else f"{name!r} is missing"
                raise OptionError(f"sizes: {what}.", fix=f"Its buckets are {', '.join(map(str, buckets))}.")
            chosen.append(size)
        found.append(tuple(chosen))
    return list(dict.fromkeys(found))


def _with(fixed: Mapping[str, int], shape: tuple[int | str | None, ...] | None) -> Any:
    if shape is None:
        return None
    return tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)


def _example(plan: BucketPlan) -> str:
    named = ", ".join(f"{name!r}: {size}" for name, size in plan.named(plan.smallest()).items())
    return f"Give one map for each variant: [{{{named}}}]."
