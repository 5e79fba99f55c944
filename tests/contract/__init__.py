"""Tests of the behaviour that applications rely on, with the real host, ONNX Runtime and the QNN simulator."""
