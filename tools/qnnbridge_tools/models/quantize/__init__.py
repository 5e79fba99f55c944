"""`qnnbridge quantize`: a float model becomes a quantised one (QDQ) that QNN takes, and is compared with it.

>>> from qnnbridge_tools.models.quantize import quantize_model
>>> quantize_model("model.onnx", "quantized.onnx", "calibration/").outputs[0].cosine
"""

from __future__ import annotations

from qnnbridge_tools.models.quantize.qnn_check import QnnCheck, QnnHostOptions
from qnnbridge_tools.models.quantize.quantizer import quantize_model
from qnnbridge_tools.models.quantize.result import QuantizeResult
from qnnbridge_tools.models.quantize.settings import QuantizeSettings

__all__ = ["QnnCheck", "QnnHostOptions", "QuantizeResult", "QuantizeSettings", "quantize_model"]
