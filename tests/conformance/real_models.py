"""The models of `tests/models`: their inputs, and which of them run completely on QNN.

This module does not import the bridge, so that both sides of a comparison can use it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent.parent / "models"

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"
# Snapdragon X Elite. Without a chip most float models fail on the simulator, or take minutes.
SOC_MODEL = "60"


@dataclasses.dataclass(frozen=True)
class RealModel:
    """A real model.

    Args:
        inputs: shape of each input by name.
        dynamic: the file has free dimensions.
        whole: QNN supports every node.
    """

    file: str
    inputs: dict[str, tuple[int, ...]]
    dynamic: bool = False
    whole: bool = True

    @property
    def path(self) -> Path:
        return FOLDER / self.file

    def modes(self) -> dict[str, list[str]]:
        """Return the providers of each way to run the model, by the name of the way."""
        first = {"qnn": [QNN]} if self.whole else {"qnn and cpu": [QNN, CPU]}
        return {**first, "cpu": [CPU]}

    def feeds(self) -> dict[str, dict[str, Any]]:
        """Return feeds by the name of the input data."""
        rng = np.random.default_rng(20)
        return {
            "random": {name: rng.random(shape, np.float32) for name, shape in self.inputs.items()},
            "ones": {name: np.ones(shape, np.float32) for name, shape in self.inputs.items()},
        }

    def fixed(self, folder: Path) -> Path:
        """Return the path of the model with all dimensions fixed, which may be a new file in `folder`.

        Sizes are set by position: two axes of the text-direction classifier have the same name, so no override by
        name can distinguish them.
        """
        if not self.dynamic:
            return self.path
        import onnx

        model = onnx.load(self.path)
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, self.inputs[value.name], strict=True):
                dim.dim_value = size
        path = folder / self.file
        onnx.save(model, path)
        return path


# The slow models are at positions that the short form of a test, which uses every third model, omits.
REAL_MODELS = (
    RealModel("f.onnx", {"x": (1, 3, 64, 64)}),
    RealModel("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 64)}, dynamic=True),
    RealModel("model_v8.onnx", {"input_1": (1, 900, 120)}, dynamic=True),
    RealModel("logreg_iris.onnx", {"float_input": (3, 2)}, whole=False),
    RealModel("mul_1.onnx", {"X": (3, 2)}),
    RealModel("onet.onnx", {"input_3": (1, 48, 48, 3)}, dynamic=True),
    RealModel("pnet.onnx", {"input_1": (1, 60, 60, 3)}, dynamic=True),
    RealModel("q.onnx", {"x": (1, 3, 64, 64)}),
    RealModel("rnet.onnx", {"input_2": (1, 24, 24, 3)}, dynamic=True),
    RealModel("silero_vad_openvino_16k.onnx", {"input": (1, 576), "state": (2, 1, 128)}),
    RealModel("sigmoid.onnx", {"x": (3, 4, 5)}),
)
