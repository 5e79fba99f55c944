"""`qnnbridge fix`: each rewrite finds its pattern and changes no result; sizes; refusals; complete files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

import fix_models
import model_work_models as models

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.rewrite import catalogue
from qnnbridge_host.rewrite import operators as operators
from qnnbridge_host.rewrite.catalogue import GATES
from qnnbridge_models.fix import REWRITES, fix_model
from qnnbridge_protocol.errors import CompiledModelRefused, InvalidProtobuf, ModelError, NoSuchFile, OptionError

NAMES = [rewrite.name for rewrite in REWRITES]
BY_NAME_ONLY = {rewrite.name for rewrite in REWRITES if rewrite.by_name_only}


def fix(*arguments: str | Path) -> Any:
    return qnnbridge("fix", *arguments)


def shapes_of(path: Path) -> list[tuple[int | None, ...]]:
    return [shape for _, shape in graphs.types_of(onnx.load(str(path))).values() if shape is not None]


def test_a_model_that_cannot_be_loaded_is_not_blamed_on_the_rewrites(tmp_path: Path) -> None:
    path = models.saved(fix_models.sizes_that_do_not_fit(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="before the rewrites and after them") as caught:
        fix_model(path, tmp_path / "o.onnx")
    assert "product" in (caught.value.cause or "")
    assert "--skip" not in (caught.value.fix or "")
    assert not (tmp_path / "o.onnx").exists()


def test_fully_masked_rows_do_not_revert_the_rewrite_of_masks(tmp_path: Path) -> None:
    path = models.saved(fix_models.causal_attention(), tmp_path / "m.onnx")
    (step,) = fix_model(path, tmp_path / "o.onnx", only=["masks"]).steps
    assert step.kept
    assert step.changes[0] == "2 masks are -10000 now"
    found = [cpu.open_session(one, "the model") for one in (path, tmp_path / "o.onnx")]
    rng = np.random.default_rng(0)
    for mask in ([1] * 6, [1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 1]):
        feeds = {"x": rng.normal(size=(6, 4)).astype(np.float32), "attention_mask": np.array([mask])}
        before, after = (one.run(None, feeds)[0] for one in found)
        np.testing.assert_allclose(after, before, atol=1e-6)


def test_masks_that_change_which_positions_rows_see_are_reverted(tmp_path: Path) -> None:
    model = models.attention(-3.4e38)
    # Scores in thousands, for which -1e4 masks nothing.
    for tensor in model.graph.initializer:
        if tensor.name in ("wq", "wk"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 3000, tensor.name))
    result = fix_model(models.saved(model, tmp_path / "m.onnx"), tmp_path / "o.onnx", only=["masks"])
    assert [step.kept for step in result.steps] == [False]


@pytest.mark.parametrize("what", fix_models.ONE_OF_EACH)
def test_each_rewrite_finds_its_trap_and_changes_no_result(what: str, tmp_path: Path) -> None:
    name, make = fix_models.ONE_OF_EACH[what]
    result = fix_model(models.saved(make(), tmp_path / "m.onnx"), tmp_path / "o.onnx", only=[name])
    (step,) = result.steps
    assert (step.rewrite, step.kept) == (name, True)
    assert step.changes
    assert step.check is not None
    if name == "random-on-cpu":
        # The random operators return other numbers in every run, so there is nothing to compare.
        assert "a different result in each run" in step.check.reason
    else:
        assert step.check.compared, step.check.reason
        # At most one quantisation step: the rewritten model rounds other values than the original.
        quantised = any(node.op_type == "QuantizeLinear" for node in onnx.load(tmp_path / "m.onnx").graph.node)
        assert step.check.max_abs < (4.2 / 255 if name == "gelu" else 2.1 / 255 if quantised else 1e-5)
    again = fix_model(tmp_path / "o.onnx", tmp_path / "again.onnx", only=[name])
    assert again.steps == (), "there is nothing left to do"
    onnx.checker.check_model(onnx.load(str(tmp_path / "o.onnx")))


@pytest.mark.parametrize(
    "what", [what for what, (name, _) in fix_models.ONE_OF_EACH.items() if name not in BY_NAME_ONLY]
)
def test_a_skipped_rewrite_does_not_change_its_trap(what: str, tmp_path: Path) -> None:
    name, make = fix_models.ONE_OF_EACH[what]
    others = [other for other in NAMES if other != name]
    model = models.saved(make(), tmp_path / "m.onnx")
    result = fix_model(model, tmp_path / "o.onnx", skip=others, check=False)
    assert [step.rewrite for step in result.steps] == [name]
    assert name not in [s.rewrite for s in fix_model(model, tmp_path / "p.onnx", skip=[name], check=False).steps]


def test_gates_are_split_only_on_request(tmp_path: Path) -> None:
    gate = models.saved(fix_models.gate(), tmp_path / "m.onnx")
    assert fix_model(gate, tmp_path / "a.onnx").steps == ()
    assert [step.rewrite for step in fix_model(gate, tmp_path / "b.onnx", only=[GATES, "rank"]).steps] == [GATES]


def test_a_pattern_that_is_not_a_gate_is_not_split(tmp_path: Path) -> None:
    ops = (("Relu", ["x"], ["a"]), ("Sigmoid", ["a"], ["g"]), ("Mul", ["x", "g"], ["y"]))
    relu = [helper.make_node(op, inputs, outputs) for op, inputs, outputs in ops]
    made_ones = (fix_models.gate(product=False), fix_models.gate(qdq=True), fix_models.chain(relu, [2, 8], [2, 8]))
    for made in made_ones:
        model = models.saved(made, tmp_path / "m.onnx")
        assert fix_model(model, tmp_path / "o.onnx", only=[GATES], overwrite=True).steps == ()


def test_every_rewrite_has_a_test_model() -> None:
    shaped = {"fixed-shapes", "shape-computations", "untaken-branches"}
    assert {name for name, _ in fix_models.ONE_OF_EACH.values()} | shaped == set(NAMES)


def test_no_tensor_keeps_more_dimensions_than_qnn_supports(tmp_path: Path) -> None:
    for number, make in enumerate((fix_models.windows, fix_models.scattered_transpose)):
        path = tmp_path / f"{number}.onnx"
        fix_model(models.saved(make(), tmp_path / "m.onnx"), path)
        assert max(len(shape) for shape in shapes_of(path)) <= 5


def test_no_tensor_without_elements_remains(tmp_path: Path) -> None:
    model = models.saved(fix_models.empty_state(), tmp_path / "m.onnx")
    assert any(0 in shape for shape in shapes_of(model))
    fix_model(model, tmp_path / "o.onnx")
    assert not any(0 in shape for shape in shapes_of(tmp_path / "o.onnx"))


@pytest.mark.parametrize(("opset", "roi"), [(11, "roi"), (13, "")])
def test_an_empty_optional_input_is_kept_where_the_operator_allows_it(opset: int, roi: str, tmp_path: Path) -> None:
    made = fix_models.chain(
        [models.helper.make_node("Resize", ["x", "roi", "scales"], ["y"], mode="nearest", name="resize")],
        [1, 1, 4, 4],
        [1, 1, 8, 8],
        [
            models.constant("roi", np.zeros(0, np.float32)),
            models.constant("scales", np.array([1, 1, 2, 2], np.float32)),
        ],
        opset=opset,
    )
    result = fix_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx")
    assert all(step.kept for step in result.steps)
    assert onnx.load(str(tmp_path / "o.onnx")).graph.node[0].input[1] == roi


def test_an_input_with_a_given_value_becomes_a_constant(tmp_path: Path) -> None:
    """The sampling rate of a speech model, for example, selects one half of the model."""
    made = models.branching()
    model = models.saved(made, tmp_path / "m.onnx")
    result = fix_model(model, tmp_path / "o.onnx", constants={"c": 0})
    assert [step.rewrite for step in result.steps] == ["fixed-shapes", "untaken-branches"]
    assert all(step.check is not None and step.check.agrees for step in result.steps)
    assert result.nodes_after == {"MatMul": 1, "Neg": 1}
    assert list(result.shapes) == ["x"]
    with pytest.raises(OptionError, match="no input"):
        fix_model(model, tmp_path / "p.onnx", constants={"z": 1})
    done = fix(model, "-o", tmp_path / "q.onnx", "--constant", "c=true")
    assert done.returncode == 0, done.output
    assert "Relu" in onnx.load(str(tmp_path / "q.onnx")).graph.node[0].op_type
    assert fix(model, "-o", tmp_path / "r.onnx", "--constant", "c=yes please").returncode == 2


def test_a_branch_that_fixed_sizes_make_impossible_is_removed(tmp_path: Path) -> None:
    model = models.saved(fix_models.branch_by_rank(), tmp_path / "m.onnx")
    result = fix_model(model, tmp_path / "o.onnx", shapes={"x": [1, 5, 8]})
    assert [step.rewrite for step in result.steps] == ["fixed-shapes", "shape-computations", "untaken-branches"]
    assert "If" not in result.nodes_after
    assert result.nodes_after["Squeeze"] == 1
    other = fix_model(model, tmp_path / "p.onnx", shapes={"x": [3, 5, 8]})
    assert other.nodes_after["ReduceMean"] == 1
    written = onnx.load(str(tmp_path / "o.onnx")).graph.output[0].type.tensor_type.shape
    assert [dim.dim_value for dim in written.dim] == [5, 4]


def test_a_gelu_keeps_its_erf_because_qnn_supports_it_as_a_whole(tmp_path: Path) -> None:
    model = models.saved(fix_models.erf(in_gelu=True), tmp_path / "m.onnx")
    assert fix_model(model, tmp_path / "o.onnx").nodes_after["Erf"] == 1


def test_a_rewrite_that_changes_a_result_is_reverted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = operators.square_by_mul

    def wrong(editor: Any) -> list[str]:
        changes = real(editor)
        next(node for node in editor.graph.node if node.op_type == "Mul").op_type = "Add"
        return changes

    wrong_ones = [dataclasses.replace(one, apply=wrong) if one.name == "pow-square" else one for one in REWRITES]
    monkeypatch.setattr(catalogue, "REWRITES", tuple(wrong_ones))
    model = models.saved(fix_models.pow_of(np.float32(2)), tmp_path / "m.onnx")
    result = fix_model(model, tmp_path / "o.onnx")
    (step,) = result.steps
    assert not step.kept
    assert result.kept == ()
    assert result.nodes_after == {"Pow": 1}
    assert any("pow-square" in warning and "taken back" in warning for warning in result.warnings)


# --- sizes -----------------------------------------------------------------------------------------------


def two_inputs(one: list[int | str | None], two: list[int | str | None]) -> Any:
    return models.model(
        [models.helper.make_node("Add", ["a", "b"], ["y"])],
        [models.value("a", one), models.value("b", two)],
        [models.value("y", None)],  # type: ignore[arg-type]
    )


def sizes_after(path: Path) -> dict[str, list[int]]:
    graph = onnx.load(str(path)).graph
    return {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }


def test_axes_that_share_a_placeholder_name_get_separate_sizes(tmp_path: Path) -> None:
    source = models.MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    result = fix_model(source, tmp_path / "o.onnx", shapes={"x": [1, 3, 48, 192]})
    assert result.shapes == {"x": (1, 3, 48, 192)}
    assert all(step.check and step.check.agrees for step in result.steps)
    assert result.warnings == ()


def test_axes_without_a_name_get_sizes_by_position(tmp_path: Path) -> None:
    model = models.saved(two_inputs([None, None], [None, None]), tmp_path / "m.onnx")
    fix_model(model, tmp_path / "o.onnx", shapes={"a": [2, 3], "b": [1, 3]})
    assert sizes_after(tmp_path / "o.onnx")["a"] == [2, 3]
    assert sizes_after(tmp_path / "o.onnx")["b"] == [1, 3]


def test_axes_that_share_a_symbol_get_the_same_size(tmp_path: Path) -> None:
    model = models.saved(two_inputs(["batch", "n"], ["batch", 4]), tmp_path / "m.onnx")
    fix_model(model, tmp_path / "o.onnx", shapes={"a": [2, 4]})
    assert sizes_after(tmp_path / "o.onnx") == {"a": [2, 4], "b": [2, 4], "y": []}


def test_axes_that_share_a_symbol_must_agree(tmp_path: Path) -> None:
    model = models.saved(two_inputs(["batch", 4], ["batch", 4]), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="would be 3") as caught:
        fix_model(model, tmp_path / "o.onnx", shapes={"a": [2, 4], "b": [3, 4]})
    assert '"batch"' in (caught.value.cause or "")
    assert not (tmp_path / "o.onnx").exists()
    with pytest.raises(OptionError, match="would be 3"):
        fix_model(model, tmp_path / "o.onnx", shapes={"b": [3, 4]}, dims={"batch": 2})


def test_sizes_by_input_and_axis_may_differ_for_the_same_symbol(tmp_path: Path) -> None:
    model = models.saved(two_inputs(["n", 4], ["n", 4]), tmp_path / "m.onnx")
    fix_model(model, tmp_path / "o.onnx", dims={"a:0": 3, "b:0": 1})
    assert sizes_after(tmp_path / "o.onnx")["b"] == [1, 4]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"z": [1]}, 'no input "z"'),
        ({"a": [1]}, "has 2 dimensions"),
        ({"a": [1, 5]}, "is 4 in the model"),
    ],
)
def test_sizes_that_the_model_does_not_have_are_refused(given: Any, words: str, tmp_path: Path) -> None:
    model = models.saved(two_inputs(["n", 4], [1, 4]), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=words):
        fix_model(model, tmp_path / "o.onnx", shapes=given)


@pytest.mark.parametrize("text", ["x", "x=1,,2", "=1", "x=0", "x=-1", "x=1.5"])
def test_a_shape_that_cannot_be_read_is_bad_input(text: str, tmp_path: Path) -> None:
    done = fix(models.MODELS / "sigmoid.onnx", "-o", tmp_path / "o.onnx", "--shape", text)
    assert done.returncode == 2
    assert "--shape" in done.output


def test_a_size_that_does_not_fit_inside_the_model_is_reported(tmp_path: Path) -> None:
    made = models.model(
        [models.helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [models.value("x", [1, "n"])],
        [models.value("y", [1, 4])],
        [models.weights("w", 8, 4)],
    )
    with pytest.raises(ModelError):
        fix_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx", dims={"n": 7})
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_remaining_free_dimensions_are_reported_with_their_options(tmp_path: Path) -> None:
    result = fix_model(models.MODELS / "pnet.onnx", tmp_path / "o.onnx", dims={"N": 1})
    assert '--dim "M1=SIZE" --dim "M2=SIZE"' in result.warnings[0]


# --- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.FIXED_SIZES)
def test_every_real_model_still_computes_the_same(name: str, tmp_path: Path) -> None:
    result = fix_model(models.MODELS / f"{name}.onnx", tmp_path / "o.onnx", dims=models.FIXED_SIZES[name])
    assert all(step.kept and step.check is not None and step.check.compared for step in result.steps)
    assert result.warnings == ()
    assert sum(result.nodes_after.values()) <= sum(result.nodes_before.values())


def test_the_report_lists_every_rewrite_with_its_difference(tmp_path: Path) -> None:
    model = models.saved(fix_models.windows(), tmp_path / "m.onnx")
    done = fix(model, "-o", tmp_path / "o.onnx")
    assert done.returncode == 0
    assert "1 Transpose" in done.stdout
    assert "output y: largest difference" in done.stdout
    document = json.loads(fix(model, "-o", tmp_path / "p.onnx", "--json").stdout)
    assert [step["rewrite"] for step in document["steps"]] == ["rank"]
    assert document["steps"][0]["check"]["agrees"] is True
    assert document["inputs"] == {"x": [2, 8, 8, 3]}


def test_a_reduction_over_no_axes_is_not_changed(tmp_path: Path) -> None:
    made = fix_models.sum_of_six_dimensions()
    (reduction,) = made.graph.node
    reduction.input.append("none")
    del reduction.attribute[:]
    reduction.attribute.append(helper.make_attribute("noop_with_empty_axes", 1))
    made.graph.initializer.append(numpy_helper.from_array(np.array([], np.int64), "none"))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [1, 2, 3, 1, 2, 3]))
    model = models.saved(made, tmp_path / "m.onnx")
    done = fix(model, "-o", tmp_path / "o.onnx", "--only", "rank", "--no-check")
    written = tmp_path / "o.onnx"
    assert not written.exists() or [node.op_type for node in onnx.load(written).graph.node] == ["ReduceSum"], (
        done.stdout
    )


@pytest.mark.parametrize(("op", "folded"), [("Concat", True), ("Softmax", False)])
def test_before_opset_13_concat_is_folded_and_softmax_is_not(op: str, folded: bool, tmp_path: Path) -> None:
    """In old opsets Softmax combined all axes from its own on; Concat never did."""
    shape = [1, 2, 3, 2, 2, 3]
    result = [*shape[:-1], 6] if op == "Concat" else shape
    node = helper.make_node(op, ["x", "x"] if op == "Concat" else ["x"], ["y"], axis=5)
    values = [helper.make_tensor_value_info(name, 1, sizes) for name, sizes in (("x", shape), ("y", result))]
    made = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[helper.make_opsetid("", 12)],
        ir_version=8,
    )
    fixed = fix_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx", only=["rank"])
    assert [step.rewrite for step in fixed.kept] == ["rank"] * folded
    (step,) = fixed.kept if folded else fixed.steps or [None]
    assert step is None or (step.check is not None and step.check.agrees)


def test_the_list_contains_all_rewrites() -> None:
    done = qnnbridge("fix", "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == NAMES


def test_the_error_for_an_unknown_rewrite_suggests_the_right_one(tmp_path: Path) -> None:
    done = fix(models.MODELS / "sigmoid.onnx", "-o", tmp_path / "o.onnx", "--only", "pow-squares")
    assert done.returncode == 2
    assert 'Did you mean "pow-square"?' in done.stderr


def test_sizes_are_refused_if_the_rewrite_that_sets_them_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="excluded"):
        fix_model(models.MODELS / "pnet.onnx", tmp_path / "o.onnx", dims={"N": 1}, skip=["fixed-shapes"])


def test_a_compiled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused):
        fix_model(models.COMPILED, tmp_path / "o.onnx")


def test_missing_and_broken_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        fix_model(tmp_path / "none.onnx", tmp_path / "o.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\x08\xff no model")
    with pytest.raises(InvalidProtobuf):
        fix_model(tmp_path / "m.onnx", tmp_path / "o.onnx")


def test_the_input_and_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    model = models.saved(fix_models.pow_of(np.float32(2)), tmp_path / "m.onnx")
    data = model.read_bytes()
    with pytest.raises(OptionError, match="input itself"):
        fix_model(model, model, overwrite=True)
    (tmp_path / "o.onnx").write_text("mine")
    with pytest.raises(OptionError, match="exists already"):
        fix_model(model, tmp_path / "o.onnx")
    fix_model(model, tmp_path / "o.onnx", overwrite=True)
    assert model.read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "o.onnx"]


def test_external_weights_stay_external(tmp_path: Path) -> None:
    made = fix_models.gemm(0.5, 2.0)
    made.graph.initializer[0].CopyFrom(models.weights("w", 300, 8))
    made.graph.initializer[1].CopyFrom(models.constant("b", np.ones(300, np.float32)))
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 300
    model = models.saved(
        made,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.bin",
        size_threshold=0,
    )
    result = fix_model(model, tmp_path / "o.onnx")
    assert [path.name for path in result.files] == ["o.onnx", "o.onnx.data"]
    assert result.steps[0].check is not None
    assert result.steps[0].check.agrees
    session = cpu.open_session(tmp_path / "o.onnx", "it")
    assert cpu.run(session, {"x": np.ones((2, 8), np.float32)}, "it")[0].shape == (2, 300)


def test_a_model_with_a_subgraph_keeps_the_outer_tensors_that_the_subgraph_uses(tmp_path: Path) -> None:
    made = models.branching()
    inner = made.graph.node[0].attribute[0].g
    inner.node.insert(0, models.helper.make_node("Add", ["x", "outer"], ["moved"]))
    inner.node[1].input[0] = "moved"
    made.graph.node.insert(
        0, models.helper.make_node("Constant", [], ["outer"], value=models.constant("o", np.ones(4, np.float32)))
    )
    result = fix_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx")
    assert [step.rewrite for step in result.steps] == ["constants"]
    written = onnx.load(str(tmp_path / "o.onnx"))
    assert "outer" in {tensor.name for tensor in written.graph.initializer}
    assert graphs.count_ops(written) == {"Add": 1, "If": 1, "MatMul": 1, "Neg": 1, "Relu": 1}


def test_an_if_with_an_unknown_condition_is_not_changed(tmp_path: Path) -> None:
    model = models.saved(models.branching(), tmp_path / "m.onnx")
    result = fix_model(model, tmp_path / "o.onnx")
    assert result.steps == ()
    assert result.nodes_after["If"] == 1


def test_only_the_shape_computations_of_a_model_with_free_sizes_are_not_changed(tmp_path: Path) -> None:
    made: Callable[[], Any] = fix_models.branch_by_rank
    result = fix_model(models.saved(made(), tmp_path / "m.onnx"), tmp_path / "o.onnx")
    assert result.nodes_after["If"] == 1
    assert result.warnings
