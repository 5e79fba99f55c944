"""Tools that work on a model: analyze, fix, inspect, optimize, prepare, profile, quantize, verify.

`commands` contains their commands and `command_options` the options; `cli` registers the commands. Each tool is a
package or module with a function for programs (`fix_model`), the result as a record, and a report as text and JSON.
Several tools use `accuracy` (compares outputs) and `progress`. `docs/dev/architecture.md` lists the allowed
imports; onnx and onnxruntime (the extra `[models]`) are imported inside functions.
"""
