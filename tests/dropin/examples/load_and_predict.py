"""Load a model and predict with it, as in onnxruntime's documentation."""

import numpy
import onnxruntime as rt
from onnxruntime.datasets import get_example

session = rt.InferenceSession(get_example("sigmoid.onnx"), providers=rt.get_available_providers()[-1:])
for node in (*session.get_inputs(), *session.get_outputs()):
    print(node.name, node.shape, node.type)
x = numpy.random.RandomState(0).rand(3, 4, 5).astype(numpy.float32)
result = session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: x})
print(result[0].tobytes().hex())
