"""Execution providers and devices in the notation that applications use for ONNX Runtime.

Values are in this process's CPU memory. `OrtDevice` only stores numbers, so that code that creates an `OrtDevice`
works unchanged. Functions that would place a value on a device call `require_cpu`, which rejects devices other than
the CPU. The data are immutable, and any thread may use them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import OptionError, RemoteValueError
from qnnbridge_protocol.specs import Fallback, ProviderSpec

# Device type and vendor, with ONNX Runtime's numbers.
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
# DirectML's device type, which ONNX Runtime converts to a GPU of the vendor Microsoft.
_DML, _GPU = 4, 1


class DeviceNumbers:
    """``OrtDevice`` of ONNX Runtime's bindings: type, memory, vendor and number of a device."""

    __slots__ = ("_numbers",)

    def __init__(self, *numbers: int) -> None:
        """Store type, memory, optional vendor (default 0), and number."""
        if len(numbers) not in (3, 4) or not all(hasattr(number, "__index__") for number in numbers):
            raise errors.RemoteTypeError(
                "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
                "    1. onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice(arg0: int, arg1: int, arg2: int, "
                "arg3: int)\n    2. onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice(arg0: int, arg1: int, "
                f"arg2: int)\n\nInvoked with: {', '.join(map(repr, numbers))}"
            )
        kind, memory, *vendor, number = map(int, numbers)
        if kind == _DML:
            kind, vendor = _GPU, [_DEVICES["dml"][1]]
        self._numbers = (kind, memory, vendor[0] if vendor else 0, number)

    def device_id(self) -> int:
        return self._numbers[3]

    def device_type(self) -> int:
        return self._numbers[0]

    def vendor_id(self) -> int:
        return self._numbers[2]

    def mem_type(self) -> int:
        return self._numbers[1]

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def gpu() -> int:
        return 1

    @staticmethod
    def fpga() -> int:
        return 2

    @staticmethod
    def npu() -> int:
        return 3

    cuda = webgpu = gpu
    cann = npu

    @staticmethod
    def dml() -> int:
        return _DML

    @staticmethod
    def default_memory() -> int:
        return 0


class OrtDevice:
    """Type and number of a device; created by `make`."""

    __slots__ = ("_ort_device",)

    def __init__(self, c_ort_device: DeviceNumbers) -> None:
        if not isinstance(c_ort_device, DeviceNumbers):
            raise RemoteValueError(
                "`Provided object` needs to be of type `onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice`",
                fix="OrtDevice.make('cpu', 0)",
            )
        self._ort_device = c_ort_device

    def _get_c_device(self) -> DeviceNumbers:
        return self._ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        kind, vendor = _lookup(ort_device_name)
        return OrtDevice(DeviceNumbers(kind, 0, vendor if vendor_id < 0 else int(vendor_id), device_id))

    def device_id(self) -> int:
        return self._ort_device.device_id()

    def device_type(self) -> int:
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        return self._ort_device.mem_type()


def require_cpu(device_type: str) -> None:
    """Do nothing for ``"cpu"``. Otherwise raise an error of the class that ONNX Runtime raises for an
    unsupported device."""
    if _lookup(device_type)[0] != CPU_DEVICE:
        raise refused_device(device_type)


def refused_device(device_type: str) -> errors.RemoteRuntimeError:
    return errors.RemoteRuntimeError(
        f"A value cannot be placed on device {device_type!r} through qnnbridge.",
        cause="Values are in this process; the model runs in the host process, which moves tensors to the NPU "
        "itself, and the two processes share no device memory.",
        fix="Use device_type='cpu'. The execution provider is chosen for the session, not for its tensors.",
    )


def _lookup(name: str) -> tuple[int, int]:
    if not isinstance(name, str):
        raise errors.RemoteTypeError(f"The device type must be a str, not {type(name).__name__}.")
    found = _DEVICES.get(name)
    if found is None:
        # ONNX Runtime raises a plain `Exception` here, so do not raise a more specific class than `RemoteError`.
        raise errors.RemoteError(
            f"Unsupported device type: {name}", fix=f"One of: {', '.join(_DEVICES)}, in lower case."
        )
    return found


QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"

ProviderArgument = str | tuple[str, Mapping[str, Any]]

# QNN options whose value is a file or a folder. Relative paths start at the application's working folder, which
# differs from the host's.
_PATH_OPTIONS = frozenset(
    (
        *("op_affinity", "profiling_file_path", "dump_qnn_ir_dlc_dir", "json_qnn_graph_dir"),
        *("framework_op_trace_dir", "dump_qnn_ep_input_graph_dir"),
    )
)
# Options for which a file name without a folder refers to a library in the folder of QNN's own libraries.
_LIBRARY_OPTIONS = frozenset(("backend_path", "qnn_saver_path", "qnn_ir_backend_path"))


def absolute_option(name: str, text: str) -> str:
    """Return the value of a QNN option. If the value is a path, make it absolute."""
    if text and (name in _PATH_OPTIONS or (name in _LIBRARY_OPTIONS and os.path.dirname(text))):
        return os.path.abspath(text)
    return text


def normalize_providers(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> tuple[ProviderSpec, ...]:
    """Parse ``providers=`` and ``provider_options=``. Return an empty tuple if no providers are given.

    Raise errors that are also `ValueError`, with ONNX Runtime's wording if it has one.
    """
    if providers is None:
        if provider_options is None:
            return ()
        # ONNX Runtime silently ignores `provider_options` without `providers`. qnnbridge applies the options to
        # QNN, its default provider.
        providers = [QNN]
    if isinstance(providers, str):
        providers = [providers]
    options: list[Mapping[str, Any]] = [{} for _ in providers]
    if provider_options is not None:
        if isinstance(provider_options, Mapping):
            provider_options = [provider_options]
        if len(provider_options) != len(providers):
            raise RemoteValueError(
                "'providers' and 'provider_options' should be the same length if both are given."
            )
        if not all(isinstance(p, str) for p in providers):
            raise RemoteValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given."
            )
        if not all(isinstance(o, Mapping) for o in provider_options):
            raise RemoteValueError("'provider_options' values must be dicts.")
        options = list(provider_options)
    specs: dict[str, ProviderSpec] = {}
    for provider, given in zip(providers, options, strict=True):
        if isinstance(provider, str):
            name = provider
        elif (
            isinstance(provider, tuple)
            and len(provider) == 2
            and isinstance(provider[0], str)
            and isinstance(provider[1], Mapping)
        ):
            name, given = provider
        else:
            raise RemoteValueError("'providers' values must be either strings or (string, dict) tuples.")
        specs.setdefault(name, ProviderSpec(name, {str(k): option_text(k, v) for k, v in given.items()}))
    return tuple(specs.values())


def option_text(key: Any, value: Any) -> str:
    """Convert a provider option to the text that QNN reads, with 0 or 1 for a boolean (QNN would ignore
    ``true``)."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int, float)):
        return absolute_option(str(key), str(value))
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, int)) for v in value):
        return ",".join(str(v) for v in value)
    raise OptionError(
        f"The provider option {key} has a value of type {type(value).__name__}.",
        fix="Give text, a number or a boolean.",
    )


def choose_fallback(specs: Sequence[ProviderSpec], fallback: Fallback | None) -> Fallback:
    """Return `fallback` if it is given.

    Otherwise return "cpu" if the application lists the CPU provider (in ONNX Runtime this permits nodes on the
    CPU), else "error".
    """
    if fallback not in (None, "error", "cpu"):
        raise OptionError(f"fallback={fallback!r} is not a known value.", fix="Give 'error' or 'cpu'.")

    if fallback is not None:
        return fallback
    names = [spec.name for spec in specs]
    return "cpu" if CPU in names else "error"
