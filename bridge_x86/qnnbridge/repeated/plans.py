"""The plans of one line, and the memory that its calls lie in.

All plans of a line share one slab for inputs (the application writes it) and, as a rule, one for outputs (the host
does): a line carries one call at a time. Only while results are lent to the application further slabs for outputs
come in. Used by the one thread that has the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from qnnbridge.repeated.arrays import Blocks, SharedBlock, no_array
from qnnbridge.repeated.line import Line
from qnnbridge.repeated.memory import Slab, lend
from qnnbridge.repeated.shapes import CallShape, TensorShape
from qnnbridge_protocol.lines import layout

MAX_PLANS = 128
"""Of one line; the host takes twice as many."""

MAX_LENT_SLABS = 8
"""Of one line; beyond that, results are copied."""

Array = np.ndarray[Any, np.dtype[Any]]
Whole = Callable[[], "Array | None"]
_BOOL = np.dtype(np.bool_)


class NoSharedMemory(Exception):
    """There is none, or not enough: the call goes inline."""


class SlabSource(Protocol):
    """Gives and takes the memory of one host process. Any thread."""

    def new_slab(self, wanted: int, *, host_writes: bool) -> Slab:
        """A slab that the host has attached. Raises `NoSharedMemory`, `OSError`."""

    def drop_slab(self, slab: Slab) -> None: ...

    def show(self, slab: Slab) -> None:
        """Attach a slab that the application's arrays lie in, if the host does not know it yet."""


class LinePlan:
    """A call that both sides know. number: its name. session: of the host, that it runs.

    copies: inputs that are to be copied in, with where to. results: what the outputs are read from; ``None`` for
    one that lies in a block of the application's own. given, taken: for each input and output the application's
    array that lies in such a block, or what gives ``None``.
    """

    __slots__ = (
        *(
            "copies",
            "filled",
            "fills",
            "given",
            "inline",
            "interfaces",
            "number",
            "outputs",
            "plain",
            "reply",
            "results",
        ),
        *("session", "size", "taken"),
    )

    def __init__(self, number: int, session: int, *, inline: bool) -> None:
        self.number = number
        self.session = session
        self.inline = inline
        self.copies: list[tuple[str, Array]] = []
        self.results: list[Array | None] = []
        self.interfaces: list[dict[str, Any]] = []
        self.reply: Slab | None = None
        self.outputs: tuple[TensorShape, ...] = ()
        self.given: tuple[tuple[str, Whole], ...] = ()
        self.taken: tuple[Whole, ...] = ()
        self.fills = False
        """Whether any output lies in such a block."""
        self.size = 0
        self.plain = False
        """Whether inputs and outputs are neither bool nor in blocks of the application's: the usual case."""
        self.filled = False
        """Whether all outputs lie in blocks of the application's, so that nothing is left to do with them."""

    def put_in(self, feed: Mapping[str, Any]) -> None:
        """Copy the inputs to where the host reads them."""
        if self.plain:
            for name, target in self.copies:
                target[...] = feed[name]  # as copyto, without its look at what else may be an array: 0.3 us
            return
        for name, target in self.copies:
            if target.dtype is _BOOL:
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
                if target.dtype is _BOOL:
                    np.copyto(target, _proper(target))
            elif target is not None:
                np.copyto(target, _proper(result) if result.dtype is _BOOL else result)
            given.append(_owned(result) if target is None and result is not None else target)
        return [array for array in given if array is not None]

    def lend_out(self) -> list[Array]:
        """The results where they are, read-only. A bool is a copy: the host may have left any byte for true."""
        assert self.reply is not None
        return [
            _proper(result) if result.dtype is _BOOL else lend(self.reply, interface)
            for result, interface in zip(self.results, self.interfaces, strict=True)
            if result is not None
        ]


class LinePlans:
    """See the module."""

    def __init__(self, line: Line, slabs: SlabSource, *, shared: Callable[[], bool]) -> None:
        self.line = line
        self._slabs = slabs
        self._shared = shared
        self._plans: dict[Any, LinePlan] = {}
        self._last_number = 0
        self._request: Slab | None = None
        self._replies: list[Slab] = []
        self._reply: Slab | None = None
        self._latest: dict[CallShape, LinePlan] = {}

    @property
    def lent(self) -> int:
        """Slabs that the application still looks at."""
        return sum(not slab.free for slab in self._replies)

    @property
    def bytes(self) -> int:
        slabs = [*self._replies, self._request] if self._request else self._replies
        return sum(slab.size for slab in slabs if slab is not None)

    def again(
        self, shape: CallShape, session: int, feed: Mapping[str, Any], out: Sequence[Array | None] | None
    ) -> LinePlan | None:
        """The plan of the last call of this shape, if this is the same one in all that a plan consists of.

        That is, as a rule, all that a call needs to look at: no key is made and no block is looked for.
        """
        plan = self._latest.get(shape)
        if plan is None or plan.session != session:
            return None
        reply = self._reply
        if plan.reply is not reply or reply is None or reply.held:
            return None
        for name, whole in plan.given:
            array = feed[name]
            if whole() is not array and (whole is not no_array or array.base.__class__ is SharedBlock):
                return None
        if out is None:
            return None if plan.fills else plan
        for target, whole in zip(out, plan.taken):  # noqa: B905 - as many as there are outputs
            if whole() is not target and (whole is not no_array or target.base.__class__ is SharedBlock):  # type: ignore[union-attr]
                return None
        return plan

    def plan(
        self, shape: CallShape, session: int, inputs: Blocks | None, outputs: Blocks | None, deadline: float | None
    ) -> LinePlan:
        """The plan for this call, made if need be. inputs, outputs: those that lie in the application's own blocks.

        Raises what the host answers to it.
        """
        reply = self._reply
        if reply is not None and reply.held:
            reply = self._reply = self._next_reply(reply)
        key: Any = (shape, reply)
        if inputs is not None or outputs is not None:
            key = (shape, reply, _key(inputs), _key(outputs))
        plan = self._plans.get(key)
        if plan is None or plan.session != session:
            plan = self._make(shape, session, inputs, outputs, deadline)
        if not plan.inline:
            wholes = _wholes(inputs, len(shape.inputs))
            plan.given = tuple(zip(shape.input_names, wholes, strict=True))
            plan.taken = _wholes(outputs, len(shape.outputs))
            plan.fills = outputs is not None
            self._latest[shape] = plan
        return plan

    def close(self) -> None:
        """Give all memory back."""
        self._plans.clear()
        self._latest.clear()
        for slab in (*self._replies, *((self._request,) if self._request is not None else ())):
            self._slabs.drop_slab(slab)
        self._replies = []
        self._request = self._reply = None

    # --- making plans ---

    def _make(
        self, shape: CallShape, session: int, inputs: Blocks | None, outputs: Blocks | None, deadline: float | None
    ) -> LinePlan:
        self._make_room(deadline)
        if self._shared():
            try:
                return self._make_shared(shape, session, inputs, outputs, deadline)
            except NoSharedMemory:
                pass
        key = (shape, self._reply)
        plan = self._plans.get((shape, None))
        if plan is None or plan.session != session:
            plan = LinePlan(self._next_number(), session, inline=True)
            plan.outputs = shape.outputs
            plan.size = sum(tensor.nbytes for tensor in shape.inputs)
            self._tell(
                plan, [_wire(t, 0, 0) for t in shape.inputs], [_wire(t, 0, 0) for t in shape.outputs], deadline
            )
            self._plans[shape, None] = plan
        self._plans[key] = plan
        return plan

    def _make_shared(
        self, shape: CallShape, session: int, inputs: Blocks | None, outputs: Blocks | None, deadline: float | None
    ) -> LinePlan:
        in_blocks = inputs or (None,) * len(shape.inputs)
        out_blocks = outputs or (None,) * len(shape.outputs)
        in_at, in_size = layout([0 if b else t.nbytes for t, b in zip(shape.inputs, in_blocks, strict=True)])
        out_at, out_size = layout([0 if b else t.nbytes for t, b in zip(shape.outputs, out_blocks, strict=True)])
        self._provide(in_size, out_size, deadline)
        request, reply = self._request, self._reply
        assert request is not None
        assert reply is not None
        plan = LinePlan(self._next_number(), session, inline=False)
        plan.reply = reply
        told: tuple[list[Any], list[Any]] = ([], [])
        for tensor, block, at in zip(shape.inputs, in_blocks, in_at, strict=True):
            told[0].append(self._locate(tensor, block, request, at))
            if block is None:
                plan.copies.append((tensor.name, request.view(tensor.shape, tensor.dtype, at)))
        for tensor, block, at in zip(shape.outputs, out_blocks, out_at, strict=True):
            told[1].append(self._locate(tensor, block, reply, at))
            if block is not None:
                plan.results.append(None)
                plan.interfaces.append({})
                continue
            view = reply.view(tensor.shape, tensor.dtype, at)
            plan.results.append(view)
            interface = dict(view.__array_interface__)
            interface["data"] = (interface["data"][0], True)
            plan.interfaces.append(interface)
        self._tell(plan, *told, deadline)
        plan.plain = inputs is None and outputs is None
        if any(tensor.dtype is _BOOL for tensor in (*shape.inputs, *shape.outputs)):
            plan.plain = False
        else:
            plan.filled = all(result is None for result in plan.results)
        key: Any = (shape, reply)
        if inputs is not None or outputs is not None:
            key = (shape, reply, _key(inputs), _key(outputs))
        self._plans[key] = plan
        return plan

    def _locate(self, tensor: TensorShape, block: SharedBlock | None, slab: Slab, offset: int) -> list[Any]:
        if block is None:
            return _wire(tensor, slab.number, offset)
        self._slabs.show(block.slab)
        return _wire(tensor, block.slab.number, block.offset)

    def _tell(self, plan: LinePlan, inputs: list[Any], outputs: list[Any], deadline: float | None) -> None:
        self.line.ask(
            {
                "op": "plan.make",
                "plan": plan.number,
                "session": plan.session,
                "inline": plan.inline,
                "inputs": inputs,
                "outputs": outputs,
            },
            deadline,
        )

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _make_room(self, deadline: float | None) -> None:
        if len(self._plans) >= MAX_PLANS:
            self._drop(list(self._plans)[: MAX_PLANS // 2], deadline)

    def _drop(self, keys: Sequence[Any], deadline: float | None) -> None:
        self._latest.clear()
        dropped = {plan.number for plan in map(self._plans.pop, keys)}
        dropped -= {plan.number for plan in self._plans.values()}
        if dropped:
            self.line.ask({"op": "plan.drop", "plans": sorted(dropped)}, deadline)

    # --- memory ---

    def _provide(self, in_size: int, out_size: int, deadline: float | None) -> None:
        """Slabs that are large enough. Larger ones take the place of all that were there."""
        request, reply = self._request, self._reply
        if request is None or request.size < in_size:
            self._request = self._slabs.new_slab(in_size, host_writes=False)
            if request is not None:
                self._replace(request, lambda plan: not plan.inline, deadline)
        if reply is None or reply.size < out_size:
            self._reply = self._slabs.new_slab(out_size, host_writes=True)
            self._replies.append(self._reply)
            if reply is not None:
                self._replies.remove(reply)
                self._replace(reply, lambda plan: plan.reply is reply, deadline)

    def _replace(self, slab: Slab, uses: Callable[[LinePlan], bool], deadline: float | None) -> None:
        self._drop([key for key, plan in self._plans.items() if uses(plan)], deadline)
        self._slabs.drop_slab(slab)

    def _next_reply(self, reply: Slab) -> Slab | None:
        """One that nobody looks at; ``None`` if there is no memory for it."""
        if reply.free:
            reply.reuse()
            return reply
        for slab in self._replies:
            if slab.free and slab.size >= reply.size:
                slab.reuse()
                return slab
        try:
            slab = self._slabs.new_slab(reply.size, host_writes=True)
        except NoSharedMemory:
            return None
        self._replies.append(slab)
        return slab


def _key(blocks: Blocks | None) -> tuple[tuple[int, int] | None, ...] | None:
    if blocks is None:
        return None
    if len(blocks) == 1:  # the usual case; a generator costs half a microsecond
        block = blocks[0]
        return (None if block is None else block.place,)
    return tuple([None if block is None else block.place for block in blocks])


def _wholes(blocks: Blocks | None, count: int) -> tuple[Whole, ...]:
    return tuple(no_array if block is None else block.array for block in blocks or (None,) * count)


def _wire(tensor: TensorShape, slab: int, offset: int) -> list[Any]:
    return [tensor.name, int(tensor.element), list(tensor.shape), slab, offset]


def _owned(result: Array) -> Array:
    return _proper(result) if result.dtype is _BOOL else result.copy()


def _proper(array: Array) -> Array:
    """A bool array of which each byte is 0 or 1."""
    proper: Array = array.view(np.uint8) != 0
    return proper
