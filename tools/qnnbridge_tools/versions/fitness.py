"""Which release fits which machine, and why the others do not. Pure functions over the table.

The rules: a wheel exists for the interpreter; its libraries are for the computer's processor; they know the chip;
the QNN SDK in the wheel is not newer than the one of the installed driver; and no known fault applies.
With an onnxruntime that is newer than all that were tried it is doubtful.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from qnnbridge_host.model.release_table import Release, load_releases
from qnnbridge_host.model.release_versions import is_final, satisfies, sdk_is_newer, version_key
from qnnbridge_tools.versions.known_faults import NEWEST_ORT_TRIED, Reason, is_untried, known_faults, ort_bounds
from qnnbridge_tools.versions.machines import PLATFORM_MACHINES, HostMachine, Platform

Verdict = Literal["works", "doubtful", "refused"]
_RANK: dict[Verdict, int] = {"works": 0, "doubtful": 1, "refused": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A release held against a machine."""

    release: Release
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        severities = {reason.severity for reason in self.reasons}
        return "refused" if "refused" in severities else "doubtful" if "warning" in severities else "works"


def fits(release: Release, machine: HostMachine) -> list[Reason]:
    """What speaks against this release here, the worst first. If nothing of it is "refused", it can be used."""
    if platform_of_release(release) != machine.platform:
        return [
            Reason(
                "other-platform",
                "refused",
                f"is built for {release.platform}, the host's interpreter is {machine.platform}",
            )
        ]
    reasons = [reason for check in _CHECKS for reason in check(release, machine)]
    reasons += known_faults(release, machine)
    return sorted(reasons, key=lambda reason: ("refused", "warning", "note").index(reason.severity))


def judge(machine: HostMachine, releases: Iterable[Release] | None = None) -> list[Judgement]:
    """Every release for the machine's platform, the best one first: what works, the newest before the older."""
    candidates = load_releases() if releases is None else releases
    judged = [
        Judgement(release, tuple(fits(release, machine)))
        for release in candidates
        if platform_of_release(release) == machine.platform
    ]
    judged.sort(key=lambda one: version_key(one.release.version), reverse=True)
    judged.sort(key=lambda one: _RANK[one.verdict])
    return judged


def best_of(judged: Sequence[Judgement]) -> Judgement | None:
    """The first that is not refused and no development build; such a build only if there is nothing else."""
    usable = [one for one in judged if one.verdict != "refused"]
    final = [one for one in usable if is_final(one.release.version)]
    return next(iter(final or usable), None)


def newest_fitting(machine: HostMachine) -> Release | None:
    """The newest release that works here, a final one if there is any."""
    best = best_of(judge(machine))
    return best.release if best else None


def newest_for(
    system_sdk: str | None,
    chip: int | None,
    python: tuple[int, int] | None,
    platform: Platform = "win_arm64",
    *,
    ort: str | None = None,
) -> Release | None:
    """`newest_fitting` for a native interpreter, by the few facts that decide."""
    return newest_fitting(
        HostMachine(platform, PLATFORM_MACHINES[platform], python, system_sdk=system_sdk, hexagon=chip, ort=ort)
    )


def platform_of_release(release: Release) -> Platform:
    """The platform as machines are named: without the version of glibc."""
    name = re.sub(r"^manylinux(?:_\d+_\d+|\d+)_", "linux_", release.platform)
    return next(platform for platform in PLATFORM_MACHINES if platform == name)


def oldest_glibc(release: Release) -> tuple[int, int] | None:
    """What the wheel's tag demands of a Linux computer."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", release.platform)
    return (int(found[1]), int(found[2])) if found else None


def pythons_text(tags: Sequence[str]) -> str:
    """ "3.11 to 3.14" for cp311, cp312, cp313, cp314; each by itself where one is missing between."""
    minors = sorted({int(tag[3:]) for tag in tags})
    if len(minors) > 2 and minors[-1] - minors[0] == len(minors) - 1:
        return f"3.{minors[0]} to 3.{minors[-1]}"
    return ", ".join(f"3.{minor}" for minor in minors)


def hexagons_text(versions: Sequence[int]) -> str:
    return ", ".join(f"V{version}" for version in versions) or "none"


# --- the checks ------------------------------------------------------------------------------------


def _check_python(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if machine.python is not None and release.wheel_for(machine.python) is None:
        exist = pythons_text(release.python_tags)
        yield Reason(
            "no-wheel-for-python",
            "refused",
            "has no wheel for Python {}.{}, only for {}".format(*machine.python, exist),
            f"Use Python {exist} for the host.",
        )


def _check_glibc(release: Release, machine: HostMachine) -> Iterator[Reason]:
    needed = oldest_glibc(release)
    if needed and machine.glibc and machine.glibc < needed:
        yield Reason("old-glibc", "refused", "needs glibc {}.{}, here is {}.{}".format(*needed, *machine.glibc))


def _check_libraries(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if not release.library_sets:
        yield Reason(
            "no-libraries", "refused", "holds no QNN libraries: it needs a QNN SDK that is installed by hand"
        )
    elif machine.is_emulated:
        yield from _check_emulated(release)
    elif machine.has_npu:
        if release.npu_set is None:
            yield Reason("simulator-only", "refused", "holds the simulator only, nothing that reaches an NPU")
    elif release.simulator_set is None:
        yield Reason("arm-only", "refused", "holds code for Arm computers only; it does not load on this processor")
    else:
        yield Reason("simulator", "note", "compiles models and computes in QNN's simulator: there is no NPU here")


def _check_emulated(release: Release) -> Iterator[Reason]:
    if release.npu_set is None:
        yield Reason(
            "simulator-only",
            "refused",
            "holds x64 code without a way to the NPU: on an Arm computer it would compute in the simulator",
            "Use an ARM64 Python for the host.",
        )
    else:
        yield Reason(
            "emulated",
            "warning",
            "reaches the NPU from an emulated x64 Python only on chips of the Snapdragon X class, and Qualcomm "
            "promises compiling only",
            "Use an ARM64 Python for the host.",
        )


def _check_chip(release: Release, machine: HostMachine) -> Iterator[Reason]:
    stubs = release.stubs
    if not (machine.has_npu and machine.hexagon is not None and stubs) or machine.hexagon in stubs:
        return
    if machine.hexagon > max(stubs):
        text = f"is too old for a V{machine.hexagon} NPU: it knows {hexagons_text(stubs)}"
    else:
        text = f"has no stub library for a V{machine.hexagon} NPU, only for {hexagons_text(stubs)}"
    fix = "Use an ARM64 Python for the host." if release.platform == "win_amd64" else None
    yield Reason("chip-not-supported", "refused", text, fix)


def _check_sdk(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if not machine.has_npu or machine.system_sdk is None or release.qnn_sdk is None:
        return
    if sdk_is_newer(release.qnn_sdk, machine.system_sdk):
        yield Reason(
            "sdk-newer-than-system",
            "refused",
            f"bundles QNN {short_sdk(release.qnn_sdk)}, newer than the {machine.system_sdk} of the NPU driver",
            "Use an older onnxruntime-qnn, or update the NPU driver.",
        )


def _check_ort(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if machine.ort is None or not release.ort_requirement or satisfies(machine.ort, release.ort_requirement):
        return
    if release.layout == "1.x builtin":
        text = f"is an onnxruntime of its own, {release.ort_requirement.lstrip('=')}, and replaces {machine.ort}"
    else:
        text = f"needs onnxruntime {release.ort_requirement}, not {machine.ort}"
    yield Reason("other-ort", "refused", text)


def _check_ort_tried(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if machine.ort is None or release.layout == "1.x builtin" or not is_untried(machine.ort):
        return
    if satisfies(machine.ort, ort_bounds(release)):
        yield Reason(
            "ort-not-tried",
            "warning",
            f"is known neither to work with onnxruntime {machine.ort} nor to fail: the newest that was tried is "
            f"{NEWEST_ORT_TRIED}",
        )


def _check_stage(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if not is_final(release.version):
        yield Reason("development-build", "warning", "is a development build")


def short_sdk(sdk: str) -> str:
    """The build without its time stamp."""
    return ".".join(sdk.split(".")[:3])


_CHECKS = (
    _check_python,
    _check_glibc,
    _check_libraries,
    _check_chip,
    _check_sdk,
    _check_ort,
    _check_ort_tried,
    _check_stage,
)
