"""`qnnbridge fix`: rewrites that let QNN take a model, each proven to compute the same.

>>> from qnnbridge_models.fix import fix_model
>>> fix_model("model.onnx", "fixed.onnx", shapes={"x": [1, 3, 48, 192]}).steps[0].changes
"""

from __future__ import annotations

from qnnbridge_host.rewrite.fixer import FixResult, RewriteStep, fix_model
from qnnbridge_host.rewrite.rewrites import REWRITES

__all__ = ["REWRITES", "FixResult", "RewriteStep", "fix_model"]
