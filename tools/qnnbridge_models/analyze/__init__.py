"""`qnnbridge analyze`: report where a model would run on QNN, what splits it into parts, and what to do about it.

>>> from qnnbridge_models.analyze import analyze_model
>>> analyze_model("model.onnx", offline=True).advice[0].what
"""

from __future__ import annotations

from qnnbridge_models.analyze.analysis import Advice, Analysis, GraphPlacement, NodeVerdict, QnnAnswer
from qnnbridge_models.analyze.analyzer import analyze_model

__all__ = ["Advice", "Analysis", "GraphPlacement", "NodeVerdict", "QnnAnswer", "analyze_model"]
