"""ONNX models as `ModelProto`, for what changes them: nodes, tensors, shapes, files.

Needs the packages `onnx` and numpy; nothing else of the host imports this room but `numerics` and `rewrite`.
"""
