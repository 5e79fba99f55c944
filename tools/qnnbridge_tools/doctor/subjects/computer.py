"""The computer, its NPU and driver, and the application's interpreter: survey and checks."""

from __future__ import annotations

import ntpath
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_host.model.chips import chip_of_processor
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Computer, Driver, Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding
from qnnbridge_tools.doctor.machine import Machine, text_of, variable_of

_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_LINUX_MODEL = ("/proc/device-tree/model", "/sys/firmware/devicetree/base/model")


def survey_computer(machine: Machine, driver: Driver) -> Computer:
    """Identify the computer and its chip."""
    processor = _processor(machine)
    # The NPU's name also contains the chip, which helps if Windows does not recognise the processor.
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


# The first build of Windows 11, which introduced x64 emulation on Arm.
WINDOWS_11 = 22000


def find_computer(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the computer and its version of Windows."""
    computer = facts.computer
    if not facts.is_windows or not facts.is_arm:
        return
    name = (computer.processor or "").lower()
    if (
        name
        and computer.chip is None
        # Microsoft calls Qualcomm's chips SQ1, SQ2 and SQ3, without Qualcomm's name.
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
    """Describe the computer in one line."""
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
    """Yield findings about the application's interpreter."""
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
    """Yield a finding if the onnxruntime-qnn of an emulated x64 Python would load the simulator."""
    packages = facts.application_packages
    loaded, version = packages.loaded_set, packages.version(fixes.QNN)
    # A stub gives access to the NPU, so a set with a stub does not belong to the simulator.
    if loaded is None or version is None or loaded.of("stub"):
        return
    seen = f"onnxruntime-qnn {version} loads {loaded.folder}, which lacks the stub for an NPU"
    fix = "Use qnnbridge.InferenceSession, which runs in the ARM64 host, instead of onnxruntime.InferenceSession."
    # A wheel with this folder has libraries for the NPU, too, but its loader chose the simulator. Other wheels have
    # only the simulator.
    if loaded.folder.replace("\\", "/").endswith("libs/amd64"):
        yield finding(
            "application.python311-loader",
            "this Python's own onnxruntime-qnn would load its simulator instead of the NPU's libraries",
            seen,
            f"Python {facts.application.version} reports the machine type {facts.application.machine}",
            fix=fix + " Or use Python 3.12 or newer.",
        )
    else:
        yield finding(
            "application.simulator-wheel",
            f"this Python's own onnxruntime-qnn {version} cannot use the NPU",
            seen,
            fix=fix,
        )


def healthy_application(facts: Facts) -> str:
    """Describe the application's interpreter in one line."""
    answer = facts.application
    return f"Python {answer.version}, {facts.application_machine or answer.platform}, qnnbridge {facts.qnnbridge}"


APPLICATION_CHECK = SubjectCheck("application", find_application, healthy_application)


# --- the NPU's driver ---
#
# The survey searches in the same order as QNN: service, device, class. It never searches the driver store, which
# also contains packages of older drivers.

# Services of the driver in QNN's order of searching, the newest first.
SERVICES: Final = ("qcnspmcdm", "qcadsprpc")

FASTRPC: Final = "libcdsprpc.dll"
# QNN runtime in the driver (HNRD). Its version is the system's QNN version. Drivers with a QNN before 2.24 lack it.
RUNTIME: Final = ("HTP", "HtpUsrDrv.dll")

_CONTROL_SET: Final = r"SYSTEM\CurrentControlSet"
_DISABLED_SERVICE: Final = 4
_DISABLED_DEVICE: Final = 22  # CM_PROB_DISABLED
# Device files of the kernel's FastRPC driver, and of Android's kernels (adsprpc-smd).
_LINUX_NODE: Final = re.compile(r"^(?:fastrpc-(?:cdsp|adsp)(?:-secure)?\d?|adsprpc-smd(?:-secure)?)$")


def survey_driver(machine: Machine) -> Driver:
    """Find the NPU's driver."""
    if machine.system == "Windows":
        return _of_windows(machine)
    return _of_linux(machine)


def _of_windows(machine: Machine) -> Driver:
    service = next((name for name in SERVICES if _text(machine, rf"Services\{name}", "ImagePath")), None)
    if service is None:
        return Driver("none")
    # The value "0" is the first device of the service.
    instance = _text(machine, rf"Services\{service}\Enum", "0")
    key = rf"Enum\{instance}"
    device = _text(machine, key, "FriendlyName") or _text(machine, key, "DeviceDesc") if instance else None
    driver_class = _text(machine, key, "Driver") if instance else None
    version = _text(machine, rf"Control\Class\{driver_class}", "DriverVersion") if driver_class else None
    folder = ntpath.dirname(_absolute(_text(machine, rf"Services\{service}", "ImagePath") or "", machine))
    # The service may run although its device does not work, so query the device manager's problem number.
    problem = machine.device_problem(instance) if instance else None
    fastrpc = ntpath.join(folder, FASTRPC)
    library = machine.library(fastrpc, version=True)
    runtime = machine.library(ntpath.join(folder, *RUNTIME), version=True)
    return Driver(
        status=_status(machine, service, instance, problem),
        service=service,
        # If the registry does not contain the driver's version, use that of libcdsprpc.dll.
        version=version or (library.version if library else None),
        folder=folder,
        # Windows stores "@oem12.inf,%name%;Snapdragon ..." and shows the text after the semicolon.
        device=device.rpartition(";")[2] if device else None,
        problem=problem,
        runtime=runtime.version if runtime else None,
        has_fastrpc=machine.kind(fastrpc) == "file",
    )


def _status(machine: Machine, service: str, instance: str | None, problem: int | None) -> str:
    # A disabled service is also a device problem (32), but needs a different fix.
    start = machine.registry("HKLM", rf"{_CONTROL_SET}\Services\{service}", "Start")
    if start == _DISABLED_SERVICE or problem == _DISABLED_DEVICE:
        return "disabled"
    if problem:
        return "problem"
    return "ok" if instance else "no device"


def _of_linux(machine: Machine) -> Driver:
    nodes = tuple(f"/dev/{name}" for name in machine.names("/dev") if _LINUX_NODE.match(name))
    # `/dev` may contain nodes of a DSP that this user cannot open; a single accessible node is enough (see
    # `_linux`).
    closed = tuple(node for node in nodes if not machine.can_open_device(node))
    return Driver("ok" if nodes else "none", nodes=nodes, closed_nodes=closed)


def _text(machine: Machine, key: str, name: str) -> str | None:
    value = machine.registry("HKLM", rf"{_CONTROL_SET}\{key}", name)
    return value.strip() or None if isinstance(value, str) else None


def _absolute(image: str, machine: Machine) -> str:
    r"""Return the absolute path of a driver given as ``\SystemRoot\..``, ``\??\..`` or ``System32\..``."""
    root = variable_of(machine, "SYSTEMROOT", r"C:\Windows")
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
    # Use 0 instead of $false, which PowerShell would expand within double quotes.
    'powershell -Command "Get-PnpDevice -Class ComputeAccelerator | Enable-PnpDevice -Confirm:0"',
)
# Meaning of the device manager's problem codes, to continue a sentence about the device.
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


def find_driver(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the NPU's driver. Computers without an Arm processor do not need one."""
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
            f"the service {driver.service} is installed, but has no device",
            fix=Remedy(
                f"Enable the NPU in the firmware's settings, if it is disabled there. Otherwise: {UPDATE}",
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
    """Yield evidence about host libraries that cannot be loaded without the driver (WinError 126)."""
    loaded = facts.host.packages.loaded_set if facts.host.packages else None
    stubs = [file.name for file in loaded.of("stub")] if loaded else []
    if stubs:
        yield f"{', '.join(stubs)} cannot be loaded: {FASTRPC}, which belongs to the driver, is missing"


def _enable(driver: Driver) -> Remedy:
    if driver.problem == _DISABLED_DEVICE:
        return Remedy("Run the command in a window that was opened as administrator.", _ENABLE_DEVICE)
    # Write sc.exe, because `sc` is a different command in PowerShell.
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
                "Join the group that may open the device, then log in again "
                "(or write a udev rule for /dev/fastrpc-*).",
                ("sudo usermod -aG render $USER",),
            ),
        )


def healthy_driver(facts: Facts) -> str | None:
    """Describe the driver in one line; ``None`` without an Arm processor."""
    driver = facts.driver
    if not facts.is_arm:
        return None
    if not facts.is_windows:
        return ", ".join(driver.nodes)
    return f"{driver.device or 'NPU'}, driver {driver.version or 'of unknown version'}"


DRIVER_CHECK = SubjectCheck("driver", find_driver, healthy_driver)
