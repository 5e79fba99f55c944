"""Model files: their contents, the files next to them, and whether a compiled model (EPContext) can run here.

The package reads files and loads neither ONNX Runtime nor QNN. `create`, the cache and the tools use it. It may
import the standard library and the protocol, but not the cache.

- `scan` (with `protobuf`, `collector`): one streaming pass over a model file; refusal of compiled models;
- `source`: the model of a session with all its files, its fingerprint and stamps;
- `context_binary`, `context_files`, `manifest`, `paths`: the files of a compiled model, and their contents;
- `compatibility`, `chips`, `releases`: the chip and the SDK that a compiled model needs, and whether a host can run
  the model;
- `compiled_checks`: checks of a compiled model before its session is created;
- `graph_index` (with `static_shapes`), `known_wrong`: operators that QNN computes wrong;
- `genai_folder`: the folder of a GenAI model, and its configuration;
- `native_options`: options of that configuration that load native code or write files.
"""
