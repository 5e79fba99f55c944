"""Print the provider of each node, as ONNX Runtime records it."""

import os

import onnxruntime as ort

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models")
options = ort.SessionOptions()
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
session = ort.InferenceSession(os.path.join(MODELS, "rnet.onnx"), options, providers=["CPUExecutionProvider"])
for subgraph in session.get_provider_graph_assignment_info():
    print(subgraph.ep_name, [(node.domain, node.name, node.op_type) for node in subgraph.get_nodes()])

plain = ort.InferenceSession(os.path.join(MODELS, "rnet.onnx"), providers=["CPUExecutionProvider"])
try:
    print(plain.get_provider_graph_assignment_info())
except Exception as error:
    print(type(error).__name__, error)
