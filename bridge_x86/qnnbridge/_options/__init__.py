"""Parts of all options, in ONNX Runtime's forms.

`fields` has the enumerations and the typed fields of options classes, `providers` has providers and devices.
"""
