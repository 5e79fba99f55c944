"""Build models of `qnnbridge_host.numerics.cases` as `ModelProto`s; start no threads and access no files."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from qnnbridge_host.numerics import cases
from qnnbridge_host.numerics.cases import Case, CaseModel


def float_model(case: Case, *, every_output: bool = False) -> onnx.ModelProto:
    """Return the model without quantisation. With `every_output` it has the outputs of all nodes, not only the
    last."""
    return _typed(cases.float_model(case, every_output=every_output))


def quantised_model(case: Case, ranges: Mapping[str, tuple[float, float]]) -> onnx.ModelProto:
    """Return the model with QuantizeLinear and DequantizeLinear after every float tensor."""
    return _typed(cases.quantised_model(case, ranges))


def _typed(made: CaseModel) -> onnx.ModelProto:
    """Return the model with the inferred types and shapes of its outputs."""
    model = onnx.load_from_string(made.to_bytes())
    del model.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {value.name: value for value in inferred.graph.value_info}
    for name in made.outputs:
        if name in known and known[name].type.tensor_type.elem_type:
            model.graph.output.append(known[name])
        else:
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    return model
