"""Work that `quantize` does only once (folding, runs on QNN), and its report about time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_host.engine import cpu
from qnnbridge_models import progress
from qnnbridge_models.accuracy import FloatResults, fives, lowest_of_folds
from qnnbridge_models.command_options import QuantizeSettings
from qnnbridge_models.quantize import candidates, qnn_check, quantizer
from qnnbridge_models.quantize.candidates import CrossValidation, folds_of
from qnnbridge_models.quantize.ort_quantizer import CalibratedModel, Precision, calibrate
from qnnbridge_models.quantize.qnn_check import QnnHostOptions, QnnRunner
from qnnbridge_models.quantize.quantization import document, print_result
from qnnbridge_models.quantize.quick_lookups import KnownWeights
from qnnbridge_models.quantize.samples import gather
from qnnbridge_models.quantize.search import PrecisionTrial
from qnnbridge_protocol.specs import Placement


class Counting:
    """Replacement of QNN: returns a function of a sample, and counts the runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
        self.runs: list[int] = []
        host = SimpleNamespace(info=SimpleNamespace(simulator=True))
        self.runner = QnnRunner(cast("Any", host), QnnHostOptions())

        def run(
            _: QnnRunner, model: Path, samples: Any, names: Any, enough: Any, *, strict: bool
        ) -> tuple[Placement, list[list[Any]]]:
            placement = Placement(qnn_nodes=1)
            outputs: list[list[Any]] = []
            for feeds in samples:
                outputs.append([answer(feeds["x"])])
                if enough(placement, outputs):
                    break
            self.runs.append(len(outputs))
            return placement, outputs

        monkeypatch.setattr(QnnRunner, "_run", run)


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"x": np.arange(8, dtype=np.float32) + number} for number in range(count)]


def saved(folder: Path, name: str, note: str = "", scale: float = 1.0) -> Path:
    made = models.conv_net()
    made.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(made.graph.initializer[0]) * np.float32(scale),
            made.graph.initializer[0].name,
        )
    )
    if note:
        made.metadata_props.add(key="note", value=note)
    return models.saved(made, folder / name)


def test_samples_that_ran_on_qnn_do_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qnn = Counting(monkeypatch, lambda value: value * 2)
    samples = numbers(6)
    first = qnn.runner.run(saved(tmp_path, "a.onnx"), samples, ["y"])
    again = qnn.runner.run(saved(tmp_path, "b.onnx", "of the written file"), samples[:3], ["y"])
    assert qnn.runs == [6], "the metadata makes no other model"
    assert again[0] == first[0]
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(first[1][:3], again[1], strict=True))
    qnn.runner.run(saved(tmp_path, "c.onnx", scale=2.0), samples[:3], ["y"])
    assert qnn.runs == [6, 3], "other weights do"
    qnn.runner.run(saved(tmp_path, "a.onnx"), numbers(7), ["y"])
    qnn.runner.run(saved(tmp_path, "a.onnx"), samples, ["z"])
    assert qnn.runs == [6, 3, 7, 6], "so do another sample and another output"
    monkeypatch.setattr(qnn_check, "_MOST_KNOWN_BYTES", 0)
    qnn.runner.run(saved(tmp_path, "a.onnx"), samples, ["y"])
    assert qnn.runs == [6, 3, 7, 6, 6], "large ones are not kept"


@pytest.mark.parametrize("count", [3, 5, 9, 10, 14, 20, 23])
def test_a_hopeless_model_runs_on_few_samples_and_others_are_judged_as_before(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = numbers(count)
    expected = [[feeds["x"]] for feeds in samples]
    qnn = Counting(monkeypatch, lambda value: value + 0.01 * value.mean() * np.float32(value[0] % 3 - 1))
    trial = PrecisionTrial(
        *(cast("Any", None),) * 3, tmp_path, FloatResults(["y"], samples, expected), qnn.runner, lambda *_: None
    )
    model = saved(tmp_path, "a.onnx")
    found = [[value + 0.01 * value.mean() * np.float32(value[0] % 3 - 1)] for (value,) in expected]
    before = lowest_of_folds(["y"], expected, found)
    assert trial.on_qnn(model) == before
    assert qnn.runs == [count]
    assert trial.on_qnn(saved(tmp_path, "b.onnx", scale=2.0), before) == before, "not below"
    stopped = trial.on_qnn(saved(tmp_path, "c.onnx", scale=3.0), 300.0)
    assert stopped is not None
    assert before <= stopped < 300.0
    assert qnn.runs[2] == len(fives(count)[0]) <= 9
    assert trial.runs_on_qnn(saved(tmp_path, "d.onnx", scale=4.0))
    assert qnn.runs[3] == 1


def test_a_precision_that_was_judged_in_a_fold_is_not_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = models.conv_net()
    path = models.saved(made, tmp_path / "m.onnx")
    samples = gather(made, (), random=8, seed=0, held_out=2)
    settings = QuantizeSettings().resolved
    calibrated = calibrate(path, samples, settings, tmp_path, lambda *_: None, KnownWeights())
    session = cpu.open_session(path, "m")
    names = [value.name for value in session.get_outputs()]

    def run(feeds: Any) -> list[Any]:
        return cpu.run(session, feeds, "m", names)

    compared = FloatResults(names, samples.compared, [run(feeds) for feeds in samples.compared])
    folds = folds_of(samples, compared, True, run)
    judge = CrossValidation(folds, tmp_path)
    written: list[Path] = []
    real = CalibratedModel.write

    def write(self: CalibratedModel, target: Path, precision: Precision | None = None) -> Path:
        written.append(target)
        return real(self, target, precision)

    monkeypatch.setattr(CalibratedModel, "write", write)
    judge = judge.within(1e6, calibrated, Precision())
    first = judge.snr(calibrated, Precision())
    assert len(written) == len(folds) == 4
    report = judge.report(calibrated, Precision())
    assert len(written) == 4, "the report of the folds knows them"
    assert sum(report.snr_db) / 4 == pytest.approx(first)
    wider = calibrated.with_headroom()
    assert wider is not None
    others = [wider, dataclasses.replace(calibrated, settings=dataclasses.replace(settings, matrix_type="uint8"))]
    assert CrossValidation(folds, tmp_path).snr(calibrated, Precision()) == first
    assert len(written) == 8
    for number, other in enumerate(others):
        judge.snr(other, Precision())
        assert len(written) == 12 + 4 * number, "other ranges and types are another way"
    judge.snr(calibrated, Precision(frozenset((made.graph.node[0].name,))))
    assert len(written) == 20, "so is another precision"


def test_phases_count_each_second_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 10.0, 12.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    phases = progress.Phases()
    with phases.entered():
        with progress.phase("outer"), progress.phase("inner"):
            pass
        with progress.phase("inner"):
            pass
    with progress.phase("nobody asks"):
        pass
    assert [(one.name, one.seconds, one.times) for one in phases.found] == [("outer", 5.0, 1), ("inner", 4.0, 2)]


def test_the_report_lists_the_phases_that_took_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    found = models.quantize(source, tmp_path / "q.onnx", random=8)
    phases = document(found)["phases"]
    names = [one["name"] for one in phases]
    wanted = {"reading", "preparing", "running the float model", "calibrating", "quantizing", "running on the CPU"}
    assert wanted | {"writing"} <= set(names)
    assert [one["seconds"] for one in phases] == sorted((one["seconds"] for one in phases), reverse=True)
    assert 0 < sum(one["seconds"] for one in phases) <= found.seconds
    print_result(found)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("time"))
    assert f"{phases[0]['name']} " in line
    assert " times)" in line


def test_the_report_lists_the_work_that_the_time_limit_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    found = models.quantize(source, tmp_path / "p.onnx", random=8)
    assert not [note for note in found.changes if "time" in note or "too long" in note]
    monkeypatch.setattr(candidates, "_CHOOSING_S", -1.0)
    monkeypatch.setattr(quantizer, "_FOLD_S", 0.0)
    found = models.quantize(source, tmp_path / "q.onnx", random=8)
    assert "not tried for lack of time: weights are uint8, per tensor" in found.changes
    assert "types chosen by the held-out samples only, as the other 3 folds would take too long" in found.changes
    short = models.quantize(source, tmp_path / "r.onnx", random=8, target_snr=79.0, search_timeout_s=0.0)
    assert [warning for warning in short.warnings if "ended at its limit of 0 s" in warning]


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_samples_that_run_concurrently_are_returned_in_their_order(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more samples are requested than are run together with the decisive one."""
    runs: list[float] = []

    class Session:
        placement = Placement(qnn_nodes=1)

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
            number = float(feeds["x"][0])
            runs.append(number)
            time.sleep(0.05 / (1 + number))  # the later samples finish first
            return [number]

    monkeypatch.setattr("qnnbridge.InferenceSession", Session)
    runner = QnnRunner(cast("Any", SimpleNamespace(info=SimpleNamespace(simulator=True))), QnnHostOptions())
    monkeypatch.setattr(runner, "_at_once", at_once)
    model = Path("m.onnx")
    placement, found = runner._run(model, numbers(5), ["y"], lambda *_: False, strict=True)
    assert (placement.qnn_nodes, found) == (1, [[0.0], [1.0], [2.0], [3.0], [4.0]])
    runs.clear()
    _, found = runner._run(model, numbers(5), ["y"], lambda _, some: len(some) == 2, strict=True)
    assert found == [[0.0], [1.0]]
    assert len(runs) == max(2, at_once)
