"""The table of operators that QNN computes wrong against the simulator, and the rewrites of `qnnbridge fix`.

This is the short form of `python -m lab.sweep`: the example of each row, unchanged and rewritten.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import fix_models
import onnx
import pytest
from lab.sweep.cases import float_model
from lab.sweep.driver import Worker
from lab.sweep.generator import FAMILIES, generated
from lab.sweep.report import explained, model_to_read
from scripts.makers import known_wrong
from tests import needs
from tests.fakes import models as build
from tests.fakes.commands import qnnbridge as qnnbridge_command

import qnnbridge
from qnnbridge_host.cache.measured import digest_of
from qnnbridge_host.model.known_wrong import WrongOperator, find_in_model, table
from qnnbridge_host.numerics.cases import Case
from qnnbridge_host.numerics.rounding import judge
from qnnbridge_models.analyze import analyze_model
from qnnbridge_models.analyze.analysis import verdict_text
from qnnbridge_models.fix import fix_model
from qnnbridge_tools.doctor.facts import MeasuredFacts

np = pytest.importorskip("numpy")
ROWS = {row.name: row for row in table()}
CURED = {name: row for name, row in ROWS.items() if row.rewrite}
# Number of generated cases for each family, in addition to the recorded examples.
_GENERATED = 300


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize("row", list(ROWS.values()), ids=list(ROWS))
def test_qnn_computes_the_example_of_a_row_wrong(row: WrongOperator, worker: Worker) -> None:
    may_die = "or the process crashes" in row.says or "or crashes the process" in row.says
    dies = "crashes the process" in row.says and not may_die
    expected = {"died" if dies else "failed" if row.fails else "wrong"}
    if may_die:
        expected.add("died")  # depending on the contents of memory
    assert worker.run(Case.from_words(row.example))["status"] in expected
    worker.start()  # replaces a crashed worker, before the test is checked for remaining processes


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize("row", list(CURED.values()), ids=list(CURED))
def test_the_rewrite_of_a_row_is_right_on_qnn(row: WrongOperator, worker: Worker) -> None:
    result = worker.run(Case.from_words(row.example), row.rewrite)
    # Nodes on the CPU are right, and QNN without the CPU refuses the model.
    on_cpu = row.on_cpu or row.rewrite == "wide-integers"
    assert result["status"] == ("refused" if on_cpu else "right"), result


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize("whole", [onnx.TensorProto.UINT8, onnx.TensorProto.UINT32])
def test_unsigned_integers_between_floats_are_rounded_in_a_session(whole: int, host: qnnbridge.Host) -> None:
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["w"], to=whole),
        onnx.helper.make_node("Cast", ["w"], ["y"], to=1),
    ]
    shape = [2, 3, 8]
    model = build.model_bytes(nodes, [build.tensor("x", shape)], [build.tensor("y", shape)])
    x = np.linspace(0, 200.9, 48, dtype=np.float32).reshape(shape)
    chip = [("QNNExecutionProvider", {"soc_model": "60"})]
    with qnnbridge.InferenceSession(model, host=host, providers=chip) as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.floor(x))


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize(
    ("family", "row", "seed"),
    [
        ("dilated", "conv-equal-padding", 11),
        ("pad", "pad-edge", 11),
        ("resize", "resize-nearest", 11),
        ("pool", "pool-ceil-shape", 13),
    ],
)
def test_a_rewrite_is_right_on_qnn_for_random_shapes(family: str, row: str, seed: int, worker: Worker) -> None:
    cases = (generated(family, number, seed) for number in range(_GENERATED))
    mine = [case for case in cases if case.form == "float" and [one.fault.name for one in explained(case)] == [row]]
    assert len(mine) >= 3
    for case in mine[: needs.length(1, 3)]:
        result = worker.run(case, ROWS[row].rewrite)
        assert result["status"] == "right", (case, result)


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "added", "form"),
    needs.some(
        (
            (*sizes, form)
            for sizes in (((3, 3), 2, 1, (1, 1)), ((3, 3), 2, 1, (0, 1)), ((7,), 4, 2, (2,)))
            for form in ("float", "qdq8", "float16", "qdq16")
        ),
    ),
)
def test_a_depthwise_transposed_convolution_is_fixed_in_every_form(
    kernel: tuple[int, ...], stride: int, pads: int, added: tuple[int, ...], form: str, worker: Worker
) -> None:
    case = depthwise(kernel, stride, pads, added, form)
    assert [one.fault.name for one in explained(case)] == ["conv-transpose-depthwise-output-padding"]
    assert worker.run(case)["status"] == "wrong"
    assert worker.run(case, "transposed-padding")["status"] == "right"


def test_padding_that_no_window_reaches_is_appended_but_not_inside_of_a_quantised_group(tmp_path: Path) -> None:
    beyond = float_model(depthwise((4, 4), 3, 0, (2, 0), "float"))
    path = tmp_path / "m.onnx"
    beyond.graph.node[0].attribute.append(onnx.helper.make_attribute("auto_pad", "NOTSET"))
    onnx.save(beyond, str(path))
    (step,) = fix_model(path, tmp_path / "o.onnx", only=["transposed-padding"]).steps
    assert step.kept
    assert [node.op_type for node in onnx.load(str(tmp_path / "o.onnx")).graph.node] == ["ConvTranspose", "Concat"]
    (node,) = beyond.graph.node
    beyond.graph.node.append(onnx.helper.make_node("QuantizeLinear", [node.output[0], "scale"], ["q"]))
    beyond.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), "scale"))
    beyond.graph.output[0].name, beyond.graph.output[0].type.tensor_type.elem_type = "q", onnx.TensorProto.UINT8
    onnx.save(beyond, str(path))
    assert fix_model(path, tmp_path / "p.onnx", only=["transposed-padding"]).steps == ()


def depthwise(kernel: tuple[int, ...], stride: int, pads: int, added: tuple[int, ...], form: str) -> Case:
    """Return a ConvTranspose of eight channels with output_padding."""
    attributes = {"group": 8, "kernel_shape": kernel, "strides": [stride] * len(kernel), "output_padding": added}
    if pads:
        attributes["pads"] = [pads] * 2 * len(kernel)
    tensors = {
        "x": [[1, 8, *(6 for _ in kernel)], "float", "normal", False],
        "w": [[8, 1, *kernel], "float", "fan", True],
    }
    nodes = [["ConvTranspose", ["x", "w"], attributes, 1]]
    return Case.from_words({"tensors": tensors, "nodes": nodes, "opset": 17, "form": form, "seed": 0})


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize(
    ("behind", "half_first", "form"),
    needs.some(itertools.product(["", "Add", "MatMul", "LayerNormalization"], [False, True], ["qdq8", "qdq16"])),
)
def test_a_quantised_gelu_runs_completely_on_qnn(behind: str, half_first: bool, form: str, worker: Worker) -> None:
    case = fix_models.gelu_case(half_first=half_first, form=form, behind=behind)
    result = worker.run(case, "gelu")
    assert result["status"] == "right", result


@pytest.mark.process
@pytest.mark.simulator
def test_a_quantised_gelu_whose_constant_comes_first_is_refused_unless_it_is_rewritten(
    worker: Worker,
) -> None:
    case = fix_models.gelu_case(half_last=True, behind="Add")
    assert worker.run(case)["status"] == "refused"
    assert worker.run(case, "gelu")["status"] == "right"


@pytest.mark.simulator
@pytest.mark.process
def test_a_quantised_gelu_of_five_operators_is_refused_by_qnn(worker: Worker) -> None:
    assert worker.run(fix_models.gelu_case(behind="Add"))["status"] == "refused"


def test_a_float_gelu_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(float_model(fix_models.gelu_case()), str(path))
    assert fix_model(path, tmp_path / "o.onnx", only=["gelu"]).steps == ()


@pytest.mark.parametrize("row", list(ROWS.values()), ids=list(ROWS))
def test_analyze_reports_a_known_wrong_operator_without_running_the_model(
    row: WrongOperator, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_to_read(Case.from_words(row.example)), str(path))
    analysis = analyze_model(path, offline=True)
    found = [one for one in analysis.advice if one.code == "known-wrong"]
    words = "QNN fails" if row.fails else "wrong numbers"
    assert (words in verdict_text(analysis, analysis.best)) is bool(found)
    if row.name in ("top-k-int64", "mod-uint8", "int64-five-dimensions", "conv-weight-type"):
        return  # by the rules QNN refuses these types, or its process crashes
    assert [row.says in one.why for one in found] == [True]
    assert found[0].what.startswith("qnnbridge fix" if row.rewrite else row.advice)


@pytest.mark.parametrize("row", list(CURED.values()), ids=list(CURED))
def test_a_fixed_model_is_not_reported_as_wrong_any_more(row: WrongOperator, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_to_read(Case.from_words(row.example)), str(path))
    result = fix_model(path, tmp_path / "o.onnx", only=[row.rewrite])
    assert [step.kept for step in result.steps] == [True]
    assert not any(one.code for one in analyze_model(tmp_path / "o.onnx", offline=True).advice)


def test_the_page_lists_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "known-wrong.md").read_text()
    assert "\n".join(known_wrong.page_rows()) in page


def test_a_case_is_the_same_from_its_stored_form_and_from_its_seed() -> None:
    for family in FAMILIES:
        for number in range(5):
            try:
                case = generated(family, number, seed=5)
            except (ValueError, IndexError):
                continue
            words = json.loads(json.dumps(case.to_words()))
            assert Case.from_words(words).name == case.name == generated(family, number, seed=5).name


def test_rounding_is_not_reported_as_wrong_and_garbage_is() -> None:
    reference = np.linspace(-3, 3, 50, dtype=np.float32)
    moved = [reference * np.float32(1 + 2.0**-11)]
    assert judge(reference, moved, reference.astype(np.float16).astype(np.float32)).right
    for change in (lambda x: x * 1.1, lambda x: np.roll(x, 1) + x[::-1], lambda x: np.where(x == x[3], 131008, x)):
        assert not judge(reference, moved, change(reference)).right
    one_step: Any = judge(reference, moved, reference + np.float32(0.02), step=0.0235)
    assert one_step.right


def test_computed_paddings_are_reported_with_a_command_that_fixes_them(tmp_path: Path) -> None:
    """PyTorch's older exporter casts the pads of `padding_mode="replicate"` during the run."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Cast", ["pads"], ["whole"], name="cast", to=onnx.TensorProto.INT64),
        helper.make_node("Pad", ["x", "whole"], ["y"], name="border", mode="edge"),
    ]
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int32)}
    made = build.model(nodes, [build.tensor("x", [1, 2, 4, 4])], [build.tensor("y", [1, 2, 6, 6])], pads)
    path = build.saved(made, tmp_path / "m.onnx")
    (told,) = [one for one in analyze_model(path, offline=True).advice if one.code == "known-wrong"]
    assert told.what.endswith("--only shape-computations --only edge-padding")
    fix_model(path, tmp_path / "o.onnx", only=["shape-computations", "edge-padding"])
    assert "Pad" not in {node.op_type for node in onnx.load(str(tmp_path / "o.onnx")).graph.node}


@pytest.mark.simulator
@pytest.mark.process
def test_a_crash_of_the_compiler_names_the_known_fault_and_the_command(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    model = float_model(Case.from_words(ROWS["vector-between-transposes"].example))
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path))
    died = qnnbridge_command("compile", path, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert died.returncode != 0
    assert "Reshape" in died.output
    assert "--only vector-reshape" in died.output
    assert "Windows" not in died.output
    fixed = tmp_path / "fixed.onnx"
    fix_model(path, fixed, only=["vector-reshape"])
    done = qnnbridge_command("compile", fixed, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert done.returncode == 0, done.output


def test_the_page_shows_the_measurements() -> None:
    page = known_wrong.PAGE.read_text()
    assert known_wrong.with_tables(page, known_wrong.read_data()) == page


def test_a_column_shows_a_chip_and_omits_rows_that_have_changed() -> None:
    one = MeasuredFacts(
        60,
        False,
        {"driver": "30.0.1", "qnn_sdk": "2.51.0"},
        {"pad-edge": "right", "pow-high": "wrong"},
        {"pad-edge": digest_of(ROWS["pad-edge"]), "pow-high": "changed"},
        2.0,
    )
    older = dataclasses.replace(one, when=1.0, rows={"pad-edge": "wrong"})
    (kept,) = known_wrong.merged([one], [older])
    lines = known_wrong.measured_table([kept]).split("\n")
    assert lines[0] == "| row | V73 NPU, driver 30.0.1, QNN 2.51.0 |"
    assert "| `pad-edge` | right |" in lines
    assert "| `pow-high` |  |" in lines


def test_the_command_that_fixes_a_model_has_the_sizes_given_to_analyze(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("Add", ["x", "p"], ["s"], name="sum"),
        onnx.helper.make_node("LayerNormalization", ["s", "g"], ["y"], name="norm", axis=-1),
    ]
    constants = {"p": np.ones((1, 32, 64), np.float32), "g": np.ones(64, np.float32)}
    x, y = build.tensor("x", ["batch", 32, 64]), build.tensor("y", ["batch", 32, 64])
    path = build.saved(build.model(nodes, [x], [y], constants), tmp_path / "m.onnx")
    assert [one for one in analyze_model(path, offline=True).advice if one.code == "known-wrong"] == []
    (told,) = [one for one in analyze_model(path, offline=True, dims={"batch": 4}).advice if one.code]
    assert told.what.endswith('-o m_fixed.onnx --dim "batch=4" --only fixed-shapes --only repeated-rows')
    fix_model(path, tmp_path / "o.onnx", dims={"batch": 4}, only=["fixed-shapes", "repeated-rows"])
    assert [node.op_type for node in onnx.load(str(tmp_path / "o.onnx")).graph.node] == [
        "Add",
        "Max",
        "LayerNormalization",
    ]


def model_with_branches(condition: bool | None) -> Any:
    """Return an If with an Exp in one branch and a Relu in the other. condition: None for an input."""
    helper = onnx.helper
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["n"], [f"{name}_r"])], name, [], [build.tensor(f"{name}_r", [1, 16])]
        )
        for name, op in (("then_branch", "Exp"), ("else_branch", "Relu"))
    }
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="sign"),
        helper.make_node("If", ["c"], ["y"], name="choice", **branches),
    ]
    inputs = [build.tensor("x", [1, 16])]
    if condition is None:
        inputs.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    constants = {} if condition is None else {"c": np.array(condition)}
    return build.model(nodes, inputs, [build.tensor("y", [1, 16])], constants)


@pytest.mark.parametrize(("condition", "faults"), [(None, 1), (True, 1), (False, 0)])
def test_analyze_finds_in_branches_of_an_if_what_a_session_finds(
    condition: bool | None, faults: int, tmp_path: Path
) -> None:
    path = build.saved(model_with_branches(condition), tmp_path / "m.onnx")
    found = [one for one in analyze_model(path, offline=True).advice if one.code == "known-wrong"]
    assert len(found) == faults == len(find_in_model(path, arch=73))
    for one in found:
        assert [analyze_model(path, offline=True).view.nodes[index].label for index in one.nodes] == ["choice"]
        assert "QNN computes Exp wrong" in one.why
        assert ("a branch of the If choice" in one.what) == (condition is None)


def test_the_command_for_a_branch_that_is_always_taken_fixes_it(tmp_path: Path) -> None:
    path = build.saved(model_with_branches(True), tmp_path / "m.onnx")
    (told,) = [one for one in analyze_model(path, offline=True).advice if one.code == "known-wrong"]
    words = [str(tmp_path / "o.onnx") if word == "m_fixed.onnx" else word for word in shlex.split(told.what)[1:]]
    assert qnnbridge_command(*words).returncode == 0
    assert [node.op_type for node in onnx.load(str(tmp_path / "o.onnx")).graph.node] == ["Neg", "Max", "Exp"]
    assert [one for one in analyze_model(tmp_path / "o.onnx", offline=True).advice if one.code] == []


@pytest.mark.simulator
def test_a_session_fixes_an_exponential_in_the_branch_that_is_always_taken(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = build.saved(model_with_branches(True), tmp_path / "m.onnx")
    with qnnbridge.InferenceSession(path, host=host, provider_options=[{"soc_model": "60"}]) as session:
        (found,) = session.run(None, {"x": np.full((1, 16), 100, np.float32)})
    assert not found.any()


def test_a_snapshot_of_some_rows_keeps_the_others_of_its_chip() -> None:
    def measured(when: int, **rows: str) -> MeasuredFacts:
        return MeasuredFacts(
            chip=60,
            simulator=True,
            versions={},
            when=float(when),
            rows=rows,
            digests=dict.fromkeys(rows, str(when)),
        )

    found = known_wrong.merged([measured(1, pad="wrong", exp="wrong")], [measured(2, exp="right")])
    assert [(one.rows, one.digests) for one in found] == [
        ({"pad": "wrong", "exp": "right"}, {"pad": "1", "exp": "2"})
    ]
