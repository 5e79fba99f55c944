"""Compare the bridge with ONNX Runtime used directly: the same models, inputs and results."""
