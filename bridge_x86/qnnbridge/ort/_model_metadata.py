"""A model's metadata, the session options in the metadata, and the application's selection of devices.

The metadata of a compiled model may contain compatibility information (``ep_compatibility_info.<provider>``), and
the metadata of any model may contain session options (``ort_config``). The host reads both without creating a
session. The application's function that selects devices (``set_provider_selection_policy_delegate``) gets the
metadata. It runs in this process, before the session is requested, so that a session that is recreated after a
crash of the host keeps the selected devices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qnnbridge._host import Host, chosen_host, default_host
from qnnbridge._options.fields import (
    ExecutionMode,
    GraphOptimizationLevel,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
)
from qnnbridge._options.providers import CPU, QNN
from qnnbridge._session import SessionRecipe, model_parts
from qnnbridge._session.create import identify
from qnnbridge._session_options import SelectionDelegate, SessionOptions, provider_of_devices
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.ort._environment import (
    OrtEpDevice,
    OrtHardwareDevice,
    cpu_device,
    get_available_providers,
    get_ep_devices,
    qnn_device,
)
from qnnbridge.ort._placement import Named
from qnnbridge.ort._signatures import bound
from qnnbridge_protocol.errors import Fail, InvalidArgument, OrtError, RemoteRuntimeError
from qnnbridge_protocol.specs import SessionSpec

# --- compatibility of compiled models and devices ---

_KEY = "ep_compatibility_info."


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """Return the CPU and the QNN devices of the host's machine."""
    info = default_host().info
    return [device.device for device in (cpu_device(""), *map(qnn_device, info.devices))]


@bound("get_hardware_device_ep_incompatibility_details")
def get_hardware_device_ep_incompatibility_details(
    ep_name: str, device: OrtHardwareDevice | None, /
) -> dict[str, Any]:
    """Return why a provider cannot use a device. The result is always NONE, since all providers can use the
    host's devices."""
    if ep_name not in get_available_providers():
        raise InvalidArgument(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : No valid factory found for execution provider "
            f"'{ep_name}'."
        )
    return {"reasons_bitmask": int(OrtDeviceEpIncompatibilityReason.NONE), "notes": None, "error_code": 0}


@bound("get_model_compatibility_for_ep_devices")
def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str, /
) -> OrtCompiledModelCompatibility:
    """Return "not applicable", as in ONNX Runtime: QNN and the CPU provider do not evaluate the information."""
    names = {device.ep_name for device in ep_devices}
    if not names or not names <= {CPU, QNN}:
        raise RemoteRuntimeError("Invalid argument provided to GetModelCompatibilityForEpDevices.")
    return OrtCompiledModelCompatibility(0)


@bound("get_compatibility_info_from_model")
def get_compatibility_info_from_model(model_path: str, ep_type: str, /) -> str | None:
    """Return the compatibility information for a provider in the model's metadata; ``None`` if the metadata has
    none."""
    if not os.path.exists(model_path):
        raise RemoteRuntimeError(f"Load model {model_path} failed. File doesn't exist")
    return _parsed(model_path).get(_KEY + ep_type)


@bound("get_compatibility_info_from_model_bytes")
def get_compatibility_info_from_model_bytes(model_data: memoryview, ep_type: str, /) -> str | None:
    if not model_data.nbytes:
        raise RemoteRuntimeError("Invalid argument provided to GetCompatibilityInfoFromModelBytes.")
    return _parsed(bytes(model_data)).get(_KEY + ep_type)


def _parsed(model: str | bytes) -> Mapping[str, str]:
    found = _metadata(model)
    if found is None:
        raise RemoteRuntimeError("Failed to parse the model: it is not in ONNX's format.")
    return found


def _metadata(model: Any, host: Host | None = None, timeout_s: float | None = None) -> Mapping[str, str] | None:
    """Return the metadata of a model, read by the host; ``None`` for an unreadable model or no model."""
    try:
        path, data = model_parts(model)
        described = identify(chosen_host(host), SessionRecipe(SessionSpec(path), data), deadline_after(timeout_s))
    except (OrtError, TypeError):
        return None
    return described.metadata if described.readable else None


# --- session options in a model's metadata, as ONNX Runtime reads them ---

_CONFIG = "ort_config"
_NO_CONFIG = "Could not finalize session options while constructing the inference session. Error Message: "


def with_model_config(
    model: Any, options: SessionOptions | None, read: bool, host: Any, timeout_s: float | None
) -> SessionOptions | None:
    """Return the session options combined with the options in the model's metadata.

    Args:
        read: the argument ``read_config_from_model``.

    Raises:
        RemoteRuntimeError: for a configuration that ONNX Runtime refuses; also a `RuntimeError`.
    """
    if not read:
        raise RemoteRuntimeError(
            "is_model_proto_parsed was false. ModelProto needs to be parsed to check for ORT config within it"
        )
    # Ignore an unreadable model here: creating the session raises the error.
    text = (_metadata(model, host, timeout_s) or {}).get(_CONFIG)
    if text is None:
        return options if options is None else _fresh(options)
    return configured(text, _fresh(options))


def configured(text: str, options: SessionOptions) -> SessionOptions:
    """Apply a configuration (JSON) to `options` and return them."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RemoteRuntimeError(
            f"{_NO_CONFIG}Json stored in the `{_CONFIG}` key cannot be parsed. Error message: {error}"
        ) from None
    wanted = found.get("session_options") if isinstance(found, dict) else None
    # Sort the entries like ONNX Runtime's JSON library, so that the same error comes first if there are several.
    for name, value in sorted(wanted.items()) if isinstance(wanted, Mapping) else ():
        setting = _SETTINGS.get(name)
        if setting is None:
            continue
        # Do not use `isinstance`: JSON's true and false become bool, a subclass of int.
        if type(value) is not int:
            raise RemoteRuntimeError(f"{_NO_CONFIG}{name} option in the model file must be an integer")
        convert, text = setting
        try:
            setattr(options, name, convert(value))
        except (KeyError, ValueError):
            raise RemoteRuntimeError(_NO_CONFIG + text.format(value)) from None
    return options


def _threads(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return value


# Option -> converter of its number, and the error text for an unsupported number.
_SETTINGS: dict[str, tuple[Callable[[int], Any], str]] = {
    "intra_op_num_threads": (_threads, "Unsupported value for intra_op_num_threads: {}"),
    "inter_op_num_threads": (_threads, "Unsupported value for inter_op_num_threads: {}"),
    "execution_mode": (
        {int(one): one for one in ExecutionMode.__members__.values()}.__getitem__,
        "Unsupported execution_mode value in ORT config: {}",
    ),
    "graph_optimization_level": (
        {int(one): one for one in GraphOptimizationLevel.__members__.values()}.__getitem__,
        "Unsupported graph_optimization_level value in ORT config: {}",
    ),
    "enable_profiling": ({0: False, 1: True}.__getitem__, "Unsupported value for enable_profiling option: {}"),
}


def _fresh(options: SessionOptions | None) -> SessionOptions:
    return SessionOptions() if options is None else options.providers_alone()


# --- devices selected by a function of the application ---

# ONNX Runtime's maximum number of selected devices.
MAX_SELECTIONS: Final = 8
_FAILED: Final = "[ONNXRuntimeError] : 1 : FAIL : EP selection delegate "


def selected(
    delegate: SelectionDelegate | None, model: str | bytes | os.PathLike[str], host: Any, timeout_s: float | None
) -> list[Named]:
    """Return the providers of the devices that the function selects, in its order.

    Raises:
        Fail: the function raised an exception, or did not return devices; with ONNX Runtime's text.
        InvalidArgument: the function returned several CPU devices.
    """
    if delegate is None:
        raise Fail(f"{_FAILED}failed: bad_function_call", fix="Give a function.")
    metadata = _metadata(model, host, timeout_s)
    if metadata is None:
        return [(CPU, {})]  # without a readable model, creating the session raises the error
    # Put CPUs last, as in ONNX Runtime. The sort is stable: QNN devices keep the host's order.
    devices = sorted(get_ep_devices(), key=lambda device: device.ep_name == CPU)
    try:
        chosen = delegate(devices, dict(sorted(metadata.items())), {}, MAX_SELECTIONS)
    except Exception as error:
        raise Fail(f"{_FAILED}failed: {type(error).__name__}: {error}") from error
    return _providers(chosen)


def _providers(chosen: Any) -> list[Named]:
    if not isinstance(chosen, Sequence) or not all(isinstance(one, OrtEpDevice) for one in chosen):
        raise Fail(
            f"{_FAILED}failed: Unable to cast Python instance of type {type(chosen)} to C++ type '?' (#define "
            "PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode for details)",
            cause="The function did not return a list of OrtEpDevice objects.",
            fix="Return a list that contains only devices that were passed to the function.",
        )
    if not chosen:
        raise Fail(f"{_FAILED}did not select anything.")
    if len(chosen) > MAX_SELECTIONS:
        raise Fail(
            f"{_FAILED}failed: selected too many EP devices ({len(chosen)}). "
            f"The limit is {MAX_SELECTIONS} EP devices."
        )
    # Devices of the same provider are grouped into one provider, at the position of the first device.
    groups: dict[str, list[OrtEpDevice]] = {}
    for device in chosen:
        groups.setdefault(device.ep_name, []).append(device)
    if len(groups.get(CPU, ())) > 1:
        raise InvalidArgument(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : CPU EP factory currently only supports one device at "
            "a time."
        )
    specs = [provider_of_devices(devices, {}) for devices in groups.values()]
    return [(spec.name, dict(spec.options)) for spec in specs]
