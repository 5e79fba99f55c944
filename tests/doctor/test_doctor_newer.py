"""For versions that are newer than the version table, the doctor reports neither a broken computer nor that they
work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from machines import (
    Python,
    SimulatedMachine,
    add_python,
    install_bridge,
    install_genai,
    linux,
    make_host,
    snapdragon,
    x64_pc,
)

from qnnbridge_host.model.releases import generated_on, load_releases, version_key
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.facts import ProbeResult
from qnnbridge_tools.doctor.findings import Report, Severity
from qnnbridge_tools.versions.fitness import NEWEST_ORT_TRIED, is_untried

# Invented future releases, with the files of the newest existing ones.
NEWER = QNN, ORT = "2.9.0", "1.40.0"

PAIRS = [NEWER, ("2.7.0", ORT), (QNN, NEWEST_ORT_TRIED)]
NEWER_WORDS, NOT_LISTED = "newer than this table", "not in this table"
FAILED = ProbeResult(failed="register", message="register_execution_provider_library failed")


def on_npu(simulator: bool = False) -> ProbeResult:
    return ProbeResult(simulator=simulator, qnn_nodes=2, difference=1e-6)


def native(qnn: str, ort: str) -> SimulatedMachine:
    return snapdragon(qnn, ort)[0]


def x64(qnn: str, ort: str) -> SimulatedMachine:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python313", "3.13.1", "x64", running=True), qnn, ort)
    return machine


def simulator(qnn: str, ort: str) -> SimulatedMachine:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True), qnn, ort)
    return machine


def board(qnn: str, ort: str) -> SimulatedMachine:
    machine = linux("aarch64")
    make_host(add_python(machine, "/opt/python", "3.11.7", "aarch64", running=True), qnn, ort)
    return machine


def report_of(machine: SimulatedMachine, probe: ProbeResult | None = None) -> Report:
    if probe is not None:
        machine.probe_result = probe
    return diagnose(survey(machine, SurveyOptions()))


def packages_line(report: Report) -> str:
    return next(line.text for line in report.healthy if line.check == "packages")


def test_the_invented_releases_are_newer_than_all_known_ones() -> None:
    """Otherwise these tests would check nothing."""
    assert is_untried(ORT)
    assert version_key(QNN) > max(version_key(one.version) for one in load_releases())


@pytest.mark.parametrize("build", [native, x64, simulator, board], ids=lambda build: build.__name__)
@pytest.mark.parametrize(("qnn", "ort"), PAIRS)
def test_newer_releases_are_not_a_finding_and_the_verdict_names_them_as_unknown(
    build: Callable[[str, str], SimulatedMachine], qnn: str, ort: str
) -> None:
    report = report_of(build(qnn, ort))
    assert [one.code for one in report.findings] == []
    assert report.exit_code == 0
    unknown = [
        name
        for name, known in (
            (f"onnxruntime {ort}", ort == NEWEST_ORT_TRIED),
            (f"onnxruntime-qnn {qnn}", qnn == "2.7.0"),
        )
        if not known
    ]
    assert packages_line(report).count(f"({NEWER_WORDS})") == len(unknown)
    for name in unknown:
        assert f"{name} ({NEWER_WORDS})" in packages_line(report)
    assert f"though {' and '.join(f'{name} is {NEWER_WORDS}' for name in unknown)} (" in report.verdict
    assert "no live probe was made" in report.verdict


@pytest.mark.parametrize("ort", ["1.24.2", "1.31.1", "1.32.0", "1.32.0+cpu"])
def test_a_tested_release_is_not_named_as_unknown(ort: str) -> None:
    report = report_of(native("2.7.0", ort))
    assert packages_line(report) == f"onnxruntime {ort}, onnxruntime-qnn 2.7.0"
    assert report.verdict == "No known problem prevents using the NPU (no live probe was made)."


@pytest.mark.parametrize(("qnn", "ort"), PAIRS)
def test_after_a_successful_probe_an_unknown_release_is_not_mentioned(qnn: str, ort: str) -> None:
    assert report_of(native(qnn, ort), on_npu()).verdict == "The NPU can be used."
    assert "QNN works here" in report_of(simulator(qnn, ort), on_npu(simulator=True)).verdict


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.9.0.post1", NEWER_WORDS),
        ("2.8.0rc1", NEWER_WORDS),
        ("2.8.0.dev20261101", NEWER_WORDS),
        ("2.8.0+site", NEWER_WORDS),
        ("3.0.0", NEWER_WORDS),
        ("2.6.7", NOT_LISTED),
        ("2.7.0rc1", NOT_LISTED),
    ],
)
def test_a_release_with_any_version_string_is_examined_completely(version: str, words: str) -> None:
    report = report_of(native(version, "2.0.0.post2"))
    assert report.findings == ()
    assert packages_line(report) == f"onnxruntime 2.0.0.post2 ({NEWER_WORDS}), onnxruntime-qnn {version} ({words})"


def test_a_local_build_of_a_listed_release_counts_as_that_release() -> None:
    report = report_of(native("2.7.0+site", "1.32.0"))
    assert report.findings == ()
    assert packages_line(report) == "onnxruntime 1.32.0, onnxruntime-qnn 2.7.0+site"


@pytest.mark.parametrize(
    ("version", "stands_for"),
    [("2.9.0", "2.7.0"), ("2.6.7", "2.6.0"), ("2.7.0rc1", "2.6.0"), ("0.9", "1.21.0"), ("nightly", "2.7.0")],
)
def test_rules_for_an_unlisted_version_are_those_of_the_release_before_it(version: str, stands_for: str) -> None:
    facts = survey(native(*NEWER), SurveyOptions())
    release = fixes.release_of(facts, version)
    assert release is not None
    assert fixes.is_unlisted(release, version)
    table = [one.version for one in load_releases() if one.platform == "win_arm64"]
    assert release.version == (table[-1] if version == "0.9" else stands_for)


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.18.0", ""), ("0.19.0", NEWER_WORDS), ("0.20.0rc1", NEWER_WORDS), ("0.18.0+x", ""), ("0.14.1", NOT_LISTED)],
)
def test_a_newer_onnxruntime_genai_is_named_and_is_not_a_finding(version: str, words: str) -> None:
    machine, _, host = snapdragon("2.7.0", "1.32.0")
    install_genai(host, version)
    report = report_of(machine)
    assert report.findings == ()
    (line,) = [one.text for one in report.healthy if one.check == "text generation"]
    assert line.startswith(f"onnxruntime-genai {version}" + (f" ({words}" if words else ""))
    assert ("tests it" in line) is (words == NEWER_WORDS)


def test_an_unreadable_version_counts_as_unknown_and_does_not_crash_doctor() -> None:
    machine, _, host = snapdragon("2.9.0", ort=None)
    install_bridge(host)
    facts = survey(machine, SurveyOptions(host_python=host.executable))
    assert fixes.ort_requirement(facts, "2.x-nightly") == "onnxruntime"
    assert fixes.ort_requirement(facts, "2.x-nightly", only_tried=True) == f"onnxruntime<={NEWEST_ORT_TRIED}"
    assert fixes.fits(facts, "2.x-nightly")
    assert is_untried("nightly")


# --- failed probes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("qnn", "ort"), PAIRS)
def test_a_failed_probe_with_an_unknown_release_names_the_way_back_to_a_known_one(qnn: str, ort: str) -> None:
    (found,) = report_of(native(qnn, ort), FAILED).findings
    assert found.code == "probe.register"
    (note,) = found.notes
    assert "is unknown" in note
    assert generated_on() in note
    assert "Update qnnbridge" in found.remedy.words
    assert found.remedy.commands[-1].endswith(
        f'-m pip install "onnxruntime>=1.24.2,<={NEWEST_ORT_TRIED}" onnxruntime-qnn==2.7.0'
    )


def test_a_failed_probe_with_known_versions_does_not_mention_unknown_releases() -> None:
    (found,) = report_of(native("2.7.0", "1.32.0"), FAILED).findings
    assert found.notes == ()
    assert "--force-reinstall" in found.remedy.commands[-1]


def test_the_way_back_to_a_known_release_fits_the_driver() -> None:
    machine, _, _ = snapdragon(*NEWER, system_qnn="2.53.0.0")
    assert report_of(machine, FAILED).findings[0].remedy.commands[-1].endswith("onnxruntime-qnn==2.7.0")
    older, _, _ = snapdragon("2.7.0", ORT, system_qnn="2.51.0.0")
    facts = survey(older, SurveyOptions())
    assert fixes.install_known(facts, "").commands[-1].endswith('<=1.32.0" onnxruntime-qnn==2.7.0')


# --- checks of the files of an unknown release -----------------------------------------------------


def test_the_qnn_of_an_unknown_release_is_compared_with_the_driver() -> None:
    machine, _, host = snapdragon(*NEWER, system_qnn="2.40.0.0")
    assert [one.code for one in report_of(machine).findings] == ["sdk.newer-than-system"]
    facts = survey(machine, SurveyOptions())
    assert not fixes.fits(facts, QNN)
    assert fixes.fits(facts, "2.8.0"), "of one that is not installed nothing is known"
    machine.remove(host.path("onnxruntime_qnn/QnnSystem.dll"))
    found = report_of(machine).findings[0]
    assert found.code == "files.missing"
    assert found.remedy.commands[-1].endswith("install onnxruntime-qnn==1.23.2"), "not the same one anew"


def test_a_damaged_file_of_an_unknown_release_is_a_finding() -> None:
    machine, _, host = snapdragon(*NEWER)
    machine.remove(host.path("onnxruntime_qnn/QnnSystem.dll"))
    (found,) = report_of(machine).findings
    assert (found.code, found.severity) == ("files.missing", Severity.BLOCKED)
    assert found.remedy.commands[-1].endswith(f"onnxruntime-qnn=={QNN}")


def without_a_library(qnn: str, python: Python) -> None:
    """Remove a library from an installed release and from its RECORD."""
    machine, record = python.machine, python.path(f"onnxruntime_qnn-{qnn}.dist-info/RECORD")
    text = (machine.file(record).data or b"").decode()
    lines = [line for line in text.splitlines() if not line.startswith("onnxruntime_qnn/QnnSystem.dll,")]
    machine.put(record, text="\n".join(lines) + "\n")
    machine.remove(python.path("onnxruntime_qnn/QnnSystem.dll"))


def test_a_missing_file_of_an_unknown_release_blocks_only_if_the_probe_fails() -> None:
    machine, _, host = snapdragon(*NEWER)
    without_a_library(QNN, host)
    (found,) = report_of(machine).findings
    assert (found.code, found.severity) == ("files.incomplete", Severity.DEGRADED)
    assert "not in the version table" in found.notes[-1]
    assert found.remedy.commands == ("qnnbridge doctor",)
    well = report_of(machine, on_npu())
    assert (well.findings, well.exit_code) == ((), 0)
    assert "files" in {line.check for line in well.healthy}
    failed = report_of(machine, FAILED).findings[0]
    assert (failed.code, failed.severity) == ("files.incomplete", Severity.BLOCKED)


def test_a_missing_file_of_a_listed_release_blocks() -> None:
    machine, _, host = snapdragon("2.7.0", ORT)
    without_a_library("2.7.0", host)
    (found,) = report_of(machine).findings
    assert (found.code, found.severity) == ("files.incomplete", Severity.BLOCKED)
