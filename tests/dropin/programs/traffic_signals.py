"""Run the decision trees of atspm-detector on rows of random numbers."""

import json
from pathlib import Path

import atspm_detector
import numpy as np
import onnxruntime
from atspm_detector import trees_onnx

WEIGHTS = Path(atspm_detector.__file__).parent / "weights"
random = np.random.default_rng(0)
answers = {}
for path in sorted(WEIGHTS.rglob("*lgbm*.onnx")):
    (node,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()
    rows = random.standard_normal((16, node.shape[1])).astype(np.float32)
    answers[path.name] = np.asarray(trees_onnx.load(path).raw(rows), dtype=float).round(5).ravel().tolist()
print(json.dumps(answers))
