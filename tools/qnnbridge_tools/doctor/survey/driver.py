"""The NPU's driver, found the way QNN itself finds it: service, device, class. Never by looking through the driver
store, where the packages of older drivers stay."""

from __future__ import annotations

import ntpath
import re
from typing import Final

from qnnbridge_tools.doctor.facts import Driver
from qnnbridge_tools.doctor.machine import Machine

SERVICES: Final = ("qcnspmcdm", "qcadsprpc")
"""Newest name first, the order in which QNN looks."""

FASTRPC: Final = "libcdsprpc.dll"
RUNTIME: Final = ("HTP", "HtpUsrDrv.dll")
"""The driver's own QNN (HNRD). Its version is the QNN version that the system has."""

_CONTROL_SET: Final = r"SYSTEM\CurrentControlSet"
_DISABLED_SERVICE: Final = 4
_DISABLED_DEVICE: Final = 22  # CM_PROB_DISABLED
_LINUX_NODE: Final = re.compile(r"^(?:fastrpc-(?:cdsp|adsp)(?:-secure)?\d?|adsprpc-smd(?:-secure)?)$")


def survey_driver(machine: Machine) -> Driver:
    if machine.system == "Windows":
        return _of_windows(machine)
    return _of_linux(machine)


def _of_windows(machine: Machine) -> Driver:
    service = next((name for name in SERVICES if _text(machine, rf"Services\{name}", "ImagePath")), None)
    if service is None:
        return Driver("none")
    instance = _text(machine, rf"Services\{service}\Enum", "0")
    key = rf"Enum\{instance}"
    device = _text(machine, key, "FriendlyName") or _text(machine, key, "DeviceDesc") if instance else None
    driver_class = _text(machine, key, "Driver") if instance else None
    version = _text(machine, rf"Control\Class\{driver_class}", "DriverVersion") if driver_class else None
    folder = ntpath.dirname(_absolute(_text(machine, rf"Services\{service}", "ImagePath") or "", machine))
    problem = machine.device_problem(instance) if instance else None
    fastrpc = ntpath.join(folder, FASTRPC)
    library = machine.library(fastrpc, version=True)
    runtime = machine.library(ntpath.join(folder, *RUNTIME), version=True)
    return Driver(
        status=_status(machine, service, instance, problem),
        service=service,
        version=version or (library.version if library else None),
        folder=folder,
        device=device.rpartition(";")[2] if device else None,
        problem=problem,
        runtime=runtime.version if runtime else None,
        has_fastrpc=machine.kind(fastrpc) == "file",
    )


def _status(machine: Machine, service: str, instance: str | None, problem: int | None) -> str:
    start = machine.registry("HKLM", rf"{_CONTROL_SET}\Services\{service}", "Start")
    if start == _DISABLED_SERVICE or problem == _DISABLED_DEVICE:
        return "disabled"
    if problem:
        return "problem"
    return "ok" if instance else "no device"


def _of_linux(machine: Machine) -> Driver:
    nodes = tuple(f"/dev/{name}" for name in machine.names("/dev") if _LINUX_NODE.match(name))
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
