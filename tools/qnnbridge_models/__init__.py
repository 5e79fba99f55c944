"""The tools that work on a model: analyze, fix, inspect, optimize, prepare, profile, quantize, verify.

`commands` holds their command lines, `command_options` their options; `cli` registers them. Each tool is a package,
or one module, with a function for programs (`fix_model`), the result as data, and its report as text and as JSON.
Several use `accuracy` (an output against another) and `progress`. What they may import is in
`docs/dev/architecture.md`; onnx and onnxruntime (the extra `[models]`) are imported inside functions.
"""
