"""What an application may rely on: the real host, the real ONNX Runtime, the QNN simulator."""
