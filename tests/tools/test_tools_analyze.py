"""`qnnbridge analyze`: predictions of the rules, QNN's placement, recommendations, and their output."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import fix_models
import model_work_models as models
import numpy as np
import onnx
import pytest
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.model.operator_tables import NEWEST_IR_VERSION, NEWEST_OPSET, NEWEST_ORT
from qnnbridge_models.analyze import Analysis, analyze_model
from qnnbridge_models.analyze import analysis as report
from qnnbridge_models.analyze.analysis import shares_of, verdict_text, work_text
from qnnbridge_models.analyze.predict import parts_of
from qnnbridge_models.fix import fix_model
from qnnbridge_protocol import shell
from qnnbridge_protocol.errors import CompiledModelRefused, InvalidProtobuf, NoSuchFile, OptionError

node = models.helper.make_node


def analyze(*arguments: str | Path) -> Any:
    return qnnbridge("analyze", *arguments)


def offline(made: Any, folder: Path, **kwargs: Any) -> Analysis:
    return analyze_model(models.saved(made, folder / "m.onnx"), offline=True, **kwargs)


def rules_of(analysis: Analysis) -> dict[str, str]:
    return {
        node.label: verdict.rule or verdict.place
        for node, verdict in zip(analysis.view.nodes, analysis.predicted.verdicts, strict=True)
    }


def chain_of(*ops: str) -> Any:
    names = [f"t{number}" for number in range(len(ops))] + ["y"]
    nodes = [node(op, [names[n]], [names[n + 1]], name=f"{op}{n}") for n, op in enumerate(ops)]
    return models.model(nodes, [models.value("t0", [1, 8])], [models.value("y", [1, 8])])


# --- the rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "rule", "fix"),
    [
        ("integer exponent", "special", "integer-exponent"),
        ("scaled Gemm", "attributes", "gemm-scale"),
        ("computed limits", "constant-inputs", "clip-limits"),
        ("unused statistics", "counts", "unused-outputs"),
        ("upper triangle", "not-registered", "trilu"),
        ("skip norm", "not-registered", "skip-norm"),
        ("ReduceL1", "not-registered", "missing-operators"),
        ("Erf alone", "not-registered", "erf"),
        ("scattered transpose", "rank", "rank"),
        ("empty state", "zero-size", "zero-size"),
    ],
)
def test_each_trap_is_reported_with_the_rewrite_that_removes_it(
    what: str, rule: str, fix: str, tmp_path: Path
) -> None:
    analysis = offline(fix_models.ONE_OF_EACH[what][1](), tmp_path)
    assert rule in rules_of(analysis).values()
    assert any(fix in advice.what for advice in analysis.advice), [a.what for a in analysis.advice]


def test_each_suggested_command_works_when_pasted_and_removes_its_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pasted = 0
    for number, (_, make) in enumerate(fix_models.ONE_OF_EACH.values()):
        folder = tmp_path / f"it's {number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        for advice in offline(make(), folder).advice:
            # As a reader copies it: without the text after the command.
            command = re.match(r"(?:run: )?(qnnbridge fix .*?)(?: \(|, or |; |$)", advice.what)
            if command is None or "=SIZE" in command[1]:
                continue
            Path("m_fixed.onnx").unlink(missing_ok=True)
            done = qnnbridge(*shlex.split(command[1])[1:])
            assert done.returncode == 0, done.output
            left = analyze_model("m_fixed.onnx", offline=True).advice
            assert advice.why not in [one.why for one in left], advice.what
            pasted += 1
    assert pasted > 140


@pytest.mark.parametrize(
    "what",
    ["integer exponent", "scaled Gemm", "unused statistics", "skip norm", "Erf alone", "windows", "empty state"],
)
def test_the_rules_place_every_node_of_a_fixed_model_on_the_npu(what: str, tmp_path: Path) -> None:
    made = models.saved(fix_models.ONE_OF_EACH[what][1](), tmp_path / "m.onnx")
    before = analyze_model(made, offline=True)
    assert shares_of(before, before.best).on_qnn < shares_of(before, before.best).nodes
    fix_model(made, tmp_path / "o.onnx")
    after = analyze_model(tmp_path / "o.onnx", offline=True)
    assert shares_of(after, after.best).useful_share[0] == 1
    assert not after.empty


def test_a_gelu_is_accepted_as_a_whole_and_an_erf_alone_is_not(tmp_path: Path) -> None:
    assert set(rules_of(offline(fix_models.erf(in_gelu=True), tmp_path)).values()) == {"qnn"}
    assert rules_of(offline(fix_models.erf(in_gelu=False), tmp_path))["erf"] == "not-registered"


def test_a_gelu_with_only_its_result_quantised_has_its_erf_on_the_cpu(tmp_path: Path) -> None:
    made = fix_models.erf(in_gelu=True)
    made.graph.node[-1].output[0] = "float"
    made.graph.initializer.extend(
        [fix_models.constant("s", np.float32(0.1)), fix_models.constant("z", np.uint8(9))]
    )
    made.graph.node.extend(
        [
            fix_models.node("QuantizeLinear", ["float", "s", "z"], ["q"], name="quantise"),
            fix_models.node("DequantizeLinear", ["q", "s", "z"], ["y"], name="back"),
        ]
    )
    assert rules_of(offline(made, tmp_path))["erf"] == "not-registered"


def test_nodes_that_follow_from_fixed_shapes_count_as_folded(tmp_path: Path) -> None:
    fixed = offline(fix_models.branch_by_rank(), tmp_path, shapes={"x": [1, 5, 8]})
    assert rules_of(fixed)["shape"] == "folded"
    assert rules_of(fixed)["equal"] == "folded"
    free = offline(fix_models.branch_by_rank(), tmp_path)
    assert rules_of(free)["matmul"] == "free-shape"
    assert '--dim "batch=SIZE" --dim "time=SIZE"' in free.advice[0].what


def test_the_file_is_not_changed_and_sizes_are_only_assumed(tmp_path: Path) -> None:
    source = models.MODELS / "pnet.onnx"
    before = source.read_bytes()
    found = analyze_model(source, dims={"N": 1, "M1": 32, "M2": 24}, offline=True)
    assert shares_of(found, found.best).useful_share[0] == 1
    assert source.read_bytes() == before


def test_an_older_chip_supports_fewer_operators(tmp_path: Path) -> None:
    made = chain_of("Elu", "Relu")
    assert set(rules_of(offline(made, tmp_path, soc_model="60")).values()) == {"qnn"}
    old = offline(made, tmp_path, soc_model="SM8350")
    assert rules_of(old)["Elu0"] == "chip"
    assert "V68" in old.chip


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"soc_model": "30"}, "V68"),
        ({"soc_model": "SM8350"}, "V68"),
        ({"soc_model": "30,60"}, "V68"),
        ({"htp_arch": "68"}, "V68"),
        ({"soc_model": "0", "htp_arch": "68"}, "V68"),
        ({"soc_model": "60", "htp_arch": "68"}, "V73"),
        ({"soc_model": "QRB5165"}, "QRB5165"),
        ({"soc_model": "0", "htp_arch": "0"}, "V73"),
    ],
)
def test_the_rules_are_those_of_the_chip_in_the_provider_options(
    options: dict[str, str], label: str, tmp_path: Path
) -> None:
    found = offline(chain_of("Elu", "Relu"), tmp_path, provider_options=options)
    assert rules_of(found)["Elu0"] == ("chip" if label == "V68" else "qnn")
    assert label in found.chip


def test_int64_arithmetic_on_the_npu_causes_a_warning(tmp_path: Path) -> None:
    made = models.model(
        [node("Add", ["x", "x"], ["y"], name="add")],
        [models.value("x", [4], models.INT64)],
        [models.value("y", [4], models.INT64)],
    )
    (advice,) = offline(made, tmp_path).advice
    assert "32 bits" in advice.what
    assert advice.severity == "model"


def test_a_model_that_is_too_new_is_reported(tmp_path: Path) -> None:
    made = chain_of("Relu")
    made.opset_import[0].version = 30
    assert "opset" in offline(made, tmp_path).advice[0].what


def test_quantised_types_that_qnn_lacks_are_named(tmp_path: Path) -> None:
    from qnnbridge_models.quantize import QuantizeOptions, QuantizeSettings, quantize_model

    source = models.saved(models.conv_net(), tmp_path / "f.onnx")
    options = QuantizeOptions(random=2, settings=QuantizeSettings(activation_type="uint8"))
    quantize_model(source, tmp_path / "q.onnx", options)
    good = analyze_model(tmp_path / "q.onnx", offline=True)
    assert shares_of(good, good.best).useful_share[0] == 1
    made = onnx.load(str(tmp_path / "q.onnx"))
    for tensor in made.graph.initializer:
        if (
            tensor.data_type == onnx.TensorProto.INT8
        ):  # the weights: 16-bit weights are not allowed with 8-bit activations
            values = onnx.numpy_helper.to_array(tensor).astype(np.int16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    bad = offline(made, tmp_path)
    assert "quantised-types" in rules_of(bad).values()


# --- parts and advice ------------------------------------------------------------------------------------


def test_parts_are_split_as_by_onnxruntime(tmp_path: Path) -> None:
    made = chain_of("Relu", "Hardmax", "Relu", "Relu", "Hardmax", "Relu")
    assert offline(made, tmp_path).best.parts == ((0,), (2, 3), (5,))
    # A branch next to the node on the CPU joins the first part if it does not depend on that node.
    beside = models.model(
        [
            node("Relu", ["x"], ["a"], name="a"),
            node("Hardmax", ["a"], ["b"], name="b"),
            node("Sigmoid", ["a"], ["c"], name="c"),
            node("Add", ["b", "c"], ["y"], name="y"),
        ],
        [models.value("x", [1, 8])],
        [models.value("y", [1, 8])],
    )
    view = ModelIndex(beside)
    assert parts_of(view, ["qnn", "cpu", "qnn", "qnn"]) == [[0, 2], [3]]
    assert parts_of(view, ["qnn", "qnn", "qnn", "qnn"]) == [[0, 1, 2, 3]]
    assert parts_of(view, ["cpu", "cpu", "cpu", "cpu"]) == []


def test_the_most_valuable_advice_comes_first(tmp_path: Path) -> None:
    made = models.model(
        [
            node("Hardmax", ["x"], ["a"], name="small"),
            node("Gemm", ["a", "w"], ["b"], alpha=0.5, name="large"),
            node("Relu", ["b"], ["y"], name="relu"),
        ],
        [models.value("x", [1, 64])],
        [models.value("y", [1, 64])],
        [models.weights("w", 64, 64)],
    )
    first, second = offline(made, tmp_path).advice
    assert "gemm-scale" in first.what
    assert first.macs == 64 * 64
    assert second.nodes == (0,)


def test_a_crash_comes_before_all_other_advice(tmp_path: Path) -> None:
    made = fix_models.empty_state()
    made.graph.node.append(node("Hardmax", ["x"], ["z"], name="hard"))
    made.graph.output.append(models.value("z", [2, 8]))
    found = offline(made, tmp_path)
    assert found.advice[0].severity == "crash"
    assert "zero-size" in found.advice[0].what
    assert "QNN would end the process" in analyze(tmp_path / "m.onnx", "--offline").stdout


def log_spectrum(*, constant: bool) -> Any:
    """Return an STFT with its default of one side, and operators that depend on the number of bands."""
    step = [] if constant else [models.value("step", [], onnx.TensorProto.INT64)]
    tensors = [
        models.helper.make_tensor("hop", onnx.TensorProto.INT64, [], [16]),
        models.weights("window", 64),
        models.weights("mel", 33, 8),
    ]
    return models.model(
        [
            node("STFT", ["x", "hop" if constant else "step", "window"], ["bands"], name="stft"),
            node("ReduceL2", ["bands"], ["level"], axes=[-1], keepdims=0, name="level"),
            node("MatMul", ["level", "mel"], ["y"], name="mel"),
        ],
        [models.value("x", [1, 640]), *step],
        [models.value("y", None)],
        tensors,
    )


def test_stft_crashes_the_process_only_with_a_step_that_is_not_constant(tmp_path: Path) -> None:
    found = offline(log_spectrum(constant=False), tmp_path)
    assert rules_of(found)["stft"] == "crashing-operator"
    assert "step and length constants" in f"{found.advice[0].what} {found.advice[0].why}"
    assert rules_of(offline(log_spectrum(constant=True), tmp_path)) == dict.fromkeys(
        ("stft", "level", "mel"), "qnn"
    )


@pytest.mark.simulator
def test_qnn_computes_the_stft_that_the_rules_allow(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    found = analyze_model(models.saved(log_spectrum(constant=True), tmp_path / "m.onnx"), soc_model="60")
    assert found.truth is not None
    assert found.truth.disagreements == ()
    assert found.from_qnn


def test_operations_and_weights_are_counted(tmp_path: Path) -> None:
    found = offline(models.conv_net(), tmp_path)
    conv = found.costs[0]
    assert conv.macs == 8 * 16 * 16 * 3 * 3 * 3
    assert conv.weights == 8 * 3 * 3 * 3 * 4
    assert shares_of(found, found.best).mac_share == 1


# --- QNN itself ------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_qnn_reports_the_place_and_the_reason_of_every_node(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    model = models.saved(chain_of("Relu", "Hardmax", "Sigmoid"), tmp_path / "m.onnx")
    found = analyze_model(model, soc_model="60")
    assert found.from_qnn
    assert found.truth is not None
    assert found.truth.placed is not None
    assert [verdict.place for verdict in found.truth.placed.verdicts] == ["qnn", "cpu", "qnn"]
    assert found.truth.placed.parts == ((0,), (2,))
    assert "Hardmax" in found.truth.placed.verdicts[1].reason
    assert "qnnbridge_node" not in found.truth.placed.verdicts[1].reason
    assert found.truth.disagreements == ()
    assert found.truth.versions["onnxruntime_qnn"]


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["ch_ppocr_mobile_v2.0_cls_infer", "model_v8", "silero_vad_openvino_16k", "q"])
def test_the_rules_agree_with_qnn_on_real_models(name: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    found = analyze_model(models.MODELS / f"{name}.onnx", dims=models.FIXED_SIZES.get(name), soc_model="60")
    assert found.truth is not None
    assert found.truth.error is None
    shares = shares_of(found, found.best)
    assert shares.on_qnn == shares.nodes > 10
    assert found.truth.disagreements == ()


@pytest.mark.simulator
def test_without_a_trace_only_the_placement_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases of onnxruntime-qnn before 2.4 have no trace."""
    pytest.importorskip("onnxruntime_qnn")
    from qnnbridge_models.analyze import analyzer

    monkeypatch.setattr(analyzer, "read_trace", lambda folder: {})
    found = analyze_model(models.saved(chain_of("Relu", "Hardmax", "Sigmoid"), tmp_path / "m.onnx"), soc_model="60")
    assert found.truth is not None
    assert found.truth.placed is not None
    assert [verdict.place for verdict in found.truth.placed.verdicts] == ["qnn", "cpu", "qnn"]
    assert found.truth.placed.parts == ((0,), (2,))


@pytest.mark.simulator
def test_a_model_that_would_crash_the_process_is_reported_and_not_run(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = models.model(
        [node("MatMul", ["x", "w"], ["y"], name="matmul")],
        [models.value("x", [0, 4])],
        [models.value("y", [0, 2])],
        [models.weights("w", 4, 2)],
    )
    found = analyze_model(models.saved(made, tmp_path / "m.onnx"), soc_model="60")
    assert found.predicted.verdicts[0].place == "crash"
    assert found.truth is not None
    assert found.truth.error is not None
    assert found.truth.error.code.startswith("host.")
    assert found.advice[0].severity == "crash"


@pytest.mark.simulator
def test_a_session_that_cannot_be_created_is_reported_with_the_reasons_of_qnn(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = models.model(
        [node("Sign", ["x"], ["y"], name="sign")],
        [models.value("x", [1, 2, 2, 2, 2])],
        [models.value("y", [1, 2, 2, 2, 2])],
    )
    found = analyze_model(models.saved(made, tmp_path / "m.onnx"), soc_model="60")
    assert found.predicted.verdicts[0].place == "fails"
    assert found.truth is not None
    assert found.truth.error is not None
    assert any(advice.severity == "fails" for advice in found.advice)


@pytest.mark.parametrize(("opset", "ir_version"), [(1, 0), (0, 1)])
def test_a_model_that_is_too_new_for_onnxruntime_is_reported(opset: int, ir_version: int, tmp_path: Path) -> None:
    import onnxruntime as ort

    def made(opset: int, ir_version: int) -> Any:
        nodes = [node("Relu", ["x"], ["y"])]
        x, y = models.value("x", [1, 8]), models.value("y", [1, 8])
        return models.model(nodes, [x], [y], opset=NEWEST_OPSET + opset, ir_version=NEWEST_IR_VERSION + ir_version)

    beyond = made(opset, ir_version)
    advice = [one for one in offline(beyond, tmp_path).advice if one.severity == "fails"]
    assert [f"ONNX Runtime {NEWEST_ORT} does not load it" in one.why for one in advice] == [True]
    assert not any(one.severity == "fails" for one in offline(made(0, 0), tmp_path).advice)
    with pytest.raises(Exception, match="onnx"):  # a release that loads the model exists: update the table
        ort.InferenceSession(beyond.SerializeToString(), providers=["CPUExecutionProvider"])
    if ort.__version__.startswith(f"{NEWEST_ORT}."):
        ort.InferenceSession(made(0, 0).SerializeToString(), providers=["CPUExecutionProvider"])


# --- the command -----------------------------------------------------------------------------------------


def test_the_report_uses_the_terms_of_the_user(tmp_path: Path) -> None:
    model = models.saved(chain_of("Relu", "Hardmax", "Sigmoid"), tmp_path / "m.onnx")
    done = analyze(model, "--offline")
    assert done.returncode == 0
    assert "66.7 % of the work runs on the NPU, cut into 2 pieces" in done.stdout
    assert "Recommendations, most valuable first" in done.stdout
    assert "QNN has no operator Hardmax" in done.stdout
    assert "cut into 1 fewer piece" in done.stdout


def test_json_has_every_node_with_its_verdict(tmp_path: Path) -> None:
    model = models.saved(chain_of("Relu", "Hardmax"), tmp_path / "m.onnx")
    document = json.loads(analyze(model, "--offline", "--json", "--html", tmp_path / "m.html").stdout)
    assert document["source"] == "rules"
    assert [entry["place"] for entry in document["nodes"]] == ["qnn", "cpu"]
    assert document["nodes"][1]["predicted"]["rule"] == "not-registered"
    assert document["summary"]["on_qnn"] == 1
    assert document["truth"] is None
    assert Path(document["picture"]).is_file()


def test_the_rules_need_no_qnn_and_little_time(tmp_path: Path) -> None:
    source = models.MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    analyze_model(source, offline=True)  # imports
    begun = time.process_time()
    found = analyze_model(source, dims=models.FIXED_SIZES["ch_ppocr_mobile_v2.0_cls_infer"], offline=True)
    assert time.process_time() - begun < 1.0
    assert found.no_truth


def test_analyze_works_without_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qnnbridge.errors import HostNotFound
    from qnnbridge_models.analyze import analyzer

    def none(*args: Any, **kwargs: Any) -> Any:
        raise HostNotFound("There is no interpreter that could be the host.")

    monkeypatch.setattr(analyzer, "ask", none)
    model = models.saved(chain_of("Relu"), tmp_path / "m.onnx")
    found = analyze_model(model)
    assert found.truth is None
    assert "no interpreter" in found.no_truth
    with pytest.raises(HostNotFound):
        analyze_model(model, host_python="nowhere")


def test_bad_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CompiledModelRefused):
        analyze_model(models.COMPILED)
    with pytest.raises(NoSuchFile):
        analyze_model(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\x08\xff no model")
    with pytest.raises(InvalidProtobuf):
        analyze_model(tmp_path / "m.onnx", offline=True)
    with pytest.raises(OptionError, match="SC8380XP=60"):
        analyze_model(models.MODELS / "sigmoid.onnx", soc_model="snapdragon")
    assert analyze(models.MODELS / "sigmoid.onnx", "--soc-model", "nonsense").returncode == 2


@pytest.mark.parametrize("name", [*models.FIXED_SIZES, "logreg_iris"])
def test_every_real_model_is_analysed_unchanged(name: str) -> None:
    found = analyze_model(models.MODELS / f"{name}.onnx", offline=True)
    assert len(found.predicted.verdicts) == len(found.view.nodes) > 0
    assert all(verdict.reason for verdict in found.predicted.verdicts if verdict.place != "qnn")


def test_external_constants_are_read_if_shapes_depend_on_them(tmp_path: Path) -> None:
    made = models.model(
        [
            node("Add", ["s", "s"], ["t"], name="sizes"),
            node("Reshape", ["x", "t"], ["r"], name="reshape"),
            node("MatMul", ["r", "w"], ["y"], name="matmul"),
        ],
        [models.value("x", [8, 8])],
        [models.value("y", None)],  # type: ignore[arg-type]
        [models.constant("s", np.array([2, 8])), models.weights("w", 16, 96)],
    )
    path = models.saved(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    found = analyze_model(path, offline=True)
    assert [verdict.place for verdict in found.predicted.verdicts] == ["folded", "qnn", "qnn"]
    assert found.costs[2].macs == 4 * 16 * 96
    (tmp_path / "m.bin").unlink()
    with pytest.raises(NoSuchFile):
        analyze_model(path, offline=True)


def test_functions_of_the_model_are_analysed_inside(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[1, 8] x) => (float[1, 8] y) { y = own.f (x) }
        <domain: "own", opset_import: ["" : 17]> f (a) => (c) { b = Relu (a)  c = Hardmax (b) }"""
    )
    found = offline(made, tmp_path)
    assert [verdict.place for verdict in found.predicted.verdicts] == ["qnn", "cpu"]


# --- counting --------------------------------------------------------------------------------------------

MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("name", "dims"),
    [("pnet", {"N": 1, "M1": 32, "M2": 24}), ("silero_vad_openvino_16k", {}), ("model_v8", {"N": 1})],
)
def test_the_rules_qnn_and_the_page_count_the_same_nodes_and_multiplications(
    name: str, dims: dict[str, int]
) -> None:
    by_rules = analyze_model(MODELS / f"{name}.onnx", dims=dims, soc_model="60", offline=True)
    by_qnn = analyze_model(MODELS / f"{name}.onnx", dims=dims, soc_model="60")
    assert by_qnn.from_qnn
    assert shares_of(by_rules, by_rules.best) == shares_of(by_qnn, by_qnn.best)
    assert sum(map(len, by_qnn.best.parts)) == shares_of(by_qnn, by_qnn.best).on_qnn
    page, document = report.picture_data(by_qnn), report.document(by_qnn)
    assert (page["verdict"], page["workText"]) == (document["verdict"], work_text(shares_of(by_qnn, by_qnn.best)))
    assert page["verdict"] == verdict_text(by_rules, by_rules.best) == "the whole model runs on the NPU"


@pytest.mark.simulator
def test_a_branch_that_replaces_its_if_counts_as_all_of_the_model(tmp_path: Path) -> None:
    then = models.helper.make_graph(
        [node("Relu", ["x"], ["a"], name="inner")], "then", [], [models.value("a", [1, 8])]
    )
    other = models.helper.make_graph(
        [node("Sigmoid", ["x"], ["b"], name="other")], "else", [], [models.value("b", [1, 8])]
    )
    made = models.model(
        [node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other)],
        [models.value("x", [1, 8])],
        [models.value("y", [1, 8])],
        [models.constant("c", np.array(True))],
    )
    found = analyze_model(models.saved(made, tmp_path / "m.onnx"), soc_model="60")
    assert found.from_qnn
    assert verdict_text(found, found.best) == "the whole model runs on the NPU"


def test_fixed_sizes_are_the_first_advice_and_the_only_one_if_they_are_sufficient(tmp_path: Path) -> None:
    found = analyze_model(MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx", offline=True)
    assert [one.severity for one in found.advice] == ["sizes"]
    assert found.advice[0].what == shell.fix_command(
        MODELS / "ch_ppocr_mobile_v2.0_cls_infer.onnx", *(f'--dim "x:{axis}=SIZE"' for axis in (0, 2, 3))
    )
    assert (
        "the model needs no other change: the rules predict that all 233 nodes run on the NPU"
        in found.advice[0].why
    )
    assert found.advice[0].macs > 1_000_000
    assert "once its sizes are fixed" in verdict_text(found, found.best)
    # If other nodes remain, sizes still come first, but are not reported as sufficient.
    made = chain_of("Relu", "Hardmax", "Sigmoid")
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    left = offline(made, tmp_path)
    assert [one.severity for one in left.advice] == ["sizes", "cpu"]
    assert "no other change" not in left.advice[0].why
    assert "Hardmax" in left.advice[1].why
    assert "once its sizes" not in verdict_text(left, left.best)


def test_an_input_that_decides_which_branch_runs_is_named_with_its_value(tmp_path: Path) -> None:
    branches = {
        f"{kind}_branch": models.helper.make_graph([node(op, ["x"], [op])], kind, [], [models.value(op, ["N", 8])])
        for kind, op in (("then", "Relu"), ("else", "Sigmoid"))
    }
    made = models.model(
        [node("Equal", ["rate", "r"], ["c"]), node("If", ["c"], ["y"], name="choice", **branches)],
        [models.value("x", ["N", 8]), models.value("rate", [], models.INT64)],
        [models.value("y", ["N", 8])],
        [models.constant("r", np.array(16000))],
    )
    found = offline(made, tmp_path)
    assert found.advice[0].code == "deciding-input"
    assert found.advice[0].what == shell.fix_command(tmp_path / "m.onnx", "--constant rate=16000", '--dim "N=SIZE"')
    assert "choice" in found.advice[0].why
    assert not any("choice" in one.why for one in found.advice[1:])
    fix_model(tmp_path / "m.onnx", tmp_path / "fixed.onnx", dims={"N": 2}, constants={"rate": 16000})
    assert analyze_model(tmp_path / "fixed.onnx", offline=True).advice == ()


def test_a_branch_that_the_sizes_rule_out_gets_no_separate_advice(tmp_path: Path) -> None:
    then = models.helper.make_graph([node("Relu", ["x"], ["a"])], "then", [], [models.value("a", None)])
    other = models.helper.make_graph([node("Hardmax", ["x"], ["b"])], "else", [], [models.value("b", None)])
    made = models.model(
        [
            node("Shape", ["x"], ["s"]),
            node("Size", ["s"], ["rank"]),
            node("Equal", ["rank", "four"], ["c"]),
            node("If", ["c"], ["i"], name="choice", then_branch=then, else_branch=other),
            node("Sigmoid", ["i"], ["y"]),
        ],
        [models.value("x", ["N", 3, 8, 8])],
        [models.value("y", ["N", 3, 8, 8])],
        [models.constant("four", np.array(4))],
    )
    (advice,) = offline(made, tmp_path).advice
    assert "the model needs no other change: the rules predict that all 3 nodes run on the NPU" in advice.why
    assert (
        "The sizes decide which branch of choice runs; the command also removes the branches that do not run"
        in advice.why
    )
    fixed = fix_model(tmp_path / "m.onnx", tmp_path / "fixed.onnx", dims={"N": 2})
    assert "untaken-branches" in [step.rewrite for step in fixed.steps]
    assert analyze_model(tmp_path / "fixed.onnx", offline=True).advice == ()
    # If the executed branch has an operator that QNN lacks, the If is refused for that.
    del made.graph.initializer[:]
    made.graph.initializer.append(models.constant("four", np.array(3)))
    found = offline(made, tmp_path)
    assert any("Hardmax" in one.why for one in found.advice)
    assert "untaken-branches" not in found.advice[0].why


def test_suggested_sizes_are_large_enough_for_a_window_of_audio(tmp_path: Path) -> None:
    made = models.model(
        [node("Conv", ["x", "w"], ["frames"], strides=[160]), node("Relu", ["frames"], ["y"])],
        [models.value("x", [1, 1, "samples"])],
        [models.value("y", [1, 4, "frames"])],
        [models.weights("w", 4, 1, 400)],
    )
    (advice,) = offline(made, tmp_path).advice
    assert "the model needs no other change" in advice.why
    assert "x:2=16000" in advice.why


@pytest.mark.parametrize(
    "source", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.UINT8, onnx.TensorProto.BOOL]
)
def test_qnn_converts_to_int64_inside_of_a_model_and_not_at_its_end(source: int, tmp_path: Path) -> None:
    """The behaviour was measured on QNN 2.7.0."""
    inside = models.model(
        [
            node("Cast", ["x"], ["whole"], to=onnx.TensorProto.INT64),
            node("Cast", ["whole"], ["y"], to=onnx.TensorProto.FLOAT),
        ],
        [models.value("x", [2, 3], source)],
        [models.value("y", [2, 3])],
        [],
    )
    assert [one.place for one in offline(inside, tmp_path).predicted.verdicts] == ["qnn", "qnn"]
    at_the_end = models.model(
        [node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT64)],
        [models.value("x", [2, 3], source)],
        [models.value("y", [2, 3], onnx.TensorProto.INT64)],
        [],
    )
    (verdict,) = offline(at_the_end, tmp_path).predicted.verdicts
    assert (verdict.place, "not support for outputs of the model" in verdict.reason) == ("cpu", True)
    assert "int32" in verdict.fix
