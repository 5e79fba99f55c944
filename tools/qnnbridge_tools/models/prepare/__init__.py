"""`qnnbridge prepare`: from a model off the shelf to a folder to ship.

>>> from qnnbridge_tools.models.prepare import Wish, prepare_model
>>> prepare_model("model.onnx", "out", Wish(soc_models=("60",))).verdict
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge_tools.models.prepare.preparer import prepare_model
    from qnnbridge_tools.models.prepare.result import Prepared, Wish

_HOMES = {"Prepared": "result", "Wish": "result", "prepare_model": "preparer"}

__all__ = ["Prepared", "Wish", "prepare_model"]


def __getattr__(name: str) -> Any:  # the modules behind these names import numpy, which `--help` must not
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
