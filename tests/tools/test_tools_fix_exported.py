"""The rewrites of exporters' patterns: unchanged models, random equations compared with numpy, and QNN's
results."""

from __future__ import annotations

import random
import shlex
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import exported_models
import model_work_models as models
import onnx
import onnx.numpy_helper
import onnxruntime
from tests import needs
from tests.fakes.commands import qnnbridge as qnnbridge_command

import qnnbridge
from qnnbridge_models.analyze import analyze_model
from qnnbridge_models.analyze.analysis import verdict_text
from qnnbridge_models.fix import fix_model
from qnnbridge_protocol.shell import fixed_file

LEFT_ALONE = {
    "other activations": ("default-activations", lambda: exported_models.recurrent("GRU", ["HardSigmoid", "Tanh"])),
    "one way of two": (
        "default-activations",
        lambda: exported_models.recurrent(
            "LSTM", ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Relu"], "bidirectional"
        ),
    ),
    "no reduction": ("scatter-rows", lambda: exported_models.scattered("none")),
    "another reduction": ("scatter-extremes", exported_models.scattered),
    "a reduction that QNN has not": ("scatter-rows", lambda: exported_models.scattered("max")),
    "diagonal": ("einsum", lambda: exported_models.einsum("aa->a", (3, 3))),
    "dots whose sizes are broadcast": ("einsum", lambda: exported_models.einsum("...a,...a->...a", (2, 3), (1, 3))),
    "Neg of floats": ("negative-integer", lambda: exported_models.deep("Neg")),
    "three dimensions are not wide": ("wide-integers", exported_models.einsum_of_integers),
    "four dimensions of five": ("rank", lambda: exported_models.deep("Relu")),
    "a size that is broadcast": ("einsum", lambda: exported_models.einsum("ab,bc->ac", (2, 1), (3, 4))),
    "doubles that follow from constants": ("double-edges", exported_models.constant_double_output),
    "doubles inside": ("double-edges", lambda: exported_models.double_output(back=True)),
    "a scalar": ("einsum", lambda: exported_models.einsum("ab,ab->", (2, 3), (2, 3))),
}


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_a_pattern_whose_rewrite_would_change_results_is_not_changed(what: str, tmp_path: Path) -> None:
    rewrite, make = LEFT_ALONE[what]
    assert fix_model(models.saved(make(), tmp_path / "m.onnx"), tmp_path / "o.onnx", only=[rewrite]).steps == ()


def random_equation(rng: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    letters = string.ascii_lowercase[: rng.randint(1, 5)]
    size = {letter: rng.randint(1, 4) for letter in letters}
    terms = ["".join(rng.sample(letters, rng.randint(1, len(letters)))) for _ in range(rng.randint(1, 3))]
    used = sorted(set("".join(terms)))
    result = "".join(rng.sample(used, rng.randint(1, len(used))))
    return f"{','.join(terms)}->{result}", [tuple(size[letter] for letter in term) for term in terms]


@pytest.mark.parametrize("seed", range(needs.length(40, 150)))
def test_random_equations_compute_the_same_as_numpy(seed: int, tmp_path: Path) -> None:
    equation, shapes = random_equation(random.Random(seed))
    path = models.saved(exported_models.einsum(equation, *shapes), tmp_path / "m.onnx")
    result = fix_model(path, tmp_path / "o.onnx", only=["einsum"])
    assert [step.kept for step in result.steps] == [True], equation
    assert "Einsum" not in result.nodes_after
    rng = np.random.default_rng(seed)
    feeds = {f"x{number}": rng.normal(size=shape).astype(np.float32) for number, shape in enumerate(shapes)}
    session = onnxruntime.InferenceSession(tmp_path / "o.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    np.testing.assert_allclose(found, np.einsum(equation, *feeds.values()), rtol=1e-4, atol=1e-4, err_msg=equation)


def feeds_of(session: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {}
    for one in session.get_inputs():
        if one.type in ("tensor(int64)", "tensor(int32)"):
            drawn = rng.integers(0, 2 if one.name == "m" else 12, one.shape)
            found[one.name] = drawn.astype(one.type[7:-1])
        elif one.type == "tensor(bool)":
            found[one.name] = rng.random(one.shape) < 0.6
        elif one.type == "tensor(double)":
            found[one.name] = rng.uniform(-1, 1, one.shape)
        else:
            found[one.name] = rng.uniform(0.5, 1.5, one.shape).astype(np.float32)
    return found


@pytest.mark.simulator
@pytest.mark.parametrize("what", exported_models.ONE_OF_EACH)
def test_qnn_runs_the_complete_rewritten_model_with_right_results(what: str, host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.ONE_OF_EACH[what][1]().SerializeToString()
    cpu = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with qnnbridge.InferenceSession(data, fix=True, host=host, provider_options=[{"soc_model": "60"}]) as session:
        assert session.placement.cpu_nodes == 0
        feeds = feeds_of(cpu)
        (expected,), (found,) = cpu.run(None, feeds), session.run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


# Nodes that QNN refuses without the rewrite; QNN accepts all others, even if it computes them wrong.
REFUSED = (
    "bct,bcs->bts",
    "nctv,vw->nctw",
    "stated GRU",
    "mask by places",
    "rows of an int8 table",
    "split of three sizes",
    "Attention with a mask of truth values",
    "Einsum with dots",
    "scattered rows, max",
    "fold",
    "Equal of truth values",
    "Neg of integers",
    "Pad of integers",
    "Pad of truth values",
    "Sqrt of five dimensions",
    "LayerNormalization of five dimensions",
    "LayerNormalization of three axes",
    "MaxPool in space",
)


@pytest.mark.simulator
@pytest.mark.parametrize("what", REFUSED)
def test_analyze_names_the_command_that_moves_everything_to_qnn(what: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    name, make = exported_models.ONE_OF_EACH[what]
    path = models.saved(make(), tmp_path / "m.onnx")
    found = analyze_model(path, soc_model="60")
    assert any(verdict.place == "cpu" for verdict in found.best.verdicts)
    (command,) = {one.what for one in found.advice if one.severity not in ("model",)}
    assert command.endswith(f"--only {name}")
    words = [str(tmp_path / "o.onnx") if word == "m_fixed.onnx" else word for word in shlex.split(command)[1:]]
    assert qnnbridge_command(*words).returncode == 0
    assert all(
        verdict.place != "cpu" for verdict in analyze_model(tmp_path / "o.onnx", soc_model="60").best.verdicts
    )


@pytest.mark.simulator
def test_int64_with_five_dimensions_does_not_crash_after_the_rewrite(host: qnnbridge.Host, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(exported_models.wide_integers(), tmp_path / "m.onnx")
    found = analyze_model(path, offline=True, soc_model="60")
    assert [one.severity for one in found.advice if "--only wide-integers" in one.what] == ["crash"]
    assert verdict_text(found, found.best) == "QNN would end the process"
    (step,) = fix_model(path, tmp_path / "o.onnx", only=["wide-integers"]).steps
    assert step.kept
    cpu = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with qnnbridge.InferenceSession(
        tmp_path / "o.onnx", fallback="cpu", host=host, provider_options=CHIP
    ) as session:
        assert [op for _, op in session.placement.cpu_list] == ["Transpose"]
        feeds = feeds_of(cpu)
        np.testing.assert_allclose(session.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=0.02, atol=0.02)


WIDE_EDGES = {
    "Reshape": ([48], "Reshape x s y"),
    "input and output": (exported_models.FIVE, "Add x x y"),
    "input": (exported_models.FIVE, "Mul x x t", "Cast:1 t y"),
    "two outputs": ([48], "Reshape x s y", "Mul y y z"),
    "Reshape of a Reshape": ([48], "Reshape x flat t", "Reshape t s y"),
    "Squeeze": (exported_models.FIVE, "Squeeze x zero t", "Add t t y"),
}


@pytest.mark.simulator
@pytest.mark.parametrize("what", WIDE_EDGES)
def test_a_session_computes_int64_with_five_dimensions_at_its_inputs_and_outputs(
    what: str, host: qnnbridge.Host, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    shape, *nodes = WIDE_EDGES[what]
    path = models.saved(exported_models.of_five(nodes, shape), tmp_path / "m.onnx")
    cpu = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {"x": np.arange(48).reshape(shape) - 20}
    with qnnbridge.InferenceSession(path, host=host, provider_options=CHIP) as session:
        assert session.placement.qnn_nodes
        assert all("conversion" in name for name, _ in session.placement.cpu_list)
        for found, expected in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.simulator
def test_a_session_that_no_rewrite_can_fix_is_refused_before_the_compiler_crashes(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    large = exported_models.of_five(["Reshape x s t", "Add t large y"], [48])
    path = models.saved(large, tmp_path / "m.onnx")
    with pytest.raises(qnnbridge.errors.ModelError, match="int64 tensor of five dimensions") as caught:
        qnnbridge.InferenceSession(path, host=host, provider_options=CHIP)
    assert "fix=False" in (caught.value.fix or "")
    path = models.saved(exported_models.of_five(["Reshape x s t", "Tile t ones y"], [48]), tmp_path / "t.onnx")
    with pytest.raises(qnnbridge.errors.PlacementRefused, match="Tile"):
        qnnbridge.InferenceSession(path, host=host, provider_options=CHIP)


@pytest.mark.parametrize("nodes", [["Transpose x t", "Transpose t y"], ["Tile x ones t", "Mod t large y"]])
def test_values_on_the_cpu_keep_their_64_bits(nodes: list[str], tmp_path: Path) -> None:
    # The same model also contains a part that QNN computes in 32 bits.
    path = models.saved(
        exported_models.of_five([*nodes, "Reshape b s z"], exported_models.FIVE), tmp_path / "m.onnx"
    )
    (step,) = fix_model(path, tmp_path / "o.onnx", only=["wide-integers"]).steps
    assert step.kept
    feeds = {"x": np.full(exported_models.FIVE, 2**40 + 5), "b": np.arange(48)}
    of_both = [
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]) for one in (path, tmp_path / "o.onnx")
    ]
    for found, expected in zip(*(one.run(None, feeds) for one in of_both), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_analyze_reports_that_qnn_fails_with_repeated_doubles(tmp_path: Path) -> None:
    path = models.saved(exported_models.repeated_doubles(), tmp_path / "m.onnx")
    (advice,) = analyze_model(path, offline=True, soc_model="60").advice
    assert (advice.severity, "--only inner-doubles" in advice.what) == ("fails", True)


def test_a_normalization_that_computes_its_statistics_keeps_its_results(tmp_path: Path) -> None:
    path = models.saved(exported_models.own_statistics(), tmp_path / "m.onnx")
    assert fix_model(path, tmp_path / "o.onnx", only=["unused-outputs"]).steps == ()
    (advice,) = analyze_model(path, offline=True, soc_model="60").advice
    assert "inference mode" in advice.what


@pytest.mark.simulator
def test_a_session_with_a_mish_is_cached(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    path = models.saved(exported_models.without_kernel("Mish"), tmp_path / "m.onnx")
    for state in ("miss", "hit"):
        with qnnbridge.InferenceSession(path, host=host, cache=True) as session:
            assert session.cache.state == state


@pytest.mark.simulator
def test_compile_names_the_rewrite_that_makes_a_model_compilable(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(exported_models.without_kernel("GroupNormalization"), tmp_path / "m.onnx")
    refused = qnnbridge_command("compile", path, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert refused.returncode == 2
    assert "--only definitions" in refused.output
    written = tmp_path / "written.onnx"
    assert qnnbridge_command("fix", path, "-o", written, "--only", "definitions").returncode == 0
    compiled = qnnbridge_command("compile", written, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert compiled.returncode == 0, compiled.output


@pytest.mark.simulator
@pytest.mark.parametrize(("op", "shared"), [("Loop", True), ("Scan", True), ("If", True), ("If", False)])
def test_a_body_that_reads_a_weight_of_the_model_can_be_compiled_after_the_rewrite(
    op: str, shared: bool, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(exported_models.body_with_a_weight(op, shared=shared), tmp_path / "m.onnx")
    refused = qnnbridge_command("compile", path, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert refused.returncode == 2
    assert "--only body-weights" in refused.output
    written = tmp_path / "written.onnx"
    assert qnnbridge_command("fix", path, "-o", written, "--only", "body-weights").returncode == 0
    compiled = qnnbridge_command("compile", written, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert compiled.returncode == 0, compiled.output


def test_weights_of_bodies_are_changed_only_on_request(tmp_path: Path) -> None:
    path = models.saved(exported_models.body_with_a_weight("Loop"), tmp_path / "m.onnx")
    assert "SequenceAt" not in fix_model(path, tmp_path / "o.onnx").nodes_after
    assert "SequenceAt" in fix_model(path, tmp_path / "p.onnx", only=["body-weights"]).nodes_after


# --- 64-bit floats at inputs and outputs of a model --------------------------------------------------------

CHIP = [{"soc_model": "60"}]


@pytest.mark.simulator
@pytest.mark.parametrize("fallback", ["error", "cpu"])
@pytest.mark.parametrize("what", exported_models.DOUBLES)
def test_a_session_computes_doubles_at_inputs_and_outputs_and_keeps_names_and_types(
    what: str, fallback: Any, host: qnnbridge.Host
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.DOUBLES[what][1]().SerializeToString()
    cpu = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with qnnbridge.InferenceSession(data, fallback=fallback, host=host, provider_options=CHIP) as session:
        assert all("conversion of a double" in name for name, _ in session.placement.cpu_list)
        assert session.placement.qnn_nodes > 3
        for own, theirs in ((session.get_inputs(), cpu.get_inputs()), (session.get_outputs(), cpu.get_outputs())):
            assert [(one.name, one.type, one.shape) for one in own] == [
                (one.name, one.type, one.shape) for one in theirs
            ]
        feeds = feeds_of(cpu)
        for found, expected in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.simulator
def test_the_error_of_a_run_without_the_rewrite_names_it(host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.double_output().SerializeToString()
    with qnnbridge.InferenceSession(data, fix=False, host=host, provider_options=CHIP) as session:
        with pytest.raises(qnnbridge.errors.EPFail, match="--only double-edges"):
            session.run(None, {"x": np.zeros((1, 4, 8, 8), np.float32)})


@pytest.mark.simulator
def test_a_strict_session_allows_only_conversions_on_the_cpu(
    host: qnnbridge.Host,
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = exported_models.double_output()
    boxes = next(one for one in made.graph.node if one.name == "boxes")
    boxes.output[0] = "before"
    made.graph.node.append(exported_models.node("Det", ["before"], ["y"], name="det"))
    del made.graph.output[0].type.tensor_type.shape.dim[2:]
    with pytest.raises(qnnbridge.errors.PlacementRefused) as refused:
        qnnbridge.InferenceSession(made.SerializeToString(), fix=True, host=host, provider_options=CHIP)
    assert [op for _, op in refused.value.details["cpu_list"]] == ["Det"]


@pytest.mark.simulator
def test_doubles_that_follow_from_constants_are_not_converted(host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.constant_double_output().SerializeToString()
    with qnnbridge.InferenceSession(data, host=host, provider_options=CHIP) as session:
        assert session.fixed == ()
        _, found = session.run(None, {"x": np.zeros((1, 4, 8, 8), np.float32)})
    assert found.tolist() == [0.5, 16777217.5, 1e300]


@pytest.mark.parametrize(("add", "factor"), [(16777217.0, 1.0), (0.5, 1e300)])
def test_a_model_that_needs_64_bits_is_not_computed_in_32(add: float, factor: float, tmp_path: Path) -> None:
    path = models.saved(exported_models.double_output(add, factor), tmp_path / "m.onnx")
    result = fix_model(path, tmp_path / "o.onnx", only=["double-edges"])
    assert [(step.kept, step.reason) for step in result.steps] == [(False, "the results differed")]
    assert 'Rewrite "double-edges" was taken back' in result.warnings[0]


def test_a_conversion_is_not_repeated_when_fix_runs_again(tmp_path: Path) -> None:
    path = models.saved(exported_models.double_everywhere(), tmp_path / "m.onnx")
    fix_model(path, tmp_path / "o.onnx")
    assert fix_model(tmp_path / "o.onnx", tmp_path / "again.onnx").steps == ()


@pytest.mark.simulator
@pytest.mark.parametrize("offline", [True, False])
def test_analyze_reports_that_qnn_fails_with_a_double_and_names_the_command(offline: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(exported_models.double_output(), tmp_path / "m.onnx")
    found = analyze_model(path, soc_model="60", offline=offline)
    assert verdict_text(found, found.best) == "QNN would fail with 64-bit floats"
    (told,) = found.advice
    words = [str(tmp_path / "o.onnx") if word == "m_fixed.onnx" else word for word in shlex.split(told.what)[1:]]
    assert qnnbridge_command(*words).returncode == 0
    after = analyze_model(tmp_path / "o.onnx", soc_model="60", offline=offline)
    assert after.advice == ()
    assert sum(verdict.place == "cpu" for verdict in after.best.verdicts) == 3


@pytest.mark.simulator
def test_compile_names_the_rewrite_for_a_double_and_accepts_its_result(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(exported_models.double_output(), tmp_path / "m.onnx")
    refused = qnnbridge_command("compile", path, "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert refused.returncode != 0
    assert (
        f"Run qnnbridge fix {path} -o {fixed_file(path)} --only double-edges, and compile {fixed_file(path)}."
        in " ".join(refused.output.split())
    )
    fix_model(path, tmp_path / "o.onnx", only=["double-edges"])
    compiled = qnnbridge_command("compile", tmp_path / "o.onnx", "-o", tmp_path / "c.onnx", "--soc-model", "60")
    assert compiled.returncode == 0, compiled.output
    assert "fallback" not in compiled.output
    with qnnbridge.InferenceSession(tmp_path / "c.onnx", host=host, provider_options=CHIP) as session:
        (found,) = session.run(None, {"x": np.ones((1, 4, 8, 8), np.float32)})
    assert found.dtype == np.float64


# --- boolean masks in quantised attention ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "severity", "why"),
    [
        (float("inf"), "fails", "the scale scale is inf"),
        (1.3e36, "model", "one step changes the result by a factor of 1e300 and more"),
        (39.2, "model", "is quantised in steps of 39.2: one step changes the result by a factor of 1.06e+17"),
        (0.5, "", ""),
    ],
)
def test_analyze_finds_masks_that_leave_the_scores_no_quantisation_steps(
    scale: float, severity: str, why: str, tmp_path: Path
) -> None:
    path = models.saved(exported_models.masked_attention(-1e4, scale), tmp_path / "m.onnx")
    found = [one for one in analyze_model(path, soc_model="60", offline=True).advice if "quantize" in one.what]
    assert len(found) == bool(severity)
    assert all(one.severity == severity and why in one.why for one in found)


@pytest.mark.simulator
def test_the_error_for_an_infinite_scale_names_the_command_that_finds_the_node(host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    data = exported_models.masked_attention(-np.inf, float("inf")).SerializeToString()
    with pytest.raises(qnnbridge.errors.EPFail, match=r"infinite scale(.|\n)*qnnbridge analyze") as refused:
        qnnbridge.InferenceSession(data, host=host, provider_options=CHIP)
    assert "first reduces the huge values in masks" in str(refused.value)


# --- folded dimensions in a quantised model ----------------------------------------------------------------


def windows_of_a_picture(zero: bool) -> onnx.ModelProto:
    """Return an image that is cut into windows, as in Swin, with each result quantised. zero: with zero points."""
    node, nodes = models.helper.make_node, []
    step = ["s", "z"] if zero else ["s"]

    def quantised(name: str, result: str) -> None:
        nodes.append(node("QuantizeLinear", [name, *step], [f"{result}_q"]))
        nodes.append(node("DequantizeLinear", [f"{result}_q", *step], [result]))

    quantised("x", "a")
    nodes.append(node("Reshape", ["a", "six"], ["b"]))
    quantised("b", "c")
    nodes.append(node("Transpose", ["c"], ["d"], perm=[0, 1, 3, 2, 4, 5], name="turned"))
    quantised("d", "e")
    nodes.append(node("Sqrt", ["e"], ["f"], name="root"))
    quantised("f", "g")
    nodes.append(node("Reshape", ["g", "three"], ["h"]))
    quantised("h", "y")
    constants = [
        onnx.numpy_helper.from_array(np.array([1, 2, 4, 2, 4, 8]), "six"),
        onnx.numpy_helper.from_array(np.array([4, 16, 8]), "three"),
        onnx.numpy_helper.from_array(np.float32(1 / 64), "s"),
        onnx.numpy_helper.from_array(np.uint8(0), "z"),
    ]
    return models.model(nodes, [models.value("x", [1, 8, 8, 8])], [models.value("y", [4, 16, 8])], constants)


@pytest.mark.simulator
@pytest.mark.process
@pytest.mark.parametrize("zero", [True, False])
def test_dimensions_are_folded_in_a_quantised_model_that_stays_quantised(
    zero: bool, tmp_path: Path, host: qnnbridge.Host
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = models.saved(windows_of_a_picture(zero), tmp_path / "m.onnx")
    fix_model(path, tmp_path / "fixed.onnx")
    made = onnx.load(tmp_path / "fixed.onnx")
    makers = {name: one.op_type for one in made.graph.node for name in one.output}
    readers = [(one.op_type, name) for one in made.graph.node for name in one.input]
    for one in made.graph.node:
        if one.op_type in ("Transpose", "Sqrt", "Reshape"):
            assert makers[one.input[0]] == "DequantizeLinear", one
            assert [op for op, name in readers if name == one.output[0]] == ["QuantizeLinear"], one
    x = np.random.default_rng(3).uniform(0, 4, (1, 8, 8, 8)).astype(np.float32)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    with qnnbridge.InferenceSession(tmp_path / "fixed.onnx", host=host, provider_options=CHIP) as session:
        (y,) = session.run(None, {"x": x})
        assert not session.placement.cpu_nodes
    # One step of rounding.
    assert np.abs(y - expected).max() <= 1 / 64 + 1e-6
