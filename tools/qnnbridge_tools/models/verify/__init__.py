"""`qnnbridge verify`: whether QNN computes what the CPU computes, on ordinary and on extreme inputs.

>>> from qnnbridge_tools.models.verify import verify_model
>>> verify_model("model.onnx", soc_model="60").verdict
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.verify.result import Row, Verification
    from qnnbridge_tools.models.verify.verifier import verify_model

_HOMES = {"Row": "result", "Verification": "result", "verify_model": "verifier"}

__all__ = ["Row", "Verification", "verify_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
