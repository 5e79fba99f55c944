"""The values of one bound run, in memory that the host has mapped.

`IOBinding` binds them, `RunVariants.run_bound` makes the run. A tensor moves into shared memory before its first
repeated run, and new results are written there by the host. What is both input and output is changed in place: such
a run cannot be repeated, and its value is lost with the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._fastpath.arrays import Array, ArraySource, SharedBlock, allocate
from qnnbridge._fastpath.call import CallSignature, InPlaceOutputs, OptionalOutputs
from qnnbridge._ort_value import OrtValue
from qnnbridge_protocol.errors import DeadlineExceeded, StateLost

# Smaller tensors are copied: that is quicker than to manage a block for each.
SHARED_BYTES: Final = 64 * 1024

# Kinds of numpy types that the host reads as they are: no strings, no objects.
_KINDS: Final = "biufc"


class BoundValues:
    """See the module.

    Args:
        host: the session's; has the shared memory.
        inputs: by name.
        outputs: values for results; ``None`` for a new one.

    Attributes:
        feeds: the inputs as arrays, or ``None`` if one is no dense tensor of a numpy type.
    """

    def __init__(
        self, host: ArraySource, inputs: Mapping[str, OrtValue], outputs: Sequence[OrtValue | None]
    ) -> None:
        self._host = host
        self._outputs = outputs
        self._in_place: list[OrtValue] = []
        for value in (*inputs.values(), *outputs):
            if value is not None:
                self._share(value)
        feeds = {name: value.value for name, value in inputs.items()}
        whole = all(array.__class__ is np.ndarray for array in feeds.values())
        self.feeds: dict[str, Array] | None = feeds if whole else None

    def buffers(self, signature: CallSignature) -> OptionalOutputs:
        """The memory for the results of a call with this signature."""
        arrays: list[Array | None] = []
        for tensor, value in zip(signature.outputs, self._outputs, strict=True):
            if value is None:
                large = tensor.nbytes >= SHARED_BYTES
                arrays.append(self._memory(tensor.shape, tensor.dtype) if large else None)
                continue
            array = value.value
            fits = array.__class__ is np.ndarray and (array.dtype, array.shape) == (tensor.dtype, tensor.shape)
            arrays.append(array if fits and array.flags.writeable else None)
        fed = {id(array) for array in (self.feeds or {}).values()}
        self._in_place = [
            value
            for value, array in zip(self._outputs, arrays, strict=True)
            if value is not None and array is not None and id(array) in fed and _is_shared(array)
        ]
        return (InPlaceOutputs if self._in_place else OptionalOutputs)(arrays)

    @contextlib.contextmanager
    def lost_with_the_host(self) -> Iterator[None]:
        """Around the run: values that are changed in place are lost if it does not end well in time."""
        try:
            yield
        except (StateLost, DeadlineExceeded) as error:
            if error.details.get("state") != "not-started":
                lost = error if isinstance(error, StateLost) else still_changed(error)
                for value in self._in_place:
                    value.lose(lost)
            raise

    def _share(self, value: OrtValue) -> None:
        if _is_worth_sharing(value.value):  # no variable: `move` counts the references
            value.move(self._memory)

    def _memory(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        return allocate(self._host, shape, dtype, host_writes=True, reusable=True)


def _is_worth_sharing(array: Any) -> bool:
    if array.__class__ is not np.ndarray or array.nbytes < SHARED_BYTES:
        return False
    return array.dtype.kind in _KINDS and not _is_shared(array)


def _is_shared(array: Array) -> bool:
    return array.base.__class__ is SharedBlock


def lost_in_place(cause: str) -> StateLost:
    """The error of a run that was to change its inputs, and whose host ended."""
    return StateLost(
        "The host ended in a run that changes its inputs in place: their contents are lost.",
        cause=cause,
        fix="Write the values again (update_inplace) and repeat the run. With outputs of their own, bound values "
        "outlive a host, and runs are repeated.",
    )


def still_changed(error: DeadlineExceeded) -> StateLost:
    """The error of values that a run still changed when its time was over."""
    return StateLost(
        "The contents are lost: the time of a run that changes them in place was over before its end.",
        cause=error.message,
        fix="Write the values again (update_inplace).",
    )
