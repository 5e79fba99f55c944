"""`qnnbridge evaluate`: samples, expected outputs, a metric, and one row for each model and provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")

import model_work_models as models
import onnxruntime
from tests.contract import optimizer_models

from qnnbridge_models.evaluate import EvaluateOptions, evaluate_model, load_metric, read_samples
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo

INPUTS = [NodeInfo("x", "tensor(float)", (1, 3, 16, 16))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, samples with a label, and the expected outputs."""
    made = tmp_path_factory.mktemp("evaluate")
    source = models.saved(models.conv_net(), made / "m.onnx")
    session = onnxruntime.InferenceSession(source)
    rng = np.random.default_rng(2)
    (made / "in").mkdir()
    (made / "want").mkdir()
    for number in range(4):
        x = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        np.savez(made / "in" / f"{number}.npz", x=x, label=y.argmax())
        np.save(made / "want" / f"{number}.npy", y[0])
    (made / "metrics.py").write_text(
        "import numpy as np\n"
        "def accuracy(outputs, samples):\n"
        "    right = [o['y'].argmax() == s['label'] for o, s in zip(outputs, samples)]\n"
        "    return {'accuracy': np.mean(right), 'seen': len(outputs)}\n"
        "def broken(outputs, samples):\n"
        "    return outputs[0]['z']\n"
        "def words(outputs, samples):\n"
        "    return 'good'\n"
    )
    return made


@pytest.mark.process
@pytest.mark.simulator
def test_one_table_compares_cpu_qnn_and_the_quantised_model(folder: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    given = ["evaluate", str(folder / "m.onnx"), "--input", str(folder / "in"), "--expected", str(folder / "want")]
    # With this order, the first row once had no reference to be compared with.
    given += [
        *("--on", "qnn", "--on", "cpu"),
        "--metric",
        f"{folder / 'metrics.py'}:accuracy",
        "--calibration",
        str(folder / "in"),
        "--timeout",
        "100",
    ]
    told = qnnbridge(*given, "--json")
    assert told.returncode == 0, told.output
    found = json.loads(told.stdout)
    rows = found["rows"]
    assert [(row["model"], row["provider"]) for row in rows] == [
        ("m.onnx", "cpu"),
        ("m.onnx", "qnn"),
        ("quantised with the defaults", "cpu"),
        ("quantised with the defaults", "qnn"),
    ]
    assert all(row["metrics"] == {"accuracy": 1.0, "seen": 4.0} for row in rows)
    assert [row["placement"]["cpu_nodes"] for row in rows if row["provider"] == "qnn"] == [0, 0]
    # The expected values were computed with ONNX Runtime's optimizers, which round differently.
    assert rows[0]["against_expected"][0]["snr_db"] > 120
    assert rows[0]["against_cpu"] == []
    for row in rows[1:]:
        assert 30 < row["against_expected"][0]["snr_db"] < 120
        assert row["against_cpu"][0]["snr_db"] == pytest.approx(row["against_expected"][0]["snr_db"], abs=0.1)
    assert found["soc_model"] == "60"
    assert found["samples"] == 4


@pytest.mark.process
def test_a_useless_model_and_one_that_does_not_run_are_rows_and_exit_with_1(folder: Path, tmp_path: Path) -> None:
    wrong = models.conv_net()
    wrong.graph.initializer[1].CopyFrom(models.constant("b", -np.ones((1, 8, 1, 1), np.float32)))
    useless = models.saved(wrong, tmp_path / "useless.onnx")
    (tmp_path / "torn.onnx").write_bytes(b"\x08\x08 no model")
    given = ["evaluate", str(folder / "m.onnx"), "--input", str(folder / "in"), "--on", "cpu"]
    given += ["--quantized", str(useless), "--quantized", str(tmp_path / "torn.onnx")]
    told = qnnbridge(*given)
    assert told.returncode == 1, told.output
    lines = told.stdout.splitlines()
    assert lines[0] == "4 samples"
    assert [line.split()[-1] for line in lines[2:5]] == ["-", "useless", "failed"]
    assert "torn.onnx on CPU:" in told.stdout


def test_stacked_samples_and_labels_are_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.zeros((3, 3, 16, 16), np.float32), label=np.arange(3))
    samples = read_samples([tmp_path], None, INPUTS, ["y"])
    assert [int(sample.arrays["label"]) for sample in samples] == [0, 1, 2]
    assert all(sample.feeds["x"].shape == (1, 3, 16, 16) and not sample.expected for sample in samples)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: None, "contains no .npz or .npy files"),
        (lambda place: np.savez(place / "a.npz", z=np.zeros(3)), 'has no array "x"'),
        (
            lambda place: np.savez(place / "a.npz", x=np.zeros((2, 3, 16, 16), np.float32), label=np.zeros(3)),
            'contains 2 samples, but "label"',
        ),
        (
            lambda place: np.savez(place / "a.npz", x=np.zeros((1, 3, 16, 16), np.float32)),
            "no expected outputs for a.npz",
        ),
    ],
)
def test_samples_that_do_not_fit_are_refused(make: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "want").mkdir()
    make(tmp_path / "in")
    with pytest.raises(OptionError, match=words) as caught:
        read_samples([tmp_path / "in"], tmp_path / "want", INPUTS, ["y"])
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing", "has no function"), ("broken", "KeyError: 'z'.*line 6"), ("words", "not a number")],
)
def test_a_metric_that_fails_is_reported_with_its_line(name: str, words: str, folder: Path) -> None:
    with pytest.raises(OptionError) as caught:
        load_metric(f"{folder / 'metrics.py'}:{name}")([{"y": np.zeros(2)}], [{}])
    text = f"{caught.value.message} {caught.value.cause}"
    import re

    assert re.search(words, text), text


def test_missing_samples_are_refused_before_a_host_is_started(folder: Path) -> None:
    with pytest.raises(OptionError, match="no inputs to evaluate"):
        evaluate_model(folder / "m.onnx", EvaluateOptions())
    with pytest.raises(OptionError, match="does not exist"):
        evaluate_model(folder / "m.onnx", EvaluateOptions(inputs=(folder / "in",), metric="no.py:f"))


def test_a_metric_file_may_have_dataclasses(tmp_path: Path) -> None:
    file = tmp_path / "scores.py"
    file.write_text(
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass\nclass Score:\n    value: float\n"
        "def metric(outputs, samples):\n    return Score(2.0).value\n"
    )
    assert load_metric(str(file))([{"y": np.zeros(2)}], [{}]) == {"metric": 2.0}


@pytest.mark.process
@pytest.mark.simulator
def test_the_cpu_reference_is_not_optimised(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    harmed = optimizer_models.weights_in_8_bits()
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "0.npz", **harmed.feeds)
    options = EvaluateOptions(inputs=(tmp_path / "in",), providers=("cpu", "qnn"))
    cpu, qnn = evaluate_model(tmp_path / "m.onnx", options).rows
    assert cpu.seconds
    assert qnn.against_cpu[0].document()["snr_db"] > 50
