"""Whether a compiled model and a device go together, and the hardware of the host: functions of the bindings.

A compiled model may say in its metadata what it was compiled for (``ep_compatibility_info.<provider>``). That is
read here, from the file or the bytes, without a session.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from qnnbridge._connect import default_host
from qnnbridge._option_fields import OrtCompiledModelCompatibility, OrtDeviceEpIncompatibilityReason
from qnnbridge._providers import CPU, QNN
from qnnbridge.ort._environment import OrtHardwareDevice, cpu_device, get_available_providers, qnn_device
from qnnbridge_protocol.errors import InvalidArgument, RemoteRuntimeError, RemoteTypeError

_KEY = "ep_compatibility_info."
# Of onnx.proto: ModelProto.metadata_props, and key and value of its entries.
_METADATA_PROPS, _ENTRY_KEY, _ENTRY_VALUE = 14, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The processor and the NPUs of the host's machine."""
    info = default_host().info
    return [device.device for device in (cpu_device(""), *map(qnn_device, info.devices))]


def get_hardware_device_ep_incompatibility_details(ep_name: str, device: OrtHardwareDevice, /) -> dict[str, Any]:
    """Why a provider cannot use a device: nothing is known against any of those of the host."""
    if ep_name not in get_available_providers():
        raise InvalidArgument(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : No valid factory found for execution provider "
            f"'{ep_name}'."
        )
    return {"reasons_bitmask": int(OrtDeviceEpIncompatibilityReason.NONE), "notes": None, "error_code": 0}


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[Any], compatibility_info: str, /
) -> OrtCompiledModelCompatibility:
    """For QNN and the CPU "not applicable", as from ONNX Runtime: neither judges such a text."""
    names = {getattr(device, "ep_name", None) for device in ep_devices}
    if not names or not isinstance(compatibility_info, str) or not names <= {CPU, QNN}:
        raise RemoteRuntimeError("Invalid argument provided to GetModelCompatibilityForEpDevices.")
    return OrtCompiledModelCompatibility(0)


def get_compatibility_info_from_model(model_path: str | os.PathLike[str], ep_type: str, /) -> str | None:
    """What the file says of the provider that it was compiled for; ``None`` if it does not."""
    path = os.fspath(model_path)
    try:
        with open(path, "rb") as file:
            return dict(metadata_props(file)).get(_KEY + ep_type)
    except FileNotFoundError:
        raise RemoteRuntimeError(f"Load model {path} failed. File doesn't exist") from None


def get_compatibility_info_from_model_bytes(model_data: Any, ep_type: str, /) -> str | None:
    try:
        data = bytes(memoryview(model_data))
    except TypeError:
        raise RemoteTypeError(
            f"model_data must have the buffer protocol, not be a {type(model_data).__name__}."
        ) from None
    if not data:
        raise RemoteRuntimeError("Invalid argument provided to GetCompatibilityInfoFromModelBytes.")
    return dict(metadata_props(io.BytesIO(data))).get(_KEY + ep_type)


def metadata_props(model: BinaryIO) -> Iterator[tuple[str, str]]:
    """Key and value of each entry of an ONNX model's metadata. Raises `RemoteRuntimeError` for other files."""
    try:
        for number, value in _fields(model):
            if number == _METADATA_PROPS and isinstance(value, bytes):
                entry = dict(_fields(io.BytesIO(value), all_of_it=True))
                key, text = entry.get(_ENTRY_KEY, b""), entry.get(_ENTRY_VALUE, b"")
                if isinstance(key, bytes) and isinstance(text, bytes):
                    yield key.decode(), text.decode()
    except (ValueError, EOFError, UnicodeDecodeError):
        raise RemoteRuntimeError("Failed to parse the model: it is not in ONNX's format.") from None


def _fields(stream: BinaryIO, all_of_it: bool = False) -> Iterator[tuple[int, bytes | int]]:
    """Number and content of each field of a message; contents that nothing asks for are skipped."""
    while (tag := _varint(stream, may_end=True)) is not None:
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            yield number, _varint(stream) or 0
        elif wire in _WIDTHS:
            stream.seek(_WIDTHS[wire], os.SEEK_CUR)
        elif wire == _BYTES:
            size = _varint(stream) or 0
            if all_of_it or number == _METADATA_PROPS:
                data = stream.read(size)
                if len(data) != size:
                    raise EOFError
                yield number, data
            else:
                stream.seek(size, os.SEEK_CUR)
        else:
            raise ValueError(f"wire type {wire}")


def _varint(stream: BinaryIO, may_end: bool = False) -> int | None:
    value = 0
    for shift in range(0, 64, 7):
        byte = stream.read(1)
        if not byte:
            if may_end and shift == 0:
                return None
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("a number of more than 64 bits")
