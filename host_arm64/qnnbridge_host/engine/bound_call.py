"""A call of which everything but the tensors' contents is known before: names, types, shapes and memory.

Imports nothing heavy, so that the server's side can make one for any engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt


class BoundTensor(NamedTuple):
    """One input or output. array: the memory itself; of an input possibly read-only."""

    name: str
    array: npt.NDArray[Any]


class BoundCall:
    """Belongs to one channel, so it is run by one thread at a time.

    native: the session's state for it. owner: the session that `native` belongs to; it releases it when it is
    closed. bindable: whether the outputs may be written by ONNX Runtime itself; a session that finds that it cannot
    (an output of another shape than last time) clears it for good.
    """

    __slots__ = ("__weakref__", "bindable", "feeds", "inputs", "native", "output_names", "outputs", "owner")

    def __init__(self, inputs: tuple[BoundTensor, ...], outputs: tuple[BoundTensor, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.feeds = {tensor.name: tensor.array for tensor in inputs}
        self.output_names = [tensor.name for tensor in outputs]
        self.bindable = True
        self.native: Any = None
        self.owner: object = None

    def release(self) -> None:
        """Bytes of the session's state for it."""
        self.native = self.owner = None

    def take(self, values: Sequence[Any]) -> list[Any] | None:
        """Copy outputs to where they belong; ``None`` if they fit there, else the values themselves."""
        import numpy as np

        for tensor, value in zip(self.outputs, values, strict=True):
            if type(value) is not np.ndarray:
                return list(values)
            if value.dtype != tensor.array.dtype or value.shape != tensor.array.shape:
                return list(values)
        for tensor, value in zip(self.outputs, values, strict=True):
            np.copyto(tensor.array, value)
        return None
