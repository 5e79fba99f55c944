"""Where the free dimensions of a model are: in which axes of which inputs, by their names. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qnnbridge_host.model.scan import ModelScan
from qnnbridge_protocol.specs import NodeInfo


@dataclasses.dataclass(frozen=True, slots=True)
class FreeDimension:
    """One axis of one input. symbol: its name in the model, ``None`` if it has none."""

    input: str
    axis: int
    symbol: str | None

    def __str__(self) -> str:
        name = f"{self.symbol!r}" if self.symbol is not None else "without a name"
        return f"{name} (input {self.input!r}, axis {self.axis})"


def free_dimensions(inputs: Sequence[NodeInfo]) -> tuple[FreeDimension, ...]:
    """In the order of the inputs and axes."""
    return tuple(
        FreeDimension(node.name, axis, dim if isinstance(dim, str) else None)
        for node in inputs
        for axis, dim in enumerate(node.shape or ())
        if not isinstance(dim, int)
    )


def without_shape(scan: ModelScan) -> tuple[str, ...]:
    """Inputs of which the model does not even give the number of dimensions."""
    return tuple(node.name for node in scan.inputs if node.shape is None and "tensor" in node.type)
