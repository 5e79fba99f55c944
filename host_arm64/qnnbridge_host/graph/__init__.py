"""ONNX models as `ModelProto`, for code that changes them: nodes, tensors, shapes, files.

The code needs the packages `onnx` and numpy; in the host only `numerics` and `rewrite` import this package.
"""
