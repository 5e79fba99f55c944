"""The report is one screen for people and one document for programs, with findings in order of severity."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machines import File, install, snapdragon
from tests.fakes import schemas

from qnnbridge_tools.doctor.examine import CHECKS, SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.facts import ProbeResult
from qnnbridge_tools.doctor.findings import (
    Finding,
    Healthy,
    Report,
    Screen,
    Severity,
    SubjectCheck,
    report_document,
    report_text,
)
from qnnbridge_tools.doctor.machine import Library

DOCS = Path(__file__).parents[2] / "docs"


def report_of_much_trouble() -> Report:
    machine, _, _ = snapdragon(system_qnn="2.40.0.0")
    machine.environ["PYTHONHOME"] = r"C:\Python27"
    machine.problems[r"ACPI\QCOM0D0A\2&DABA3FF&0"] = 43
    return diagnose(survey(machine, SurveyOptions()))


def report_of_a_ruin() -> Report:
    """Return a report with as many findings as possible."""
    machine, application, host = snapdragon("2.7.0", "1.23.2", system_qnn="2.40.0.0", home=r"C:\Users\Jürgen")
    machine.environ |= {
        "PYTHONHOME": r"C:\Python27",
        "ORT_QNN_ENABLE_CPU_BACKEND": "1",
        "QNNBRIDGE_HOSTPYTHON": r"C:\Python-arm64\python.exe",
        "QNNBRIDGE_CACHE_MAX_BYTES": "lots",
        "QNN_SDK_ROOT": r"C:\Qualcomm\gone",
        "QNNBRIDGE_STATE_DIR": r"D:\state",
        "PATH": r"C:\Windows;D:\qairt\lib",
        "ADSP_LIBRARY_PATH": r"D:\qairt\dsp",
    }
    machine.put(r"D:\qairt\lib\QnnHtp.dll", File(2_000_000, library=Library("ARM64X", "2.40.0.251030114326")))
    machine.put(r"D:\qairt\dsp\libQnnHtpV73Skel.so", File(9_000_000, library=Library("hexagon")))
    machine.read_only.add(r"D:\state")
    machine.free = 42 << 20
    machine.problems[r"ACPI\QCOM0D0A\2&DABA3FF&0"] = 43
    machine.remove(r"C:\Windows\System32\msvcp140.dll")
    for name in ("QnnHtp.dll", "QnnSystem.dll", "QnnHtpV73Stub.dll", "libqnnhtpv73.cat"):
        machine.remove(host.path(f"onnxruntime_qnn/{name}"))
    machine.remove_folder(application.path("numpy"))
    machine.remove_folder(application.path("numpy-2.4.6.dist-info"))
    return diagnose(survey(machine, SurveyOptions(backend=r"D:\gone\QnnHtp.dll", model=r"C:\absent.onnx")))


@pytest.mark.parametrize(("width", "height"), [(80, 40), (100, 50), (120, 60)])
def test_a_report_fits_on_one_screen_however_much_is_wrong(width: int, height: int) -> None:
    report = report_of_a_ruin()
    assert len(report.findings) >= 16
    screen = Screen(width, height)
    text = report_text(report, screen)
    lines = text.splitlines()
    assert screen.lines(text) < height
    assert lines[-1] == f"Verdict: {report.verdict}"
    shown = [one for one in report.findings if any(line.endswith(f"[{one.code}]") for line in lines)]
    assert shown == list(report.findings[: len(shown)])
    assert len(shown) >= 8
    for finding in shown:
        _assert_commands_stand_alone(finding, lines)
    for finding in report.findings:
        assert finding.code in text
    assert "--json shows everything" in " ".join(text.split())


def test_a_report_of_ten_findings_fits_on_eighty_times_forty() -> None:
    report = report_of_a_ruin()
    report = dataclasses.replace(report, findings=report.findings[:10])
    text = report_text(report, Screen(80, 40))
    assert Screen(80, 40).lines(text) < 40


def test_a_report_of_three_findings_is_shown_completely() -> None:
    report = report_of_much_trouble()
    text = report_text(report, Screen(100, 46))
    assert "shows everything" not in text
    assert Screen(100, 46).lines(text) < 46
    for finding in report.findings:
        assert " ".join(finding.why.split()) in " ".join(text.split())


def test_a_healthy_check_takes_one_line_if_the_screen_is_small() -> None:
    report = report_of_much_trouble()
    report = dataclasses.replace(
        report, healthy=(*report.healthy, Healthy("paths", "cache D:\\" + "folder\\" * 20))
    )
    lines = report_text(report, Screen(80, 40)).splitlines()
    healthy = [line for line in lines if line.startswith("ok")]
    assert len(healthy) == len(report.healthy)
    assert all(len(line) <= 80 for line in healthy)


def test_the_most_severe_finding_comes_first_and_the_verdict_names_it() -> None:
    report = report_of_much_trouble()
    assert [one.code for one in report.findings] == ["driver.problem", "sdk.newer-than-system", "env.pythonhome"]
    severities = [one.severity for one in report.findings]
    assert severities == sorted(severities, reverse=True)
    assert report.verdict.startswith("The NPU cannot be used, because the NPU does not work")
    assert report.exit_code == 2


def test_the_text_ends_with_the_verdict_and_has_each_command_on_a_separate_line() -> None:
    report = report_of_much_trouble()
    lines = report_text(report).splitlines()
    assert lines[0].startswith("BLOCKED")
    assert lines[-1] == f"Verdict: {report.verdict}"
    for finding in report.findings:
        _assert_commands_stand_alone(finding, lines)
    assert sum(line.startswith("ok ") for line in lines) == len(report.healthy)


def _assert_commands_stand_alone(finding: Finding, lines: list[str]) -> None:
    """A command line has only a label in front, and text that cannot be run never resembles a command."""
    for command in finding.remedy.commands:
        assert any(line.strip().removeprefix("run   ") == command for line in lines), command
    if not finding.remedy.commands:
        assert any(line.strip().startswith("fix   ") for line in lines)


def test_names_with_control_characters_are_shown_escaped() -> None:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = "C:\\x\x1b[2Jy.exe"
    assert "\x1b" not in report_text(diagnose(survey(machine, SurveyOptions())))


def test_a_predicted_fault_becomes_a_warning_if_the_probe_worked_on_the_npu() -> None:
    machine, _, _ = snapdragon(system_qnn="2.40.0.0")
    machine.probe_result = ProbeResult(simulator=False, qnn_nodes=3, difference=0.0)
    report = diagnose(survey(machine, SurveyOptions()))
    assert [(one.code, one.severity) for one in report.findings] == [("sdk.newer-than-system", Severity.DEGRADED)]
    assert report.verdict.startswith("The NPU can be used, but ")
    assert report.exit_code == 1


def test_a_failed_probe_confirms_the_cause_that_was_found() -> None:
    machine, _, _ = snapdragon("2.7.0", "1.23.2")
    machine.probe_result = ProbeResult(failed="register", message="QNN EP requires ORT >= 1.24")
    report = diagnose(survey(machine, SurveyOptions()))
    assert [one.code for one in report.findings] == ["packages.onnxruntime-too-old"]
    assert "live probe failed, too" in report.findings[0].notes[-1]


def test_a_healthy_npu_is_reported_in_one_sentence() -> None:
    machine, _, _ = snapdragon()
    machine.probe_result = ProbeResult(simulator=False, qnn_nodes=3, difference=0.0)
    report = diagnose(survey(machine, SurveyOptions()))
    assert report.verdict == "The NPU can be used."
    assert report.findings == ()


def test_quick_makes_no_probe_and_reports_that() -> None:
    machine, _, _ = snapdragon()
    report = diagnose(survey(machine, SurveyOptions(quick=True)))
    assert machine.probed == []
    assert "no live probe" in report.verdict
    assert report.exit_code == 0


def test_quick_checks_sizes_and_not_hashes() -> None:
    machine, _, host = snapdragon()
    library = machine.file(host.path("onnxruntime_qnn/QnnSystem.dll"))
    library.sha256 = "ab" * 32
    assert diagnose(survey(machine, SurveyOptions(quick=True))).findings == ()
    library.size -= 1
    assert [one.code for one in diagnose(survey(machine, SurveyOptions(quick=True))).findings] == [
        "files.truncated"
    ]


def test_without_numpy_the_probe_is_skipped_and_that_is_reported() -> None:
    machine, application, _ = snapdragon()
    machine.remove_folder(application.path("numpy"))
    machine.remove_folder(application.path("numpy-2.4.6.dist-info"))
    report = diagnose(survey(machine, SurveyOptions()))
    assert machine.probed == []
    assert any("numpy" in line.text for line in report.healthy if line.check == "live probe")


def test_a_failing_check_does_not_hide_the_results_of_others() -> None:
    def fails(_facts: object) -> Any:
        raise KeyError("x")

    machine, _, _ = snapdragon("2.3.0")
    facts = survey(machine, SurveyOptions())
    report = diagnose(facts, [SubjectCheck("broken", fails, lambda _facts: None), *CHECKS])
    assert [one.code for one in report.findings] == ["packages.qnn-too-old", "doctor.incomplete"]
    assert "KeyError" in report.findings[1].seen[0]


@pytest.mark.parametrize("method", ["registry", "names", "registered_pythons", "library", "ask", "running", "data"])
def test_a_computer_that_answers_a_query_with_an_error_is_examined_completely(method: str) -> None:
    machine, _, _ = snapdragon()

    def fails(*_arguments: object, **_more: object) -> Any:
        raise PermissionError("denied")

    setattr(machine, method, fails)
    report = diagnose(survey(machine, SurveyOptions()))
    assert any(one.code == "doctor.incomplete" and "denied" in " ".join(one.seen) for one in report.findings)


def test_the_json_document_matches_the_schema() -> None:
    schema = json.loads((DOCS / "doctor.schema.json").read_text("utf-8"))
    for report in (report_of_much_trouble(), diagnose(survey(snapdragon()[0], SurveyOptions()))):
        document = json.loads(json.dumps(report_document(report)))
        schemas.hold(document, schema, schema)


def test_installing_the_fitting_release_clears_the_finding() -> None:
    """Carry out the fix: what it installs makes the computer healthy."""
    machine, _, host = snapdragon("1.24.1", system_qnn="2.40.0.0")
    report = diagnose(survey(machine, SurveyOptions()))
    assert "install onnxruntime-qnn==1.23.2" in report.findings[0].fix
    for name in ("onnxruntime", "onnxruntime_qnn-1.24.1.dist-info"):
        machine.remove_folder(host.path(name))
    install(host, "onnxruntime-qnn", "1.23.2")
    assert diagnose(survey(machine, SurveyOptions())).findings == ()


@pytest.mark.process
def test_doctor_works_with_the_standard_library_alone() -> None:
    """The doctor must start if libraries of qnnbridge are missing; only the live probe needs them."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'msgpack', 'onnx', 'onnxruntime', 'onnxruntime_qnn', 'psutil', 'rich', 'typer'):\n"
        "    sys.modules[name] = None\n"
        "from qnnbridge_tools.doctor.__main__ import main\n"
        "sys.exit(main(['--quick', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    # A part of the survey, or a check, that needs a missing library would be a finding.
    assert "doctor.incomplete" not in [one["code"] for one in report["findings"]]
