"""The values of one bound run, in memory that the host has mapped.

`IOBinding` binds them, `RunVariants.run_bound` makes the run. A tensor that the bridge allocated, and of which the
application has neither an array nor an address, moves into shared memory before its first run, and new results are
written there by the host. What is both input and output is changed in place: such a run cannot be repeated, and its
value is lost with the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._fastpath.call import Wish
from qnnbridge._fastpath.memory import SHARED_BYTES, Array, ArraySource, SharedBlock, allocate
from qnnbridge._ort_value import OrtValue
from qnnbridge_protocol.errors import DeadlineExceeded, StateLost

# Kinds of numpy types that the host reads as they are: no strings, no objects.
_KINDS: Final = "biufc"


class BoundValues:
    """The inputs and outputs of one bound run.

    Args:
        host: the session's; has the shared memory.
        inputs: by name.
        outputs: values for results; ``None`` for a new one.

    Attributes:
        feed: the inputs.
        wish: where the outputs go.
    """

    def __init__(
        self, host: ArraySource, inputs: Mapping[str, OrtValue], outputs: Sequence[OrtValue | None]
    ) -> None:
        # Before the feed is made: `move` changes the array that a value holds.
        for value in (*inputs.values(), *outputs):
            if value is not None and _is_worth_sharing(value.content):
                value.move(lambda shape, dtype: allocate(host, shape, dtype, host_writes=True, reusable=True))
        self.feed = {name: value.content for name, value in inputs.items()}
        # Values of other kinds get their results in another way.
        out = [None if value is None else _writable(value.content) for value in outputs]
        # By identity: an output that only overlaps an input in memory was not asked to be in place.
        fed = {id(array) for array in self.feed.values()}
        self._in_place = [
            value
            for value, array in zip(outputs, out, strict=True)
            if value is not None and array is not None and id(array) in fed and _is_shared(array)
        ]
        self.wish = Wish(out, fresh="writable", in_place=bool(self._in_place))

    def lose(self, error: StateLost | DeadlineExceeded) -> None:
        """The run that was to change values in place did not end well in time: these are lost."""
        # A run that never began has changed nothing.
        if error.details.get("state") != "not-started":
            lost = error if isinstance(error, StateLost) else still_changed(error)
            for value in self._in_place:
                value.lose(lost)


def _writable(content: Any) -> Array | None:
    plain = content.__class__ is np.ndarray and content.flags.writeable
    return content if plain else None


def _is_worth_sharing(content: Any) -> bool:
    if content.__class__ is not np.ndarray or content.nbytes < SHARED_BYTES:
        return False
    return content.dtype.kind in _KINDS and not _is_shared(content)


def _is_shared(array: Array) -> bool:
    base = array.base
    return (base.base if base.__class__ is np.ndarray else base).__class__ is SharedBlock


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
