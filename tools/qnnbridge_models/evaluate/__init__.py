"""`qnnbridge evaluate`: a model against samples with expected outputs or a metric, on CPU and QNN, and quantised.

>>> from qnnbridge_models.evaluate import EvaluateOptions, evaluate_model
>>> evaluate_model("model.onnx", EvaluateOptions(inputs=(Path("samples"),), metric="metrics.py:accuracy")).rows
"""

from __future__ import annotations

from qnnbridge_models.command_options import EvaluateOptions
from qnnbridge_models.evaluate.evaluation import EvaluatedRow, Evaluation
from qnnbridge_models.evaluate.evaluator import evaluate_model

__all__ = ["EvaluateOptions", "EvaluatedRow", "Evaluation", "evaluate_model"]
