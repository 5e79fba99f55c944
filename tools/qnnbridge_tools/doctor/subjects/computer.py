"""The computer (machine type, chip of the NPU) and the application's own interpreter: survey and checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_host.model.chips import chip_of_processor
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import Computer, Driver, Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.machine import Machine, text_of

_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_LINUX_MODEL = ("/proc/device-tree/model", "/sys/firmware/devicetree/base/model")


def survey_computer(machine: Machine, driver: Driver) -> Computer:
    processor = _processor(machine)
    # The NPU's own name has the chip in it, too, where Windows does not know the processor yet.
    chips = (chip_of_processor(name) for name in (driver.device, processor) if name)
    chip = next((chip for chip in chips if chip is not None), None)
    return Computer(
        system=machine.system,
        machine=machine.machine,
        windows_build=machine.windows_build(),
        processor=processor,
        chip=chip.name if chip else None,
        arch=chip.arch if chip else None,
    )


def _processor(machine: Machine) -> str | None:
    if machine.system == "Windows":
        name = machine.registry("HKLM", _PROCESSOR, "ProcessorNameString")
        return name.strip() if isinstance(name, str) else None
    for path in _LINUX_MODEL:
        text = text_of(machine, path, 256)
        if text:
            return text.strip("\0 \n")
    return None


# The first build of Windows 11; x64 emulation on Arm came with it.
WINDOWS_11 = 22000


def find_computer(facts: Facts) -> Iterator[Finding]:
    computer = facts.computer
    if not facts.is_windows or not facts.is_arm:
        return
    name = (computer.processor or "").lower()
    if (
        name
        and computer.chip is None
        # Microsoft's own names for Qualcomm's chips (SQ1, SQ2, SQ3) do not have Qualcomm's in them.
        and not any(word in name for word in ("qualcomm", "snapdragon", "microsoft sq"))
    ):
        yield finding(
            "arch.no-qualcomm",
            "this Arm computer has no Qualcomm chip",
            f"processor: {computer.processor}",
            fix="Use a computer with a Snapdragon chip. For tests without an NPU, QNN's simulator runs on x64 "
            "computers.",
        )
    if computer.windows_build is not None and computer.windows_build < WINDOWS_11:
        yield finding(
            "arch.windows-too-old",
            "this Windows is too old to emulate x64 programs",
            f"Windows build {computer.windows_build}",
            fix=Remedy("Update to Windows 11.", ("start ms-settings:windowsupdate",)),
        )


def healthy_computer(facts: Facts) -> str:
    computer = facts.computer
    name = f"{computer.system} on {computer.machine}"
    if computer.chip:
        name += f", {computer.processor or 'chip'} ({computer.chip}, V{computer.arch})"
    elif not facts.is_arm:
        name += ", no NPU: QNN computes in its simulator here"
    if facts.application_machine and facts.application_machine != computer.machine:
        name += f"; this Python is {facts.application_machine}, emulated"
    return name


COMPUTER_CHECK = SubjectCheck("computer", find_computer, healthy_computer)


NEEDED_MODULES: Final = ("numpy", "msgpack", "qnnbridge_protocol")
DISTRIBUTIONS: Final = {"qnnbridge_protocol": "qnnbridge"}


def find_application(facts: Facts) -> Iterator[Finding]:
    packages = facts.application_packages
    missing = [name for name in NEEDED_MODULES if name not in packages.modules]
    if missing:
        names = " ".join(DISTRIBUTIONS.get(name, name) for name in missing)
        yield finding(
            "application.packages-missing",
            f"this interpreter lacks {', '.join(missing)}",
            f"{facts.application.executable} (Python {facts.application.version})",
            fix=Remedy(
                commands=fixes.pip(facts, f"install --force-reinstall {names}", path=facts.application.executable)
            ),
        )
    if facts.is_windows and facts.is_arm and facts.application_machine == "x64":
        yield from _simulator(facts)


def _simulator(facts: Facts) -> Iterator[Finding]:
    """An emulated x64 Python with onnxruntime-qnn: which libraries would it load?"""
    packages = facts.application_packages
    loaded, version = packages.loaded_set, packages.version("onnxruntime-qnn")
    # A stub is the way to the NPU: with one the set is not the simulator's.
    if loaded is None or version is None or loaded.of("stub"):
        return
    seen = f"onnxruntime-qnn {version} loads {loaded.folder}, which has no stub: no way to an NPU"
    fix = "Use qnnbridge.InferenceSession, which runs in the ARM64 host, in place of onnxruntime's."
    # Such a wheel has both sets, and its loader has chosen the wrong one; otherwise the wheel has only the
    # simulator.
    if loaded.folder.replace("\\", "/").endswith("libs/amd64"):
        yield finding(
            "application.python311-loader",
            "this Python's own onnxruntime-qnn would load its simulator instead of the NPU's libraries",
            seen,
            f"Python {facts.application.version} says that the machine is {facts.application.machine}",
            fix=fix + " Or use Python 3.12 or newer.",
        )
    else:
        yield finding(
            "application.simulator-wheel",
            f"this Python's own onnxruntime-qnn {version} has no way to the NPU",
            seen,
            fix=fix,
        )


def healthy_application(facts: Facts) -> str:
    answer = facts.application
    return f"Python {answer.version}, {facts.application_machine or answer.platform}, qnnbridge {facts.qnnbridge}"


APPLICATION_CHECK = SubjectCheck("application", find_application, healthy_application)
