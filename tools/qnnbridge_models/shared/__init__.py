"""Shared by the model tools: reading, running, comparing and writing ONNX models.

`graphs`, `shapes` and `files` read and write models; `cpu` runs them in this process and `sessions` on the host;
`sampling` makes up inputs; `comparing` holds results against each other; `progress` shows how far the work is.
Called by the tools of `models`, of which it imports none. onnx and onnxruntime are imported inside functions: see
`cpu`.
"""
