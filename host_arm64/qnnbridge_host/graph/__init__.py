"""ONNX models as `ModelProto`, for code that changes them: nodes, tensors, shapes, files.

Needs the packages `onnx` and numpy; in the host only `numerics` and `rewrite` import this package.
"""
