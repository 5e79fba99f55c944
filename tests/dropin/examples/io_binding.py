"""Bind inputs and outputs, as in onnxruntime's documentation."""

import numpy as np
import onnxruntime
from onnxruntime.datasets import get_example

session = onnxruntime.InferenceSession(get_example("mul_1.onnx"), providers=["CPUExecutionProvider"])
x = onnxruntime.OrtValue.ortvalue_from_numpy(np.arange(6, dtype=np.float32).reshape(3, 2), "cpu", 0)
print(x.device_name(), x.shape(), x.data_type(), x.is_tensor(), np.array_equal(x.numpy().ravel(), np.arange(6)))
binding = session.io_binding()
binding.bind_input(
    name="X",
    device_type=x.device_name(),
    device_id=0,
    element_type=np.float32,
    shape=x.shape(),
    buffer_ptr=x.data_ptr(),
)
binding.bind_output("Y")
session.run_with_iobinding(binding)
print(binding.copy_outputs_to_cpu()[0].tolist(), binding.get_outputs()[0].shape())
y = onnxruntime.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32, "cpu", 0)
binding.bind_output(
    name="Y",
    device_type=y.device_name(),
    device_id=0,
    element_type=np.float32,
    shape=y.shape(),
    buffer_ptr=y.data_ptr(),
)
session.run_with_iobinding(binding)
print(y.numpy().tolist())
print(session.run_with_ort_values(["Y"], {"X": x})[0].numpy().tolist())
