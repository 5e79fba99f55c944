"""Cause common errors, as in onnxruntime's documentation."""

import numpy
import onnxruntime as rt
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.datasets import get_example

session = rt.InferenceSession(get_example("logreg_iris.onnx"), providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
label = session.get_outputs()[0].name
good = numpy.array([[1.0, 2.0, 3.0, 4.0]], dtype=numpy.float32)

attempts = [
    ([label], {name: good.astype(numpy.float64)}),
    (["misspelled"], {name: good}),
    ([label], {"misspelled": good}),
    ([label], {name: numpy.array([1.0, 2.0, 3.0, 4.0], dtype=numpy.float32)}),
    ([label], {name: numpy.array([[1.0, 2.0]], dtype=numpy.float32)}),
]
for outputs, feed in attempts:
    try:
        print(session.run(outputs, feed))
    except (InvalidArgument, ValueError, RuntimeError) as error:
        print(type(error).__mro__[-2].__name__, error)
