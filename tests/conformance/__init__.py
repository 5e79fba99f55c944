"""The bridge beside ONNX Runtime used directly: the same models, the same inputs, the same answers."""
