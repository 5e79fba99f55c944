"""`Tensor` and `NamedTensors`: arrays with the interface of genai's classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge_protocol.errors import GenerationUnsupported
from qnnbridge_protocol.shown import Shown

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

# Name of the tensor that contains the prompt.
INPUT_IDS: Final = "input_ids"


class Tensor(Shown):
    """Array of the application. The host creates a native tensor from the array when a call needs it."""

    def __init__(self, array: Any) -> None:
        import numpy as np

        # Copy the array, so that later changes to the caller's array have no effect.
        self._array = np.array(array, order="C")

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{self._array.dtype}{list(self._array.shape)}", ""

    def as_numpy(self) -> Any:
        """Return the array itself, without a copy."""
        return self._array

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._array.shape)

    def type(self) -> int:
        """Return the number that ONNX assigns to the element type."""
        from qnnbridge_protocol.elements import LAYOUTS

        return next(int(e) for e, layout in LAYOUTS.items() if layout.named and layout.storage == self._array.dtype)

    def data(self) -> Any:
        raise GenerationUnsupported(
            "Tensor.data is not available: the memory is in another process.", fix="Use as_numpy()."
        )


class MadeInputs(Protocol):
    """Tensors in the host. names: names of the tensors. tokens, shape: contents and dimensions of ``input_ids``."""

    names: Sequence[str]
    tokens: Sequence[int]
    shape: Sequence[int]

    def tensor(self, name: str) -> Tensor: ...


class NamedTensors(Shown):
    """Tensors by name. Tensors of a `MultiModalProcessor` stay in the host; reading one returns a copy."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._made: MadeInputs | None = None
        # Names of `_made` that were not deleted or replaced.
        self._remote: list[str] = []

    @classmethod
    def of(cls, made: MadeInputs) -> NamedTensors:
        """Return the tensors that a `MultiModalProcessor` created."""
        import numpy as np

        found = cls()
        found._made = made
        found._remote = [name for name in made.names if name != INPUT_IDS]
        found._tensors[INPUT_IDS] = Tensor(np.asarray(made.tokens, np.int32).reshape(tuple(made.shape)))
        return found

    def _shown_facts(self) -> Iterator[Fact]:
        for name, tensor in list(self._tensors.items()):
            for fact, _ in tensor._shown_facts():
                yield f"{name} {fact}", ""
        for name in self._remote:
            yield f"{name} in the host", ""

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._remote

    def __getitem__(self, name: str) -> Tensor:
        if name in self._remote:
            assert self._made is not None
            return self._made.tensor(name)
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._tensors[name] = value if isinstance(value, Tensor) else Tensor(value)
        self._remote = [one for one in self._remote if one != name]

    def __delitem__(self, name: str) -> None:
        if name in self._remote:
            self._remote.remove(name)
        else:
            del self._tensors[name]

    def __len__(self) -> int:
        return len(self._tensors) + len(self._remote)

    def keys(self) -> list[str]:
        """Return the names of all tensors."""
        return [*self._tensors, *self._remote]
