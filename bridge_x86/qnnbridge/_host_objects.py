"""Objects in the host. An object is identified by a number and exists in one host process (generation).

A proxy class in the application refers to a `HostObject`. `release` releases the object at once; otherwise the
object is released with the next call after the proxy was garbage-collected. If the host ends, the object is lost
(`StateLost`), since the application's process cannot restore its contents. Any thread may call; the host executes
calls of one object one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qnnbridge._host import NO_FUNCTIONS
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired
from qnnbridge.errors import as_onnxruntime
from qnnbridge_os import fds
from qnnbridge_os.shield import when_gone
from qnnbridge_protocol.errors import BridgeError, Closed, ForkedClient, InvalidArgument, StateLost
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import Frame

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge._threads import CalledFunction


class ObjectReply(NamedTuple):
    """Result of an operation of an object.

    Attributes:
        result: the result as plain data.
        values: tensors and other ONNX values of the result.
        made: object that the operation created; ``None`` if it created none.
    """

    result: Any
    values: list[Any]
    made: HostObject | None


class HostObject:
    """An object of the host, created by `create_object` or by an operation of another object.

    Attributes:
        host: the host.
        generation: the generation of the host to which the object belongs.
        number: the object's number in the host.
        kind: type of the object, for error messages.
    """

    __slots__ = ("__weakref__", "_call_off", "_forks", "_released", "generation", "host", "kind", "number")

    def __init__(self, host: Host, generation: int, number: int, kind: str) -> None:
        self.host = host
        self.generation = generation
        self.number = number
        self.kind = kind
        self._released = False
        self._forks = fds.forks
        host.keep_object(generation, number)
        self._call_off = when_gone(self, functools.partial(host.release_object_later, generation, number))

    def call(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        values: Sequence[Any] = (),
        objects: Sequence[HostObject] = (),
        *,
        functions: Mapping[str, CalledFunction] = NO_FUNCTIONS,
        context: CallContext | None = None,
    ) -> ObjectReply:
        """Call an operation of the object, without a time limit.

        Args:
            operation: name of an operation of this type of object.
            arguments: arguments by name, of types that msgpack supports.
            values: tensors and other values.
            objects: other objects of the same host that the operation uses.
            functions: functions of the application, by name, that the host may call during the operation.
            context: identifies the model to blame if the host dies.

        Raises:
            Closed: this object, or one of `objects`, was released.
            StateLost: the host process that has the object has ended.
            InvalidArgument: one of `objects` belongs to another host.
        """
        from qnnbridge_protocol.values import decode_all

        header, buffers = object_message(arguments, values)
        header |= {"op": "object.call", "operation": operation, "objects": self.numbers_of(objects)}
        frame = self.forward(header, buffers, context, functions=functions)
        found = decode_all(frame.header.get("values") or (), frame.buffers)
        number = frame.header.get("object")
        made = HostObject(self.host, self.generation, number, operation) if type(number) is int else None
        return ObjectReply(frame.header.get("result"), found, made)

    def forward(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...] = (),
        context: CallContext | None = None,
        on_sent: Callable[[int], None] | None = None,
        on_news: Callable[[Frame], None] | None = None,
        functions: Mapping[str, CalledFunction] = NO_FUNCTIONS,
    ) -> Frame:
        """Send a request for this object and return the response without decoding its tensors.

        Args:
            header: fields of the request.
            buffers: buffers of the request.
            context: identifies the model to blame if the host dies.
            on_sent: called with the number of the request once the request is written.
            on_news: called with each PHASE and EVENT frame (progress report) of the request; must not block.
            functions: functions of the application, by name.
        """
        process = self.process()
        message = {**header, "object": self.number}, buffers
        context = context or CallContext("object.call", self.kind)
        try:
            return _exchange(self.host, process, message, context, on_sent, on_news, functions)
        except ChannelRetired:
            raise _lost(self.kind) from None

    def process(self) -> HostProcess:
        """Return the host process in which the object exists. Raise `Closed`, `StateLost` or `ForkedClient`."""
        if self._released:
            raise Closed(f"The {self.kind} was released.", fix="Create a new one.")
        if self._forks != fds.forks:
            raise ForkedClient(
                f"This process is a fork of the process that owns the {self.kind}.",
                cause="The forked process has a separate host; the object exists only in the parent's host.",
                fix="Create the object after the fork, or use the spawn start method of multiprocessing.",
            )
        supervisor = self.host.supervisor
        process = supervisor.running
        if process is None or process.generation != self.generation:
            if supervisor.closed:
                raise Closed(f"The host of the {self.kind} was closed.", fix="Create a new qnnbridge.Host.")
            raise _lost(self.kind)
        return process

    def numbers_of(self, objects: Sequence[HostObject]) -> list[int]:
        """Return the numbers of other objects that the operation uses together with this object. Raise the same
        errors as `call`."""
        return numbers_in(self.host, self.generation, objects)

    @property
    def released(self) -> bool:
        return self._released

    def release(self) -> None:
        """Release the object in the host at once, without waiting for the answer. Idempotent."""
        if self._released:
            return
        self._released = True
        self.host.forget_object(self.generation, self.number)
        process = self.host.supervisor.running
        if process is not None and process.generation == self.generation:
            process.channel.one_way.add({"op": "object.release", "objects": [self.number]})
        # After an interruption before this line, the object is released a second time, which is harmless.
        self._call_off()


def create_object(
    host: Host,
    kind: str,
    arguments: Mapping[str, Any] | None = None,
    values: Sequence[Any] = (),
    objects: Sequence[HostObject] = (),
    *,
    context: CallContext | None = None,
) -> tuple[HostObject, Any]:
    """Create an object of the given type. Return the object and the data that the host reports about it. The
    parameters are those of `HostObject.call`.
    """
    header, buffers = object_message(arguments, values)
    header |= {"op": "object.create", "kind": kind}
    made, frame = forward_creation(host, header, buffers, objects, context)
    return made, frame.header.get("result")


def forward_creation(
    host: Host,
    header: dict[str, Any],
    buffers: tuple[Any, ...],
    objects: Sequence[HostObject] = (),
    context: CallContext | None = None,
) -> tuple[HostObject, Frame]:
    """Create an object with the given header and buffers. Return the object and the undecoded response."""
    kind = str(header.get("kind"))
    context = context or CallContext("object.create", kind)
    while True:
        process = objects[0].process() if objects else host.supervisor.process(None)
        message = {**header, "objects": numbers_in(host, process.generation, objects)}, buffers
        sent: list[int] = []
        try:
            frame = _exchange(host, process, message, context, sent.append)
            break
        except ChannelRetired:
            continue  # try the next host; if `objects` were in the last host, `process` raises `StateLost`
        except BaseException:
            # The host may have created the object. Its number is the number of the request, so release it by that
            # number.
            for number in sent:
                host.release_object_later(process.generation, number)
            raise
    return HostObject(host, process.generation, field(frame.header, "object", "int"), kind), frame


def numbers_in(host: Host, generation: int, objects: Sequence[HostObject]) -> list[int]:
    """Return the numbers of objects in this host process. Raise `Closed`, `StateLost` or `InvalidArgument`."""
    for one in objects:
        if one.host is not host:
            raise InvalidArgument(
                f"The {one.kind} belongs to another host.",
                fix="Create all objects with the same host=, or omit host= for all of them.",
            )
        if one.released:
            raise Closed(f"The {one.kind} was released.", fix="Create a new one.")
        if one.generation != generation:
            raise _lost(one.kind)
    return [one.number for one in objects]


def object_message(
    arguments: Mapping[str, Any] | None, values: Sequence[Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the fields and the buffers of a request for an object."""
    header: dict[str, Any] = {"arguments": dict(arguments or {})}
    if not values:
        return header, ()
    from qnnbridge_protocol.values import Encoder

    encoder = Encoder()
    header["values"] = [encoder.add(value) for value in values]
    return header, tuple(encoder.buffers)


def _exchange(
    host: Host,
    process: HostProcess,
    message: tuple[dict[str, Any], tuple[Any, ...]],
    context: CallContext,
    on_sent: Callable[[int], None] | None,
    on_news: Callable[[Frame], None] | None = None,
    functions: Mapping[str, CalledFunction] = NO_FUNCTIONS,
) -> Frame:
    host.before_call(process)
    if process.retiring:
        raise ChannelRetired  # the host is about to end, and would lose a new object
    try:
        with host.isolate(context, None):
            frame = host.call_with_functions(process, message, None, context, on_sent, on_news, functions)
    except ChannelFailed as failure:
        raise host.supervisor.lost(process, failure, None) from None
    except BridgeError as error:
        raise as_onnxruntime(error) from None
    host.supervisor.good_reply(context, "running")
    return frame


def _lost(kind: str) -> StateLost:
    return StateLost(
        f"The {kind} is lost: its host process has been replaced.",
        cause="The host died, or was restarted, since the object was created.",
        fix="Create the object again.",
    )


__all__ = ["HostObject", "ObjectReply", "create_object", "forward_creation", "object_message"]
