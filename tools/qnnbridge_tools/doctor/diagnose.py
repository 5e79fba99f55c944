"""From facts to a report: all checks, causes before consequences, one verdict. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding, is_hidden, rank
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Healthy, Remedy, Report, Severity, SubjectCheck
from qnnbridge_tools.doctor.subjects import (
    computer,
    driver,
    engine,
    environment,
    genai,
    host,
    library_files,
    model,
    packages,
    probe,
    sdk,
    state,
)

# In the order of their healthy lines.
CHECKS: Final = (
    computer.COMPUTER_CHECK,
    host.CHECK,
    computer.APPLICATION_CHECK,
    packages.CHECK,
    engine.CHECK,
    genai.CHECK,
    library_files.CHECK,
    sdk.CHECK,
    driver.CHECK,
    environment.PATHS_CHECK,
    environment.ENVIRONMENT_CHECK,
    state.MEMORY_CHECK,
    state.DAEMON_CHECK,
    probe.CHECK,
    model.CHECK,
)

# Predictions: a probe on the NPU that went well proves that they did not come true.
_PROVED_WRONG: Final = (
    "sdk.newer-than-system",
    "engine.catalogue-fits-better",
    "path.not-ascii",
    "path.too-long",
    "files.incomplete",
)

# Predictions from how the known releases are made: a later one may be made otherwise and be whole.
_BY_KNOWN_RELEASES: Final = ("files.incomplete", "files.mixed-builds", "files.skel-not-signed")

_SNAPSHOT: Final = ("qnnbridge doctor --snapshot report.json",)


def diagnose(facts: Facts, checks: Sequence[SubjectCheck] = CHECKS) -> Report:
    found: list[Finding] = []
    healthy: list[Healthy] = []
    for check in checks:
        try:
            tempered = (_tempered(one, facts) for one in check.find(facts))
            findings = tuple(one for one in tempered if one is not None)
            line = check.healthy(facts) if not findings else None
        except Exception as error:  # noqa: BLE001 - a fault of one check must not hide what the others found
            findings, line = (_broken_check(check.name, error),), None
        found += findings
        if line:
            healthy.append(Healthy(check.name, line))
    # A part of the survey that failed leaves defaults, and a check would take these for facts of the computer.
    if facts.unknown:
        found.append(
            finding(
                "doctor.incomplete",
                "some of this computer could not be examined",
                *facts.unknown,
                fix=Remedy("Run it again; if it stays, report it with a snapshot.", _SNAPSHOT),
            )
        )
    all_found = tuple(found)
    shown = tuple(sorted((one for one in all_found if not is_hidden(one, all_found)), key=rank))
    # The failure of the probe is hidden as a consequence in most reports; there it is the proof of the cause.
    shown = _with_probe(shown, all_found)
    return Report(shown, tuple(healthy), verdict(facts, shown))


def verdict(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """One sentence."""
    if findings and findings[0].severity is Severity.BLOCKED:
        first = findings[0]
        if first.code.startswith("model."):
            return f"This model cannot be used on QNN as it is, because {first.title}."
        # Without an Arm processor there is no NPU that could be unusable: QNN's simulator is.
        effect = first.effect.value if facts.is_arm else first.effect.value.replace("The NPU", "QNN")
        return f"{effect}, because {first.title}."
    well = _what_works(facts)
    return f"{well}, but {findings[0].title}." if findings else f"{well}."


def _what_works(facts: Facts) -> str:
    probe = facts.probe
    if probe is None or probe.skipped:
        unknown = fixes.unknown_packages(facts)
        but = f", though nothing is known of {' and '.join(unknown)}" if unknown else ""
        if not facts.is_arm:
            no_npu = "this computer has no NPU; no live probe was made"
            return f"Nothing speaks against QNN's simulator here{but} ({no_npu})"
        return f"Nothing speaks against the NPU{but} (no live probe was made)"
    if probe.simulator:
        return "QNN works here, in its simulator: this computer has no NPU"
    return "The NPU can be used"


def _tempered(found: Finding, facts: Facts) -> Finding | None:
    probe = facts.probe
    worked = probe is not None and not probe.failed and not probe.skipped
    if found.code in _BY_KNOWN_RELEASES and _is_unknown_and_whole(facts):
        if worked:
            return None
        note = "This release is not in the version table: it may be made otherwise than those before it, and work."
        found = dataclasses.replace(found, notes=(*found.notes, note))
        # Without a probe nothing is known either way, so the finding stays and blocks nothing.
        if probe is None or probe.skipped:
            # A repair by what is known would take away what perhaps works.
            see = Remedy("See whether it works, with a live probe.", ("qnnbridge doctor",))
            found = dataclasses.replace(found, severity=Severity.DEGRADED, remedy=see)
        return found
    # Only False counts: a run in the simulator (True) touches no driver, and None means that nothing was said of
    # it.
    if worked and probe is not None and probe.simulator is False and found.code in _PROVED_WRONG:
        notes = (*found.notes, "The live probe worked all the same; other models may not.")
        return dataclasses.replace(found, severity=Severity.DEGRADED, notes=notes)
    return found


def _is_unknown_and_whole(facts: Facts) -> bool:
    """A later release than the table's, with all its files as they were packed."""
    packages = facts.host_packages
    qnn = packages.distribution(fixes.QNN) if packages is not None else None
    return qnn is not None and qnn.has_record and not qnn.wrong and fixes.is_unknown_release(facts)


def _with_probe(shown: tuple[Finding, ...], all_found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """A hidden failure of the live probe proves the cause that it was hidden for."""
    probe = next((one for one in all_found if one.code.startswith("probe.")), None)
    if probe is None or probe in shown or not shown:
        return shown
    proved = dataclasses.replace(
        shown[0], notes=(*shown[0].notes, f"The live probe failed accordingly: {probe.title}.")
    )
    return (proved, *shown[1:])


def _broken_check(name: str, error: Exception) -> Finding:
    return finding(
        "doctor.incomplete",
        f"the check of {name} failed",
        f"{type(error).__name__}: {error}",
        fix=Remedy("Report it with a snapshot.", _SNAPSHOT),
    )
