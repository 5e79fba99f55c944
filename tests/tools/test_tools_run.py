"""`qnnbridge run` with a real host."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.commands import in_a_process, qnnbridge
from tests.fakes.models import MODELS, model, saved, tensor

from qnnbridge._session.numbers_check import NumbersCheck
from qnnbridge_host.model.known_wrong import table
from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

run = functools.partial(qnnbridge, "run")
MUL = MODELS / "mul_1.onnx"


def told(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def made(folder: Path, *parts: Any) -> Path:
    return saved(model(*parts, ir_version=9), folder / "model.onnx")


@pytest.fixture
def add(tmp_path: Path) -> Path:
    return made(
        tmp_path,
        [onnx.helper.make_node("Add", ["a", "b"], ["out/sum:0"])],
        [tensor("a", [2, 4]), tensor("b", [2, 4])],
        [tensor("out/sum:0", [2, 4])],
    )


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    return made(
        tmp_path,
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", ["batch", 3])],
        [tensor("y", ["batch", 3])],
    )


def test_inputs_are_read_from_files_and_outputs_are_written_to_files(add: Path, tmp_path: Path) -> None:
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 0.5, np.float32)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "b.npz", other=a, b=b)
    out = tmp_path / "new" / "out"
    document = told(
        add, "--input", f"a={tmp_path / 'a.npy'}", "--input", f"b={tmp_path / 'b.npz'}:b", "--output", out
    )
    (output,) = document["outputs"]
    assert output["name"] == "out/sum:0"
    assert Path(output["file"]) == out / "out_sum_0.npy"
    assert [path.name for path in out.iterdir()] == ["out_sum_0.npy"]
    # The HTP computes in half precision, and its simulator has one more bit of error.
    np.testing.assert_allclose(np.load(output["file"], allow_pickle=False), a + b, rtol=1e-3)
    assert [output["min"], output["max"], output["mean"]] == pytest.approx([0.5, 7.5, 4.0], rel=1e-3)
    assert output["shape"] == [2, 4]
    assert document["placement"]["qnn_nodes"] == 1
    assert document["placement"]["cpu_nodes"] == 0


def test_all_inputs_can_come_from_one_archive(add: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", a=np.ones((2, 4), np.float32), b=np.ones((2, 4), np.float32))
    (output,) = told(add, "--inputs", tmp_path / "all.npz", "--provider", "cpu")["outputs"]
    assert (output["min"], output["max"]) == (2.0, 2.0)


def test_random_inputs_depend_on_the_seed_and_runs_are_timed(add: Path) -> None:
    first, again, other = (
        told(add, "--random", "--seed", seed, "--provider", "cpu", "--repeat", "3") for seed in ("1", "1", "2")
    )
    assert first["outputs"] == again["outputs"]
    assert first["outputs"] != other["outputs"]
    times = first["times"]
    assert times["runs"] == 3
    assert 0 < times["later_median_seconds"] <= times["later_p95_seconds"]
    assert first["placement"]["qnn_nodes"] == 0


def test_the_text_shows_inputs_outputs_placement_and_times(add: Path) -> None:
    result = in_a_process("run", add, "--random", "--repeat", "3")
    assert result.returncode == 0, result.stderr
    for text in ("random, seed 0", "out/sum:0", "2x4", "1 node on QNN, 0 on the CPU", "SoC model 60", "2 more"):
        assert text in result.stdout, result.stdout
    assert "Outputs\nname       type     shape  min" in result.stdout
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_rewrites_of_a_session_are_reported(tmp_path: Path) -> None:
    """The results and the placement are those of the copy."""
    from lab.sweep.cases import float_model

    from qnnbridge_host.numerics.cases import Case

    row = next(row for row in table() if row.name == "conv-equal-padding")
    model = tmp_path / "m.onnx"
    onnx.save(float_model(Case.from_words(row.example)), str(model))
    result = run(model, "--random", "--provider-option", "soc_model=60")
    assert result.returncode == 0, result.stderr
    assert "rewritten    conv-padding: " in result.stdout


def test_a_free_dimension_must_be_sized_for_random_inputs(dynamic: Path) -> None:
    refused = run(dynamic, "--random", "--provider", "cpu")
    assert refused.returncode == 2
    assert '--dim "batch=SIZE"' in refused.stderr
    document = told(dynamic, "--random", "--dim", "batch=5")
    assert document["inputs"][0]["shape"] == [5, 3]
    assert document["placement"]["qnn_nodes"] == 1, "a sized dimension is fixed for QNN as well"


def test_the_requirements_of_qnn_are_expressed_in_options_of_the_command_line(dynamic: Path) -> None:
    refused = run(dynamic, "--random")
    assert refused.returncode == 1
    assert "Fix the dimensions: --dim batch=SIZE, or" in refused.stderr
    assert "add --fallback cpu." in refused.stderr
    assert "add_free_dimension_override" not in refused.stderr
    assert "fallback='cpu'" not in refused.stderr


def test_sizes_by_input_and_axis_fix_a_model_for_qnn(dynamic: Path) -> None:
    document = told(dynamic, "--random", "--dim", "x:0=5")
    assert document["inputs"][0]["shape"] == [5, 3]
    assert document["placement"]["qnn_nodes"] == 1


def test_axes_without_a_dimension_name_are_addressed_by_input_and_axis() -> None:
    """The input x of a PaddleOCR model has the shape (no name), 3, "?", "?"."""
    model = Path(__file__).parents[1] / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    refused = run(model, "--random")
    assert refused.returncode == 1
    assert 'Fix: Fix the dimensions: --dim "x:0=SIZE" --dim "x:2=SIZE" --dim "x:3=SIZE", or' in refused.stderr
    pasted = run(model, "--random", "--dim", "x:0=1", "--dim", "x:2=SIZE", "--dim", "x:3=192")
    assert pasted.returncode == 2
    assert "Replace SIZE with a whole number" in pasted.stderr


def test_an_unknown_dimension_is_bad_input(dynamic: Path) -> None:
    result = run(dynamic, "--random", "--dim", "batch=1", "--dim", "Q=3", "--host-python", "/nonexistent/python")
    assert result.returncode == 2
    assert 'The model has no free dimension "Q".\n  Cause: Its free dimensions: batch.' in result.stderr


def test_a_problem_with_the_cache_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = Path(__file__).parent.parent / "models" / "f.onnx"
    environment = {"QNNBRIDGE_CACHE": "1", "QNNBRIDGE_CACHE_DIR": str(tmp_path / "file" / "cache")}
    result = in_a_process("run", model, "--random", "--provider-option", "soc_model=60", **environment)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("The cache of compiled models in")


def test_outputs_cannot_be_written_to_a_file(add: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for there in ("file", "file/below"):
        result = run(add, "--random", "--output", tmp_path / there, "--host-python", "/nonexistent/python")
        assert result.returncode == 2
        assert f"{tmp_path / there} cannot be written." in result.stderr
        assert f"{tmp_path / 'file'} is a file." in result.stderr


def test_a_timeout_of_zero_is_bad_input(add: Path) -> None:
    result = run(add, "--random", "--timeout", "0", "--host-python", "/nonexistent/python")
    assert result.returncode == 2
    assert "--timeout 0 is not above 0" in result.stderr


def test_a_missing_input_is_refused_with_both_alternatives(add: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 4), np.float32))
    result = run(add, "--input", f"a={tmp_path / 'a.npy'}", "--provider", "cpu")
    assert result.returncode == 2
    assert "No value for input b." in result.stderr
    assert "--random" in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("b", np.zeros((2, 4), np.float64)),
        ("b", np.zeros((4, 2), np.float32)),
        ("c", np.zeros((2, 4), np.float32)),
        ("b", np.array(["x"])),
    ],
    ids=["wrong dtype", "wrong shape", "wrong name", "text"],
)
def test_a_wrong_input_is_bad_input(add: Path, tmp_path: Path, name: str, value: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "v.npy", value)
    result = run(add, "--input", f"{name}={tmp_path / 'v.npy'}", "--random", "--provider", "cpu", "--json")
    assert result.returncode == 2, result.stderr
    # Continuation lines of a message are marked, so that none looks like a part of the report.
    for line in json.loads(result.stdout)["error"]["message"].rstrip().splitlines():
        assert line in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_that_qnn_cannot_run_is_refused_and_runs_with_fallback(tmp_path: Path) -> None:
    model = made(
        tmp_path,
        [onnx.helper.make_node("Det", ["x"], ["d"]), onnx.helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", [1, 3, 3])],
        [tensor("d", [1]), tensor("y", [1, 3, 3])],
    )
    refused = run(model, "--random")
    assert refused.returncode == 1
    assert "Det" in refused.stderr
    document = told(model, "--random", "--fallback", "cpu")
    assert (document["placement"]["qnn_nodes"], document["placement"]["cpu_nodes"]) == (1, 1)
    person = run(model, "--random", "--fallback", "cpu")
    assert "on the CPU" in person.stdout
    assert "Det" in person.stdout
    assert person.stderr == ""


def test_an_unknown_provider_option_is_bad_input_with_a_suggestion(add: Path) -> None:
    result = run(add, "--random", "--provider-option", "soc_modle=60")
    assert result.returncode == 2
    assert "soc_model" in result.stderr


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"this is not a model", "is not an ONNX model: it is a text file."),
        (b"", "is empty."),
        (None, "is not an ONNX model, or it is cut off."),
    ],
    ids=["a text", "empty", "cut off"],
)
def test_a_file_that_is_not_a_model_is_bad_input_with_an_explanation(
    add: Path, contents: bytes | None, words: str
) -> None:
    add.write_bytes(add.read_bytes()[:-20] if contents is None else contents)
    result = run(add, "--random", "--host-python", "/nonexistent/python")
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(f"Error: The file {add} {words}\n")
    assert "ONNXRuntimeError" not in result.stderr


def test_outputs_that_are_sequences_and_strings_are_written(tmp_path: Path) -> None:
    model = made(
        tmp_path,
        [
            onnx.helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
            onnx.helper.make_node("Identity", ["t"], ["u"]),
        ],
        [tensor("x", [2]), tensor("t", [1], onnx.TensorProto.STRING)],
        [onnx.helper.make_tensor_sequence_value_info("s", 1, [2]), tensor("u", [1], onnx.TensorProto.STRING)],
    )
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    np.save(tmp_path / "t.npy", np.array(["häßlich"]))
    arguments = ["--input", f"x={tmp_path / 'x.npy'}", "--input", f"t={tmp_path / 't.npy'}"]
    document = told(model, *arguments, "--provider", "cpu", "--output", tmp_path / "out")
    sequence, text = document["outputs"]
    assert json.loads(Path(sequence["file"]).read_text()) == [[1.0, 2.0], [1.0, 2.0]]
    assert np.load(text["file"], allow_pickle=False).tolist() == ["häßlich"]


def test_the_report_has_the_comparison_of_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits for the comparison in the background."""
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "warn")
    done = run(MUL, "--random")
    assert "agree on 1 of 1 call" in done.stdout, done.output
    assert "SNR" in done.stdout
    document = told(MUL, "--random")
    assert document["numbers"]["state"] == "agrees"
    assert document["numbers"]["outputs"][0]["output"] == "Y"


def test_outputs_that_differ_are_reported_with_the_command_that_finds_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = NumbersReport("differs", (OutputNumbers("differs", 6, 3.5, output="Y"),), reason="Y: SNR 3.5 dB")
    monkeypatch.setattr(NumbersCheck, "_ask", lambda *_: found)
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "warn")
    done = run(MUL, "--random")
    assert "differ: Y: SNR 3.5 dB" in done.stdout
    assert f"qnnbridge verify {MUL}" in " ".join(done.stdout.split())
    assert "NumbersWarning" not in done.stderr
