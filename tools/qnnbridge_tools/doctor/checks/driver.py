"""Is there an NPU, and does its driver work?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Driver, Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy

UPDATE: Final = (
    "install the NPU driver (Driver updates, in the window that opens; or the computer maker's support page), then "
    "restart."
)
_ENABLE_DEVICE: Final = (
    # 0 for $false, which PowerShell itself would replace within double quotes.
    'powershell -Command "Get-PnpDevice -Class ComputeAccelerator | Enable-PnpDevice -Confirm:0"',
)
_DISABLED_DEVICE: Final = 22
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
            fix=Remedy(UPDATE[0].upper() + UPDATE[1:], advice.DRIVER_UPDATES),
        )
        return
    seen = f"{name}: driver {driver.version or 'of unknown version'} ({driver.service}, {driver.folder})"
    if driver.status == "disabled":
        yield finding(
            "driver.disabled",
            "the NPU is disabled",
            seen,
            fix=_enable(driver),
        )
    elif driver.status == "problem":
        yield finding(
            "driver.problem",
            f"the NPU does not work: {_PROBLEMS.get(driver.problem or 0, 'Windows reports a problem')}",
            f"{seen}; problem {driver.problem}",
            fix=Remedy(f"Restart the computer. If that does not help: {UPDATE}", advice.DRIVER_UPDATES),
        )
    elif driver.status == "no device":
        yield finding(
            "driver.no-device",
            "Windows sees no NPU",
            f"the service {driver.service} is installed and drives no device",
            fix=Remedy(
                f"Switch the NPU on in the firmware's settings, if it can be switched off there. Else: {UPDATE}",
                advice.DRIVER_UPDATES,
            ),
        )
    elif driver.has_fastrpc is False:
        yield finding(
            "driver.no-fastrpc",
            "libcdsprpc.dll is missing in the NPU driver's folder",
            f"{driver.folder}",
            fix=Remedy(UPDATE[0].upper() + UPDATE[1:], advice.DRIVER_UPDATES),
        )


def _enable(driver: Driver) -> Remedy:
    if driver.problem == _DISABLED_DEVICE:
        return Remedy("In a window that was opened as administrator.", _ENABLE_DEVICE)
    # sc.exe: PowerShell knows another command by the name sc.
    return Remedy(
        "Switch the driver's service on, in a window that was opened as administrator; then restart.",
        (f"sc.exe config {driver.service} start= demand",),
    )


def _linux(facts: Facts) -> Iterator[Finding]:
    driver = facts.driver
    if driver.status == "none":
        yield finding(
            "driver.missing",
            "there is no device of the NPU",
            "/dev/fastrpc-cdsp does not exist",
            fix=Remedy(
                "Use a kernel with FastRPC (CONFIG_QCOM_FASTRPC) and the DSP firmware of this board; then:",
                ("sudo modprobe fastrpc",),
            ),
        )
    elif len(driver.closed_nodes) == len(driver.nodes):
        yield finding(
            "driver.node-closed",
            "this user may not open the NPU's device",
            *driver.closed_nodes,
            fix=Remedy(
                "Join the group that may open it, then log in again (or write a udev rule for /dev/fastrpc-*).",
                ("sudo usermod -aG render $USER",),
            ),
        )


def healthy(facts: Facts) -> str | None:
    driver = facts.driver
    if not facts.is_arm:
        return None
    if not facts.is_windows:
        return ", ".join(driver.nodes)
    return f"{driver.device or 'NPU'}, driver {driver.version or 'of unknown version'}"


CHECK = Check("driver", find, healthy)
