"""A model with an operator that QNN refuses is refused before it is compiled, with the message of the later
refusal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qnnbridge_host.create import beforehand, compiler
from qnnbridge_host.create.beforehand import refuse_beforehand
from qnnbridge_host.create.order import WorkOrder, worker_command
from qnnbridge_host.create.publish import CompilerInput
from qnnbridge_host.model.doubts import refused_operators
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import PlacementRefused
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec
from tests.conformance.real_models import SOC_MODEL
from tests.contract.small_models import model, node, tensor

SIZE = 512
W = np.random.default_rng(3).standard_normal((SIZE, SIZE)).astype(np.float32)


def around(*middle: onnx.NodeProto, **values: Any) -> onnx.ModelProto:
    """Return a product with 1 MB of weights in front of the nodes from `a` to `b`, followed by a Relu."""
    return model(
        [node("MatMul", ["x", "w"], ["a"]), *middle, node("Relu", ["b"], ["y"])],
        [tensor("x", [1, 4, SIZE])],
        [tensor("y", [1, 4, SIZE])],
        {"w": W, **values},
    )


REFUSED = {
    "missing": around(node("Softsign", ["a"], ["b"], name="middle")),
    "refused by the NPU": around(node("Asin", ["a"], ["b"], name="middle")),
    "equation": around(node("Einsum", ["a", "v"], ["b"], equation="bsd,d->bsd", name="middle"), v=W[0]),
    "limits that are computed": around(
        node("ReduceMin", ["a"], ["least"], keepdims=0), node("Clip", ["a", "least"], ["b"], name="middle")
    ),
    "type": around(
        node("Cast", ["a"], ["i"], to=TensorProto.INT32),
        node("Neg", ["i"], ["n"], name="middle"),
        node("Cast", ["n"], ["b"], to=TensorProto.FLOAT),
    ),
    "attribute": around(
        node("Reshape", ["a", "flat"], ["f"]),
        node("Gemm", ["f", "w"], ["g"], alpha=0.5, name="middle"),
        node("Reshape", ["g", "whole"], ["b"]),
        flat=np.asarray([4, SIZE]),
        whole=np.asarray([1, 4, SIZE]),
    ),
}


def order(job: CompilerInput) -> WorkOrder:
    command = worker_command(json.dumps([sys.executable, "-m", "qnnbridge_host"]))
    return WorkOrder(command, StopSignal(), job.source)


def job_of(made: onnx.ModelProto, folder: Path, **spec: Any) -> CompilerInput:
    path = folder / "m.onnx"
    onnx.save(made, path)
    given = {"providers": (ProviderSpec(QNN, {"soc_model": SOC_MODEL}),), **spec}
    return CompilerInput(ModelSource.open(path), SessionSpec(model_path=str(path), **given))


def refuse(job: CompilerInput) -> None:
    refuse_beforehand(job.source, job.spec, (), order(job))


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize("name", REFUSED)
def test_the_early_refusal_has_the_same_information_as_the_late_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    job = job_of(REFUSED[name], tmp_path)
    with pytest.raises(PlacementRefused) as early:
        refuse(job)
    monkeypatch.setattr(beforehand, "LEAST_BYTES", 2**40)
    with pytest.raises(PlacementRefused) as late:
        compiler.compile_together([job], str(tmp_path), order(job))
    found, expected = early.value, late.value
    assert (found.message, found.cause, found.fix) == (expected.message, expected.cause, expected.fix)
    assert found.details == expected.details
    assert [node for node, _ in found.details["cpu_list"]] == ["middle"]
    reasons = [line for line in found.evidence if "(middle): " in line]
    assert reasons
    assert not any("Failed to add" in line for line in reasons), "that is no reason"


@pytest.mark.simulator
@pytest.mark.process
def test_a_suspected_operator_that_qnn_accepts_is_not_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = around(node("Einsum", ["a", "v"], ["b"], equation="bij,bjk->bik"), v=W[None])
    job = job_of(made, tmp_path)
    assert refused_operators(str(job.source.path), {}) == {"Einsum"}
    refuse(job)


@pytest.mark.simulator
@pytest.mark.process
def test_without_the_library_that_writes_graphs_the_model_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setattr(beforehand, "_IR_LIBRARY", "libQnnNowhere.so")
    refuse(job_of(REFUSED["missing"], tmp_path))


@pytest.mark.parametrize(
    "spec",
    [
        {"fallback": "cpu"},
        {"providers": (ProviderSpec("CPUExecutionProvider"),)},
        {"providers": (ProviderSpec(QNN, {"backend_type": "gpu"}),)},
        {"providers": (ProviderSpec(QNN, {"qnn_saver_path": "x"}),)},
    ],
)
def test_sessions_that_could_use_the_cpu_are_not_checked_in_advance(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(beforehand, "_placed", lambda *given: asked.append(given))
    refuse(job_of(REFUSED["missing"], tmp_path, **spec))
    assert not asked


@pytest.mark.parametrize("name", REFUSED)
def test_the_tables_suspect_operators_that_qnn_refuses(name: str, tmp_path: Path) -> None:
    made = REFUSED[name]
    wanted = next(one.op_type for one in made.graph.node if one.name == "middle")
    assert refused_operators(made.SerializeToString(), {}) == {wanted}


@pytest.mark.parametrize(
    "middle",
    [
        [node("Sigmoid", ["a"], ["b"])],
        # Nodes that ONNX Runtime folds when it loads the model never reach QNN.
        [
            node("Shape", ["a"], ["s"]),
            node("ConstantOfShape", ["s"], ["z"]),
            node("Add", ["a", "z"], ["b"]),
        ],
        # Older exporters share weights through an Identity.
        [
            node("Identity", ["half"], ["h"]),
            node("Clip", ["a", "", "h"], ["b"]),
        ],
        # A Gelu that consists of basic operators.
        [
            node("Div", ["a", "root"], ["d"]),
            node("Erf", ["d"], ["e"]),
            node("Add", ["e", "one"], ["f"]),
            node("Mul", ["a", "f"], ["m"]),
            node("Mul", ["m", "half"], ["b"]),
        ],
    ],
)
def test_operators_that_qnn_accepts_are_not_suspected(middle: list[onnx.NodeProto]) -> None:
    numbers = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    made = around(*middle, **{name: np.asarray(number) for name, number in numbers.items()})
    assert not refused_operators(made.SerializeToString(), {})


def test_bytes_that_are_not_a_model_are_not_suspected() -> None:
    assert not refused_operators(b"\x00\x01 nothing", {})
    assert not refused_operators("/nowhere/model.onnx", {})


def test_a_function_of_the_model_is_judged_by_its_body() -> None:
    """A model's own function is not an operator that QNN lacks, since it is inlined."""
    body = helper.make_function(
        "own", "Twice", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 21)]
    )
    made = around(helper.make_node("Twice", ["a"], ["b"], domain="own"))
    made.functions.append(body)
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert not refused_operators(made.SerializeToString(), {})
