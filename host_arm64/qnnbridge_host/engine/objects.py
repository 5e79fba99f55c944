"""What a kind of objects is: how one is made, its operations, how it is freed. `serve/objects.py` keeps them.

A kind knows ONNX Runtime, and nothing of the server. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.errors import RemoteTypeError
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import SessionSpec


class ClientSessions(Protocol):
    """What a kind needs of the client's sessions."""

    @property
    def engine(self) -> Any:
        """Waits until ONNX Runtime is imported."""

    def create(
        self,
        request: Request,
        enter: Callable[[str], None],
        spec: SessionSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
    ) -> Any:
        """As `qnnbridge_host.engine.sessions.Sessions.create`."""

    def on_npu_in_words(self) -> str:
        """What occupies the NPU in this host."""


class ObjectCall(NamedTuple):
    """A creation or an operation, as its kind sees it.

    Attributes:
        request: a kind may set its `stopper` (for cancelling) and its `blame` (for a death in a phase).
        enter: declares a native step.
        sessions: the client's sessions; their `engine` waits until ONNX Runtime is imported.
        arguments: by name, of msgpack types.
        values: tensors and other values, in the order sent.
        objects: the objects that the client named, in the order sent.
    """

    request: Request
    enter: Callable[[str], None]
    sessions: ClientSessions
    arguments: Mapping[str, Any]
    values: tuple[Any, ...] = ()
    objects: tuple[Any, ...] = ()


class ObjectResult(NamedTuple):
    """What an operation gives.

    result: of msgpack types. values: tensors and other values. made: a further object, which the client gets.
    """

    result: Any = None
    values: Sequence[Any] = ()
    made: tuple[ObjectKind, Any] | None = None


class ObjectKind(NamedTuple):
    """One kind of objects.

    name: on the wire. create: makes one; ``None`` for a kind that only operations of others make. describe: facts
    that travel with a new object, of msgpack types. close: frees it, in any thread. lane: in which its operations
    wait for their turn.
    """

    name: str
    create: Callable[[ObjectCall], Any] | None
    operations: Mapping[str, Callable[[Any, ObjectCall], ObjectResult | None]]
    describe: Callable[[Any], Any] = lambda _value: None
    close: Callable[[Any], None] = lambda _value: None
    lane: str | None = None


def argument(call: ObjectCall, name: str, *types: type) -> Any:
    """An argument of one of these types. Raises `RemoteTypeError`; a boolean is no number."""
    value = call.arguments.get(name)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise RemoteTypeError(f"The argument {name!r} is {type(value).__name__}.")
    return value
