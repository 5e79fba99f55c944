"""Register the plugin and select its devices, as in the documentation of onnxruntime-qnn 2.x."""

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn
from onnxruntime.datasets import get_example

ort.register_execution_provider_library(onnxruntime_qnn.get_ep_name(), onnxruntime_qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == onnxruntime_qnn.get_ep_name()]
options = ort.SessionOptions()
options.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60"})
session = ort.InferenceSession(get_example("mul_1.onnx"), sess_options=options)
print(session.get_providers(), len(devices), devices[0].ep_vendor, str(devices[0].device.type))
print(session.run(None, {"X": np.ones((3, 2), np.float32)})[0].tobytes().hex())
