"""`qnnbridge verify`: agreement, traps by their names, the first node that differs, inputs from files, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_work_models as models
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("onnxruntime")

from qnnbridge_protocol.errors import CompiledModelRefused, NoSuchFile, OptionError
from qnnbridge_tools.arguments import InputFile
from qnnbridge_tools.cli import app
from qnnbridge_tools.model_work import inference
from qnnbridge_tools.model_work.comparing import OutputDifference
from qnnbridge_tools.verify import Verification, sub_model, traps, verify_model
from qnnbridge_tools.verify.cases import extreme_cases
from qnnbridge_tools.verify.result import Tolerance

node, value, constant = models.helper.make_node, models.value, models.constant


class Input:
    def __init__(self, name: str, type_text: str, shape: list[int]) -> None:
        self.name, self.type, self.shape = name, type_text, shape


@pytest.fixture
def simulator() -> Iterator[None]:
    pytest.importorskip("onnxruntime_qnn")
    return iter(())


def checked(made: Any, folder: Path, **kwargs: Any) -> Verification:
    return verify_model(models.saved(made, folder / "m.onnx"), soc_model="60", **kwargs)


def one(op: str, x: list[int], y: list[int | None], **attributes: Any) -> Any:
    return models.model([node(op, ["x"], ["y"], name="it", **attributes)], [value("x", x)], [value("y", list(y))])


def names_of(result: Verification) -> dict[str, set[str]]:
    """Case -> the traps that hit there."""
    return {case.name: {trap.name for trap in case.traps} for case in result.cases if case.traps}


# --- against QNN ------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_a_model_that_computes_the_same_agrees(simulator: None, tmp_path: Path) -> None:
    result = checked(models.conv_net(), tmp_path, extreme=False)
    assert result.agrees
    assert [case.status for case in result.cases] == ["agrees"] * 3
    output = result.cases[0].outputs[0]
    assert output.cosine is not None
    assert output.cosine > 0.999
    assert output.elements == 8
    assert result.culprit is None
    assert result.placement is not None
    assert result.placement.qnn_nodes
    assert result.placement.cpu_nodes == 0


@pytest.mark.simulator
def test_a_difference_is_traced_to_the_first_node_and_its_known_fault(simulator: None, tmp_path: Path) -> None:
    made = models.model(
        [
            node("Relu", ["x"], ["a"], name="relu"),
            node("Add", ["a", "a"], ["b"], name="twice"),
            node("Resize", ["b", "", "s"], ["c"], mode="nearest", name="shrink"),
            node("Neg", ["c"], ["d"], name="neg"),
            node("Sigmoid", ["d"], ["y"], name="sigmoid"),
        ],
        [value("x", [1, 1, 4, 4])],
        [value("y", [1, 1, None, None])],
        [constant("s", np.array([1, 1, 0.6, 0.6], np.float32))],
    )
    result = checked(made, tmp_path, extreme=False)
    assert not result.agrees
    assert result.culprit is not None
    assert (result.culprit.name, result.culprit.op) == ("shrink", "Resize")
    assert result.culprit.alone is not None, "with the CPU's own inputs it is wrong, too"
    assert result.culprit.alone.max_relative > 0.05
    assert result.culprit.trap is not None
    assert result.traps[0].name == "operator-Resize"
    assert result.culprit.tried <= 5


@pytest.mark.simulator
def test_a_sum_that_overflows_inside_is_found_and_named(simulator: None, tmp_path: Path) -> None:
    """As in a LayerNormalization that is written out: the outputs look like anything, the cause is in the middle."""
    made = models.model(
        [
            node("Mul", ["x", "large"], ["a"], name="scale"),
            node("Mul", ["a", "a"], ["b"], name="square"),
            node("ReduceSum", ["b", "axes"], ["c"], keepdims=1, name="sum"),
            node("Sqrt", ["c"], ["d"], name="root"),
            node("Div", ["a", "d"], ["y"], name="normal"),
        ],
        [value("x", [1, 64])],
        [value("y", [1, 64])],
        [constant("large", np.float32(200)), constant("axes", np.array([1]))],
    )
    result = checked(made, tmp_path, extreme=False, random=1)
    assert not result.agrees
    assert result.culprit is not None
    assert result.culprit.name == "sum"
    assert result.culprit.trap is not None
    assert result.culprit.trap.name == "half-range"


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("op", "case", "trap"),
    [
        ("Relu", "large values", "half-range"),
        ("Exp", "NaN", "not-finite-lost"),
        ("Relu", "infinity", "not-finite-lost"),
    ],
)
def test_traps_of_half_floats_are_named_and_fail_nothing(
    simulator: None, op: str, case: str, trap: str, tmp_path: Path
) -> None:
    result = checked(one(op, [1, 8], [1, 8]), tmp_path, random=1)
    assert result.agrees, "on ordinary inputs it does"
    assert trap in names_of(result)[case]


@pytest.mark.simulator
def test_wide_integers_lose_their_upper_half(simulator: None, tmp_path: Path) -> None:
    made = models.model(
        [node("Add", ["x", "one"], ["y"], name="add")],
        [value("x", [4], models.INT64)],
        [value("y", [4], models.INT64)],
        [constant("one", np.array([1]))],
    )
    result = checked(made, tmp_path, random=1)
    assert result.agrees
    assert names_of(result) == {"integers beyond 32 bits": {"int64-truncated"}}


@pytest.mark.simulator
def test_an_index_that_only_the_cpu_refuses_is_named(simulator: None, tmp_path: Path) -> None:
    made = models.model(
        [node("GatherElements", ["x", "i"], ["y"], axis=1, name="gather")],
        [value("x", [2, 4]), value("i", [2, 3], models.INT64)],
        [value("y", [2, 3])],
    )
    result = checked(made, tmp_path, random=1)
    assert "index-not-checked" in names_of(result)["integers beyond 32 bits"]


@pytest.mark.simulator
def test_speech_detection_saturates_on_quiet_input_and_is_told(simulator: None) -> None:
    """A real fault that ordinary random inputs do not show."""
    result = verify_model(models.MODELS / "silero_vad_openvino_16k.onnx", soc_model="60", search=False, random=1)
    assert "half-range" in names_of(result)["tiny values"]
    worst = next(case for case in result.cases if case.name == "tiny values")
    assert worst.outputs[0].max_abs > 1e4


@pytest.mark.simulator
def test_given_inputs_decide_the_sizes_and_are_compared(simulator: None, tmp_path: Path) -> None:
    made = models.model([node("Relu", ["x"], ["y"], name="relu")], [value("x", ["n", 4])], [value("y", ["n", 4])])
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    result = checked(made, tmp_path, inputs=[InputFile("x", tmp_path / "x.npy")], extreme=False)
    assert [case.kind for case in result.cases] == ["given"]
    assert result.sizes == {"x": (3, 4)}
    assert result.agrees
    assert result.cases[0].outputs[0].elements == 12


@pytest.mark.simulator
def test_a_model_that_qnn_does_not_take_is_told_and_fails(simulator: None, tmp_path: Path) -> None:
    result = checked(one("Sign", [1, 2, 2, 2, 2], [1, 2, 2, 2, 2]), tmp_path)
    assert not result.agrees
    assert result.error is not None
    assert result.cases == ()


@pytest.mark.simulator
def test_the_command_prints_a_table_and_a_document(simulator: None, tmp_path: Path) -> None:
    model = models.saved(one("Relu", [1, 8], [1, 8]), tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["verify", str(model), "--random", "1"])
    assert done.exit_code == 0, done.output
    assert "QNN computes what the CPU computes; not so for" in done.stdout
    assert "half-range" in done.stdout
    document = json.loads(CliRunner().invoke(app, ["verify", str(model), "--json", "--no-extreme"]).stdout)
    assert document["agrees"] is True
    assert [case["kind"] for case in document["cases"]] == ["random"] * 3
    assert document["cases"][0]["outputs"][0]["cosine"] > 0.99


# --- without QNN -----------------------------------------------------------------------------------------


def test_only_those_extremes_are_made_that_an_input_can_have() -> None:
    floats = [case.name for case in extreme_cases([Input("x", "tensor(float)", [2])], 0, {})]
    assert floats == ["zeros", "large values", "tiny values", "NaN", "infinity", "minus infinity"]
    narrow = [case.name for case in extreme_cases([Input("i", "tensor(int32)", [2])], 0, {})]
    assert narrow == ["negative integers"]
    wide = {case.name: case.feeds["i"] for case in extreme_cases([Input("i", "tensor(int64)", [2])], 0, {})}
    assert wide["negative integers"][0] == -1
    assert wide["integers beyond 32 bits"][0] == 2**33 + 5
    assert list(extreme_cases([Input("b", "tensor(bool)", [2])], 0, {})) == []
    assert list(extreme_cases([Input("x", "tensor(float)", [2])], 0, {"x": np.zeros(2, np.float32)})) == []


def test_float16_inputs_have_extremes_of_their_own_type() -> None:
    for case in extreme_cases([Input("x", "tensor(float16)", [4])], 0, {}):
        assert case.feeds["x"].dtype == np.float16


@pytest.mark.parametrize(
    ("expected", "found", "names"),
    [
        ([1e5, 1.0], [65536.0, 1.0], {"half-range"}),
        ([1.0, 2.0], [98304.0, 2.0], {"half-range"}),
        ([np.nan, 1.0], [65504.0, 1.0], {"not-finite-lost"}),
        ([np.inf, 1.0], [3.0, 1.0], {"not-finite-lost"}),
        ([1e-9, 1.0], [0.0, 1.0], {"half-underflow"}),
        ([1.0, 2.0], [1.1, 2.0], set()),
        ([np.nan, 1.0], [np.nan, 1.0], set()),
    ],
)
def test_numbers_tell_which_trap_it_was(expected: list[float], found: list[float], names: set[str]) -> None:
    hits = traps.of_values(np.array(expected, np.float32), np.array(found, np.float32), "y")
    assert {trap.name for trap in hits} == names
    assert all(trap.output == "y" and trap.fix for trap in hits)


def test_truncated_integers_are_told_from_other_wrong_ones() -> None:
    wide = np.array([2**33 + 6, 7])
    assert [trap.name for trap in traps.of_values(wide, np.array([6, 7]), "y")] == ["int64-truncated"]
    assert traps.of_values(wide, np.array([5, 7]), "y") == []
    assert traps.of_values(np.array([3], np.int32), np.array([4], np.int32), "y") == []


def test_operators_are_only_blamed_with_the_attributes_that_show_their_fault() -> None:
    assert traps.of_operator("AveragePool", {"pads": [1, 1, 1, 1]}) is not None
    assert traps.of_operator("AveragePool", {"pads": [0, 0, 0, 0]}) is None
    assert traps.of_operator("GridSample", {"mode": "nearest"}) is not None
    assert traps.of_operator("GridSample", {"mode": "linear"}) is None
    assert traps.of_operator("Relu", {}) is None


def test_rounding_is_no_difference() -> None:
    tolerance = Tolerance(0.99, 0.05, 0.004)

    def output(**kwargs: Any) -> OutputDifference:
        return OutputDifference("y", "float", 4, **kwargs)

    assert not tolerance.is_broken_by(output(max_abs=0.002, max_relative=1.0, cosine=0.0))
    assert tolerance.is_broken_by(output(max_abs=0.2, max_relative=0.01, cosine=0.5))
    assert tolerance.is_broken_by(output(max_abs=0.2, max_relative=0.2, cosine=0.999))
    assert not tolerance.is_broken_by(output(max_abs=0.2, max_relative=0.01, cosine=0.999))
    assert tolerance.is_broken_by(output(different=1))
    assert tolerance.is_broken_by(OutputDifference("y", "integer", 4, max_abs=1.0, different=1))
    assert tolerance.is_broken_by(output(mismatch="shape"))


def test_a_part_of_a_model_has_what_it_needs_and_no_more() -> None:
    made = models.attention(-1e4)
    known = inference.types_of(made)
    part = sub_model.up_to(made, "scores", known)
    assert part is not None
    assert [n.name for n in part.graph.node] == ["query", "key", "turn", "scores"]
    assert [v.name for v in part.graph.input] == ["x"]
    assert {t.name for t in part.graph.initializer} == {"wq", "wk"}
    alone = sub_model.alone(made, 8, known)
    assert alone is not None
    assert [n.op_type for n in alone.graph.node] == ["Softmax"]
    assert [v.name for v in alone.graph.input] == ["masked"]


def test_a_part_with_a_branch_takes_along_what_the_branch_reads() -> None:
    made = models.branching()
    part = sub_model.up_to(made, "y", inference.types_of(made))
    assert part is not None
    assert {v.name for v in part.graph.input} == {"x", "c"}


def test_free_dimensions_are_refused_with_the_options_to_give() -> None:
    with pytest.raises(OptionError) as caught:
        verify_model(models.MODELS / "pnet.onnx")
    assert '--dim "M1=SIZE"' in (caught.value.fix or "")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused):
        verify_model(models.COMPILED)
    with pytest.raises(NoSuchFile):
        verify_model(tmp_path / "none.onnx")
    with pytest.raises(OptionError, match="no file"):
        verify_model(models.MODELS / "sigmoid.onnx", inputs=[InputFile("x", tmp_path / "none.npy")])
    done = CliRunner().invoke(app, ["verify", str(models.MODELS / "sigmoid.onnx"), "--soc-model", "nonsense"])
    assert done.exit_code == 2
