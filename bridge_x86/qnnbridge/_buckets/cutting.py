"""Outputs cut back to the sizes of the call.

`OutputShapes` knows for each output how its dimensions follow from the sizes. Immutable; any thread. What the model
returns is compared with it at each call: a dimension that is not what it should be is an error, not a wrong cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge._buckets.plan import Plan, Sizes
from qnnbridge._buckets.relation import Relation
from qnnbridge_protocol.elements import LAYOUTS
from qnnbridge_protocol.errors import ModelError
from qnnbridge_protocol.typed import Typed

Relations = tuple["Relation | None", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputShapes:
    """found: output -> a relation per dimension (``None``: fixed, or left alone). An output that is not in there is
    never cut, for the reason in `uncut`. given: outputs of which the application said it."""

    found: Mapping[str, Relations]
    uncut: Mapping[str, str] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def relations(self, name: str) -> Relations | None:
        return self.found.get(name)

    def texts(self) -> dict[str, tuple[str | None, ...]]:
        return {
            name: tuple(None if relation is None else str(relation) for relation in relations)
            for name, relations in self.found.items()
        }


def cut(
    plan: Plan, shapes: OutputShapes, names: Sequence[str], values: Sequence[Any], true: Sizes, variant: Sizes
) -> list[Any]:
    """The outputs of a call of the sizes `true` out of those that the variant returned. Raises `ModelError`."""
    if true == variant:
        return list(values)
    at = {symbol: number for number, symbol in enumerate(plan.symbols)}
    return [_cut(name, value, shapes, at, true, variant) for name, value in zip(names, values, strict=True)]


def _cut(name: str, value: Any, shapes: OutputShapes, at: Mapping[str, int], true: Sizes, variant: Sizes) -> Any:
    relations = shapes.relations(name)
    if relations is None:
        raise ModelError(
            f"The output {name!r} cannot be cut back to the size of the inputs.",
            cause=shapes.uncut.get(name, "It is no tensor."),
            fix="Ask for other outputs, or feed inputs that fill a bucket, so that nothing is padded.",
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
        # A copy: the padded array, which may be much larger, is not kept alive by it.
        return value[tuple(slices)].copy()
    if LAYOUTS[value.element_type].packed:
        raise ModelError(
            f"The output {name!r} cannot be cut: its elements are smaller than a byte.",
            fix="Ask for other outputs.",
        )
    data = value.data[tuple(slices)].copy()
    return Typed(data, value.element_type, data.shape)


def _unexpected(name: str, shape: Sequence[int], because: str) -> ModelError:
    return ModelError(
        f"The output {name!r} has the shape {tuple(shape)}, so it is not known how to cut it.",
        cause=f"{because[0].upper()}{because[1:]}.",
        fix=f"Say what its dimensions are: cut={{{name!r}: ['seq', None, ...]}}; None leaves one as it is.",
    )
