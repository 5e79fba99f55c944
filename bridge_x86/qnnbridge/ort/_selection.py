"""Devices that a function of the application chooses for a session (``set_provider_selection_policy_delegate``).

The function runs here, before the session is requested: it is given the host's devices and what the model says of
itself. A session that is made again in the next host keeps the choice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from qnnbridge._connect import chosen_host
from qnnbridge._create import identify
from qnnbridge._providers import CPU
from qnnbridge._recipe import SessionRecipe, model_parts
from qnnbridge._session_options import SelectionDelegate, provider_of_devices
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.ort._environment import OrtEpDevice, get_ep_devices
from qnnbridge.ort._providers import Named
from qnnbridge_protocol.errors import Fail, InvalidArgument, OrtError
from qnnbridge_protocol.specs import SessionSpec

# As in ONNX Runtime.
MAX_SELECTIONS: Final = 8
_FAILED: Final = "[ONNXRuntimeError] : 1 : FAIL : EP selection delegate "


def selected(
    delegate: SelectionDelegate | None, model: str | bytes | os.PathLike[str], host: Any, timeout_s: float | None
) -> list[Named]:
    """The providers of the devices that the function chooses, in its order.

    Raises `Fail` and `InvalidArgument` with ONNX Runtime's text for a function that raises, or gives something else
    than devices.
    """
    if delegate is None:
        raise Fail(f"{_FAILED}failed: bad_function_call", fix="Give a function.")
    path, data = model_parts(model)
    try:
        described = identify(chosen_host(host), SessionRecipe(SessionSpec(path), data), deadline_after(timeout_s))
    except OrtError:
        return [(CPU, {})]  # making the session says what is wrong with the model
    if not described.readable:
        return [(CPU, {})]
    # As ONNX Runtime orders them: processors last.
    devices = sorted(get_ep_devices(), key=lambda device: device.ep_name == CPU)
    try:
        chosen = delegate(devices, dict(sorted(described.metadata.items())), {}, MAX_SELECTIONS)
    except Exception as error:
        raise Fail(f"{_FAILED}failed: {type(error).__name__}: {error}") from error
    return _providers(chosen)


def _providers(chosen: Any) -> list[Named]:
    if not isinstance(chosen, Sequence) or not all(isinstance(one, OrtEpDevice) for one in chosen):
        raise Fail(
            f"{_FAILED}failed: Unable to cast Python instance of type {type(chosen)} to C++ type '?' (#define "
            "PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode for details)",
            cause="The function returned something else than a list of OrtEpDevice.",
            fix="Return a list of some of the devices that it was given.",
        )
    if not chosen:
        raise Fail(f"{_FAILED}did not select anything.")
    if len(chosen) > MAX_SELECTIONS:
        raise Fail(
            f"{_FAILED}failed: selected too many EP devices ({len(chosen)}). "
            f"The limit is {MAX_SELECTIONS} EP devices."
        )
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


__all__ = ["MAX_SELECTIONS", "selected"]
