"""`qnnbridge optimize`: ONNX Runtime's graph optimisation, offline, checked against the original.

>>> from qnnbridge_tools.models.optimize import optimize_model
>>> optimize_model("model.onnx", "optimized.onnx").nodes_after
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.optimize.levels import LEVELS
    from qnnbridge_tools.models.optimize.optimizer import optimize_model
    from qnnbridge_tools.models.optimize.result import OptimizeResult

_HOMES = {"LEVELS": "levels", "OptimizeResult": "result", "optimize_model": "optimizer"}

__all__ = ["LEVELS", "OptimizeResult", "optimize_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
