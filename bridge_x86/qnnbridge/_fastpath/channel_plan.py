"""One call as a channel knows it: where its inputs are put and what its outputs are read from.

Used by the one thread that has the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge._fastpath.memory import Slab, borrow
from qnnbridge._fastpath.signatures import CallSignature
from qnnbridge_protocol.fastpath import Head

Array = np.ndarray[Any, np.dtype[Any]]
# Gives an array as long as somebody has it, as a weak reference does.
Whole = Callable[[], "Array | None"]

BOOL = np.dtype(np.bool_)


class CallPlan:
    """A call that both sides know. number: its name. session: of the host, that it runs.

    copies: inputs that are to be copied in, with where to. results: what the outputs are read from; ``None`` for
    one that lies in a block of the application's own. given, taken: for each input and output what its array has to
    be, and the application's array that lies in such a block, or what gives ``None``. shape: the call that it was
    used for last.
    """

    __slots__ = (
        *(
            "call",
            "copies",
            "filled",
            "fills",
            "given",
            "inline",
            "interfaces",
            "needs",
            "number",
            "plain",
            "reply",
            "reply_size",
        ),
        *("results", "session", "shape", "size", "taken", "tight", "used"),
    )

    def __init__(self, number: int, session: int, *, inline: bool) -> None:
        self.number = number
        self.session = session
        self.inline = inline
        # Makes it, if its tensors are in shared memory: see `FastChannel.caller`.
        self.call: Callable[[float | None], Head | None] = _never
        self.copies: list[tuple[str, Array]] = []
        self.results: list[Array | None] = []
        self.interfaces: list[dict[str, Any]] = []
        self.reply: Slab | None = None
        self.shape: CallSignature | None = None
        self.given: tuple[tuple[str, np.dtype[Any], tuple[int, ...], Callable[[], Any]], ...] = ()
        self.taken: tuple[tuple[np.dtype[Any], tuple[int, ...], Whole], ...] = ()
        # Whether any output lies in such a block.
        self.fills = False
        # Bytes of all inputs and of all outputs, of an inline plan.
        self.size = self.reply_size = 0
        # Bytes of memory for inputs and outputs, without blocks of the application's.
        self.needs = 0
        # Since somebody last looked.
        self.used = False
        # Whether its slab for outputs is about as large as they are, so that it may be borrowed.
        self.tight = True
        # Whether inputs and outputs are neither bool nor in blocks of the application's: the usual case.
        self.plain = False
        # Whether all outputs lie in blocks of the application's, so that nothing is left to do with them.
        self.filled = False

    def put_in(self, feed: Mapping[str, Any]) -> None:
        """Copy the inputs to where the host reads them."""
        if self.plain:
            for name, target in self.copies:
                target[...] = feed[name]  # as copyto, without its look at what else may be an array: 0.3 us
            return
        for name, target in self.copies:
            if target.dtype is BOOL:
                np.copyto(target, _proper(feed[name]))
            else:
                np.copyto(target, feed[name])

    def take_out(self, out: Sequence[Array | None] | None) -> list[Array]:
        """The results as arrays of the application's own, or in those that it gave."""
        if out is None:
            if self.plain:
                if len(self.results) == 1:  # the usual case, without the frame of a comprehension
                    return [self.results[0].copy()]  # type: ignore[union-attr]
                return [result.copy() for result in self.results]  # type: ignore[union-attr]
            return [_owned(result) for result in self.results if result is not None]
        given: list[Array | None] = []
        for result, target in zip(self.results, out, strict=True):
            if result is None:
                assert target is not None
                if target.dtype is BOOL:
                    np.copyto(target, _proper(target))
            elif target is not None:
                np.copyto(target, _proper(result) if result.dtype is BOOL else result)
            given.append(_owned(result) if target is None and result is not None else target)
        return [array for array in given if array is not None]

    def borrow_outputs(self) -> list[Array]:
        """The results where they are, read-only. A bool is a copy: the host may have left any byte for true."""
        assert self.reply is not None
        if self.plain and len(self.results) == 1:
            return [borrow(self.reply, self.interfaces[0])]
        return [
            _proper(result) if result.dtype is BOOL else borrow(self.reply, interface)
            for result, interface in zip(self.results, self.interfaces, strict=True)
            if result is not None
        ]


def _never(_deadline: float | None) -> Head | None:
    raise AssertionError("the tensors of this plan travel on the channel")


def _owned(result: Array) -> Array:
    return _proper(result) if result.dtype is BOOL else result.copy()


def _proper(array: Array) -> Array:
    """A bool array of which each byte is 0 or 1."""
    proper: Array = array.view(np.uint8) != 0
    return proper
