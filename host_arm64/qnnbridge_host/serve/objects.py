"""Objects that stay in the host behind a number: what a kind of them is, and those that one client has.

A kind says in code how an object is made, which operations it has and how it is freed; `KINDS` is the closed
table of kinds. A name of the wire is only a key of these tables. An object belongs to one connection and
ends with it. Calls of one object are one at a time. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult
from qnnbridge_host.request.in_flight import Answer, Request
from qnnbridge_protocol.errors import BridgeError, Busy, Cancelled, Closed, UnknownOperation, desync

if TYPE_CHECKING:
    from qnnbridge_host.engine.sessions import Enter, Sessions


# Of one client. A program that makes more has forgotten to release them.
MAX_OBJECTS: Final = 10_000


class _Held:
    __slots__ = ("kind", "lock", "value")

    def __init__(self, kind: ObjectKind, value: Any) -> None:
        self.kind = kind
        self.value = value
        self.lock = threading.Lock()


class HostObjects:
    """The objects of one client."""

    def __init__(
        self,
        sessions: Sessions,
        kinds: Mapping[str, Callable[[], ObjectKind]],
        limit: int = MAX_OBJECTS,
    ) -> None:
        self._sessions = sessions
        self._kinds = kinds
        self._limit = limit
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lane_of(self, number: Any) -> str | None:
        held = self._held.get(number) if type(number) is int else None
        return None if held is None else held.kind.lane

    # --- operations ---

    def create(self, request: Request, enter: Enter) -> Answer:
        """Make an object. Its number is that of the request, so a client that does not wait can release it."""
        header = request.header
        load = self._kinds.get(str(header["kind"]))
        if load is None:
            raise _unknown(f"objects of the kind {header['kind']!r}")
        call = self._call(request, enter, header.get("arguments"), header.get("values"), header.get("objects"))
        self._check_limit()
        _ = self._sessions.engine  # waits until ONNX Runtime is imported, in the order that QNN needs
        kind = _natively(load)
        make = kind.create
        if make is None:
            raise _unknown(f"how to make a {kind.name}")
        made = _natively(lambda: make(call))
        return {"object": self._keep(request, kind, made), "result": kind.describe(made)}, ()

    def call(self, request: Request, enter: Enter) -> Answer:
        """Call an operation of an object."""
        from qnnbridge_protocol.values import Encoder

        header = request.header
        held = self._find(header["object"])
        operation = held.kind.operations.get(str(header["operation"]))
        if operation is None:
            raise _unknown(f"the operation {header['operation']!r} of {held.kind.name}")
        call = self._call(request, enter, header.get("arguments"), header.get("values"), header.get("objects"))
        with held.lock:
            if held.value is None:
                raise _released()
            found = _natively(lambda: operation(held.value, call)) or ObjectResult()
        encoder = Encoder()
        values = [encoder.add(value) for value in found.values]
        number, result = None, found.result
        if found.made is not None:
            kind, made = found.made
            self._check_limit()
            number = self._keep(request, kind, made)
            result = kind.describe(made) if result is None else result
        return {"object": number, "result": result, "values": values}, tuple(encoder.buffers)

    def release(self, request: Request, _enter: Enter) -> Answer:
        """Free objects; an unknown number is no error."""
        numbers = request.header["objects"]
        for number in numbers if isinstance(numbers, list) else ():
            self._free(number)
        return {}, ()

    def close_all(self) -> None:
        # Newest first: younger objects use older ones.
        for number in sorted(self._held, reverse=True):
            self._free(number)

    # --- inside ---

    def _call(self, request: Request, enter: Enter, arguments: Any, values: Any, objects: Any) -> ObjectCall:
        if not isinstance(arguments or {}, Mapping) or not isinstance(objects or [], list):
            raise desync(f"{request.op} without a proper description")
        decoded: tuple[Any, ...] = ()
        if values or request.buffers:
            from qnnbridge_protocol.values import decode_all

            decoded = tuple(decode_all(values or (), request.buffers))
        others = tuple(self._find(number).value for number in objects or ())
        return ObjectCall(request, enter, self._sessions, arguments or {}, decoded, others)

    def _find(self, number: Any) -> _Held:
        held = self._held.get(number) if type(number) is int else None
        if held is None:
            raise _released()
        return held

    def _keep(self, request: Request, kind: ObjectKind, value: Any) -> int:
        self._held[request.id] = _Held(kind, value)
        if request.withdrawn:
            # Its release may have arrived already.
            self._free(request.id)
            raise Cancelled("The creation of the object was cancelled.")
        return request.id

    def _free(self, number: Any) -> None:
        held = self._held.pop(number, None) if type(number) is int else None
        if held is None:
            return
        with held.lock:
            value, held.value = held.value, None
            held.kind.close(value)

    def _check_limit(self) -> None:
        if len(self._held) >= self._limit:
            raise Busy(
                f"The host keeps {self._limit} objects for this application and takes no more.",
                fix="Release objects that are not needed any more: drop the last reference to them.",
                details={"limit": "objects", "value": self._limit},
            )


def _natively(work: Callable[[], Any]) -> Any:
    """Raises errors of ONNX Runtime and Python as the project's."""
    try:
        return work()
    except BridgeError:
        raise
    except Exception as error:
        from qnnbridge_host.engine.ort_errors import translate

        raise translate(error) from error


def _released() -> Closed:
    return Closed("The object was released.", fix="Make a new one.")


def _unknown(what: str) -> UnknownOperation:
    return UnknownOperation(f"This host does not know {what}.", fix="Upgrade qnnbridge in the host's Python.")


# --- the closed table of kinds ----------------------------------------------------------------------------
#
# A kind is registered here, with the function that loads its module when the first object is made.


def _of_onnxruntime(name: str) -> Callable[[], ObjectKind]:
    def load() -> ObjectKind:
        from qnnbridge_host.engine.model_compiler import MODEL_COMPILER
        from qnnbridge_host.engine.ort_objects import KINDS as OTHERS

        return next(kind for kind in (MODEL_COMPILER, *OTHERS) if kind.name == name)

    return load


def _genai_model() -> ObjectKind:
    from qnnbridge_host.genai.object_kinds import MODEL

    return MODEL


_OF_ONNXRUNTIME: Final = (
    "AdapterFormat",
    "BuildTools",
    "ModelCompiler",
    "ModelPackage",
    "ModelPackageContext",
    "ModelPackageOptions",
    "OrtSyncStream",
    "SharedAllocator",
)
KINDS: Final[Mapping[str, Callable[[], ObjectKind]]] = {
    **{name: _of_onnxruntime(name) for name in _OF_ONNXRUNTIME},
    "GenaiModel": _genai_model,
}
