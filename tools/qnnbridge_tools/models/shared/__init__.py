"""What `optimize` and `quantize` share: reading, running, comparing and writing ONNX models in the application.

Everything here needs the extra `[models]` (onnx, onnxruntime) and uses the CPU provider only; see `extra`.
"""
