"""Numbers of threads are checked before ONNX Runtime starts them: 100,000 threads took minutes and all memory of
the machine."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge.errors import OptionError
from tests.fakes import models as build

pytestmark = pytest.mark.process


@pytest.mark.parametrize("name", ["intra_op_num_threads", "inter_op_num_threads"])
def test_more_threads_than_any_machine_uses_are_refused(name: str, host: qnnbridge.Host) -> None:
    x, y = (helper.make_tensor_value_info(one, TensorProto.FLOAT, [2]) for one in "xy")
    model = build.model([helper.make_node("Add", ["x", "x"], ["y"])], [x], [y]).SerializeToString()
    for count in (1025, 100_000, 2**31 - 1):
        options = qnnbridge.SessionOptions()
        setattr(options, name, count)
        with pytest.raises(OptionError, match=f"{name} is {count}"):
            qnnbridge.InferenceSession(model, options, providers=["CPUExecutionProvider"], host=host)
    for count in (-1, 0, 2):
        options = qnnbridge.SessionOptions()
        setattr(options, name, count)
        with qnnbridge.InferenceSession(model, options, providers=["CPUExecutionProvider"], host=host) as session:
            assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2, 2]
