"""Sizes of free dimensions, by the name of the dimension, or by input and axis."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from qnnbridge_protocol.errors import OptionError


@dataclasses.dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of free dimensions (`--dim`), by their name, or by input and axis."""

    by_name: dict[str, int] = dataclasses.field(default_factory=dict)
    by_axis: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Dimensions:
        """`{"batch": 1, "x:2": 48}`: by the dimension's name, or by input and axis."""
        dimensions = cls()
        for name, size in sizes.items():
            axis = re.fullmatch(r"(.+):(\d+)", name)
            if axis:
                dimensions.by_axis[axis[1], int(axis[2])] = size
            # A text like "x:0" may also be a name of a dimension.
            dimensions.by_name[name] = size
        return dimensions

    def size_of(self, input_name: str, axis: int, declared: int | str | None) -> int | None:
        """The size of one dimension; None if nothing says it."""
        if isinstance(declared, int) and declared >= 0:
            return declared
        if (input_name, axis) in self.by_axis:
            return self.by_axis[input_name, axis]
        return self.by_name.get(declared) if isinstance(declared, str) else None


def refuse_unknown_names(free: Mapping[tuple[str, int], str | None], dimensions: Dimensions) -> None:
    """`refuse_unknown`, for free dimensions by input and axis, with their names."""
    # A text like "x:0" is kept by name and by axis: it may also be a name for a dimension.
    names = {f"{name}:{axis}" for name, axis in free} | {name for name in free.values() if name}
    there = dict.fromkeys(name or f"{given}:{axis}" for (given, axis), name in free.items())
    for name in dimensions.by_name:
        if name not in names:
            raise OptionError(
                f'The model has no free dimension "{name}".',
                cause=f"Its free dimensions: {', '.join(there) or 'none'}.",
                fix="Name one of these, or an input and its axis: --dim x:0=1." if free else "Leave --dim away.",
            )
