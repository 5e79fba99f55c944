"""`qnnbridge quantize`: a float model becomes a quantised one (QDQ) that QNN takes, and is compared with it.

>>> from qnnbridge_tools.models.quantize import quantize_model
>>> quantize_model("model.onnx", "quantized.onnx", "calibration/").outputs[0].cosine
"""

from __future__ import annotations

from qnnbridge_tools.models.quantize.qnn_check import HostSettings, QnnCheck
from qnnbridge_tools.models.quantize.quantizer import quantize_model
from qnnbridge_tools.models.quantize.result import QuantizeResult
from qnnbridge_tools.models.quantize.settings import Settings

__all__ = ["HostSettings", "QnnCheck", "QuantizeResult", "Settings", "quantize_model"]
