"""The tools that work on a model: analyze, fix, inspect, optimize, prepare, profile, quantize, verify.

`commands` holds their command lines; `cli` registers them. Each tool is a package, or one module, with a function
for programs (`fix_model`), the result as data, and its report as text and as JSON. `shared` holds what several use:
reading, running, comparing and writing models. What they may import is in `docs/architecture.md`; onnx and
onnxruntime (the extra `[models]`) are imported inside functions.
"""
