"""Profile a model, as in onnxruntime's documentation."""

import json

import numpy
import onnxruntime as rt
from onnxruntime.datasets import get_example

options = rt.SessionOptions()
options.enable_profiling = True
session = rt.InferenceSession(get_example("mul_1.onnx"), options, providers=["CPUExecutionProvider"])
feed = {session.get_inputs()[0].name: numpy.ones((3, 2), dtype=numpy.float32)}
print(session.run(None, feed)[0].tolist())
with open(session.end_profiling(), encoding="utf-8") as file:
    events = json.load(file)
print(sorted({event["cat"] for event in events}), any(event["name"].startswith("mul_1") for event in events))
