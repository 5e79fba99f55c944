"""A call that came by a channel: how it is served and answered.

Made by the channel's thread; served by it, or by the thread that is in the NPU's lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnbridge_host.engine.stop import StopHandle
from qnnbridge_host.in_flight import Declaration, Request
from qnnbridge_protocol.errors import Cancelled
from qnnbridge_protocol.fastpath import call_id

if TYPE_CHECKING:
    from qnnbridge_host.fastpath.channel import HostChannel
    from qnnbridge_host.fastpath.plans import BoundPlan


class FastCall(Request):
    """A call on a channel. Used again for a later call when it has been answered and is out of everybody's
    hands."""

    __slots__ = ("_declared", "_first_id", "channel", "number", "plan", "stop")

    on_channel = True

    def __init__(self, channel: HostChannel) -> None:
        super().__init__(0, {"op": "session.run"}, ())
        self.channel = channel
        self.number = 0
        self.plan: BoundPlan | None = None
        self.stopper = self.stop = StopHandle()
        self._first_id = call_id(channel.number, 0)
        self._declared = channel.records
        """Where there is no record a frame has to tell."""

    def renew(self, number: int, plan: BoundPlan) -> None:
        self.id = self._first_id + number
        self.number = number
        self.plan = plan
        self.started = False
        self.declared = self._declared
        if self.withdrawn or self.failed or self.done is not None:
            if self.withdrawn:  # whoever stops it may do so only now, and means the call before
                self.stopper = self.stop = StopHandle()
            self.withdrawn = self.refused = self.failed = False
            self.done = None

    def release(self) -> None:
        pass

    @property
    def withdrawn_ahead(self) -> bool:
        """Whether a cancel of it came before it did."""
        return self.number == self.channel.withdrawn

    def serve(self) -> bool:
        """Whether it went well. Never raises what a handler raises: that is the answer."""
        plan, stop = self.plan, self.stop
        assert plan is not None
        try:
            channel = self.channel
            if channel.withdrawn == self.number:
                raise Cancelled("The request was cancelled before it started.")
            channel.current = self
            values = plan.session.run_bound(plan.call, stop, channel.note if channel.records else self.declare_all)
            if values is not None:
                channel.answer(self, values)
            elif plan.inline:
                channel.answer_inline(self.number, plan)
            else:
                channel.answer_shortly(channel.result, self.number)
            return True
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            self.channel.answer_error(self, error)
            return False

    def declare(self, what: Declaration) -> None:
        self.channel.tell_phase(what)

    def declare_all(self, phase: str) -> None:
        """Where there is no memory to note it in."""
        self.channel.declare(self, phase)

    def refuse(self, error: BaseException) -> None:
        self.channel.answer_error(self, error)

    def served(self) -> None:
        channel = self.channel
        self.plan = None  # or it would keep the plan's memory until the next call
        channel.spare.append(self)
        if channel.ended:
            channel.close_if_unused()


__all__ = ["FastCall"]
