"""Descriptions of memory, and what applications do with it: on this side there is only this process's own.

The data classes hold what an application puts into them, so that code which makes one goes on working; what would
change an allocator in another process is refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from qnnbridge._option_fields import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from qnnbridge._ort_value import OrtValue
from qnnbridge_protocol.errors import OptionError, RemoteRuntimeError, RemoteTypeError


class OrtMemoryInfo:
    """Which memory an allocator hands out."""

    __slots__ = ("allocator_type", "device_id", "device_mem_type", "device_vendor_id", "mem_type", "name")

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType, /
    ) -> None:
        self.name = name
        self.allocator_type = allocator_type
        self.device_id = int(device_id)
        self.mem_type = mem_type
        self.device_mem_type = OrtDeviceMemoryType.DEFAULT
        self.device_vendor_id = 0

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
        info = cls(name, allocator_type, device_id, OrtMemType.DEFAULT)
        info.device_mem_type = device_mem_type
        info.device_vendor_id = int(vendor_id)
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
        elif len(settings) == 4:
            given = dict(zip(self._FIELDS, settings, strict=False))
        else:
            raise RemoteTypeError("OrtArenaCfg takes four numbers, or one dict.")
        for field in self._FIELDS:
            setattr(self, field, int(given.get(field, 0 if field == "max_mem" else -1)))


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None, /) -> NoReturn:
    raise _no_allocator("create_and_register_allocator")


def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg, options: Mapping[str, str], /
) -> NoReturn:
    raise _no_allocator("create_and_register_allocator_v2")


def _no_allocator(name: str) -> OptionError:
    return OptionError(
        f"{name} cannot be used through qnnbridge.",
        cause="The allocators of ONNX Runtime are those of the host process, and its sessions share them.",
        fix="Leave it out; enable_cpu_mem_arena of SessionOptions turns the arena of one session on or off.",
    )


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy values into other values of the same size, all in this process."""
    if len(src) != len(dst):
        raise RemoteRuntimeError("src and dst must have the same size.")
    for one, other in zip(src, dst, strict=True):
        other.update_inplace(one.numpy())
