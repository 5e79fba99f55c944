"""`Tensor` and `NamedTensors`: arrays of the application under genai's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import GenerationUnsupported
from qnnbridge_protocol.shown import Shown

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact


class Tensor(Shown):
    """An array. genai's own tensor is in the host, and is made of this when it is needed."""

    def __init__(self, array: Any) -> None:
        import numpy as np

        # A copy: later changes of the caller's array do not show.
        self._array = np.array(array, order="C")

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{self._array.dtype}{list(self._array.shape)}", ""

    def as_numpy(self) -> Any:
        """The array itself."""
        return self._array

    def shape(self) -> list[int]:
        """The dimensions."""
        return list(self._array.shape)

    def type(self) -> int:
        """Number of the element type, as ONNX has it."""
        from qnnbridge_protocol.elements import LAYOUTS

        return next(int(e) for e, layout in LAYOUTS.items() if layout.named and layout.storage == self._array.dtype)

    def data(self) -> Any:
        raise GenerationUnsupported(
            "Tensor.data is not available: the memory is in another process.", fix="Use as_numpy()."
        )


class NamedTensors(Shown):
    """Tensors by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def _shown_facts(self) -> Iterator[Fact]:
        for name, tensor in list(self._tensors.items()):
            for fact, _ in tensor._shown_facts():
                yield f"{name} {fact}", ""

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._tensors[name] = value if isinstance(value, Tensor) else Tensor(value)

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def __len__(self) -> int:
        return len(self._tensors)

    def keys(self) -> list[str]:
        """The names."""
        return list(self._tensors)
