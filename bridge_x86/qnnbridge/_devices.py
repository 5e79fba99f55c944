"""Device names as ONNX Runtime's Python takes them, and the rule that values live in this process's CPU memory.

`OrtDevice` only carries numbers, so that code which makes one goes on working; whatever would place a value on a
device calls `require_cpu` and refuses the others. Immutable data; any thread.
"""

from __future__ import annotations

import dataclasses

from qnnbridge_protocol import errors

# Device type, vendor: as numbered by ONNX Runtime.
_DEVICES = {
    "cpu": (0, 0),
    "cuda": (1, 0x10DE),
    "cann": (3, 0x19E5),
    "dml": (4, 0x1414),
    "webgpu": (1, 0),
    "gpu": (1, 0),
    "npu": (3, 0),
}
CPU_DEVICE = 0


@dataclasses.dataclass(frozen=True)
class OrtDevice:
    """Kind and number of a device; `make` is how to get one."""

    _type: int
    _id: int
    _vendor: int

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        kind, vendor = _lookup(ort_device_name)
        return OrtDevice(kind, int(device_id), vendor if vendor_id < 0 else int(vendor_id))

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._type

    def device_vendor_id(self) -> int:
        return self._vendor

    def device_mem_type(self) -> int:
        return 0


def require_cpu(device_type: str) -> None:
    """Pass for ``"cpu"``; else an error of the class that an ONNX Runtime without such a device raises."""
    if _lookup(device_type)[0] != CPU_DEVICE:
        raise refused_device(device_type)


def refused_device(device_type: str) -> errors.RemoteRuntimeError:
    return errors.RemoteRuntimeError(
        f"A value cannot be placed on device {device_type!r} through qnnbridge.",
        cause="Values live in this process; the model runs in the host process, which moves tensors to the NPU "
        "itself, and no device memory is shared between the two.",
        fix="Use device_type='cpu'. The execution provider is chosen for the session, not for its tensors.",
    )


def _lookup(name: str) -> tuple[int, int]:
    if not isinstance(name, str):
        raise errors.RemoteTypeError(f"The device type must be a str, not {type(name).__name__}.")
    found = _DEVICES.get(name)
    if found is None:
        # ONNX Runtime raises a plain Exception here, so this is the root of our Python errors, too.
        raise errors.RemoteError(
            f"Unsupported device type: {name}", fix=f"One of: {', '.join(_DEVICES)}, in lower case."
        )
    return found
