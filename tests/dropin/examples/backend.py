"""Use ONNX's backend interface, as in onnxruntime's documentation."""

import numpy
import onnxruntime.backend as backend
from onnx import load
from onnxruntime import get_device
from onnxruntime.datasets import get_example

name = get_example("logreg_iris.onnx")
x = numpy.array([[-1.0, -2.0], [3.0, 4.0], [5.0, 6.0]], dtype=numpy.float32)
representation = backend.prepare(load(name), get_device())
label, probabilities = representation.run(x)
print(label.tolist(), [{key: float(value) for key, value in row.items()} for row in probabilities])
print(backend.run(name, x)[0].tolist(), backend.supports_device("CPU"), backend.supports_device("GPU"))
