"""`qnnbridge profile`: report where the time goes, from loading the model to each operator on the NPU.

`recording` runs a model with the profiling of ONNX Runtime and of QNN enabled and reads both profiles; `evaluate`
computes a `ProfileResult` from the profiles; `report` and `page` print the result. `commands` contains the command.
"""
