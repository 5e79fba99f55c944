"""The objects of one client that live in the NPU host, by the client's numbers. Any thread.

They are released with the client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge._host_objects import HostObject, forward_creation
from qnnbridge._threads import TerminateRelay
from qnnbridge_protocol.errors import BridgeError, Busy, Cancelled, Closed
from qnnbridge_protocol.frames import Frame, Kind

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge_daemon.accounts import Account
    from qnnbridge_daemon.fair_share import Cancellation, FairShare, Queue
    from qnnbridge_daemon.shared_sessions import SharedSessions
    from qnnbridge_host.request.in_flight import Answer, Request


# Of one client: the NPU host's own limit is for all of them together.
MAX_OBJECTS: Final = 1000


class ObjectServices(Protocol):
    """The daemon, as the objects of a client see it."""

    host: Host
    fair_share: FairShare
    sessions: SharedSessions


class ObjectOwner(Protocol):
    """The client: its resources and its place in the queue."""

    account: Account
    queue: Queue


class ClientObjects:
    """The objects of one client in the NPU host."""

    def __init__(self, broker: ObjectServices, client: ObjectOwner, limit: int = MAX_OBJECTS) -> None:
        self._broker = broker
        self._client = client
        self._limit = limit
        self._lock = threading.Lock()
        # With the memory that each takes.
        self._held: dict[int, tuple[HostObject, int]] = {}
        self._closed = False
        self.operations: dict[str, Callable[[Request, Cancellation], Answer]] = {
            "object.create": self._create,
            "object.call": self._call,
            "object.release": self._release,
        }

    def __len__(self) -> int:
        return len(self._held)

    def _create(self, request: Request, cancellation: Cancellation) -> Answer:
        header = request.header
        self._check_limit()
        others = self._others(header)
        while True:
            try:
                made, frame = forward_creation(self._broker.host, _forwarded(header), request.buffers, others)
                break
            except BridgeError as error:
                cancellation.check()
                if not (error.details.get("npu_memory") and self._broker.sessions.make_room(error, None)):
                    raise
        self._keep(request.id, made, 0, cancellation)
        return {**frame.header, "object": request.id}, frame.buffers

    def _call(self, request: Request, cancellation: Cancellation) -> Answer:
        header = request.header
        found = self._find(header.get("object"))
        forwarded = {**_forwarded(header), "objects": found.numbers_of(self._others(header))}
        self._check_limit()
        with (
            self._broker.fair_share.turn(self._client.queue, cancellation),
            TerminateRelay(cancellation, found.process().channel, False) as on_sent,
        ):
            frame = found.forward(forwarded, request.buffers, on_sent=on_sent, on_news=_relay(request))
        number = frame.header.get("object")
        if type(number) is not int:
            return frame.header, frame.buffers
        made = HostObject(self._broker.host, found.generation, number, str(header.get("operation")))
        self._keep(request.id, made, _memory_of(frame.header.get("result")), cancellation)
        return {**frame.header, "object": request.id}, frame.buffers

    def _release(self, request: Request, _cancellation: Cancellation) -> Answer:
        numbers = request.header.get("objects")
        for number in numbers if isinstance(numbers, list) else ():
            with self._lock:
                held = self._held.pop(number, None) if type(number) is int else None
            if held is not None:
                self._drop(*held)
        return {}, ()

    def close(self) -> None:
        """The client is gone."""
        with self._lock:
            self._closed = True
            held = sorted(self._held.items(), reverse=True)
            self._held.clear()
        for _, one in held:
            self._drop(*one)

    def _drop(self, one: HostObject, memory: int) -> None:
        one.release()
        self._client.account.drop_kv(memory)

    def _keep(self, number: int, made: HostObject, memory: int, cancellation: Cancellation) -> None:
        """memory: which it will take. Raises `Busy`, `Cancelled`."""
        self._forget_memory_before(made.generation)
        try:
            self._client.account.hold_kv(memory)
        except Busy:
            made.release()
            raise
        with self._lock:
            gone = self._closed or cancellation.terminate
            if not gone:
                self._held[number] = (made, memory)
        if gone:
            self._drop(made, memory)
            raise Cancelled("The creation of the object was cancelled.")

    def _forget_memory_before(self, generation: int) -> None:
        """Older hosts are gone, with what they held: a client makes the same again before it releases the old."""
        with self._lock:
            lost = {n: (one, size) for n, (one, size) in self._held.items() if size and one.generation < generation}
            self._held.update((number, (one, 0)) for number, (one, _) in lost.items())
        self._client.account.drop_kv(sum(size for _, size in lost.values()))

    def _find(self, number: Any) -> HostObject:
        with self._lock:
            held = self._held.get(number) if type(number) is int else None
        if held is None:
            raise Closed("The object was released.", fix="Make a new one.")
        return held[0]

    def _others(self, header: dict[str, Any]) -> list[HostObject]:
        numbers = header.get("objects")
        return [self._find(number) for number in numbers] if isinstance(numbers, list) else []

    def _check_limit(self) -> None:
        if len(self._held) >= self._limit:
            raise Busy(
                f"The daemon keeps {self._limit} objects for this application and takes no more.",
                cause="The daemon is shared with other applications, so each has limits.",
                fix="Release objects that are not needed any more: drop the last reference to them.",
                details={"limit": "objects", "value": self._limit},
            )


def _memory_of(result: Any) -> int:
    """Of the KV cache, if it is a generator."""
    size_bytes = result.get("kv_bytes") if isinstance(result, dict) else None
    return size_bytes if type(size_bytes) is int and size_bytes > 0 else 0


def _forwarded(header: dict[str, Any]) -> dict[str, Any]:
    """Without the client's own numbers."""
    return {key: value for key, value in header.items() if key not in ("object", "objects")}


__all__ = ["ClientObjects"]


def _relay(request: Request) -> Callable[[Frame], None]:
    """Events about the request in the NPU host become events about the client's."""

    def take(frame: Frame) -> None:
        if frame.kind is Kind.EVENT:
            request.emit(dict(frame.header))

    return take
