"""As onnxruntime's documentation reads a model's metadata."""

import onnxruntime as rt
from onnxruntime.datasets import get_example

session = rt.InferenceSession(get_example("logreg_iris.onnx"), providers=["CPUExecutionProvider"])
meta = session.get_modelmeta()
print(meta.custom_metadata_map, meta.description, meta.domain, meta.graph_name, meta.producer_name, meta.version)
