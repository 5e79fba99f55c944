"""Which version of the NPU's driver this machine has.

A model that kills a host may be harmless with another driver, so HELLO names it. The registry is followed the way
QNN itself finds the driver: service, device, class. Never by looking into the driver store: old packages stay there
beside the one in use. Reading needs no rights and takes well under a millisecond; WMI would take seconds.

The functions of Windows are behind one seam, `Windows`; only Windows has an answer.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import os

    from qnnbridge_os import windows_facts

    class RealWindows:
        """See `Windows`."""

        def value(self, key: str, name: str) -> str | None:
            found = windows_facts.value("HKLM", key, name)
            return found if isinstance(found, str) else None

        def system_root(self) -> str:
            return os.environ.get("SYSTEMROOT", r"C:\Windows")

        def file_version(self, path: str) -> str | None:
            return windows_facts.file_version(path)

    def windows() -> Windows | None:
        return RealWindows()

else:

    def windows() -> Windows | None:
        return None


# The driver's, newest name first; the order in which QNN looks.
SERVICES = ("qcnspmcdm", "qcadsprpc")

_CONTROL_SET = r"SYSTEM\CurrentControlSet"
# Comes with the driver, in its folder and with its version.
_RPC_LIBRARY = "libcdsprpc.dll"

_MAX_TEXT = 64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class Windows(Protocol):
    """The functions of the system."""

    def value(self, key: str, name: str) -> str | None:
        """A text value under HKEY_LOCAL_MACHINE, or ``None``."""

    def system_root(self) -> str:
        """The folder of Windows."""

    def file_version(self, path: str) -> str | None:
        """The version that a library says of itself, or ``None``."""


def driver_version(system: Windows | None = None) -> str | None:
    """For example ``30.0.220.3000``; ``None`` without such a driver, or if anything is not as expected."""
    try:
        system = system or windows()
        if system is None:
            return None
        for service in SERVICES:
            # The device's own record comes first. A library's version stands in where the registry has none.
            version = _of_device(system, service) or _of_library(system, service)
            if version:
                return version[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - a fact that is nice to have must never keep a host from starting
        return None
    return None


def _of_device(system: Windows, service: str) -> str | None:
    # The value "0" is the path of the first device that the service drives.
    device = system.value(rf"{_CONTROL_SET}\Services\{service}\Enum", "0")
    driver = system.value(rf"{_CONTROL_SET}\Enum\{device}", "Driver") if device else None
    version = system.value(rf"{_CONTROL_SET}\Control\Class\{driver}", "DriverVersion") if driver else None
    return (version or "").strip() or None


def _of_library(system: Windows, service: str) -> str | None:
    image = system.value(rf"{_CONTROL_SET}\Services\{service}", "ImagePath")
    if not image:
        return None
    import ntpath

    folder = ntpath.dirname(_absolute(image, system.system_root()))
    return system.file_version(ntpath.join(folder, _RPC_LIBRARY))


def _absolute(image: str, system_root: str) -> str:
    r"""A driver's path in the forms that Windows knows:
    ``\SystemRoot\..``, ``%SystemRoot%\..``, ``\??\..``, ``System32\..``.
    """
    import ntpath

    lowered = image.lower()
    for prefix in ("\\systemroot\\", "%systemroot%\\"):
        if lowered.startswith(prefix):
            return ntpath.join(system_root, image[len(prefix) :])
    if image.startswith("\\??\\"):
        return image[4:]
    return ntpath.join(system_root, image)
