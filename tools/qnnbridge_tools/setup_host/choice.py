"""Chooses interpreter and release: the newest release that works, with the newest Python that it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qnnbridge._launch.installed import Surroundings
from qnnbridge_host.model.release_table import Release, for_version, generated_on, load_releases
from qnnbridge_host.model.release_versions import is_final, version_key
from qnnbridge_protocol.errors import HostNotFound, OptionError
from qnnbridge_tools.setup_host.failures import NothingFits
from qnnbridge_tools.setup_host.interpreters import Candidate, install_text
from qnnbridge_tools.versions.fitness import Judgement, best_of, judge
from qnnbridge_tools.versions.machines import HostMachine, read_platform
from qnnbridge_tools.versions.view import advice

SHOWN_REASONS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Of the NPU: QNN version of its driver, Hexagon version; ``None`` if unknown."""

    system_sdk: str | None = None
    hexagon: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    candidate: Candidate
    judgement: Judgement
    machine: HostMachine

    @property
    def release(self) -> Release:
        return self.judgement.release


def machine_with(candidate: Candidate, facts: Facts, surroundings: Surroundings) -> HostMachine:
    return HostMachine(
        platform=read_platform(candidate.answer.platform),
        computer=surroundings.computer,
        python=candidate.answer.minor,
        system_sdk=facts.system_sdk,
        hexagon=facts.hexagon,
        glibc=candidate.answer.glibc,
    )


def choose(
    found: Sequence[Candidate],
    version: str | None,
    facts: Facts,
    surroundings: Surroundings,
    looked_at: Sequence[str],
    *,
    force: bool,
) -> Choice:
    """Raises `HostNotFound` without an interpreter, `NothingFits` if none of them has a release that works."""
    if version is not None:
        _check_known(version)
    if not found:
        raise HostNotFound(
            "No Python interpreter was found that could be the host.",
            fix=install_text(surroundings),
            evidence=list(looked_at),
        )
    choices = [
        Choice(candidate, judgement, machine)
        for candidate in found
        for machine in [machine_with(candidate, facts, surroundings)]
        for judgement in _judged(machine, version)
    ]
    usable = [one for one in choices if one.judgement.verdict != "refused"]
    if not usable and force and version is not None:
        usable = [one for one in choices if _has_wheel(one)]
    if usable:
        # Equal ones stay in the order of the candidates, the newest Python first.
        return max(usable, key=lambda one: (is_final(one.release.version), version_key(one.release.version)))
    raise _nothing(choices, version, machine_with(found[0], facts, surroundings))


def _judged(machine: HostMachine, version: str | None) -> list[Judgement]:
    judged = judge(machine)
    if version is not None:
        return [one for one in judged if version_key(one.release.version) == version_key(version)]
    best = best_of(judged)
    return [best] if best else judged


def _has_wheel(choice: Choice) -> bool:
    return choice.release.wheel_for(choice.candidate.answer.minor) is not None


def _check_known(version: str) -> None:
    try:
        known = for_version(version)
    except ValueError:
        known = ()
    if not known:
        known_text = ", ".join(dict.fromkeys(release.version for release in load_releases()))
        later = (
            "If it came later, update qnnbridge; or set up one of these, let pip put the later one into its "
            "environment, and see what qnnbridge doctor finds."
        )
        raise OptionError(
            f"The version table, which is of {generated_on()}, has no onnxruntime-qnn {version}.",
            fix=f"One of: {known_text}. {later}",
        )


def _nothing(choices: Sequence[Choice], version: str | None, machine: HostMachine) -> NothingFits:
    reasons = [
        f"{one.candidate.text}: {one.release.name} {one.judgement.reasons[0].text}"
        for one in choices
        if one.judgement.reasons
    ]
    if version is not None:
        leave_out = "Leave out --version to get the release that fits."
        if not choices:
            return NothingFits(f"There is no onnxruntime-qnn {version} for {machine.platform}.", fix=leave_out)
        fixes = [one.judgement.reasons[0].fix for one in choices if one.judgement.reasons]
        how = next((fix for fix in fixes if fix), leave_out)
        can_be_forced = any(_has_wheel(one) for one in choices)
        return NothingFits(
            f"onnxruntime-qnn {version} does not work on this computer.",
            fix=how + (" To install it all the same: --force." if can_be_forced else ""),
            evidence=reasons[:SHOWN_REASONS],
        )
    return NothingFits(
        "No release of onnxruntime-qnn works on this computer.",
        fix=advice(machine) or "`qnnbridge versions` shows why for each release.",
        evidence=reasons[:SHOWN_REASONS],
    )
