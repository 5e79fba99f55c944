"""Calls on objects of the host that are made again when a host dies.

An application's object has a recipe, and an object of the host only in the generation in which it was used last. A
call goes through these states::

    QUARANTINE ASKED --> HOST RUNNING --> OBJECT MADE THERE --> IN THE HOST --> answered
          ^                                     |                   |
          |                                     v                   v
          +-------------------------------- DEATH EXPLAINED (not by this call, or once by it)

A death that the call may have caused is followed by one more attempt. The second one puts the prompt (or the model,
while it is loaded) into quarantine, and is raised. Any thread.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qnnbridge._host_objects import HostObject, object_message
from qnnbridge._session import replay
from qnnbridge._session.replay import Death
from qnnbridge._threads import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext, Deadline
from qnnbridge_os.native import RLock
from qnnbridge_os.shield import TooLate, in_turn
from qnnbridge_protocol.errors import BridgeError, Closed, HostCrashed, StateLost
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess, Patience

T = TypeVar("T")

# Header, buffers and context of the request that makes an object in a process.
MakeRequest = Callable[["HostProcess", "float | None"], "tuple[dict[str, Any], tuple[Any, ...], CallContext]"]

# How often a daemon's host died under a connection that stayed.
_losses: weakref.WeakKeyDictionary[Host, int] = weakref.WeakKeyDictionary()

# Deaths that one call may have caused before it is given up.
OWN_DEATHS: Final = 1


def survive(
    host: Host,
    attempt: Callable[[HostProcess], T],
    context: CallContext,
    deadline: float | None = None,
    timeout_s: float | None = None,
) -> T:
    """`replay.survive` for a call on objects. context: what a death in the call counts against."""

    def alone(process: HostProcess, deadline: float | None) -> T:
        # Isolated by attempt: a death makes suspects, which the next attempt has to run without company.
        with host.isolate(context, deadline):
            return attempt(process)

    result = replay.survive(host, _ObjectPolicy(host, context), alone, deadline, timeout_s)
    host.supervisor.good_reply(context, "running")
    return result


class _ObjectPolicy(replay.Policy):
    """Of a call on objects."""

    _own = 0

    def judge(self, _process: HostProcess, error: BridgeError) -> Death | bool:
        if not self.host.is_daemon or not isinstance(error, (StateLost, HostCrashed)):
            return False
        # Of the daemon's host, already explained. The connection stays, its objects are gone.
        _losses[self.host] = _losses.get(self.host, 0) + 1
        return Death(error, isinstance(error, StateLost) or error.details.get("from_outside") is True)

    def repeats(self, death: Death, patience: Patience) -> bool:
        if isinstance(death.error, Closed):
            return False
        # Only deaths that the call may have caused count against it.
        self._own += not death.innocent
        if self._own > OWN_DEATHS or not patience.is_left():
            self.check_quarantine()
            return False
        self.host.supervisor.counters.retried_calls += 1
        return True


def call_object(
    process: HostProcess,
    number: int,
    operation: str,
    arguments: dict[str, Any],
    values: Sequence[Any],
    deadline: float | None,
    context: CallContext,
    stopping: Terminable | None = None,
) -> Frame:
    """Call an operation of an object, whose number is known. Raises as `Channel.call` does.

    stopping: may end it.
    """
    header, buffers = operation_request(number, operation, arguments, values)
    with TerminateRelay(stopping, process.channel) as on_sent:
        return process.channel.call(header, buffers, deadline, context, on_sent)


def operation_request(
    number: int, operation: str, arguments: dict[str, Any], values: Sequence[Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The request that calls an operation of an object: header and buffers."""
    header, buffers = object_message(arguments, values)
    return {**header, "op": "object.call", "object": number, "operation": operation, "objects": []}, buffers


class Remade:
    """An object of the host that is made again in each generation. Any thread.

    kind: its name. make: gives header, buffers and context of the request that makes it in this process. It must
    not refer to what owns this: the owner would stay until the garbage collector runs.
    """

    def __init__(self, host: Host, kind: str, make: MakeRequest | None = None) -> None:
        self.host = host
        self._kind = kind
        self._make = make
        self._lock = RLock()  # for `in_turn`
        self._object: HostObject | None = None
        self._made_after = 0
        self.times_made = 0

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Its number there; makes it if need be."""
        # Read once and without the lock: another thread may replace it, and the common case must not wait for a
        # model that is being loaded.
        found = self._object
        if found is not None and self._is_in(found, process):
            return found.number

        def make() -> int:
            if self._object is None or not self._is_in(self._object, process):
                # Before the new one is made: if that fails, the object of the dead host must not be taken for
                # alive.
                self._object = None
                self._object = self._create(process, deadline)
            return self._object.number

        try:
            return in_turn(self._lock, -1 if deadline is None else max(0.0, deadline - time.monotonic()), make)
        except TooLate:
            raise Deadline("not-started") from None

    def is_in(self, process: HostProcess) -> bool:
        """Whether it lives there already."""
        return self._object is not None and self._is_in(self._object, process)

    def forget(self) -> None:
        """It is lost, or cannot be used: the next call makes another."""
        # Taken away before it is released: no call in another thread can still be given its number.
        found, self._object = self._object, None
        if found is not None:
            found.release()

    def _create(self, process: HostProcess, deadline: float | None) -> HostObject:
        header, buffers, context = self._request(process, deadline)
        sent: list[int] = []
        # Read before the request: a host of the daemon that dies during it makes this object count as lost.
        losses = _losses.get(self.host, 0)
        try:
            frame = process.channel.call(header, buffers, deadline, context, sent.append)
        except BaseException:
            # It may be made all the same; its number is that of the request.
            for number in sent:
                self.host.release_object_later(process.generation, number)
            raise
        self._made(frame)
        self._made_after = losses
        self.times_made += 1
        return HostObject(self.host, process.generation, field(frame.header, "object", "int"), self._kind)

    def _request(self, process: HostProcess, deadline: float | None) -> Any:
        assert self._make is not None
        return self._make(process, deadline)

    def _made(self, frame: Frame) -> None:
        """The answer to the request has come."""

    def _is_in(self, found: HostObject, process: HostProcess) -> bool:
        there = found.generation == process.generation and not found.released
        # Through a daemon the generation stays the same when its host dies, so deaths are counted apart.
        return there and self._made_after == _losses.get(self.host, 0)
