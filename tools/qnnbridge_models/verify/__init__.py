"""`qnnbridge verify`: compare QNN's results with the CPU's, on ordinary and on extreme inputs.

>>> from qnnbridge_models.verify import verify_model
>>> verify_model("model.onnx", soc_model="60").verdict
"""

from __future__ import annotations

from qnnbridge_models.verify.verification import InputSetResult, Verification
from qnnbridge_models.verify.verifier import verify_model

__all__ = ["InputSetResult", "Verification", "verify_model"]
