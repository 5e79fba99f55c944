"""Compile a model and load the compiled one, as in "EP context design" of onnxruntime's documentation."""

import os
import shutil

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models")
shutil.copy(os.path.join(MODELS, "mul_1.onnx"), "model.onnx")

ort.register_execution_provider_library(onnxruntime_qnn.get_ep_name(), onnxruntime_qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == onnxruntime_qnn.get_ep_name()][:1]


def options():
    chosen = ort.SessionOptions()
    chosen.add_provider_for_devices(
        devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60"}
    )
    return chosen


def outputs(model):
    session = ort.InferenceSession(model, sess_options=options())
    return session.run(None, {"X": np.arange(6, dtype=np.float32).reshape(3, 2)})[0].tolist()


ort.ModelCompiler(options(), "model.onnx").compile_to_file("compiled.onnx")
print(os.path.exists("compiled.onnx"), os.path.exists("compiled_qnn.bin"), outputs("compiled.onnx"))

with open("model.onnx", "rb") as file:
    compiler = ort.ModelCompiler(options(), file.read(), embed_compiled_data_into_model=True)
print(outputs(compiler.compile_to_bytes()))

pieces = []
compiler.compile_to_stream(pieces.append)
print(outputs(b"".join(pieces)))

for name, flag in (("model.onnx", ort.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS), ("no_such.onnx", 0)):
    try:
        ort.ModelCompiler(options(), name, flags=flag).compile_to_file("compiled.onnx")
    except Exception as error:
        print(type(error).__name__, error)
