"""Computers without faults get no finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from healthy_machines import HEALTHY
from machines import SimulatedMachine

from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey


@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_a_healthy_computer_gets_no_finding(build: Callable[[], SimulatedMachine]) -> None:
    report = diagnose(survey(build(), SurveyOptions()))
    assert [(finding.code, finding.seen) for finding in report.findings] == []
    assert report.exit_code == 0
    assert {line.check for line in report.healthy} >= {"computer", "host", "packages", "files", "QNN SDK"}
