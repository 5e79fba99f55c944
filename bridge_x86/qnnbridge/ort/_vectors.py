"""``OrtValueVector``: values in a row, as the bindings hand them out and take them. They are in this process."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qnnbridge._io_binding import IOBinding, view_of_memory
from qnnbridge._ort_value import OrtValue
from qnnbridge.ort._native import NativeIOBinding, NativeOrtValue, NativeSession, require_cpu_device
from qnnbridge_protocol.element_types import ElementType
from qnnbridge_protocol.errors import RemoteIndexError, RemoteTypeError


class OrtValueVector:
    """See ``onnxruntime.capi.onnxruntime_pybind11_state.OrtValueVector``. Belongs to one thread at a time."""

    __slots__ = ("__weakref__", "_values")

    def __init__(self) -> None:
        self._values: list[NativeOrtValue] = []

    def push_back(self, value: Any, is_bool_tensor: bool = False, /) -> None:
        """Add a value, or the tensor of a DLPack capsule."""
        if not isinstance(value, OrtValue):
            if type(value).__name__ != "PyCapsule":
                raise RemoteTypeError("from_dlpack expected a valid DLPack capsule named 'dltensor'")
            value = NativeOrtValue.from_dlpack(value, is_bool_tensor)
        self._values.append(NativeOrtValue.of(value))

    def push_back_batch(
        self,
        torch_tensors: Sequence[Any],
        data_ptrs: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[Any],
        /,
    ) -> None:
        """Values on memory of this process, which `torch_tensors` own and which must stay valid."""
        for pointer, element_type, shape, device in zip(data_ptrs, element_types, shapes, devices, strict=True):
            require_cpu_device(device)
            self.push_back(OrtValue(view_of_memory(element_type, shape, pointer)))

    def reserve(self, count: int, /) -> None:
        """Nothing to do: the row grows by itself."""
        operator.index(count)

    def shrink_to_fit(self) -> None:
        """Nothing to do."""

    def dlpack_at(self, index: int, /) -> Any:
        return self[index].to_dlpack()

    def bool_tensor_indices(self) -> list[int]:
        """Which of the values hold truth values. Up to 1.30."""
        return [place for place, value in enumerate(self._values) if value.element_type() == ElementType.BOOL]

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """A DLPack capsule of each value, or what `to_tensor` makes of it."""
        capsules = [value.to_dlpack() for value in self._values]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[NativeOrtValue]:
        return iter(self._values)

    def __getitem__(self, index: int) -> NativeOrtValue:
        try:
            return self._values[operator.index(index)]
        except IndexError:
            text = f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is {len(self)})"
            raise RemoteIndexError(text) from None


def vector_of(values: Iterable[OrtValue]) -> OrtValueVector:
    vector = OrtValueVector()
    for value in values:
        vector.push_back(value)
    return vector


def _outputs(binding: IOBinding) -> OrtValueVector:
    """The outputs of a binding, in a row."""
    return vector_of(IOBinding.get_outputs(binding))


def _run_with_ort_values(
    session: NativeSession, input_feed: Mapping[str, Any], output_names: Sequence[str], run_options: Any = None, /
) -> OrtValueVector:
    """Feeds come first here."""
    return vector_of(session.session.run_with_ort_values(output_names, input_feed, run_options))


NativeSession.run_with_ort_values = _run_with_ort_values  # type: ignore[attr-defined]
IOBinding.get_outputs_as_ortvaluevector = NativeIOBinding.get_outputs = _outputs  # type: ignore[assignment]
