"""`qnnbridge evaluate`: a model against samples with expected outputs or a metric, on CPU and QNN, and quantised.

>>> from qnnbridge_models.evaluate import EvaluateOptions, evaluate_model
>>> evaluate_model("model.onnx", EvaluateOptions(inputs=(Path("samples"),), metric="metrics.py:accuracy")).rows
"""

from __future__ import annotations

from qnnbridge_models.command_options import EvaluateOptions
from qnnbridge_models.evaluate.evaluator import evaluate_model
from qnnbridge_models.evaluate.result import EvaluatedRow, Evaluation

__all__ = ["EvaluateOptions", "EvaluatedRow", "Evaluation", "evaluate_model"]
