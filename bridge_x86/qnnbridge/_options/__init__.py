"""Classes and functions that all options classes share, with the same behavior as in ONNX Runtime.

`fields` contains the enumerations and the typed fields of options classes, `providers` contains providers and
devices.
"""
