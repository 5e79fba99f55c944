"""The host's part of ONNX Runtime's allocators that sessions share, and of streams of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from qnnbridge_host.engine.objects import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.records import NamedTuple


class _Registered(NamedTuple):
    """An allocator belongs to ONNX Runtime's environment: it stays when this object goes."""

    provider: str | None


def _register(call: ObjectCall) -> _Registered:
    memory = argument(call, "memory_info", dict)
    info = ort.OrtMemoryInfo(
        str(memory["name"]),
        ort.OrtAllocatorType(int(memory["allocator_type"])),
        int(memory["device_id"]),
        ort.OrtMemType(int(memory["mem_type"])),
    )
    settings = call.arguments.get("arena")
    arena = None if settings is None else ort.OrtArenaCfg({str(k): int(v) for k, v in settings.items()})
    provider = call.arguments.get("provider")
    if provider is None:
        ort.create_and_register_allocator(info, arena)
    else:
        options = {str(k): str(v) for k, v in (call.arguments.get("options") or {}).items()}
        ort.create_and_register_allocator_v2(argument(call, "provider", str), info, options, arena)
    return _Registered(provider)


def _create_stream(call: ObjectCall) -> Any:
    wanted = argument(call, "device", dict)
    alike = [device for device in ort.get_ep_devices() if _facts(device).items() >= _named(wanted).items()]
    # The application knows a CPU by other numbers than its ONNX Runtime does.
    for device in sorted(alike, key=lambda device: _facts(device) != wanted):
        return device.create_sync_stream()
    raise InvalidArgument(f"The host has no device of {wanted.get('ep_name')} like this one.")


def _named(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: facts.get(name) for name in ("ep_name", "type")}


def _facts(device: Any) -> Mapping[str, Any]:
    hardware = device.device
    return {
        "ep_name": str(device.ep_name),
        "type": str(hardware.type).rpartition(".")[2],
        "vendor_id": int(hardware.vendor_id),
        "device_id": int(hardware.device_id),
    }


SHARED_ALLOCATOR = ObjectKind("SharedAllocator", _register, {})
SYNC_STREAM = ObjectKind(
    "OrtSyncStream",
    _create_stream,
    {"get_handle": lambda stream, _call: ObjectResult(int(stream.get_handle()))},
)
