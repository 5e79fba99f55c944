"""The machine that `versions` and `setup-host` judge for: what was given, else what this computer says."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from qnnbridge_host.model.releases import sdk_numbers, version_key
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.versions.machines import PLATFORM_MACHINES, HostMachine, read_chip, read_platform, read_python

if TYPE_CHECKING:
    from qnnbridge_tools.command_options import MachineOptions


def found_machine() -> HostMachine:
    """This computer. Raises `OptionError` if it is of a kind that QNN does not exist for."""
    machine = HostMachine.current()
    sdk, hexagon = driver_facts()
    machine = dataclasses.replace(machine, system_sdk=sdk, hexagon=hexagon)
    return dataclasses.replace(machine, python=host_python(machine.python) or _newest_arm64_python())


def host_python(running: tuple[int, int] | None) -> tuple[int, int] | None:
    """The running one, unless no host can run in it: then the host's is another, and not known here."""
    from qnnbridge._launch.installed import OLDEST_HOST_PYTHON

    return running if running is not None and running >= OLDEST_HOST_PYTHON else None


def machine_of(given: MachineOptions) -> HostMachine:
    """The found machine with what was given in place of it. Another platform is another computer."""
    if given.platform is None:
        machine = found_machine()
    else:
        platform = read_platform(given.platform)
        try:
            machine = found_machine()
        except OptionError:
            # This computer is of a kind without QNN, and the question is about another one.
            machine = HostMachine(platform)
        if machine.platform != platform:
            machine = _other_platform(machine, platform)
    return dataclasses.replace(
        machine,
        system_sdk=machine.system_sdk if given.system_sdk is None else checked_sdk(given.system_sdk),
        hexagon=machine.hexagon if given.chip is None else read_chip(given.chip),
        python=machine.python if given.python is None else read_python(given.python),
        ort=machine.ort if given.ort is None else _checked_version(given.ort),
    )


def driver_facts() -> tuple[str | None, int | None]:
    """QNN version of the NPU driver, and the Hexagon version of the chip; ``None`` where this computer has none."""
    from qnnbridge_tools.doctor.real_machine import RealMachine
    from qnnbridge_tools.doctor.subjects.computer import survey_computer
    from qnnbridge_tools.doctor.subjects.driver import survey_driver

    machine = RealMachine()
    driver = survey_driver(machine)
    return _usable_sdk(driver.runtime), survey_computer(machine, driver).arch


def _other_platform(machine: HostMachine, platform: str) -> HostMachine:
    """An x64 interpreter on this Arm computer is still on this computer; anything else is somewhere else."""
    asked = HostMachine(read_platform(platform))
    if machine.computer == "ARM64" and asked.platform == "win_amd64":
        # None: it would be another interpreter than the running one.
        return dataclasses.replace(machine, platform="win_amd64", python=None)
    return dataclasses.replace(asked, computer=PLATFORM_MACHINES[asked.platform])


def _newest_arm64_python() -> tuple[int, int] | None:
    """The newest registered ARM64 Python, which would become the host's."""
    from qnnbridge._launch.installed import OLDEST_HOST_PYTHON, interpreter_machine
    from qnnbridge_os.programs import registered_pythons

    versions = []
    for python in registered_pythons():
        try:
            if python.version >= OLDEST_HOST_PYTHON and interpreter_machine(python.executable) == "ARM64":
                versions.append(python.version)
        except OSError:
            continue  # uninstalled, and the registry does not know it
    return max(versions, default=None)


def _usable_sdk(text: str | None) -> str | None:
    try:
        return text if text is not None and sdk_numbers(text) else None
    except ValueError:
        return None


def checked_sdk(text: str) -> str:
    try:
        sdk_numbers(text)
    except ValueError as error:
        raise OptionError(f"{error}.", fix="For example --system-sdk 2.40.") from None
    return text.strip()


def _checked_version(text: str) -> str:
    try:
        version_key(text)
    except ValueError as error:
        raise OptionError(f"{error}.", fix="For example --ort 1.24.4.") from None
    return text.strip()
