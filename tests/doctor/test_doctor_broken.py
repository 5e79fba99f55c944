"""Each broken computer gets exactly the expected finding, also from its snapshot."""

from __future__ import annotations

import dataclasses
import json

import pytest
from broken_machines import BROKEN, Broken
from machines import SimulatedMachine

from qnnbridge_tools.doctor.examine import SurveyOptions, decode_facts, diagnose, survey
from qnnbridge_tools.doctor.findings import Report, Severity


def examined(broken: Broken) -> tuple[SimulatedMachine, Report, Report]:
    """Return the report, and the report made from the facts as JSON."""
    built = broken.build()
    machine, order = built if isinstance(built, tuple) else (built, SurveyOptions())
    facts = survey(machine, order)
    return machine, diagnose(facts), diagnose(decode_facts(json.loads(json.dumps(dataclasses.asdict(facts)))))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_computer_gets_its_finding_and_no_other(broken: Broken) -> None:
    _, report, from_json = examined(broken)
    assert [(one.code, one.seen) for one in report.findings if one.code != broken.code] == []
    assert [one.code for one in report.findings] == [broken.code]
    finding = report.findings[0]
    said = "\n".join((finding.title, *finding.seen, *finding.notes, finding.fix))
    for words in broken.words:
        assert words in said
    assert finding.fix
    assert report.exit_code == int(finding.severity) != 0
    assert finding.title in report.verdict
    if finding.severity is Severity.BLOCKED:
        assert ", because " in report.verdict
    assert from_json == report


def test_there_are_at_least_forty_broken_computers_with_different_findings() -> None:
    assert len(BROKEN) >= 50
    assert len({broken.code for broken in BROKEN}) >= 45
