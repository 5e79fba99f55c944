"""The first finding about each of the ten documented attempts is right, and so is its fix."""

from __future__ import annotations

import pytest
from documented_attempts import ATTEMPTS, Attempt

from qnnbridge_tools.doctor.examine import diagnose, survey


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_the_first_finding_of_a_documented_attempt_is_the_right_one(attempt: Attempt) -> None:
    machine, order = attempt.build()
    report = diagnose(survey(machine, order))
    codes = [finding.code for finding in report.findings]
    if attempt.code is None:
        assert codes == []
        assert report.exit_code == 0
        return
    assert codes[0] == attempt.code, report
    for words in attempt.fix:
        assert words in report.findings[0].fix
