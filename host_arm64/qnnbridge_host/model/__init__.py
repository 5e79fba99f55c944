"""Model files: their contents, the files beside them, and whether a compiled one (EPContext) can run here.

Everything here looks at files and loads neither ONNX Runtime nor QNN. `model_service`, the cache, `compile` and the
tools call it. May import the standard library and the protocol; never the cache.

- `scan` (with `protobuf`, `onnx_schema`, `collector`): what a model file holds, deep and streaming;
- `source`: the model of a session with all its files, its fingerprint and stamps;
- `context_binary`, `context_files`, `manifest`, `paths`: the files of a compiled model, and what they say;
- `compatibility`, `compatibility_check`, `chips`, `releases`: what it was made for, and the verdict on a host;
- `checks`, `refusals`: what is asked before a session, and the errors in words.
"""
