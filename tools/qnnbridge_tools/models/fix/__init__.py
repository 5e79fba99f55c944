"""`qnnbridge fix`: rewrites that let QNN take a model, each proven to compute the same.

>>> from qnnbridge_tools.models.fix import fix_model
>>> fix_model("model.onnx", "fixed.onnx", shapes={"x": [1, 3, 48, 192]}).steps[0].changes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.fix.fixer import fix_model
    from qnnbridge_tools.models.fix.result import FixResult, Step
    from qnnbridge_tools.models.fix.rewrites import REWRITES

_HOMES = {"FixResult": "result", "REWRITES": "rewrites", "Step": "result", "fix_model": "fixer"}

__all__ = ["REWRITES", "FixResult", "Step", "fix_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
