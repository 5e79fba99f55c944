"""Devices and plugin libraries: ``get_ep_devices`` and the registering of execution provider libraries.

Applications written for onnxruntime-qnn 2.x register the library of the package ``onnxruntime_qnn`` and pick its
devices. The host has registered its own by then, so registering QNN here only makes its devices visible, as there.
Any thread.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from qnnbridge._host import default_host
from qnnbridge._option_fields import OrtHardwareDeviceType
from qnnbridge._providers import CPU, QNN
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge.ort._memory import OrtMemoryInfo
from qnnbridge_protocol.errors import Fail, OptionError

_registered: set[str] = set()


@dataclasses.dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A processor, an NPU or a GPU of the host's machine."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int
    metadata: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpDevice:
    """An execution provider together with a device it can use."""

    ep_name: str
    ep_vendor: str
    ep_metadata: Mapping[str, str]
    ep_options: Mapping[str, str]
    device: OrtHardwareDevice

    def memory_info(self, memory_type: Any) -> OrtMemoryInfo | None:
        """Memory of the device that tensors could live in: none, they travel to the host."""
        return None

    def create_sync_stream(self, options: Mapping[str, str] | None = None) -> Any:
        from qnnbridge.ort._refused import OrtSyncStream

        return OrtSyncStream()


def get_ep_devices() -> list[OrtEpDevice]:
    """The host's CPU, and its QNN devices once QNN is registered (or part of the host's ONNX Runtime itself)."""
    info = default_host().info
    devices = [_cpu(info.versions.get("onnxruntime", ""))]
    builtin = QNN in info.providers
    if builtin or _registered:
        devices += [_qnn(told) for told in info.devices]
    return devices


@as_ort_raises
def register_execution_provider_library(registration_name: str, library_path: str, /) -> None:
    """Make QNN's devices visible in `get_ep_devices`. Other plugin libraries are refused."""
    name = os.path.basename(os.fsdecode(library_path)).lower()
    if "providers_qnn" not in name:
        raise OptionError(
            f"The execution provider library {os.fsdecode(library_path)} cannot be registered through qnnbridge.",
            cause="Only the host loads native libraries, and it offers QNN and the CPU.",
            fix="Register onnxruntime_qnn.get_library_path(), or use onnxruntime itself for other providers.",
        )
    _registered.add(str(registration_name))
    default_host().info  # noqa: B018 - tells now, as registering does, if the host cannot come up


@as_ort_raises
def unregister_execution_provider_library(registration_name: str, /) -> None:
    if registration_name not in _registered:
        raise Fail(
            f"[ONNXRuntimeError] : 1 : FAIL : Execution provider library: {registration_name} was not registered."
        )
    _registered.discard(registration_name)


def _cpu(version: str) -> OrtEpDevice:
    hardware = OrtHardwareDevice(OrtHardwareDeviceType.CPU, "", 0, 0, {})
    return OrtEpDevice(CPU, "Microsoft", {"version": version}, {}, hardware)


def _qnn(told: Mapping[str, Any]) -> OrtEpDevice:
    kind = str(told.get("device_type", "NPU"))
    known = kind in OrtHardwareDeviceType.__members__
    hardware = OrtHardwareDevice(
        OrtHardwareDeviceType[kind] if known else OrtHardwareDeviceType.NPU,
        str(told.get("device_vendor", "Qualcomm")),
        int(told.get("device_vendor_id", 0)),
        int(told.get("device_id", 0)),
        dict(told.get("device_metadata", {})),
    )
    return OrtEpDevice(QNN, str(told.get("ep_vendor", "Qualcomm")), dict(told.get("ep_metadata", {})), {}, hardware)
