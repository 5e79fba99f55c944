"""Model files: their contents, the files beside them, and whether a compiled one (EPContext) can run here.

Everything here looks at files and loads neither ONNX Runtime nor QNN. `create`, the cache and the
tools call it. May import the standard library and the protocol; never the cache.

- `scan` (with `protobuf`, `collector`): the contents of a model file, deep and streaming; refusal of a compiled
  one;
- `source`: the model of a session with all its files, its fingerprint and stamps;
- `context_binary`, `context_files`, `manifest`, `paths`: the files of a compiled model, and their contents;
- `compatibility`, `chips`, `releases`: its target, and the verdict on a host;
- `compiled_checks`: the checks before a session;
- `graph_index` (with `static_shapes`), `known_wrong`: operators that QNN computes wrong;
- `genai_folder`: the folder of a model for generation.
- `native_options`: options of such a folder that load native code or write files.
"""
