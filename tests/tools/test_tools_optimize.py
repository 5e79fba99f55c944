"""`qnnbridge optimize`: written models, their check, refusals, and complete files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

import model_work_models as models
from lab.attack import large_models
from tests.contract import optimizer_models

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph.bounds import MANY_NODES
from qnnbridge_models.optimization import optimize_model
from qnnbridge_protocol.errors import CompiledModelRefused, InvalidProtobuf, ModelError, NoSuchFile, OptionError

REAL = ("ch_ppocr_mobile_v2.0_cls_infer", "logreg_iris", "model_v8", "mul_1", "onet", "pnet", "rnet", "sigmoid")


def optimize(*arguments: str | Path) -> Any:
    return qnnbridge("optimize", *arguments)


@pytest.mark.parametrize("name", [*REAL, "silero_vad_openvino_16k"])
def test_every_real_model_agrees_with_its_original(name: str, tmp_path: Path) -> None:
    result = optimize_model(models.MODELS / f"{name}.onnx", tmp_path / "o.onnx")
    assert result.check is not None
    assert result.check.compared, result.check.reason
    assert result.check.agrees
    assert result.check.max_abs < 1e-4
    assert sum(output.elements for output in result.check.outputs) > 0
    assert sum(result.nodes_after.values()) <= sum(result.nodes_before.values())
    assert result.files == (tmp_path / "o.onnx",)
    assert [path.name for path in tmp_path.iterdir()] == ["o.onnx"]


def test_constants_are_folded_and_counted_by_operator(tmp_path: Path) -> None:
    path = models.saved(models.conv_net_of_constant_nodes(), tmp_path / "m.onnx")
    result = optimize_model(path, tmp_path / "o.onnx")
    assert result.nodes_before["Constant"] == 2
    assert "Constant" not in result.nodes_after
    written = onnx.load(str(tmp_path / "o.onnx"))
    assert {tensor.name for tensor in written.graph.initializer} == {"w", "b"}
    assert {entry.domain for entry in written.opset_import} == {""}, "domains that no node uses are left out"


@pytest.mark.parametrize("external", [False, True])
def test_unused_nodes_are_removed_and_reported(tmp_path: Path, external: bool) -> None:
    made = models.conv_net()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    made.graph.node.append(onnx.helper.make_node("Relu", ["x"], ["nobody"]))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4000, np.float32), "unused"))
    onnx.save_model(
        made, str(tmp_path / "m.onnx"), save_as_external_data=external, location="w.bin", size_threshold=0
    )
    result = optimize_model(tmp_path / "m.onnx", tmp_path / "o.onnx", dims={"batch": 1} if external else None)
    assert sum(result.nodes_after.values()) == sum(result.nodes_before.values()) - 1
    assert any("removed 1 unused node" in change for change in result.changes)
    assert result.check is not None
    assert result.check.agrees
    assert result.bytes_after < result.bytes_before - 10_000
    assert [node.name for node in onnx.load(str(tmp_path / "o.onnx")).graph.node] == ["conv", "relu", "pool", "add"]


def test_an_unchanged_model_gets_no_further_domains(tmp_path: Path) -> None:
    path = models.saved(large_models.long_chain(MANY_NODES + 1), tmp_path / "m.onnx")
    result = optimize_model(path, tmp_path / "o.onnx")
    assert result.nodes_after == result.nodes_before
    assert result.check is not None
    assert result.check.reason == "no node was changed"
    read = [onnx.load(str(tmp_path / name)) for name in ("m.onnx", "o.onnx")]
    assert read[0].opset_import == read[1].opset_import


def test_metadata_names_and_documentation_are_kept(tmp_path: Path) -> None:
    made = models.conv_net()
    made.producer_name, made.doc_string = "maker", "about it"
    entry = made.metadata_props.add()
    entry.key, entry.value = "character", "a\nb"
    optimize_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx")
    written = onnx.load(str(tmp_path / "o.onnx"))
    assert (written.producer_name, written.doc_string) == ("maker", "about it")
    assert [(e.key, e.value) for e in written.metadata_props] == [("character", "a\nb")]
    assert [value.name for value in written.graph.input] == ["x"]


def test_a_float16_model_keeps_computing_in_float16(tmp_path: Path) -> None:
    path = models.saved(models.conv_net(np.float16), tmp_path / "m.onnx")
    result = optimize_model(path, tmp_path / "o.onnx")
    assert "Cast" not in result.nodes_after, "casts for the CPU would make QNN compute in float32"
    assert any("casts" in change for change in result.changes)
    written = onnx.load(str(tmp_path / "o.onnx"))
    onnx.checker.check_model(written, full_check=True)
    assert {tensor.data_type for tensor in written.graph.initializer} == {models.FLOAT16}


def half_inside(tail: str) -> Any:
    """Return a float16 model with float32 inputs and outputs, as converters write it. tail: operator after its
    MatMul.
    """
    make, half = onnx.helper.make_node, models.FLOAT16
    nodes = [make("Cast", ["x"], ["h"], to=half), make("MatMul", ["h", "w"], ["m"])]
    if tail == "Clip":  # the CPU supports this operator in float16
        nodes += [make("Clip", ["m", "low"], ["c"]), make("Cast", ["c"], ["y"], to=models.FLOAT)]
    elif tail == "float32":
        nodes += [make("Cast", ["m"], ["f"], to=models.FLOAT), make("Mul", ["f", "large"], ["l"])]
        nodes += [make("Mul", ["l", "small"], ["y"])]  # an intermediate value exceeds float16
    else:
        nodes.append(make("Cast", ["m"], ["y"], to=models.FLOAT))
    constants = {
        "w": np.linspace(-1, 1, 32).reshape(8, 4).astype(np.float16),
        "low": np.array(0, np.float16),
        "large": np.array([1e6], np.float32),
        "small": np.array([1e-6], np.float32),
    }
    used = {name for node in nodes for name in node.input}
    made = models.model(nodes, [models.value("x", [2, 8])], [models.value("y", [2, 4])])
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
    )
    return made


@pytest.mark.parametrize("tail", ["Clip", "float32", "nothing"])
def test_a_float16_model_inside_of_float32_casts_keeps_its_types(tail: str, tmp_path: Path) -> None:
    """ONNX Runtime removes the model's own casts if its casts for the CPU cancel them."""
    path = models.saved(half_inside(tail), tmp_path / "m.onnx")
    result = optimize_model(path, tmp_path / "o.onnx")
    assert result.check is not None
    assert result.check.agrees, result.check
    written = onnx.load(str(tmp_path / "o.onnx"))
    onnx.checker.check_model(written, full_check=True)
    types = {tensor.name: tensor.data_type for tensor in written.graph.initializer}
    assert all(types[name] == models.FLOAT for name in ("large", "small") if name in types), types
    session = cpu.open_session(tmp_path / "o.onnx", "o.onnx")
    (found,) = cpu.run(session, {"x": np.full((2, 8), 0.5, np.float32)}, "o.onnx")
    assert np.isfinite(found).all(), "float32 stays float32"


def test_only_levels_for_the_cpu_warn_about_operators_that_qnn_lacks(tmp_path: Path) -> None:
    source = models.MODELS / "silero_vad_openvino_16k.onnx"
    assert optimize_model(source, tmp_path / "basic.onnx").warnings == ()
    extended = optimize_model(source, tmp_path / "extended.onnx", level="extended")
    assert extended.nodes_after["com.microsoft.FusedConv"] > 0
    assert "com.microsoft.FusedConv" in extended.warnings[0]
    assert "--level basic" in extended.warnings[0]


def test_a_layout_specific_to_this_machine_is_reported(tmp_path: Path) -> None:
    result = optimize_model(models.MODELS / "pnet.onnx", tmp_path / "o.onnx", level="all")
    if any("nchwc" in op for op in result.nodes_after):  # not on every processor
        assert any("on other machines" in warning for warning in result.warnings)
    else:
        assert not any("on other machines" in warning for warning in result.warnings)


def test_quantised_pairs_that_a_level_separates_are_reported(tmp_path: Path) -> None:
    result = optimize_model(models.MODELS / "q.onnx", tmp_path / "o.onnx", level="extended")
    assert any("QuantizeLinear" in warning for warning in result.warnings)
    assert not optimize_model(models.MODELS / "q.onnx", tmp_path / "b.onnx").warnings


def test_sizes_by_name_and_by_axis_are_fixed(tmp_path: Path) -> None:
    source = models.MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx"  # this model calls two axes "?"
    result = optimize_model(source, tmp_path / "o.onnx", dims={"x:0": 1, "x:2": 48, "x:3": 192})
    assert result.warnings == ()
    shape = onnx.load(str(tmp_path / "o.onnx")).graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [1, 3, 48, 192]
    result = optimize_model(models.MODELS / "pnet.onnx", tmp_path / "p.onnx", dims={"N": 2})
    assert '--dim "M1=SIZE"' in result.warnings[0]
    assert '"N=SIZE"' not in result.warnings[0]


def test_a_size_for_an_unknown_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match='no free dimension "batch"') as caught:
        optimize_model(models.MODELS / "pnet.onnx", tmp_path / "o.onnx", dims={"batch": 1})
    assert "N, M1, M2" in (caught.value.cause or "")


def external_model(folder: Path, free: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = models.one_node(
        "MatMul",
        [models.value("x", ["N" if free else 1, 64]), models.value("w", [64, 64])],
        [models.value("y", ["N", 64])],
    )
    del made.graph.input[1]
    made.graph.initializer.append(models.weights("w", 64, 64))
    return models.saved(
        made, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )


@pytest.mark.parametrize("dims", [{}, {"N": 2}])
def test_external_weights_stay_external(tmp_path: Path, dims: dict[str, int]) -> None:
    source = external_model(tmp_path / "in")
    result = optimize_model(source, tmp_path / "out" / "o.onnx", dims=dims)
    assert [path.name for path in result.files] == ["o.onnx", "o.onnx.data"]
    assert result.check is not None
    assert result.check.compared
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)  # the name refers to no file where the model was created
    session = cpu.open_session(moved / "o.onnx", "it")
    assert cpu.run(session, {"x": np.ones((2, 64), np.float32)}, "it")[0].shape == (2, 64)


def test_missing_external_weights_are_named(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(NoSuchFile, match=r"weights\.bin"):
        optimize_model(source, tmp_path / "o.onnx")


def test_weights_of_the_input_are_never_overwritten(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "o.onnx.data")
    made = onnx.load(str(source), load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "o.onnx.data"
    source.write_bytes(made.SerializeToString())
    before = (tmp_path / "o.onnx.data").read_bytes()
    with pytest.raises(OptionError, match="is the input itself"):
        optimize_model(source, tmp_path / "o.onnx", overwrite=True)
    assert (tmp_path / "o.onnx.data").read_bytes() == before


def test_the_input_and_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    original = source.read_bytes()
    link = tmp_path / "link.onnx"
    link.hardlink_to(source)
    for target in (source, link):
        with pytest.raises(OptionError, match="the input itself"):
            optimize_model(source, target, overwrite=True)
    (tmp_path / "there.onnx").write_bytes(b"mine")
    with pytest.raises(OptionError, match="exists already"):
        optimize_model(source, tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"
    optimize_model(source, tmp_path / "there.onnx", overwrite=True)
    onnx.checker.check_model(str(tmp_path / "there.onnx"))
    assert source.read_bytes() == original


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    bad = models.conv_net()
    bad.graph.node[0].op_type = "NoSuchOperator"
    source = models.saved(bad, tmp_path / "m.onnx")
    target = tmp_path / "o.onnx"
    target.write_bytes(b"older result")
    result = optimize(source, "-o", target, "--overwrite")
    assert result.returncode == 2, result.output
    assert "NoSuchOperator" in result.output
    assert target.read_bytes() == b"older result"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "o.onnx"]


def test_a_result_with_wrong_outputs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qnnbridge_models import optimization

    real = optimization._finish

    def broken(result: Any, original: Any, path: Path) -> list[str]:
        result.graph.node[1].op_type = "Neg"  # instead of Relu
        return real(result, original, path)

    monkeypatch.setattr(optimization, "_finish", broken)
    source = models.saved(models.conv_net_of_constant_nodes(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="does not compute the same as the original") as caught:
        optimize_model(source, tmp_path / "o.onnx")
    assert any("output y" in line for line in caught.value.evidence)
    assert not (tmp_path / "o.onnx").exists()
    optimize_model(source, tmp_path / "o.onnx", check=False)
    assert (tmp_path / "o.onnx").exists()


# --- compiled models ------------------------------------------------------------------------------------


def test_a_compiled_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused, match=r"is a compiled model \(EPContext\)") as caught:
        optimize_model(models.COMPILED, tmp_path / "o.onnx")
    assert "qnnbridge optimize" in caught.value.message
    assert "original ONNX model" in (caught.value.fix or "")
    assert list(tmp_path.iterdir()) == []
    result = optimize(models.COMPILED, "-o", tmp_path / "o.onnx")
    assert result.returncode != 0
    assert "is a compiled model (EPContext)" in result.output


def test_a_compiled_model_in_a_branch_is_refused(tmp_path: Path) -> None:
    context = onnx.helper.make_node(
        "EPContext", ["x"], ["t"], domain="com.microsoft", source="QNNExecutionProvider"
    )
    made = models.branching()
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    branch = made.graph.node[0].attribute[0].g
    branch.node[0].CopyFrom(context)
    branch.node[0].output[0] = branch.output[0].name
    source = models.saved(made, tmp_path / "m.onnx")
    with pytest.raises(CompiledModelRefused):
        optimize_model(source, tmp_path / "o.onnx")


def test_skip_copies_a_compiled_model_and_its_context_binary_byte_for_byte(tmp_path: Path) -> None:
    result = optimize(models.COMPILED, "-o", tmp_path / "sub" / "o.onnx", "--if-compiled", "skip", "--json")
    assert result.returncode == 0, result.output
    told = json.loads(result.stdout)
    assert told["passed_through"] is True
    assert "unchanged" in told["notes"][0]
    assert "QNNExecutionProvider" in told["notes"][0]
    assert (tmp_path / "sub" / "o.onnx").read_bytes() == models.COMPILED.read_bytes()
    blob = models.COMPILED.with_name("a_qnn.bin")
    assert (tmp_path / "sub" / "a_qnn.bin").read_bytes() == blob.read_bytes()
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == ["a_qnn.bin", "o.onnx"]


def test_skip_does_not_change_another_context_binary_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "a_qnn.bin").write_bytes(b"of another model")
    with pytest.raises(OptionError, match=r"a_qnn\.bin already exists"):
        optimize_model(models.COMPILED, tmp_path / "o.onnx", if_compiled="skip")
    assert (tmp_path / "a_qnn.bin").read_bytes() == b"of another model"
    assert not (tmp_path / "o.onnx").exists()
    result = optimize_model(models.COMPILED, tmp_path / "o.onnx", if_compiled="skip", overwrite=True)
    assert result.passed_through
    assert (tmp_path / "a_qnn.bin").read_bytes() == models.COMPILED.with_name("a_qnn.bin").read_bytes()


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..\\secret", "C:secret", "\\\\server\\share"])
def test_skip_copies_no_file_from_outside_of_the_folder_of_the_model(tmp_path: Path, name: str) -> None:
    made = onnx.load(str(models.COMPILED))
    for attribute in next(node for node in made.graph.node if node.op_type == "EPContext").attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = name.encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    source = models.saved(made, tmp_path / "in" / "m.onnx")
    result = optimize_model(source, tmp_path / "out" / "deep" / "o.onnx", if_compiled="skip")
    assert any("not copied" in warning for warning in result.warnings)
    assert result.files == (tmp_path / "out" / "deep" / "o.onnx",)
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["deep", "o.onnx"]


def test_skip_reports_a_missing_context_binary(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(models.COMPILED.read_bytes())
    result = optimize_model(source, tmp_path / "o.onnx", if_compiled="skip")
    assert any("is missing" in warning for warning in result.warnings)


def test_skip_copies_the_manifest_if_the_name_is_kept(tmp_path: Path) -> None:
    from qnnbridge_host.model.manifest import manifest_path, read_manifest, write_manifest

    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "good.onnx"
    for name in ("good.onnx", "a_qnn.bin"):
        (tmp_path / "in" / name).write_bytes(models.COMPILED.with_name(name).read_bytes())
    write_manifest(tmp_path / "in", "good.onnx", ["a_qnn.bin"])
    same = optimize_model(source, tmp_path / "out" / "good.onnx", if_compiled="skip")
    assert Path(manifest_path(same.target)) in same.files
    assert read_manifest(same.target) == read_manifest(source)
    other = optimize_model(source, tmp_path / "other" / "o.onnx", if_compiled="skip")
    assert any("was not copied" in warning for warning in other.warnings)
    assert not Path(manifest_path(other.target)).exists()


def test_skip_still_optimises_nodes_that_are_not_compiled(tmp_path: Path) -> None:
    result = optimize_model(models.MODELS / "rnet.onnx", tmp_path / "o.onnx", if_compiled="skip")
    assert not result.passed_through
    assert result.nodes_after["Gemm"] > 0


# --- unusual models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            models.one_node(
                "SequenceLength",
                [onnx.helper.make_tensor_sequence_value_info("s", models.FLOAT, None)],
                [models.value("n", [], models.INT64)],
            ),
            'input "s" is a sequence',
        ),
        (
            models.one_node("RandomNormalLike", [models.value("x", [2, 3])], [models.value("y", [2, 3])]),
            "a different result in each run",
        ),
        (
            models.one_node("Relu", [models.value("x", [0, 3])], [models.value("y", [0, 3])]),
            "every result is empty",
        ),
    ],
    ids=["a sequence", "random", "zero size"],
)
def test_optimize_reports_when_nothing_could_be_compared(made: Any, reason: str, tmp_path: Path) -> None:
    source = models.saved(made, tmp_path / "m.onnx")
    result = optimize_model(source, tmp_path / "o.onnx")
    assert result.check is not None
    assert not result.check.compared
    assert reason in (result.check.reason or "")
    assert (tmp_path / "o.onnx").exists()
    told = optimize(source, "-o", tmp_path / "p.onnx")
    assert "nothing could be compared" in told.output


def test_text_inputs_are_generated_and_compared(tmp_path: Path) -> None:
    text = onnx.TensorProto.STRING
    made = models.one_node("Identity", [models.value("s", [3], text)], [models.value("t", [3], text)])
    result = optimize_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx")
    assert result.check is not None
    assert result.check.compared
    assert result.check.outputs[0].kind == "text"


def test_a_model_without_inputs_is_compared(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    made = models.model(
        [node], [], [models.value("y", [4])], [models.weights("a", 4), models.weights("b", 4, seed=2)]
    )
    result = optimize_model(models.saved(made, tmp_path / "m.onnx"), tmp_path / "o.onnx")
    assert result.nodes_after == {}
    assert result.check is not None
    assert result.check.agrees
    assert result.check.outputs[0].elements == 12


def test_nodes_in_branches_are_counted(tmp_path: Path) -> None:
    source = models.saved(models.branching(), tmp_path / "m.onnx")
    result = optimize_model(source, tmp_path / "o.onnx")
    assert {"If", "Relu", "Neg", "MatMul"} <= set(result.nodes_before)
    assert result.check is not None
    assert result.check.agrees


@pytest.mark.parametrize(
    ("content", "word"), [(b"", "empty"), (b"<!DOCTYPE html><html>", "text"), (b"\x08\x08\x12", "cut off")]
)
def test_a_file_that_is_not_a_model_is_refused_with_an_explanation(
    content: bytes, word: str, tmp_path: Path
) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(content)
    with pytest.raises(InvalidProtobuf) as caught:
        optimize_model(source, tmp_path / "o.onnx")
    assert word in str(caught.value)


def test_a_missing_model_a_folder_and_ort_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        optimize_model(tmp_path / "none.onnx", tmp_path / "o.onnx")
    with pytest.raises(OptionError, match="is a folder"):
        optimize_model(models.MODELS / "pnet.onnx", tmp_path)
    with pytest.raises(OptionError, match=r"\.ort"):
        optimize_model(models.MODELS / "pnet.onnx", tmp_path / "o.ort")
    with pytest.raises(OptionError, match="not a valid level"):
        optimize_model(models.MODELS / "pnet.onnx", tmp_path / "o.onnx", level="best")


@pytest.mark.parametrize("name", ["optimize", "quantize"])
def test_help_is_plain_ascii(name: str) -> None:
    result = qnnbridge(name, "--help")
    assert result.returncode == 0
    assert result.output.isascii()


def test_the_report_shows_nodes_check_and_placement(tmp_path: Path) -> None:
    result = optimize(models.MODELS / "rnet.onnx", "-o", tmp_path / "o.onnx", "--dim", "N=1")
    assert result.returncode == 0, result.output
    assert "Gemm" in result.output
    assert "agrees with the original" in result.output
    assert str(tmp_path / "o.onnx") in result.output
    told = json.loads(optimize(models.MODELS / "rnet.onnx", "-o", tmp_path / "p.onnx", "--json").stdout)
    assert told["check"]["agrees"] is True
    assert told["check"]["sizes"] == {"N": 1}
    assert told["nodes_after"]["Gemm"] == 3


@pytest.mark.parametrize(
    "made",
    [
        lambda: optimizer_models.broken("Dropout"),
        lambda: optimizer_models.broken("Cast"),
        optimizer_models.broken_int32,
        optimizer_models.int8_behind_a_reshape,
        optimizer_models.int32_behind_a_reshape,
    ],
)
def test_an_optimizer_that_breaks_or_changes_the_model_is_disabled_and_named(made: Any, tmp_path: Path) -> None:
    harmed = made()
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    result = optimize_model(tmp_path / "m.onnx", tmp_path / "o.onnx")
    assert any(harmed.optimizer in warning and "was disabled" in warning for warning in result.warnings)
    assert right_of(tmp_path / "o.onnx", harmed) < 1e-5


def test_a_function_in_both_branches_of_an_if_is_inlined(tmp_path: Path) -> None:
    harmed = optimizer_models.function_in_both_branches()
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    for level in ("basic", "extended"):
        result = optimize_model(tmp_path / "m.onnx", tmp_path / "o.onnx", level=level, overwrite=True)
        assert "inlined 1 function of the model" in result.changes
        assert result.check is not None
        assert result.check.agrees
        assert right_of(tmp_path / "o.onnx", harmed) < 1e-5


def right_of(path: Path, harmed: optimizer_models.HarmedModel) -> float:
    (found,) = cpu.run(cpu.open_session(path, "the result"), harmed.feeds, "the result")
    return float(np.abs(found - harmed.right).max())
