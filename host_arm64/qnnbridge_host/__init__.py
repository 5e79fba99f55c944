"""The ARM64 side of qnnbridge: the process that loads ONNX Runtime and the native QNN libraries.

`python -m qnnbridge_host` serves one application over its standard streams. This module imports nothing, so that
the first lines of the process can secure its standard streams before any library runs.
"""
