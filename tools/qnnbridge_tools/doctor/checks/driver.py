"""Is there an NPU, and does its driver work?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding

UPDATE: Final = (
    "Install the NPU driver: start ms-settings:windowsupdate-optionalupdates (Driver updates), or "
    "the support page of "
    "the computer's maker; then restart."
)
_PROBLEMS: Final = {
    1: "it is not configured correctly",
    3: "its driver is damaged, or memory is short",
    10: "it cannot start",
    14: "it needs a restart of the computer",
    18: "its drivers have to be installed again",
    19: "its registry entries are damaged",
    28: "no driver is installed for it",
    31: "Windows cannot load its driver",
    32: "its driver's service is disabled",
    37: "its driver failed while it was loaded",
    39: "its driver is damaged or missing",
    43: "it reported a fault and was stopped",
    52: "its driver's signature cannot be verified",
}
"""Numbers of the device manager."""


def find(facts: Facts) -> Iterator[Finding]:
    if not facts.is_arm:
        return
    if facts.is_windows:
        yield from _windows(facts)
    else:
        yield from _linux(facts)


def _windows(facts: Facts) -> Iterator[Finding]:
    driver = facts.driver
    name = driver.device or "the NPU"
    if driver.status == "none":
        yield finding(
            "driver.missing",
            "the NPU's driver is not installed",
            "neither of the services qcnspmcdm and qcadsprpc is in the registry",
            fix=UPDATE,
        )
        return
    seen = f"{name}: driver {driver.version or 'of unknown version'} ({driver.service}, {driver.folder})"
    if driver.status == "disabled":
        yield finding(
            "driver.disabled",
            "the NPU is disabled",
            seen,
            fix="In PowerShell as administrator: Get-PnpDevice -Class ComputeAccelerator | "
            "Enable-PnpDevice -Confirm:$false",
        )
    elif driver.status == "problem":
        yield finding(
            "driver.problem",
            f"the NPU does not work: {_PROBLEMS.get(driver.problem or 0, 'Windows reports a problem')}",
            f"{seen}; problem {driver.problem}",
            fix="Restart the computer. " + UPDATE,
        )
    elif driver.status == "no device":
        yield finding(
            "driver.no-device",
            "Windows sees no NPU",
            f"the service {driver.service} is installed and drives no device",
            fix="Switch the NPU on in the firmware's settings, if it can be switched off there. " + UPDATE,
        )
    elif driver.has_fastrpc is False:
        yield finding(
            "driver.no-fastrpc",
            "libcdsprpc.dll is missing in the NPU driver's folder",
            f"{driver.folder}",
            fix="Install the driver again: " + UPDATE,
        )


def _linux(facts: Facts) -> Iterator[Finding]:
    driver = facts.driver
    if driver.status == "none":
        yield finding(
            "driver.missing",
            "there is no device of the NPU",
            "/dev/fastrpc-cdsp does not exist",
            fix="Use a kernel with FastRPC (CONFIG_QCOM_FASTRPC) and the DSP firmware of this board; then: "
            "sudo modprobe fastrpc",
        )
    elif len(driver.closed_nodes) == len(driver.nodes):
        yield finding(
            "driver.node-closed",
            "this user may not open the NPU's device",
            *driver.closed_nodes,
            fix="sudo usermod -aG render $USER, then log in again   (or a udev rule for /dev/fastrpc-*)",
        )


def healthy(facts: Facts) -> str | None:
    driver = facts.driver
    if not facts.is_arm:
        return None
    if not facts.is_windows:
        return ", ".join(driver.nodes)
    return f"{driver.device or 'NPU'}, driver {driver.version or 'of unknown version'}"


CHECK = Check("driver", find, healthy)
