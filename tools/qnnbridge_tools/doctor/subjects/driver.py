"""The NPU's driver: survey and check.

The survey looks the way QNN itself does: service, device, class. It never looks through the driver store, where the
packages of older drivers stay.
"""

from __future__ import annotations

import ntpath
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import Driver, Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.machine import Machine

# Newest name first, the order in which QNN looks.
SERVICES: Final = ("qcnspmcdm", "qcadsprpc")

FASTRPC: Final = "libcdsprpc.dll"
# The driver's own QNN (HNRD). Its version is the QNN version that the system has.
# Drivers with a QNN before 2.24 have no version in it.
RUNTIME: Final = ("HTP", "HtpUsrDrv.dll")

_CONTROL_SET: Final = r"SYSTEM\CurrentControlSet"
_DISABLED_SERVICE: Final = 4
_DISABLED_DEVICE: Final = 22  # CM_PROB_DISABLED
# The names of the kernel's FastRPC driver, and that of Android's kernels (adsprpc-smd).
_LINUX_NODE: Final = re.compile(r"^(?:fastrpc-(?:cdsp|adsp)(?:-secure)?\d?|adsprpc-smd(?:-secure)?)$")


def survey_driver(machine: Machine) -> Driver:
    if machine.system == "Windows":
        return _of_windows(machine)
    return _of_linux(machine)


def _of_windows(machine: Machine) -> Driver:
    service = next((name for name in SERVICES if _text(machine, rf"Services\{name}", "ImagePath")), None)
    if service is None:
        return Driver("none")
    # Value "0" names the first device that the service drives.
    instance = _text(machine, rf"Services\{service}\Enum", "0")
    key = rf"Enum\{instance}"
    device = _text(machine, key, "FriendlyName") or _text(machine, key, "DeviceDesc") if instance else None
    driver_class = _text(machine, key, "Driver") if instance else None
    version = _text(machine, rf"Control\Class\{driver_class}", "DriverVersion") if driver_class else None
    folder = ntpath.dirname(_absolute(_text(machine, rf"Services\{service}", "ImagePath") or "", machine))
    # The number of the device manager: the service may be on and its device not at work.
    problem = machine.device_problem(instance) if instance else None
    fastrpc = ntpath.join(folder, FASTRPC)
    library = machine.library(fastrpc, version=True)
    runtime = machine.library(ntpath.join(folder, *RUNTIME), version=True)
    return Driver(
        status=_status(machine, service, instance, problem),
        service=service,
        # The driver's version is that of libcdsprpc.dll, where the registry has none.
        version=version or (library.version if library else None),
        folder=folder,
        # Windows stores "@oem12.inf,%name%;Snapdragon ..." and shows what follows the semicolon.
        device=device.rpartition(";")[2] if device else None,
        problem=problem,
        runtime=runtime.version if runtime else None,
        has_fastrpc=machine.kind(fastrpc) == "file",
    )


def _status(machine: Machine, service: str, instance: str | None, problem: int | None) -> str:
    # A disabled service shows as a problem of the device, too (32), and has another fix.
    start = machine.registry("HKLM", rf"{_CONTROL_SET}\Services\{service}", "Start")
    if start == _DISABLED_SERVICE or problem == _DISABLED_DEVICE:
        return "disabled"
    if problem:
        return "problem"
    return "ok" if instance else "no device"


def _of_linux(machine: Machine) -> Driver:
    nodes = tuple(f"/dev/{name}" for name in machine.names("/dev") if _LINUX_NODE.match(name))
    # `/dev` may list nodes of a DSP that this user must not open; one open node is enough (see `_linux`).
    closed = tuple(node for node in nodes if not machine.can_open_device(node))
    return Driver("ok" if nodes else "none", nodes=nodes, closed_nodes=closed)


def _text(machine: Machine, key: str, name: str) -> str | None:
    value = machine.registry("HKLM", rf"{_CONTROL_SET}\{key}", name)
    return value.strip() or None if isinstance(value, str) else None


def _absolute(image: str, machine: Machine) -> str:
    r"""A driver's path in the forms that Windows knows: ``\SystemRoot\..``, ``\??\..``, ``System32\..``."""
    root = next((value for name, value in machine.environ.items() if name.upper() == "SYSTEMROOT"), r"C:\Windows")
    lowered = image.lower()
    for prefix in ("\\systemroot\\", "%systemroot%\\"):
        if lowered.startswith(prefix):
            return ntpath.join(root, image[len(prefix) :])
    return image[4:] if image.startswith("\\??\\") else ntpath.join(root, image)


UPDATE: Final = (
    "install the NPU driver (Driver updates, in the window that opens; or the computer maker's support page), then "
    "restart."
)
_ENABLE_DEVICE: Final = (
    # 0 for $false, which PowerShell itself would replace within double quotes.
    'powershell -Command "Get-PnpDevice -Class ComputeAccelerator | Enable-PnpDevice -Confirm:0"',
)
# Numbers of the device manager.
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


def find(facts: Facts) -> Iterator[Finding]:
    # Elsewhere than on Arm there is no NPU to drive, and the absence of a driver is no fault.
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
            *_stubs_without_driver(facts),
            fix=Remedy(UPDATE[0].upper() + UPDATE[1:], fixes.DRIVER_UPDATES),
        )
        return
    seen = f"{name}: driver {driver.version or 'of unknown version'} ({driver.service}, {driver.folder})"
    if driver.status == "disabled":
        yield finding("driver.disabled", "the NPU is disabled", seen, fix=_enable(driver))
    elif driver.status == "problem":
        yield finding(
            "driver.problem",
            f"the NPU does not work: {_PROBLEMS.get(driver.problem or 0, 'Windows reports a problem')}",
            f"{seen}; problem {driver.problem}",
            fix=Remedy(f"Restart the computer. If that does not help: {UPDATE}", fixes.DRIVER_UPDATES),
        )
    elif driver.status == "no device":
        yield finding(
            "driver.no-device",
            "Windows sees no NPU",
            f"the service {driver.service} is installed and drives no device",
            fix=Remedy(
                f"Switch the NPU on in the firmware's settings, if it can be switched off there. Else: {UPDATE}",
                fixes.DRIVER_UPDATES,
            ),
        )
    elif driver.has_fastrpc is False:
        yield finding(
            "driver.no-fastrpc",
            "libcdsprpc.dll is missing in the NPU driver's folder",
            f"{driver.folder}",
            fix=Remedy(UPDATE[0].upper() + UPDATE[1:], fixes.DRIVER_UPDATES),
        )


def _stubs_without_driver(facts: Facts) -> Iterator[str]:
    """The libraries of the host that cannot be loaded without the driver (WinError 126)."""
    loaded = facts.host_packages.loaded_set if facts.host_packages else None
    stubs = [file.name for file in loaded.of("stub")] if loaded else []
    if stubs:
        yield f"{', '.join(stubs)} cannot be loaded: {FASTRPC}, which comes with the driver, is not there"


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


CHECK = SubjectCheck("driver", find, healthy)
