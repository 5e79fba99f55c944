"""Tools that work on a model: analyze, fix, inspect, optimize, prepare, profile, quantize, verify.

`commands` contains their command lines, `command_options` their options; `cli` registers them. Each tool is a
package or module with a function for programs (`fix_model`), the result as data, and its report as text and as
JSON. Several tools use `accuracy` (compares two outputs) and `progress`. `docs/dev/architecture.md` lists what they
may import; onnx and onnxruntime (the extra `[models]`) are imported inside functions.
"""
