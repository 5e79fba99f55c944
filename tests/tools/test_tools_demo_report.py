"""The demo's report for answers that a healthy host does not give."""

from __future__ import annotations

import dataclasses

import pytest

from qnnbridge import HostInfo, Placement
from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_tools import output
from qnnbridge_tools.demo import compute, report
from qnnbridge_tools.demo.compute import Computed, DemoResult

HOST = HostInfo(
    pid=1,
    machine="arm64",
    python="3.11.9",
    executable="python.exe",
    qnnbridge="0.1.0",
    platform="win-arm64",
    generation=1,
    startup_seconds=0.1,
    versions={"onnxruntime": "1.31.1"},
)


def outcome(*, qnn: bool = True) -> DemoResult:
    """Six right answers of both providers."""
    asked = compute.load_lines()
    answers = [compute.LineAnswer(line.upside_down, 0.99) for line in asked]
    on_cpu = Computed(answers, Placement(cpu_nodes=9), load_s=0.1, run_s=0.01)
    on_qnn = Computed(answers, Placement(qnn_nodes=9), load_s=0.1, run_s=0.01)
    error = None if qnn else ProviderUnavailable("No QNN here.", fix="Install it.")
    return DemoResult(asked, on_qnn if qnn else None, error, on_cpu, HOST, ready_s=0.2)


def with_wrong_answer(provider: str) -> DemoResult:
    good = outcome()
    computed = good.qnn if provider == "qnn" else good.cpu
    assert computed is not None
    first = dataclasses.replace(computed.answers[0], upside_down=not computed.answers[0].upside_down)
    worse = dataclasses.replace(computed, answers=[first, *computed.answers[1:]])
    return dataclasses.replace(good, qnn=worse) if provider == "qnn" else dataclasses.replace(good, cpu=worse)


def test_only_right_answers_of_qnn_are_a_success() -> None:
    assert outcome().ok
    assert not with_wrong_answer("qnn").ok
    assert with_wrong_answer("cpu").ok
    assert not outcome(qnn=False).ok


def test_a_person_is_told_the_answers_and_where_they_were_computed(capsys: pytest.CaptureFixture[str]) -> None:
    good = outcome()
    assert good.qnn is not None
    placement = Placement(qnn_nodes=181, simulator=True, soc_model="60", backend="htp")
    report.print_outcome(dataclasses.replace(good, qnn=dataclasses.replace(good.qnn, placement=placement)))
    printed = capsys.readouterr().out
    assert "Departures         upright, 99.0 % sure      upright, 99.0 % sure      yes    yes\n" in printed
    assert "6 of 6 right. QNN and CPU agree on 6 of 6" in printed
    assert "nodes        181 nodes on QNN, 0 on the CPU\n" in printed
    assert "HTP simulator on the CPU, not an NPU; SoC model 60; backend htp\n" in printed
    assert "host start-up  200 ms (says hello after 100 ms, then loads ONNX Runtime)\n" in printed
    assert "QNN            load 100 ms, run 10 ms for a line (median)\n" in printed


def test_a_wrong_answer_is_marked_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_outcome(with_wrong_answer("qnn"))
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("Departures")]
    assert row.split()[-2:] == ["NO", "NO"]
    assert "5 of 6 right. QNN and CPU agree on 5 of 6; their probabilities differ by 0.9800 at most." in printed


def test_without_qnn_the_reason_and_the_fix_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_outcome(outcome(qnn=False))
    printed = capsys.readouterr().out
    assert "6 of 6 right, computed by the CPU provider only." in printed
    assert "QNN could not be used: No QNN here.\n  Fix: Install it." in printed
    assert "CPU of the host" in printed


def test_on_a_terminal_the_lines_are_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    report.print_outcome(with_wrong_answer("cpu"))
    printed = capsys.readouterr().out
    assert "██" in printed
    assert '"Departures": upright, 99.0 % sure. CPU: upside down, 99.0 % sure. They DISAGREE.\n' in printed
    assert '"Exit 9": upside down, 99.0 % sure. CPU: upside down, 99.0 % sure. They agree.\n' in printed
    monkeypatch.setenv("COLUMNS", "40")
    report.print_outcome(outcome())
    assert "██" not in capsys.readouterr().out, "a narrow terminal would break the drawing"


def test_on_an_npu_nothing_is_said_of_a_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_outcome(outcome())
    printed = capsys.readouterr().out
    assert "simulator" not in printed
    assert "device       NPU" in printed
