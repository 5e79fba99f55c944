"""`qnnbridge prepare`: create a folder with a model that is ready to ship.

>>> from qnnbridge_models.prepare import PrepareOptions, prepare_model
>>> prepare_model("model.onnx", "out", PrepareOptions(soc_models=("60",))).verdict
"""

from __future__ import annotations

from qnnbridge_models.command_options import PrepareOptions
from qnnbridge_models.prepare.preparation import PreparedFolder
from qnnbridge_models.prepare.preparer import prepare_model

__all__ = ["PrepareOptions", "PreparedFolder", "prepare_model"]
