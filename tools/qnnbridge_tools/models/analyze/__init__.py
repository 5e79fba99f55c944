"""`qnnbridge analyze`: where a model would run on QNN, what cuts it into pieces, and what to do about it.

>>> from qnnbridge_tools.models.analyze import analyze_model
>>> analyze_model("model.onnx", offline=True).advice[0].what
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.analyze.analyzer import analyze_model
    from qnnbridge_tools.models.analyze.result import Advice, Analysis, Placed, Truth
    from qnnbridge_tools.models.analyze.verdicts import Verdict

_HOMES = {
    "Advice": "result",
    "Analysis": "result",
    "Placed": "result",
    "Truth": "result",
    "Verdict": "verdicts",
    "analyze_model": "analyzer",
}

__all__ = ["Advice", "Analysis", "Placed", "Truth", "Verdict", "analyze_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
