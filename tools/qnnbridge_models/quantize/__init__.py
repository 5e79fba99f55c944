"""`qnnbridge quantize`: convert a float model to a quantised (QDQ) model for QNN and compare the two.

>>> from qnnbridge_models.quantize import QuantizeOptions, quantize_model
>>> quantize_model("model.onnx", "quantized.onnx", QuantizeOptions((Path("samples"),))).verdict
"""

from __future__ import annotations

from qnnbridge_models.command_options import QnnHostOptions, QuantizeOptions, QuantizeSettings
from qnnbridge_models.quantize.qnn_check import QnnCheck
from qnnbridge_models.quantize.quantization import QuantizeResult
from qnnbridge_models.quantize.quantizer import quantize_model

__all__ = [
    "QnnCheck",
    "QnnHostOptions",
    "QuantizeOptions",
    "QuantizeResult",
    "QuantizeSettings",
    "quantize_model",
]
