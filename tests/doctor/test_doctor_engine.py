"""The doctor reports which QNN is used and which one should be: wheel, catalogue, driver."""

from __future__ import annotations

import subprocess

import pytest
from broken_machines import ABSENT, READY, of_catalogue, with_catalogue
from machines import SimulatedMachine

from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.findings import Report
from qnnbridge_tools.doctor.machine import RealMachine

OLD, NEW = "2.45.40.251028153101", "2.51.0.260929181845"


def report(machine: SimulatedMachine) -> Report:
    return diagnose(survey(machine, SurveyOptions()))


def codes(found: Report) -> set[str]:
    return {one.code for one in found.findings}


def source(found: Report) -> str:
    return next((line.text for line in found.healthy if line.text.startswith("QNN from")), "")


def test_an_installation_with_the_windows_ml_catalogue_alone_is_not_reported_as_a_missing_wheel() -> None:
    found = report(of_catalogue(with_catalogue(READY, engine=""), OLD))
    assert codes(found) == set()
    assert source(found) == "QNN from the catalogue's 1.8.21.0, QNN 2.45.40"


def test_the_catalogue_is_used_if_it_is_configured_although_a_wheel_is_installed() -> None:
    found = report(of_catalogue(with_catalogue(READY, wheel="2.7.0"), OLD))
    assert codes(found) == set()
    assert source(found).startswith("QNN from the catalogue's 1.8.21.0, QNN 2.45.40 (also there: the wheel")


def test_the_wheel_is_used_by_default() -> None:
    found = report(of_catalogue(with_catalogue(READY, wheel="2.7.0", engine=""), OLD))
    assert codes(found) == set()
    assert source(found).startswith("QNN from the wheel of onnxruntime-qnn 2.7.0, QNN 2.51.0 (also there: the cat")


def test_the_fix_for_a_wheel_that_is_too_new_for_the_driver_is_a_catalogue_that_fits() -> None:
    machine = of_catalogue(with_catalogue(READY, wheel="2.7.0", engine="", system_qnn="2.46.0.0"), OLD)
    found = report(machine)
    assert codes(found) == {"engine.catalogue-fits-better"}
    assert "setx QNNBRIDGE_ENGINE windowsml" in str(found.findings[0])
    assert "driver: QNN 2.46.0" in str(found.findings[0])
    machine.environ["QNNBRIDGE_ENGINE"] = "windowsml"
    assert codes(report(machine)) == set(), "what it advises helps"


def test_a_catalogue_that_is_as_new_as_the_wheel_is_not_suggested() -> None:
    machine = of_catalogue(with_catalogue(READY, wheel="2.7.0", engine="", system_qnn="2.46.0.0"), NEW)
    assert codes(report(machine)) == {"sdk.newer-than-system"}


def test_a_catalogue_that_is_not_downloaded_does_not_prevent_the_use_of_a_wheel() -> None:
    found = report(with_catalogue(ABSENT, wheel="2.7.0", engine=""))
    assert codes(found) == set()


def test_the_configuration_file_sets_the_engine() -> None:
    machine = with_catalogue(ABSENT, wheel="2.7.0", engine="")
    machine.put(rf"{machine.home}\\AppData\\Local\\qnnbridge\\config.toml", text="[host]\nengine = 'windowsml'\n")
    assert codes(report(machine)) == {"engine.not-downloaded"}


@pytest.mark.parametrize(
    "answer",
    ["[]", "null", "3", "{}", '{"error": 4}', '{"providers": 7}', '{"providers": [{}]}', '{"providers": ["x"]}'],
)
def test_an_invalid_list_of_providers_is_a_finding_and_not_a_crash(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 0, answer.encode())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = RealMachine().catalogue("python")
    assert found is not None
    assert "windowsml did not answer" in str(found.problem)
    assert not found.providers
