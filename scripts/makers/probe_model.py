"""Create the model of the live probe: ``python -m scripts.makers.probe_model`` (needs onnx).

The model computes relu(x @ w + b) with small multiples of 1/8, so that 16 bits represent all numbers exactly.
"""

from __future__ import annotations

import sys
from pathlib import Path

import qnnbridge_tools.doctor
from qnnbridge_tools.doctor.subjects.probe import PROBE_MODEL, bias, weights


def make() -> bytes:
    import numpy as np
    from onnx import TensorProto, checker, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="matmul"),
            helper.make_node("Add", ["xw", "b"], ["sum"], name="add"),
            helper.make_node("Relu", ["sum"], ["y"], name="relu"),
        ],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [
            numpy_helper.from_array(weights().astype(np.float32), "w"),
            numpy_helper.from_array(bias().astype(np.float32), "b"),
        ],
    )
    # Opset and IR version are old enough for every onnxruntime that onnxruntime-qnn supports.
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7, producer_name="qnnbridge"
    )
    checker.check_model(model)
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    target = Path(qnnbridge_tools.doctor.__path__[0]) / "assets" / PROBE_MODEL
    sys.stdout.write(f"{target}: {target.write_bytes(make())} bytes\n")
