"""Descriptions of memory, the allocators that sessions of the host share, and streams of its devices.

Values of the application are in this process's memory; an allocator changes where the host's sessions have theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge._connect import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._option_fields import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    incompatible,
)
from qnnbridge._ort_value import OrtValue
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_protocol.errors import OptionError, RemoteRuntimeError, RemoteTypeError

# What ONNX Runtime makes of a name: the name that it reports, the kind of memory, the vendor.
# Vendors are those of `OrtDeviceVendorId`; 0 is none.
_MEMORY: Final[Mapping[str, tuple[str, OrtDeviceMemoryType, int]]] = {
    "Cpu": ("Cpu", OrtDeviceMemoryType.DEFAULT, 0),
    "Cuda": ("Cuda", OrtDeviceMemoryType.DEFAULT, 0x10DE),
    "CudaPinned": ("CudaPinned", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x10DE),
    "DML": ("DML", OrtDeviceMemoryType.DEFAULT, 0x1414),
    "Hip": ("Hip", OrtDeviceMemoryType.DEFAULT, 0x1002),
    "HipPinned": ("HipPinned", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x1002),
    "OpenVINO_GPU": ("OpenVINO_GPU", OrtDeviceMemoryType.DEFAULT, 0x8086),
    "OpenVINO_RT_NPU": ("OpenVINO_RT_NPU", OrtDeviceMemoryType.DEFAULT, 0x8086),
    "QnnHtpShared": ("QnnHtpShared", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x5143),
    "WebGPU_Buf": ("WebGPU_Buf", OrtDeviceMemoryType.DEFAULT, 0),
    "WebGPU_Buffer": ("WebGPU_Buf", OrtDeviceMemoryType.DEFAULT, 0),
    "WebNN_Ten": ("WebNN_Ten", OrtDeviceMemoryType.DEFAULT, 0),
    "WebNN_Tensor": ("WebNN_Ten", OrtDeviceMemoryType.DEFAULT, 0),
}


class OrtMemoryInfo:
    """Which memory an allocator hands out."""

    __slots__ = ("allocator_type", "device_id", "device_mem_type", "device_vendor_id", "mem_type", "name")

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType, /
    ) -> None:
        known = _MEMORY.get(name) if isinstance(name, str) else None
        if known is None:
            raise RemoteRuntimeError("Specified device is not supported. Try CreateMemoryInfo_V2.")
        self.name, self.device_mem_type, self.device_vendor_id = known
        self.allocator_type = allocator_type
        # ONNX Runtime has one processor, whatever number is asked for.
        self.device_id = 0 if name == "Cpu" else int(device_id)
        self.mem_type = mem_type

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
        /,
    ) -> OrtMemoryInfo:
        info = cls.__new__(cls)
        info.name, info.allocator_type, info.device_id = name, allocator_type, int(device_id)
        info.device_mem_type, info.device_vendor_id = device_mem_type, int(vendor_id)
        shared = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        info.mem_type = OrtMemType.CPU_OUTPUT if shared else OrtMemType.DEFAULT
        return info


def cpu_memory() -> OrtMemoryInfo:
    """Where inputs and outputs of every session live: in this process."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Settings of an arena: four numbers, or a map."""

    _FIELDS = __slots__ = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *settings: Any) -> None:
        given: Mapping[str, Any]
        if len(settings) == 1 and isinstance(settings[0], Mapping):
            given = settings[0]
            unknown = sorted(set(given) - set(self._FIELDS))
            if unknown:
                raise RemoteRuntimeError(f"Invalid OrtArenaCfg option: {unknown[0]}")
        # The form with four numbers is the older one; it has no place for the two growth fields.
        elif len(settings) == 4:
            given = dict(zip(self._FIELDS, settings, strict=False))
        else:
            raise RemoteTypeError("OrtArenaCfg takes four numbers, or one dict.")
        for field in self._FIELDS:
            setattr(self, field, int(given.get(field, 0 if field == "max_mem" else -1)))


@as_ort_raises
def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None, /) -> None:
    """Give the host an allocator for all sessions that have the entry ``session.use_env_allocators``."""
    if not isinstance(mem_info, OrtMemoryInfo) or not isinstance(arena_cfg, (OrtArenaCfg, type(None))):
        signature = "(arg0: OrtMemoryInfo, arg1: OrtArenaCfg) -> None"
        raise incompatible("create_and_register_allocator", signature, mem_info, arena_cfg)
    _register("create_and_register_allocator", _arguments(mem_info, arena_cfg))


@as_ort_raises
def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None, /
) -> None:
    """`create_and_register_allocator` of one execution provider, with its options."""
    given = isinstance(provider_type, str) and isinstance(mem_info, OrtMemoryInfo) and isinstance(options, Mapping)
    if not given or not isinstance(arena_cfg, (OrtArenaCfg, type(None))):
        signature = (
            "(arg0: str, arg1: OrtMemoryInfo, arg2: collections.abc.Mapping[str, str], arg3: OrtArenaCfg) -> None"
        )
        raise incompatible(
            "create_and_register_allocator_v2", signature, provider_type, mem_info, options, arena_cfg
        )
    more = {"provider": provider_type, "options": {str(key): str(text) for key, text in options.items()}}
    _register("create_and_register_allocator_v2", {**_arguments(mem_info, arena_cfg), **more})


def _arguments(info: OrtMemoryInfo, arena: OrtArenaCfg | None) -> dict[str, Any]:
    settings = None if arena is None else {name: getattr(arena, name) for name in OrtArenaCfg.__slots__}
    if settings is not None:
        # -1 leaves a setting to ONNX Runtime; of max_mem 0 does.
        settings = {name: value for name, value in settings.items() if name == "max_mem" or value != -1}
    memory = {
        "name": info.name,
        "allocator_type": int(info.allocator_type),
        "device_id": info.device_id,
        "mem_type": int(info.mem_type),
    }
    return {"memory_info": memory, "arena": settings}


def _register(name: str, arguments: Mapping[str, Any]) -> None:
    host = default_host()
    if host.is_daemon:
        raise OptionError(
            f"{name} cannot be used with a daemon.",
            cause="Its sessions are shared with other applications, and so would be the allocator.",
            fix="Use a host of the application's own (QNNBRIDGE_HOST=private), or leave it out.",
        )
    made, _ = create_object(host, "SharedAllocator", arguments)
    # Kept for the next host: its sessions need the allocator, too.
    host.remember("SharedAllocator", arguments, made.generation)
    # The allocator stays: ONNX Runtime keeps it for its environment, the object was only the way to it.
    made.release()


class OrtSyncStream:
    """A stream of a device of the host. Made by ``OrtEpDevice.create_sync_stream``."""

    __slots__ = ("_object",)

    _object: HostObject

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError("onnxruntime.capi.onnxruntime_pybind11_state.OrtSyncStream: No constructor defined!")

    @classmethod
    def of(cls, device: Mapping[str, Any]) -> OrtSyncStream:
        stream = cls.__new__(cls)
        stream._object, _ = create_object(default_host(), "OrtSyncStream", {"device": dict(device)})
        return stream

    @as_ort_raises
    def get_handle(self) -> int:
        """A number of the host's, for options of its sessions."""
        return int(self._object.call("get_handle").result)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy values into other values of the same size, all in this process."""
    if len(src) != len(dst):
        raise RemoteRuntimeError("src and dst must have the same size.")
    for one, other in zip(src, dst, strict=True):
        # Done when it returns, so a stream has nothing to wait for.
        other.update_inplace(one.numpy())
