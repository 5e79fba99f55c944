"""The commands that fixes are made of: which pip, which version. Pure functions of facts and version table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from qnnbridge_tools.doctor.facts import Facts

if TYPE_CHECKING:
    from qnnbridge.releases.known_faults import Reason
    from qnnbridge.releases.machines import HostMachine

DEFAULT_FOLDER: Final = "default folder"
INSTALL_ARM64: Final = (
    'Install Python 3.13 with the "Windows installer (ARM64)" from https://www.python.org/downloads/windows/ , '
    "then: "
    'py -V:3.13-arm64 -m pip install "qnnbridge[host]"'
)


def python_command(facts: Facts, path: str | None = None) -> str:
    """How to start an interpreter by hand: ``py -V:3.13-arm64``, or its path. Default: the host's."""
    wanted = path or facts.host.path
    for one in facts.interpreters:
        if one.path == wanted and one.tag:
            return f"py -V:{one.tag}"
    return f'"{wanted}"' if " " in wanted or not wanted else wanted


def pip(facts: Facts, arguments: str, path: str | None = None) -> str:
    return f"{python_command(facts, path)} -m pip {arguments}"


def reinstall(facts: Facts) -> str:
    """Installs again what is there, the same versions."""
    packages = facts.host_packages
    qnn = packages.version("onnxruntime-qnn") if packages else None
    return pip(facts, f"install --force-reinstall --no-deps onnxruntime-qnn{f'=={qnn}' if qnn else ''}")


def host_machine(facts: Facts, system_sdk: str | None = None) -> HostMachine | None:
    """The host as the version table looks at it; ``None`` for a machine type that no release is for."""
    from qnnbridge.releases.machines import HostMachine, read_platform
    from qnnbridge_protocol.errors import OptionError

    answer = facts.host.answer
    named = answer.platform if answer is not None else ("win-arm64" if facts.is_windows else facts.computer.machine)
    try:
        platform = read_platform(named)
    except OptionError:
        return None
    # An interpreter of another machine type runs in an emulator that hides the computer from it.
    computer = facts.computer.machine if facts.is_windows else None
    python = answer.minor if answer is not None else None
    # A file version has four numbers and no time stamp: 2.40.0.0.
    short = ".".join(system_sdk.split(".")[:3]) if system_sdk else None
    return HostMachine(platform, computer, python, system_sdk=short, hexagon=facts.computer.arch)


def fitting_version(facts: Facts, newest_sdk: str | None = None) -> str | None:
    """The newest onnxruntime-qnn for this host whose QNN is not newer than that. ``None`` also without a table."""
    machine = host_machine(facts, newest_sdk)
    try:
        from qnnbridge.releases.fitness import newest_fitting

        release = newest_fitting(machine) if machine is not None else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return release.version if release else None


def known_reasons(facts: Facts) -> dict[str, Reason]:
    """What is known against the installed pair of onnxruntime and onnxruntime-qnn, by the table's codes."""
    packages, machine = facts.host_packages, host_machine(facts)
    version = packages.version("onnxruntime-qnn") if packages else None
    if packages is None or machine is None or version is None:
        return {}
    try:
        from qnnbridge.releases.fitness import platform_of_release
        from qnnbridge.releases.known_faults import known_faults
        from qnnbridge.releases.table import load_releases

        here = [release for release in load_releases() if platform_of_release(release) == machine.platform]
        exact = next((release for release in here if release.version == version), None)
        if exact is None and not here:
            return {}
        # A release that is newer than the table is judged by the rules for all.
        release = exact or dataclasses.replace(here[0], version=version)
        ort = packages.version("onnxruntime") if not version.startswith("1.") else None
        return {reason.code: reason for reason in known_faults(release, dataclasses.replace(machine, ort=ort))}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def install_version(facts: Facts, version: str | None) -> str:
    """The command for one onnxruntime-qnn version, with what has to go first: 1.x and plain onnxruntime exclude
    each other, 2.x needs it."""
    if version is None:
        return (
            "No release of onnxruntime-qnn fits this computer; see: qnnbridge versions. Update the NPU driver "
            "(Windows Update, or the computer's maker)."
        )
    clean = pip(facts, "uninstall -y onnxruntime onnxruntime-qnn")
    wanted = f"onnxruntime-qnn=={version}"
    if not version.startswith("1."):
        wanted = f'"onnxruntime{ort_bounds(version)}" {wanted}'
    return f"{clean} && {pip(facts, f'install {wanted}')}"


def ort_bounds(version: str) -> str:
    """Which onnxruntime works with a 2.x release."""
    return ">=1.24.2,<1.28" if version.startswith(("2.0", "2.1", "2.2", "2.3")) else ">=1.24.2"


def system_sdk(facts: Facts) -> tuple[str, str] | None:
    """The QNN version of this computer, and what says so: the driver's own runtime, else the SDK that a
    variable names. An SDK that merely lies in its folder is used by nobody."""
    if facts.driver.runtime:
        return facts.driver.runtime, f"NPU driver, HtpUsrDrv.dll in {facts.driver.folder}"
    for root in facts.sdks:
        if root.version and root.name != DEFAULT_FOLDER:
            return root.version, f"{root.name}, {root.folder}"
    return None
