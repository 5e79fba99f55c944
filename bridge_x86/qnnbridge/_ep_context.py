"""Objects passed to and from functions of the application while a model is compiled or loaded.

`OrtEpContextData` contains a context binary, `OrtEpContextDataBuffer` receives one, and
`OrtExternalInitializerInfo` describes the location of an initializer. `OrtEpContextData` and
`OrtEpContextDataBuffer` are valid until the application's function returns, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._bindings import BINDINGS, refused
from qnnbridge._threads import CalledFunction
from qnnbridge._values.ort_value import OrtValue
from qnnbridge_protocol.errors import Fail, RemoteIndexError, RemoteRuntimeError, RemoteTypeError

_DOES_NOT_FIT: Final = "Python buffer does not fit in the allocated EPContext data output range."


def _number(value: Any) -> int | None:
    if isinstance(value, (float, str, bytes)):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


class OrtExternalInitializerInfo:
    """Location of an initializer: a file relative to the model, an offset and a size in bytes."""

    __slots__ = ("_place",)

    def __init__(self, filepath: str, file_offset: int, byte_size: int, /) -> None:
        offset, size = _number(file_offset), _number(byte_size)
        wrong = offset is None or size is None or not -(2**63) <= offset < 2**63 or not 0 <= size < 2**64
        if not isinstance(filepath, str) or wrong:
            numbers = "typing.SupportsInt | typing.SupportsIndex"
            raise RemoteTypeError(
                "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
                f"    1. {BINDINGS}.OrtExternalInitializerInfo(arg0: str, arg1: {numbers}, arg2: {numbers})\n\n"
                f"Invoked with: {filepath!r}, {file_offset!r}, {byte_size!r}"
            )
        self._place: tuple[str, int, int] = (filepath, offset or 0, size or 0)

    @property
    def filepath(self) -> str:
        return self._place[0]

    @property
    def file_offset(self) -> int:
        return self._place[1]

    @property
    def byte_size(self) -> int:
        return self._place[2]

    def to_wire(self) -> dict[str, Any]:
        return {"filepath": self.filepath, "file_offset": self.file_offset, "byte_size": self.byte_size}


class OrtEpContextData:
    """A context binary that is passed to a function of the application, which must store the binary."""

    __slots__ = ("_data",)

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError(f"{BINDINGS}.OrtEpContextData: No constructor defined!")

    @classmethod
    def of(cls, data: memoryview) -> OrtEpContextData:
        made = cls.__new__(cls)
        made._data = data
        return made

    _data: memoryview | None

    @property
    def size(self) -> int:
        return len(self._valid())

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return a part of the data; default: everything from `offset` on. Raise `IndexError` if the range is
        outside the data."""
        data = self._valid()
        start, count = _number(offset), None if length is None else _number(length)
        if start is None or start < 0 or (length is not None and (count is None or count < 0)):
            raise refused("OrtEpContextData.read", self, offset, length)
        if start > len(data):
            raise RemoteIndexError("EPContext data offset exceeds the payload size.")
        end = len(data) if count is None else start + count
        if end > len(data):
            raise RemoteIndexError("EPContext data range exceeds the payload size.")
        return bytes(data[start:end])

    def expire(self) -> None:
        self._data = None

    def _valid(self) -> memoryview:
        if self._data is None:
            raise RemoteRuntimeError("EPContext data is valid only during the write callback.")
        return self._data


class OrtEpContextDataBuffer:
    """Buffer for a context binary. The application's function calls `allocate` once, then `write`."""

    __slots__ = ("_data", "_expired", "_max_size")

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError(f"{BINDINGS}.OrtEpContextDataBuffer: No constructor defined!")

    @classmethod
    def of(cls, max_size: int) -> OrtEpContextDataBuffer:
        made = cls.__new__(cls)
        made._data, made._expired, made._max_size = None, False, max_size
        return made

    _data: bytearray | None
    _expired: bool
    _max_size: int

    @property
    def is_allocated(self) -> bool:
        self._check()
        return self._data is not None

    @property
    def max_size(self) -> int:
        self._check()
        return self._max_size

    @property
    def size(self) -> int:
        self._check()
        return 0 if self._data is None else len(self._data)

    def allocate(self, size: int) -> None:
        self._check()
        count = _number(size)
        if count is None or count < 0:
            raise refused("OrtEpContextDataBuffer.allocate", self, size)
        if self._data is not None:
            raise RemoteRuntimeError("EPContext data output has already been allocated.")
        if count > self._max_size:
            raise RemoteRuntimeError("EPContext data exceeds the configured maximum size.")
        self._data = bytearray(count)

    def write(self, data: Any, offset: int = 0) -> None:
        """Copy bytes into the allocated memory."""
        self._check()
        if self._data is None:
            raise RemoteRuntimeError(_DOES_NOT_FIT)
        start = _number(offset)
        try:
            given = memoryview(data).cast("B")
        except TypeError:
            raise RemoteTypeError("data must be a contiguous bytes-like object") from None
        if start is None or start < 0 or start + len(given) > len(self._data):
            raise RemoteIndexError(_DOES_NOT_FIT)
        self._data[start : start + len(given)] = given

    def finish(self) -> bytearray:
        """Return the contents, and make the buffer unusable."""
        self._check()
        self._expired, data = True, self._data
        self._data = None
        if data is None:
            raise Fail(
                "[ONNXRuntimeError] : 1 : FAIL : The EPContext data read callback must allocate its output buffer."
            )
        return data

    def expire(self) -> None:
        self._expired, self._data = True, None

    def _check(self) -> None:
        if self._expired:
            raise RemoteRuntimeError("EPContext data output is valid only during the read callback.")


# --- adapters with which the host calls functions of the application --------------------------------------


def initializer_location(
    function: Callable[..., Any],
) -> CalledFunction:
    """Adapt the function ``get_initializer_location_func`` of a `ModelCompiler` for calls by the host."""

    def call(arguments: Mapping[str, Any], values: list[Any]) -> tuple[Any, Sequence[Any]]:
        described = arguments.get("external")
        external = None
        if described is not None:
            external = OrtExternalInitializerInfo(
                described["filepath"], described["file_offset"], described["byte_size"]
            )
        found = function(arguments["name"], OrtValue(values[0]), external)
        if found is None:
            return None, ()
        if not isinstance(found, OrtExternalInitializerInfo):
            raise Fail(
                "[ONNXRuntimeError] : 1 : FAIL : Unable to cast Python instance of type "
                f"{type(found)} to C++ type '?' (#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode "
                "for details)",
                cause="get_initializer_location_func did not return an OrtExternalInitializerInfo.",
                fix="Return an OrtExternalInitializerInfo, or None to keep the initializer in the model.",
            )
        return found.to_wire(), ()

    return call


def context_write(
    function: Callable[..., Any],
) -> CalledFunction:
    """Adapt the function of ``ModelCompiler.set_ep_context_data_write_func`` for calls by the host."""

    def call(arguments: Mapping[str, Any], values: list[Any]) -> tuple[Any, Sequence[Any]]:
        data = OrtEpContextData.of(np.ascontiguousarray(values[0]).data)
        try:
            function(arguments["name"], data)
        finally:
            data.expire()
        return None, ()

    return call


def context_read(function: Callable[..., Any], max_size: int) -> CalledFunction:
    """Adapt the function of ``SessionOptions.set_ep_context_data_read_func`` for calls by the host."""

    def call(arguments: Mapping[str, Any], _values: list[Any]) -> tuple[Any, Sequence[Any]]:
        buffer = OrtEpContextDataBuffer.of(max_size)
        try:
            function(arguments["name"], buffer)
            return None, (np.frombuffer(buffer.finish(), np.uint8),)
        finally:
            buffer.expire()

    return call


def write(
    function: Callable[[bytes], Any],
) -> CalledFunction:
    """Adapt the function of ``ModelCompiler.compile_to_stream`` for calls by the host."""

    def call(_arguments: Mapping[str, Any], values: list[Any]) -> tuple[Any, Sequence[Any]]:
        function(np.ascontiguousarray(values[0]).tobytes())
        return None, ()

    return call
