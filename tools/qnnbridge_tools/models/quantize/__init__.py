"""`qnnbridge quantize`: a float model becomes a quantised one (QDQ) that QNN takes, and is compared with it.

>>> from qnnbridge_tools.models.quantize import quantize_model
>>> quantize_model("model.onnx", "quantized.onnx", "calibration/").outputs[0].cosine
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.quantize.qnn_check import HostSettings, QnnCheck
    from qnnbridge_tools.models.quantize.quantizer import quantize_model
    from qnnbridge_tools.models.quantize.result import QuantizeResult
    from qnnbridge_tools.models.quantize.settings import Settings

_HOMES = {
    "HostSettings": "qnn_check",
    "QnnCheck": "qnn_check",
    "QuantizeResult": "result",
    "Settings": "settings",
    "quantize_model": "quantizer",
}

__all__ = ["HostSettings", "QnnCheck", "QuantizeResult", "Settings", "quantize_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
