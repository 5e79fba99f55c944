"""QNN as a plugin: onnxruntime-qnn 2.x beside plain onnxruntime.

The provider library is registered once in the life of the process and never unregistered: a session that outlives
its library is a segmentation fault. QNN is given to a session by its devices; with this generation the classic
``providers=["QNNExecutionProvider"]`` would silently give a CPU session. Immutable after `load`; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from qnnbridge_host.distributions import Installed, parse_version
from qnnbridge_host.engine.ort_errors import translate
from qnnbridge_host.engine.providers import NoQnn, Providers, QnnAdapter
from qnnbridge_host.engine.qnn_options import PROVIDER
from qnnbridge_protocol.errors import ProviderUnavailable


class PluginQnn:
    """The registered plugin and the devices that it lists."""

    def __init__(self, devices: list[Any], library: str, version: tuple[int, ...]) -> None:
        self._devices = devices
        # The provider itself, for other libraries that have an ONNX Runtime environment of their own.
        self.library: str | None = library
        self.library_folder: str | None = os.path.dirname(library)
        self.version = version

    @property
    def simulator(self) -> bool:
        """Without an NPU the provider lists the machine's CPU, which the simulator runs on."""
        return bool(self._devices) and all(_kind(device) == "CPU" for device in self._devices)

    def require(self) -> None:
        if self._devices:
            return
        raise ProviderUnavailable(
            "QNN lists no device on this machine.",
            cause="The provider is loaded, but there is no Qualcomm NPU, or its driver is missing or not working.",
            fix="Install the NPU driver (Windows Update, or the maker of the PC) and restart, "
            "or ask for CPUExecutionProvider.",
            details={"library_folder": self.library_folder},
        )

    def devices(self) -> list[dict[str, Any]]:
        return [_describe(device) for device in self._devices]

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        self.require()
        # The provider uses one device and warns about others; an NPU may be listed beside a GPU.
        wanted = "GPU" if backend == "gpu" else "NPU"
        chosen = [device for device in self._devices if _kind(device) == wanted] or self._devices
        session_options.add_provider_for_devices(chosen, options)
        return ()


def load(ort: Any, found: Installed, on_phase: Callable[[str], None]) -> QnnAdapter:
    """Import and register the plugin. A failure is kept, and told when a session asks for QNN."""
    try:
        import onnxruntime_qnn as package

        library = package.get_library_path()
        folder = os.path.dirname(library)
        _let_the_dsp_find(folder)
        on_phase("registering")
        devices = _registered(ort)
        if not devices:  # else an earlier engine of this process has registered it; twice is an error
            ort.register_execution_provider_library(PROVIDER, library)
            devices = _registered(ort)
    except Exception as error:  # noqa: BLE001 - the package refuses unknown machines with any exception
        told = translate(error)
        return NoQnn(
            ProviderUnavailable(
                f"onnxruntime-qnn {found.onnxruntime_qnn} cannot be used with onnxruntime {found.onnxruntime}.",
                cause=told.message,
                fix=_fix(told.message),
                details={"onnxruntime": found.onnxruntime, "onnxruntime_qnn": found.onnxruntime_qnn},
            )
        )
    return PluginQnn(devices, library, parse_version(found.onnxruntime_qnn))


def _registered(ort: Any) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def _let_the_dsp_find(folder: str) -> None:
    """Put the package's folder first in ADSP_LIBRARY_PATH.

    The NPU's own loader looks there for its part (the skel); where it does not find it QNN switches silently to the
    driver's older runtime (onnxruntime-qnn issue 593).
    """
    before = os.environ.get("ADSP_LIBRARY_PATH", "")
    if folder not in before.split(";"):
        os.environ["ADSP_LIBRARY_PATH"] = f"{folder};{before}" if before else folder


def _fix(text: str) -> str:
    if "requires ORT" in text or "ort_version_supported" in text or "API" in text:
        return (
            "Install versions that fit together in the host's Python: onnxruntime 1.24.2 or newer with "
            "onnxruntime-qnn 2.7, for example `pip install -U onnxruntime onnxruntime-qnn`."
        )
    return "Reinstall onnxruntime-qnn in the host's Python, for the architecture of that Python."


def _kind(device: Any) -> str:
    return str(device.device.type).rpartition(".")[2]


def _describe(device: Any) -> dict[str, Any]:
    hardware = device.device
    return {
        "ep_name": device.ep_name,
        "ep_vendor": device.ep_vendor,
        "ep_metadata": {str(k): str(v) for k, v in device.ep_metadata.items()},
        "device_type": _kind(device),
        "device_vendor": hardware.vendor,
        "device_vendor_id": int(hardware.vendor_id),
        "device_id": int(hardware.device_id),
        "device_metadata": {str(k): str(v) for k, v in hardware.metadata.items()},
    }
