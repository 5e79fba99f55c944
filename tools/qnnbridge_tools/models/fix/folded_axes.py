"""Which axes of a tensor can be treated as one. Pure functions on shapes; `rank` makes nodes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu"),
        *("Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual"),
        *("Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "Where", "Xor"),
        *("ThresholdedRelu", "Softsign", "Celu", "Mish", "Swish"),
    }
)
REDUCING = frozenset(
    {"ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}
)
ONE_AXIS: dict[str, int | None] = {"Softmax": -1, "LogSoftmax": -1, "Concat": None}
"""Operators for which one axis counts, with its default."""


def groups_by(kinds: Sequence[object]) -> list[list[int]]:
    """Neighbouring axes of the same kind, together."""
    groups: list[list[int]] = []
    for axis, kind in enumerate(kinds):
        if axis and kind == kinds[axis - 1]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def groups_alike(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> list[list[int]] | None:
    """Neighbouring axes of `result` along which each of the broadcast `shapes` is either all ones, or all whole."""
    rank = len(result)
    kinds: list[tuple[bool, ...] | None] = []
    for axis in range(rank):
        kind = []
        for shape in shapes:
            at = axis - (rank - len(shape))
            size = shape[at] if at >= 0 else 1
            if size not in (1, result[axis]):
                return None
            kind.append(size == 1)
        # An axis of one element belongs to its neighbours, whatever those are.
        kinds.append(None if result[axis] == 1 else tuple(kind))
    return _joined(kinds)


def _joined(kinds: Sequence[tuple[bool, ...] | None]) -> list[list[int]]:
    groups: list[list[int]] = []
    current: tuple[bool, ...] | None = None
    for axis, kind in enumerate(kinds):
        if groups and (kind is None or current is None or kind == current):
            groups[-1].append(axis)
            current = current if kind is None else kind
        else:
            groups.append([axis])
            current = kind
    return groups


def fold(shape: Sequence[int], groups: Sequence[Sequence[int]], rank: int) -> list[int]:
    """The shape with each group of axes as one. rank: of what `groups` speaks of; `shape` may be shorter."""
    whole = [1] * (rank - len(shape)) + list(shape)
    sizes = []
    for group in groups:
        size = 1
        for axis in group:
            size *= whole[axis]
        sizes.append(size)
    return sizes


def transposes(shape: Sequence[int], perm: Sequence[int], most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Reshapes and transposes with at most `most` dimensions that together are this one: pairs of sizes and order.

    Axes of one element vanish and axes that stay neighbours are one. If that is not enough, the order is reached
    by swapping two neighbouring blocks at a time, for which four dimensions do.
    """
    order = [axis for axis in perm if shape[axis] != 1]
    runs: list[list[int]] = []
    for axis in order:
        between = range(runs[-1][-1] + 1, axis) if runs and axis > runs[-1][-1] else None
        if between is not None and all(shape[other] == 1 for other in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    start = sorted(runs)
    sizes = [_size(shape, run) for run in start]
    wanted = [start.index(run) for run in runs]
    if len(wanted) <= most:
        yield (sizes or [1]), (wanted or [0])
        return
    now = list(range(len(sizes)))
    for at, block in enumerate(wanted):
        there = now.index(block)
        if there == at:
            continue
        cuts = [now[:at], now[at:there], now[there : there + 1], now[there + 1 :]]
        yield [_size(sizes, cut) for cut in cuts], [0, 2, 1, 3]
        now = [*cuts[0], *cuts[2], *cuts[1], *cuts[3]]


def _size(sizes: Sequence[int], axes: Sequence[int]) -> int:
    size = 1
    for axis in axes:
        size *= sizes[axis]
    return size
