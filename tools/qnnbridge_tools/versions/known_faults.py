"""Faults of releases that no file in a wheel shows: measured, or reported by users. Pure data and functions.

Each entry says where it comes from. What the wheels themselves show is checked by `fitness` and is not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Literal

from qnnbridge_host.model.release_table import Release
from qnnbridge_host.model.release_versions import satisfies
from qnnbridge_tools.versions.machines import HostMachine

Severity = Literal["refused", "warning", "note"]


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against a release on a machine.

    severity: "refused" if it cannot work or must not be used; "warning" if it may fail; "note" for what to know.
    """

    code: str
    severity: Severity
    text: str
    fix: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFault:
    """versions: specifier of the releases that have it. applies: on which machines."""

    versions: str
    reason: Reason
    applies: Callable[[Release, HostMachine], bool]


OLDEST_ORT_FOR_PLUGINS: Final = "1.24.2"
ORT_TOO_NEW_FOR_OLD_PLUGINS: Final = "1.28"
NEWEST_ORT_TRIED: Final = "1.32.0"
"""The newest onnxruntime that releases were run with. Of a newer one nothing is known, neither good nor bad."""

OLDEST_PYTHON_THAT_KNOWS_EMULATION: Final = (3, 12)


def _with_newer_ort(release: Release, machine: HostMachine) -> bool:
    return machine.ort is not None and satisfies(machine.ort, f">={ORT_TOO_NEW_FOR_OLD_PLUGINS}")


def _with_ort_before_plugins(release: Release, machine: HostMachine) -> bool:
    return machine.ort is not None and satisfies(machine.ort, "<1.24")


def _picks_the_simulator(release: Release, machine: HostMachine) -> bool:
    return (
        machine.is_emulated
        and len(release.library_sets) > 1
        and machine.python is not None
        and machine.python < OLDEST_PYTHON_THAT_KNOWS_EMULATION
    )


def _uses_an_npu(release: Release, machine: HostMachine) -> bool:
    return machine.has_npu and release.npu_set is not None


KNOWN_FAULTS: Final = (
    # Measured: 2.1.0, 2.1.1, 2.2.0 and 2.3.0 with onnxruntime 1.24.2 to 1.31.1, 2.3.0 also with 1.32.0; 2.4.0 to
    # 2.7.0 work with all of these.
    KnownFault(
        ">=2,<2.4",
        Reason(
            "ort-too-new",
            "refused",
            "fails with onnxruntime 1.28 and later when a session is made (invalid ort_version_supported, or a "
            "message about conflicting session configuration), although its metadata allows it",
            "Use onnxruntime-qnn 2.4.0 or later, or onnxruntime 1.24.2 to 1.27.",
        ),
        _with_newer_ort,
    ),
    # Measured: 2.7.0 says so when it is registered, 2.3.0 registers and lists no device.
    KnownFault(
        ">=2",
        Reason(
            "ort-too-old",
            "refused",
            "needs onnxruntime 1.24 or later; with an older one it cannot be registered or lists no device",
            "Use onnxruntime 1.24.2 or later.",
        ),
        _with_ort_before_plugins,
    ),
    # Known issue in the release notes of 2.2 and 2.3; read in platform_loader.py of the wheels.
    KnownFault(
        ">=2",
        Reason(
            "loader-picks-simulator",
            "refused",
            "its loader takes the simulator (libs/amd64) under x64 Python 3.11 and older on an Arm computer: "
            "sessions are made, and compute on the CPU or hang",
            "Use an ARM64 Python for the host, or x64 Python 3.12 or later.",
        ),
        _picks_the_simulator,
    ),
    # Reported by a user with system SDK 2.40; 1.23.x worked on the same computer.
    KnownFault(
        "==1.22.0",
        Reason(
            "error-1002",
            "warning",
            "users report error 1002 when a model is finalized, where 1.23.2 works on the same computer",
            "Use 1.23.2 or later.",
        ),
        _uses_an_npu,
    ),
)


def known_faults(release: Release, machine: HostMachine) -> list[Reason]:
    """The known faults of a release that this machine would meet."""
    return [
        fault.reason
        for fault in KNOWN_FAULTS
        if satisfies(release.version, fault.versions) and fault.applies(release, machine)
    ]


def is_untried(ort: str) -> bool:
    """Whether this onnxruntime is newer than all that were tried, or has no version that can be read."""
    try:
        return satisfies(ort, f">{NEWEST_ORT_TRIED}")
    except ValueError:
        return True


def ort_bounds(release: Release) -> str:
    """Which onnxruntime to install with a 2.x release: what its metadata asks for, less what does not work."""
    clauses = [release.ort_requirement or f">={OLDEST_ORT_FOR_PLUGINS}"]
    if satisfies(release.version, "<2.4") and not release.ort_requirement.startswith("=="):
        clauses.append(f"<{ORT_TOO_NEW_FOR_OLD_PLUGINS}")
    return ",".join(clauses)
