"""Measured results of the known-wrong table on this computer, as `doctor --numbers` stored them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor.facts import Facts, MeasuredFacts
from qnnbridge_tools.doctor.findings import Finding, SubjectCheck
from qnnbridge_tools.doctor.machine import Machine, paths_of
from qnnbridge_tools.doctor.subjects.environment import read_json_of, state_folder

_SHOWN_ROWS: Final = 3


def survey_measured(machine: Machine) -> tuple[MeasuredFacts, ...]:
    """Return the measured rows of the known-wrong table, one record for each chip and version."""
    from qnnbridge_host.cache.measured import FILE, MeasuredRows

    path = paths_of(machine.system).join(state_folder(machine), FILE)
    content = read_json_of(machine, path).get("content")
    found = []
    for document in content.get("measured", ()) if isinstance(content, dict) else ():
        try:
            one = MeasuredRows.from_json(document)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
        rows: dict[str, str] = {name: row.state for name, row in one.rows.items()}
        digests = {name: row.digest for name, row in one.rows.items()}
        found.append(
            MeasuredFacts(one.place.chip, one.place.simulator, dict(one.place.versions), rows, digests, one.when)
        )
    return tuple(found)


def _no_finding(_facts: Facts) -> Iterator[Finding]:
    """Yield nothing: a wrong row is no fault of this computer, because sessions rewrite the operators."""
    return iter(())


def _measured_line(facts: Facts) -> str | None:
    if not facts.measured:
        return "not measured on this NPU: qnnbridge doctor --numbers" if facts.is_arm and facts.probe else None
    newest = max(facts.measured, key=lambda one: one.when)
    states = list(newest.rows.values())
    right = sorted(name for name, state in newest.rows.items() if state == "right")
    shown = f" ({', '.join(right[:_SHOWN_ROWS])}{', ...' if len(right) > _SHOWN_ROWS else ''})" if right else ""
    where = "the simulator" if newest.simulator else "the NPU"
    day = datetime.datetime.fromtimestamp(newest.when, datetime.timezone.utc).date().isoformat()
    return (
        f"measured on {where} (SoC {newest.chip}) on {day}: {states.count('wrong')} wrong, {len(right)} right"
        f"{shown}, {states.count('unclear')} unclear"
    )


CHECK: Final = SubjectCheck("known-wrong operators", _no_finding, _measured_line)
