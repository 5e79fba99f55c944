"""Sessions use this computer's measured results of the known-wrong table, from `doctor --numbers` or written by the
test."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from lab.sweep.cases import float_model

import qnnbridge
from qnnbridge_host.cache.measured import (
    AS_IN_THE_TABLE,
    MeasuredPlace,
    MeasuredRow,
    MeasuredRows,
    digest_of,
    keep_measured,
    measured_path,
    read_measured,
    rows_here,
    unmeasured,
)
from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.known_wrong import table
from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor
from qnnbridge_host.numerics.measuring import measured, same_results
from qnnbridge_protocol.settings import FOLDER_VARIABLE, STATE_DIR_VARIABLE
from qnnbridge_tools.doctor import measure_rows
from qnnbridge_tools.doctor.facts import NumbersRequest
from qnnbridge_tools.doctor.measure_rows import measure_numbers
from tests.fakes import commands

pytestmark = [pytest.mark.simulator, pytest.mark.process]
ROWS = {row.name: row for row in table()}
CHIP = [{"soc_model": "60"}]


def result_of(state: str, *names: str, place: MeasuredPlace) -> MeasuredRows:
    rows = {name: MeasuredRow(state, digest_of(ROWS[name])) for name in names}  # type: ignore[arg-type]
    return MeasuredRows(place, rows, time.time())


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    return tmp_path / "state"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(float_model(Case.from_words(ROWS["conv-equal-padding"].example)), str(path))
    return path


def test_a_row_that_was_measured_as_right_on_this_device_causes_neither_a_rewrite_nor_a_warning(
    state: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made(cache: bool = True) -> tuple[bool, str]:
        caplog.clear()
        with (
            caplog.at_level(logging.INFO, "qnnbridge"),
            qnnbridge.InferenceSession(
                model, provider_options=CHIP, cache=cache, verify="off", host=host
            ) as session,
        ):
            told = [one for one in caplog.records if "known to compute" in one.message]
            assert bool(told) is bool(session.fixed)
            return bool(session.fixed), session.cache.state

    with qnnbridge.Host() as host:
        host.start()
        place = MeasuredPlace.of(60, True, host.info.versions)
        assert made() == (True, "miss")
        keep_measured(result_of("wrong", "conv-equal-padding", place=place))
        assert made() == (True, "hit")  # agrees with the table: nothing is compiled again
        keep_measured(result_of("right", "conv-equal-padding", place=place))
        assert made() == (False, "miss")
        assert made() == (False, "hit")
        assert made(cache=False) == (False, "off")
        # A measurement of another driver is not used.
        other = dataclasses.replace(place, versions={**place.versions, "driver": "30.0"})
        keep_measured(result_of("wrong", "conv-equal-padding", place=other))
        assert made() == (False, "hit")
        keep_measured(result_of("wrong", "conv-equal-padding", place=place))
        assert made() == (True, "hit")


def test_a_rewrite_skips_operators_whose_row_was_measured_as_right_on_this_device(
    state: Path, tmp_path: Path
) -> None:
    """One rewrite fixes several rows of AveragePool; here one of the rows is right."""
    graph = float_model(Case.from_words(ROWS["average-pool-counted"].example))
    other = onnx.compose.add_prefix(float_model(Case.from_words(ROWS["average-pool-3d"].example)), "o/")
    for field in ("node", "input", "output", "initializer"):
        getattr(graph.graph, field).extend(getattr(other.graph, field))
    path = tmp_path / "two.onnx"
    onnx.save(graph, str(path))
    with qnnbridge.Host() as host:
        host.start()
        place = MeasuredPlace.of(60, True, host.info.versions)
        keep_measured(result_of("right", "average-pool-3d", place=place))
        with qnnbridge.InferenceSession(
            path, provider_options=CHIP, cache=False, verify="off", host=host
        ) as session:
            assert [line.split()[1] for line in session.fixed if line.startswith("average-pool")] == ["1"]


def test_doctor_measures_in_one_process_and_stores_the_results(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    rows = ("pad-edge", "rms-weight-first", "random-like", "tanh-product")
    assert measure_numbers(NumbersRequest(soc_model="60", rows=rows), seen.append) == ""
    (kept,) = read_measured()
    assert {name: row.state for name, row in kept.rows.items()} == dict.fromkeys(rows, "wrong")
    assert [line["row"] for line in seen if "row" in line] == [name for name in ROWS if name in rows]
    assert kept.place.chip == 60
    assert "pad-edge" not in [row.name for row in unmeasured(kept.place)]
    # Only the result remains in the user's folders.
    assert {one.name.removesuffix(".lock") for one in state.iterdir()} == {"known-wrong.json"}
    # Only the missing rows are measured.
    again: list[dict[str, object]] = []
    assert measure_numbers(NumbersRequest(soc_model="60", rows=rows, missing=True), again.append) == ""
    assert [line for line in again if "row" in line] == []
    # The table was measured on the simulator, so the daemon measures nothing there.
    assert measure_numbers(NumbersRequest(npu=True), again.append) == ""
    assert [line for line in again if "row" in line] == []
    snapshot = tmp_path / "s.json"
    assert commands.qnnbridge("doctor", "--quick", "--snapshot", snapshot).returncode in (0, 1)
    (facts,) = json.loads(snapshot.read_text())["facts"]["measured"]
    assert facts["rows"] == dict.fromkeys(rows, "wrong")
    assert facts["digests"]["pad-edge"] == digest_of(ROWS["pad-edge"])
    assert "4 wrong, 0 right" in commands.qnnbridge("doctor", "--from-snapshot", snapshot).stdout


# A multiplied Slice without elements: QNN divides by zero, which crashes the host's process.
KILLER = Case(
    {
        "x": SweepTensor((2, 4)),
        "two": SweepTensor((1,), "int64", [2], constant=True),
        "w": SweepTensor((4, 4), constant=True),
    },
    (
        SweepNode("Relu", ("x",)),
        SweepNode("Slice", ("y0", "two", "two")),
        SweepNode("MatMul", ("y1", "w")),
        SweepNode("ReduceSum", ("y2",), {"keepdims": 0}),
        SweepNode("Add", ("y0", "y3")),
    ),
)


def test_a_row_that_crashes_the_host_is_recorded_and_the_next_rows_are_measured(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # `main` silences the logger of this process, too.
    logger = logging.getLogger("qnnbridge")
    request.addfinalizer(functools.partial(logger.setLevel, logger.level))
    names = ("pad-edge", "rms-weight-first", "pow-high", "tanh-product")
    killers = {
        name: dataclasses.replace(ROWS[name], example=KILLER.to_words()) for name in ("pad-edge", "pow-high")
    }
    rows = tuple(killers.get(name, ROWS[name]) for name in names)
    monkeypatch.setattr(known_wrong, "table", lambda: rows)
    # `main` sets both variables for its hosts; monkeypatch restores them at the end of the test.
    for name in (STATE_DIR_VARIABLE, FOLDER_VARIABLE):
        monkeypatch.setenv(name, os.environ[name])
    target = measured_path()
    assert measure_rows.main(["--soc-model", "60"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    measured_rows = [line for line in said if "row" in line]
    assert [(line["row"], line["state"]) for line in measured_rows] == [(name, "wrong") for name in names]
    assert [line["row"] for line in measured_rows if "host" in line["why"]] == list(killers)
    (kept,) = read_measured(target)
    assert len(kept.rows) == 4
    # The crashes write no crash report and quarantine no model.
    assert {one.name.removesuffix(".lock") for one in state.iterdir()} == {"known-wrong.json"}


def test_measurements_of_other_chips_and_of_changed_rows_are_ignored(state: Path) -> None:
    versions = {"onnxruntime": "1.32.0", "onnxruntime_qnn": "2.7.0", "qnn_sdk": "2.51.0", "numpy": "2"}
    place = MeasuredPlace.of(60, True, versions)
    assert rows_here("60", None, versions, simulator=True) == AS_IN_THE_TABLE
    keep_measured(result_of("right", "pad-edge", place=place))
    found = rows_here("60", None, versions, simulator=True)
    assert (found.right, found.identity) == ({"pad-edge"}, ["-pad-edge"])
    assert "pad-edge" not in [row.name for row in found.rows(73, "2.7.0")]
    assert rows_here("57", None, versions, simulator=True) == AS_IN_THE_TABLE
    assert rows_here("60", None, {**versions, "qnn_sdk": "2.52.0"}, simulator=True) == AS_IN_THE_TABLE
    assert rows_here("60", None, versions, simulator=False) == AS_IN_THE_TABLE
    # The row's example has changed since the measurement.
    stale = MeasuredRows(place, {"pad-edge": MeasuredRow("right", "0123")}, time.time())
    keep_measured(stale)
    assert rows_here("60", None, versions, simulator=True).right == frozenset()
    # A row that the table does not list for this chip, but which was measured as wrong.
    old = MeasuredPlace.of(30, True, versions)
    unexpected = next(row.name for row in table() if not row.applies(68, "2.7.0"))
    keep_measured(result_of("wrong", unexpected, place=old))
    found = rows_here("30", None, versions, simulator=True)
    assert (found.more, found.identity) == ({unexpected}, [f"+{unexpected}"])
    assert unexpected in [row.name for row in found.rows(68, "2.7.0")]
    measured_path().write_text("{")
    assert read_measured() == ()


class _OneSided:
    """Use a QNN that returns what the CPU returns, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def cpu(self, model: bytes):  # type: ignore[no-untyped-def]
        import onnxruntime

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        return lambda feeds: session.run(None, dict(feeds))

    def qnn(self, model: bytes):  # type: ignore[no-untyped-def]
        if self._error is not None:
            raise self._error
        return self.cpu(model)

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, ValueError)


def test_an_example_is_measured_as_right_if_qnn_computes_what_the_cpu_does() -> None:
    for row in list(ROWS.values())[::6]:
        case = Case.from_words(row.example)
        assert measured(case, _OneSided(), draws=3).status == "right", row.name
        assert measured(case, _OneSided(ValueError()), draws=3).status == "refused"
        assert measured(case, _OneSided(OSError()), draws=3).status == "failed"


def test_memory_is_filled_before_each_run_on_qnn() -> None:
    filled: list[bool] = []
    measured(Case.from_words(ROWS["pad-edge"].example), _OneSided(), draws=3, fill=lambda: filled.append(True))
    assert len(filled) == 3


def test_runs_with_strings_and_nan_are_compared() -> None:
    one = [np.array([1.0, np.nan]), np.array(["a", "b"], object), [np.array([1])]]
    assert same_results(one, [part.copy() for part in one])
    assert not same_results(one, [one[0], np.array(["a", "c"], object), one[2]])
    assert not same_results(one, [np.array([1.0, 2.0]), *one[1:]])


def test_the_daemon_measures_once_when_idle_and_yields_to_clients() -> None:
    from qnnbridge_daemon.numbers_errand import NumbersErrand

    idle = [0.0]
    errand = NumbersErrand([sys.executable, "-c", "import time; time.sleep(60)"], lambda: idle[0], after_s=5)
    errand.poll()
    assert errand._process is None
    idle[0] = 6.0
    errand.poll()
    process = errand._process
    assert process is not None
    assert process.poll() is None
    idle[0] = 0.0
    errand.poll()
    assert process.poll() is not None
    assert not errand.done
    errand._command = [sys.executable, "-c", ""]
    idle[0] = 6.0
    errand.poll()
    assert errand._process is not None
    errand._process.wait()
    errand.poll()
    assert errand.done
    errand.stop()


def test_the_measuring_process_of_the_daemon_uses_the_options_of_the_daemon() -> None:
    from qnnbridge_daemon.numbers_errand import numbers_command

    command = numbers_command("python3")
    assert command[1:3] == ["-m", "qnnbridge_tools.doctor.measure_rows"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "--npu" in done.stdout


@pytest.mark.parametrize(
    ("error", "expected"), [(qnnbridge.errors.EPFail, "wrong"), (qnnbridge.errors.Fail, "unclear")]
)
def test_an_error_that_every_model_would_get_is_not_recorded_for_a_row(
    error: type[qnnbridge.errors.OrtError], expected: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two incompatible releases cause such an error: the row would be called wrong whatever QNN computes."""

    whole = qnnbridge.InferenceSession

    def opened(*arguments: object, **more: object) -> qnnbridge.InferenceSession:
        if more.get("provider_options"):
            raise error("[ONNXRuntimeError]: refused")
        return whole(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(qnnbridge, "InferenceSession", opened)
    measuring = measure_rows._Measuring(NumbersRequest(soc_model="60"), state)
    try:
        assert measuring._measured(ROWS["matmul-reshapes-fail"]).state == expected
    finally:
        measuring._end_host()
