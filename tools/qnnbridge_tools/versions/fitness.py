"""Judge which releases of onnxruntime-qnn fit a machine, and give reasons. Pure functions over the table.

A release fits if a wheel exists for the interpreter, its libraries are for the computer's processor and support the
chip, the QNN SDK in the wheel is not newer than the installed driver's, and no known fault applies. With an
onnxruntime newer than all tested versions a release is doubtful. Known faults cannot be found in the files of a
wheel: they were measured, or reported by users; each entry contains its origin.
"""

from __future__ import annotations

import dataclasses
import platform as python_platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from qnnbridge_host.model.chips import CHIPS, chip_named, chips_of_product
from qnnbridge_host.model.releases import Release, is_final, load_releases, satisfies, sdk_is_newer, version_key
from qnnbridge_protocol.errors import OptionError

Platform = Literal["win_arm64", "win_amd64", "win32", "linux_x86_64", "linux_aarch64"]

# Machine type of the interpreters for each platform of wheels.
PLATFORM_MACHINES: Final[dict[Platform, str]] = {
    "win_arm64": "ARM64",
    "win_amd64": "x64",
    "win32": "x86",
    "linux_x86_64": "x86_64",
    "linux_aarch64": "aarch64",
}

_OTHER_NAMES: Final = {"arm64": "win_arm64", "aarch64": "linux_aarch64", "x64": "win_amd64", "amd64": "win_amd64"}

# Hexagon versions of the chips that QNN supports.
HEXAGONS: Final = tuple(sorted({chip.arch for chip in CHIPS}))


@dataclasses.dataclass(frozen=True, slots=True)
class HostMachine:
    """The machine of a host. ``None`` means unknown; no release is refused because of an unknown value.

    Args:
        platform: platform of the interpreter that would run the host.
        computer: processor of the computer, as in `qnnbridge_os.processes.native_machine`.
        python: version of the interpreter.
        system_sdk: QNN version of the installed NPU driver, such as "2.40".
        hexagon: Hexagon version of the NPU: 73 for V73.
        ort: version of onnxruntime that the release must work with.
        glibc: version of glibc on Linux.
    """

    platform: Platform
    computer: str | None = None
    python: tuple[int, int] | None = None
    system_sdk: str | None = None
    hexagon: int | None = None
    ort: str | None = None
    glibc: tuple[int, int] | None = None

    @classmethod
    def current(cls) -> HostMachine:
        """Return this computer, with the running interpreter as the host's.

        For an emulated interpreter on Windows on Arm, return ARM64 with an unknown Python version, because the host
        uses a different interpreter.
        """
        from qnnbridge._launch import process_machine
        from qnnbridge_os.processes import native_machine

        process, computer = process_machine(), native_machine()
        # On an Arm computer with Windows the host is an ARM64 Python, even if this process is emulated.
        if computer == "ARM64" and process != "ARM64":
            return cls("win_arm64", computer)
        return cls(platform_of(process), computer, sys.version_info[:2], glibc=_glibc())

    @property
    def has_npu(self) -> bool:
        """Whether a computer of this kind may have a Qualcomm NPU."""
        # If the computer's processor is unknown, assume the one that the interpreter was built for.
        return (self.computer or PLATFORM_MACHINES[self.platform]) in ("ARM64", "aarch64")

    @property
    def is_emulated(self) -> bool:
        """Whether this is an x64 interpreter on an Arm computer with Windows."""
        return self.platform == "win_amd64" and self.computer == "ARM64"


def platform_of(machine: str) -> Platform:
    """Return the platform of wheels for this machine type. Raise `OptionError` if there are no such wheels."""
    for platform, known in PLATFORM_MACHINES.items():
        if machine == known:
            return platform
    raise OptionError(
        f"QNN does not exist for machines of type {machine!r}.",
        fix=f"Give one of the platforms {', '.join(PLATFORM_MACHINES)}.",
    )


def read_platform(text: str) -> Platform:
    """Parse the name of a platform; "win-arm64", "manylinux_2_35_x86_64" and "arm64" are accepted too."""
    name = text.strip().lower().replace("-", "_")
    # Remove the required glibc from a wheel's tag, because `_check_glibc` judges it.
    name = re.sub(r"^manylinux(?:_\d+_\d+|\d+)_", "linux_", name)
    name = _OTHER_NAMES.get(name, name)
    for platform in PLATFORM_MACHINES:
        if name == platform:
            return platform
    raise OptionError(f"{text!r} is not a platform.", fix=f"Give one of {', '.join(PLATFORM_MACHINES)}.")


def read_chip(text: str) -> int:
    """Return the Hexagon version of "V73" or "73", of a chip (SC8380XP), or of a product name ("X Elite")."""
    found = re.fullmatch(r"(?:hexagon\s*)?v?(\d{2})", text.strip().lower())
    if found and int(found[1]) in HEXAGONS:
        return int(found[1])
    chip = chip_named(text)
    known = {one.arch for one in ([chip] if chip else chips_of_product(text))}
    # A product name may stand for chips of several Hexagon versions.
    if len(known) == 1:
        return known.pop()
    names = ", ".join(chip.product or chip.name for chip in CHIPS if chip.name.startswith("SC"))
    raise OptionError(
        f"{text!r} {'stands for several chips' if known else 'is not a known chip'}.",
        fix=f"Give the Hexagon version ({', '.join(f'V{arch}' for arch in HEXAGONS)}), or a chip, such as {names}.",
    )


def read_python(text: str) -> tuple[int, int]:
    """Parse a Python version: "3.13", "3.13.2", "313" or "cp313"."""
    found = re.fullmatch(r"(?:cp)?(3)\.?(\d{1,2})(?:\.\d+.*)?", text.strip())
    if found is None:
        raise OptionError(f"{text!r} is not a version of Python.", fix="For example 3.13.")
    return int(found[1]), int(found[2])


def _glibc() -> tuple[int, int] | None:
    # With another C library, such as musl, the version is unknown, so that no release is refused.
    name, version = python_platform.libc_ver()
    found = re.match(r"(\d+)\.(\d+)", version) if name == "glibc" else None
    return (int(found[1]), int(found[2])) if found else None


ReasonSeverity = Literal["refused", "warning", "note"]


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a release should not be used on a machine.

    Args:
        code: identifier.
        severity: "refused" if the release cannot work or must not be used; "warning" if it may fail; "note" for
            information.
        text: explanation, which continues "onnxruntime-qnn X ...".
        fix: remedy.
    """

    code: str
    severity: ReasonSeverity
    text: str
    fix: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFault:
    """A known fault of some releases.

    Args:
        versions: specifier of the affected releases.
        reason: reason to report.
        applies: returns whether a machine is affected.
    """

    versions: str
    reason: Reason
    applies: Callable[[Release, HostMachine], bool]


# The plugins 2.x need API version 24 of onnxruntime; 1.24.2 is the oldest release that they were tested with.
OLDEST_ORT_FOR_PLUGINS: Final = "1.24.2"
# From this release on, onnxruntime checks which API version a plugin supports; plugins before 2.4 leave that field
# at 0.
ORT_TOO_NEW_FOR_OLD_PLUGINS: Final = "1.28"
# The newest onnxruntime that releases were tested with. Nothing is known about newer versions.
NEWEST_ORT_TRIED: Final = "1.32.0"

# From 3.12 on `platform.machine` uses WMI first and returns ARM64 in an emulated process; before, it returns AMD64.
OLDEST_PYTHON_THAT_KNOWS_EMULATION: Final = (3, 12)


def _with_newer_ort(release: Release, machine: HostMachine) -> bool:
    return machine.ort is not None and satisfies(machine.ort, f">={ORT_TOO_NEW_FOR_OLD_PLUGINS}")


def _with_ort_before_plugins(release: Release, machine: HostMachine) -> bool:
    return machine.ort is not None and satisfies(machine.ort, "<1.24")


def _picks_the_simulator(release: Release, machine: HostMachine) -> bool:
    return (
        machine.is_emulated
        # The loader can choose the wrong set only if the wheel contains several sets of libraries.
        and len(release.library_sets) > 1
        and machine.python is not None
        and machine.python < OLDEST_PYTHON_THAT_KNOWS_EMULATION
    )


def _uses_an_npu(release: Release, machine: HostMachine) -> bool:
    return machine.has_npu and release.npu_set is not None


KNOWN_FAULTS: Final = (
    # Measured with onnxruntime 1.24.2 to 1.31.1: 2.1.0, 2.1.1, 2.2.0 and 2.3.0 fail with 1.28 and later (2.3.0 also
    # with 1.32.0); 2.4.0 to 2.7.0 work with all of these. On Windows ARM64 (tests/labs/windows_arm64_wheels.json)
    # 2.0.0 to 2.3.0 work with 1.24.4 and fail with 1.32.0.
    KnownFault(
        ">=2,<2.4",
        Reason(
            "ort-too-new",
            "refused",
            "fails with onnxruntime 1.28 and later when a session is created (invalid ort_version_supported, or a "
            "message about conflicting session configuration), although its metadata allows it",
            "Use onnxruntime-qnn 2.4.0 or later, or onnxruntime 1.24.2 to 1.27.",
        ),
        _with_newer_ort,
    ),
    # Measured with older versions of onnxruntime: registering 2.7.0 fails; 2.3.0 is registered but lists no device.
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
    # The release notes of 2.2 and 2.3 list this issue; platform_loader.py in the wheels shows the cause.
    KnownFault(
        ">=2",
        Reason(
            "loader-picks-simulator",
            "refused",
            "loads the simulator (libs/amd64) under x64 Python 3.11 and older on an Arm computer: "
            "sessions are created, but compute on the CPU or hang",
            "Use an ARM64 Python for the host, or x64 Python 3.12 or later.",
        ),
        _picks_the_simulator,
    ),
    # A user with system SDK 2.40 reported this error; 1.23.x worked on the same computer.
    KnownFault(
        "==1.22.0",
        Reason(
            "error-1002",
            "warning",
            "users report error 1002 when a model is finalized; on the same computer, 1.23.2 works",
            "Use 1.23.2 or later.",
        ),
        _uses_an_npu,
    ),
)


def known_faults(release: Release, machine: HostMachine) -> list[Reason]:
    """Return the known faults of a release that affect this machine."""
    return [
        fault.reason
        for fault in KNOWN_FAULTS
        if satisfies(release.version, fault.versions) and fault.applies(release, machine)
    ]


def is_untried(ort: str) -> bool:
    """Return whether this onnxruntime is newer than all tested versions, or has an unreadable version."""
    try:
        return satisfies(ort, f">{NEWEST_ORT_TRIED}")
    except ValueError:
        return True


def ort_bounds(release: Release) -> str:
    """Return pip's bounds of onnxruntime for a 2.x release: those of its metadata, minus known faulty versions."""
    clauses = [release.ort_requirement or f">={OLDEST_ORT_FOR_PLUGINS}"]
    # A bound must not loosen a pin in the release's metadata.
    if satisfies(release.version, "<2.4") and not release.ort_requirement.startswith("=="):
        clauses.append(f"<{ORT_TOO_NEW_FOR_OLD_PLUGINS}")
    return ",".join(clauses)


FitVerdict = Literal["works", "doubtful", "refused"]
_RANK: dict[FitVerdict, int] = {"works": 0, "doubtful": 1, "refused": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A release, with the reasons against using it on a machine."""

    release: Release
    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> FitVerdict:
        severities = {reason.severity for reason in self.reasons}
        return "refused" if "refused" in severities else "doubtful" if "warning" in severities else "works"


def fits(release: Release, machine: HostMachine) -> list[Reason]:
    """Return the reasons against this release, the worst first. A reason of severity "refused" excludes it."""
    # Report no other reason for another platform, because pip never installs its wheels.
    if platform_of_release(release) != machine.platform:
        return [
            Reason(
                "other-platform",
                "refused",
                f"is built for {release.platform}, but the host's interpreter is {machine.platform}",
            )
        ]
    reasons = [reason for check in _CHECKS for reason in check(release, machine)]
    reasons += known_faults(release, machine)
    return sorted(reasons, key=lambda reason: ("refused", "warning", "note").index(reason.severity))


def judge(machine: HostMachine, releases: Iterable[Release] | None = None) -> list[Judgement]:
    """Return every release for the machine's platform: working releases first, newer before older."""
    candidates = load_releases() if releases is None else releases
    judged = [
        Judgement(release, tuple(fits(release, machine)))
        for release in candidates
        if platform_of_release(release) == machine.platform
    ]
    # Sort twice, because sorts are stable: within a verdict the newest stays first.
    judged.sort(key=lambda one: version_key(one.release.version), reverse=True)
    judged.sort(key=lambda one: _RANK[one.verdict])
    return judged


def best_of(judged: Sequence[Judgement]) -> Judgement | None:
    """Return the first final release that is not refused, else the first development build that is not refused."""
    usable = [one for one in judged if one.verdict != "refused"]
    final = [one for one in usable if is_final(one.release.version)]
    return next(iter(final or usable), None)


def newest_fitting(machine: HostMachine) -> Release | None:
    """Return the newest release that works here, preferably a final one."""
    best = best_of(judge(machine))
    return best.release if best else None


def platform_of_release(release: Release) -> Platform:
    """Return the platform of a release without the version of glibc, like ``linux_x86_64``."""
    # This pattern matches manylinux_2_35_x86_64 and manylinux2014_x86_64.
    name = re.sub(r"^manylinux(?:_\d+_\d+|\d+)_", "linux_", release.platform)
    return next(platform for platform in PLATFORM_MACHINES if platform == name)


def oldest_glibc(release: Release) -> tuple[int, int] | None:
    """Return the glibc version that the wheel's tag requires."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", release.platform)
    return (int(found[1]), int(found[2])) if found else None


def pythons_text(tags: Sequence[str]) -> str:
    """Return "3.11 to 3.14" for cp311, cp312, cp313, cp314; a list if there are gaps."""
    minors = sorted({int(tag[3:]) for tag in tags})
    if len(minors) > 2 and minors[-1] - minors[0] == len(minors) - 1:
        return f"3.{minors[0]} to 3.{minors[-1]}"
    return ", ".join(f"3.{minor}" for minor in minors)


def hexagons_text(versions: Sequence[int]) -> str:
    return ", ".join(f"V{version}" for version in versions) or "none"


# --- the checks ------------------------------------------------------------------------------------


def _check_python(release: Release, machine: HostMachine) -> Iterator[Reason]:
    # No release is refused because of an unknown Python version.
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
        text = "needs glibc {}.{}, and this computer has {}.{}".format(*needed, *machine.glibc)
        yield Reason("old-glibc", "refused", text)


def _check_libraries(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if not release.library_sets:
        yield Reason(
            "no-libraries", "refused", "contains no QNN libraries: it needs a QNN SDK that is installed by hand"
        )
    elif machine.is_emulated:
        yield from _check_emulated(release)
    elif machine.has_npu:
        if release.npu_set is None:
            yield Reason("simulator-only", "refused", "contains only the simulator, no libraries for an NPU")
    elif release.simulator_set is None:
        # The win_amd64 wheels of 1.20.0, 1.22.0, 1.23, 1.24.1 and 2.0.0 contain ARM64EC code, for emulated Pythons.
        yield Reason("arm-only", "refused", "contains only code for Arm computers, which cannot load here")
    else:
        yield Reason("simulator", "note", "compiles models and computes in QNN's simulator: there is no NPU here")


def _check_emulated(release: Release) -> Iterator[Reason]:
    # The win_amd64 wheel of 1.22.2 is plain x64 code without stub and skel.
    if release.npu_set is None:
        yield Reason(
            "simulator-only",
            "refused",
            "contains x64 code without access to the NPU: on an Arm computer it would compute in the simulator",
            "Use an ARM64 Python for the host.",
        )
    else:
        yield Reason(
            "emulated",
            "warning",
            "reaches the NPU from an emulated x64 Python only on chips of the Snapdragon X class, and Qualcomm "
            "supports compiling only",
            "Use an ARM64 Python for the host.",
        )


def _check_chip(release: Release, machine: HostMachine) -> Iterator[Reason]:
    stubs = release.stubs
    # Skip a set without stubs, which `_check_libraries` checks.
    if not (machine.has_npu and machine.hexagon is not None and stubs) or machine.hexagon in stubs:
        return
    if machine.hexagon > max(stubs):
        text = f"is too old for a V{machine.hexagon} NPU: it supports {hexagons_text(stubs)}"
    else:
        text = f"has no stub library for a V{machine.hexagon} NPU, only for {hexagons_text(stubs)}"
    fix = "Use an ARM64 Python for the host." if release.platform == "win_amd64" else None
    yield Reason("chip-not-supported", "refused", text, fix)


def _check_sdk(release: Release, machine: HostMachine) -> Iterator[Reason]:
    # If the driver's version is unknown, no release is refused.
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
        text = f"includes its own onnxruntime, {release.ort_requirement.lstrip('=')}, which replaces {machine.ort}"
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
            f"was not tested with onnxruntime {machine.ort}: the newest version tested is {NEWEST_ORT_TRIED}",
        )


def _check_stage(release: Release, machine: HostMachine) -> Iterator[Reason]:
    if not is_final(release.version):
        yield Reason("development-build", "warning", "is a development build")


def short_sdk(sdk: str | None) -> str:
    """Return the version without the build's time stamp and the fourth number of a file version (2.40.0.0)."""
    return ".".join(sdk.lstrip("v").split(".")[:3]) if sdk else "of unknown version"


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
