"""A call that came by a line: how it is served and answered.

Made by the line's thread; served by it, or by the thread that is in the NPU's lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnbridge_host.engine.stop import StopHandle
from qnnbridge_host.in_flight import Declaration, Request
from qnnbridge_protocol.errors import Cancelled
from qnnbridge_protocol.fastpath import call_id

if TYPE_CHECKING:
    from qnnbridge_host.fastpath.channel import Line
    from qnnbridge_host.fastpath.plans import Plan


class FastCall(Request):
    """A call on a line. Used again for a later call when it has been answered and is out of everybody's hands."""

    __slots__ = ("_declared", "_first_id", "line", "number", "plan", "stop")

    on_line = True

    def __init__(self, line: Line) -> None:
        super().__init__(0, {"op": "session.run"}, ())
        self.line = line
        self.number = 0
        self.plan: Plan | None = None
        self.stopper = self.stop = StopHandle()
        self._first_id = call_id(line.number, 0)
        self._declared = line.records
        """Where there is no record a frame has to tell."""

    def renew(self, number: int, plan: Plan) -> None:
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

    def let_go(self) -> None:
        pass

    @property
    def withdrawn_ahead(self) -> bool:
        """Whether a cancel of it came before it did."""
        return self.number == self.line.withdrawn

    def serve(self) -> bool:
        """Whether it went well. Never raises what a handler raises: that is the answer."""
        plan, stop = self.plan, self.stop
        assert plan is not None
        try:
            line = self.line
            if line.withdrawn == self.number:
                raise Cancelled("The request was cancelled before it started.")
            line.current = self
            values = plan.session.run_bound(plan.call, stop, line.note if line.records else self.declare_all)
            if values is not None:
                line.answer(self, values)
            elif plan.inline:
                line.answer_inline(self.number, plan)
            else:
                line.answer_shortly(line.result, self.number)
            return True
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            self.line.answer_error(self, error)
            return False

    def declare(self, what: Declaration) -> None:
        self.line.tell_phase(what)

    def declare_all(self, phase: str) -> None:
        """Where there is no memory to note it in."""
        self.line.declare(self, phase)

    def refuse(self, error: BaseException) -> None:
        self.line.answer_error(self, error)

    def served(self) -> None:
        line = self.line
        self.plan = None  # or it would keep the plan's memory until the next call
        line.spare.append(self)
        if line.ended:
            line.close_if_unused()


__all__ = ["FastCall"]
