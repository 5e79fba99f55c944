"""Read a model's metadata, as in onnxruntime's documentation."""

import onnxruntime as rt
from onnxruntime.datasets import get_example

session = rt.InferenceSession(get_example("logreg_iris.onnx"), providers=["CPUExecutionProvider"])
meta = session.get_modelmeta()
print(meta.custom_metadata_map, meta.description, meta.domain, meta.graph_name, meta.producer_name, meta.version)
