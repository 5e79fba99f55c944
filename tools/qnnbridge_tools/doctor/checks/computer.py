"""Is this a computer with an NPU that QNN can drive, and which machine types are at work?"""

from __future__ import annotations

from collections.abc import Iterator

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy

WINDOWS_11 = 22000


def find(facts: Facts) -> Iterator[Finding]:
    computer = facts.computer
    if not facts.is_windows or not facts.is_arm:
        return
    name = (computer.processor or "").lower()
    if (
        name
        and computer.chip is None
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


def healthy(facts: Facts) -> str:
    computer = facts.computer
    name = f"{computer.system} on {computer.machine}"
    if computer.chip:
        name += f", {computer.processor or 'chip'} ({computer.chip}, V{computer.arch})"
    elif not facts.is_arm:
        name += ", no NPU: QNN computes in its simulator here"
    if facts.application_machine and facts.application_machine != computer.machine:
        name += f"; this Python is {facts.application_machine}, emulated"
    return name


CHECK = Check("computer", find, healthy)
