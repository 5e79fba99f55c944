"""`qnnbridge verify`: whether QNN computes what the CPU computes, on given, random and extreme inputs.

>>> from qnnbridge_tools.verify import verify_model
>>> verify_model("model.onnx").agrees
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.verify.result import CaseResult, Culprit, Trap, Verification
    from qnnbridge_tools.verify.verifier import verify_model

_HOMES = {
    "CaseResult": "result",
    "Culprit": "result",
    "Trap": "result",
    "Verification": "result",
    "verify_model": "verifier",
}

__all__ = ["CaseResult", "Culprit", "Trap", "Verification", "verify_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
