"""The version of the NPU's driver, read from a registry like that of a Windows-on-Arm PC."""

from __future__ import annotations

import pytest
from tests import needs

from qnnbridge_host import machine
from qnnbridge_host.machine import driver_version

SERVICES = r"SYSTEM\CurrentControlSet\Services"
DEVICE = r"ACPI\QCOM0D0A\2&DABA3FF&0"
CLASS = r"{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}\0000"
FOLDER = r"System32\DriverStore\FileRepository\qcnspmcdm8380.inf_arm64_1e2d3c4b5a697887"
LIBRARY = rf"C:\Windows\{FOLDER}\libcdsprpc.dll"


class Simulated:
    """A simulated machine: values of the registry, and libraries with their versions."""

    def __init__(self, values: dict[tuple[str, str], str], libraries: dict[str, str] | None = None) -> None:
        self._values = values
        self._libraries = libraries or {}

    def value(self, key: str, name: str) -> str | None:
        return self._values.get((key, name))

    def system_root(self) -> str:
        return r"C:\Windows"

    def file_version(self, path: str) -> str | None:
        return self._libraries.get(path)


def device(service: str = "qcnspmcdm", version: str = "30.0.220.3000") -> dict[tuple[str, str], str]:
    return {
        (rf"{SERVICES}\{service}\Enum", "0"): DEVICE,
        (rf"SYSTEM\CurrentControlSet\Enum\{DEVICE}", "Driver"): CLASS,
        (rf"SYSTEM\CurrentControlSet\Control\Class\{CLASS}", "DriverVersion"): version,
    }


def image(path: str, service: str = "qcnspmcdm") -> dict[tuple[str, str], str]:
    return {(rf"{SERVICES}\{service}", "ImagePath"): path}


def test_the_version_of_the_driver_is_read_from_the_device_of_the_service() -> None:
    assert driver_version(Simulated({**device(), **image(rf"\SystemRoot\{FOLDER}\x.sys")})) == "30.0.220.3000"


def test_an_older_driver_has_another_device_name() -> None:
    assert driver_version(Simulated(device("qcadsprpc", "1.0.3890.3500"))) == "1.0.3890.3500"


@pytest.mark.parametrize(
    "path",
    [
        rf"\SystemRoot\{FOLDER}\qcnspmcdm8380.sys",
        rf"\systemroot\{FOLDER}\qcnspmcdm8380.sys",
        rf"%SystemRoot%\{FOLDER}\qcnspmcdm8380.sys",
        rf"\??\C:\Windows\{FOLDER}\qcnspmcdm8380.sys",
        rf"{FOLDER}\qcnspmcdm8380.sys",
    ],
)
def test_without_a_device_the_version_is_read_from_the_library_of_the_driver(path: str) -> None:
    assert driver_version(Simulated(image(path), {LIBRARY: "30.0.220.3000"})) == "30.0.220.3000"


@pytest.mark.parametrize("left_out", range(3))
def test_a_broken_registry_chain_gives_no_version(left_out: int) -> None:
    values = device()
    del values[list(values)[left_out]]
    assert driver_version(Simulated(values)) is None


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_version_is_no_version(text: str) -> None:
    assert driver_version(Simulated(device(version=text))) is None


def test_a_failing_registry_does_not_prevent_the_host_from_starting() -> None:
    class Failing(Simulated):
        def value(self, key: str, name: str) -> str | None:
            raise PermissionError(key)

    assert driver_version(Failing({})) is None


@needs.posix
def test_other_systems_have_no_driver_version() -> None:
    assert driver_version() is None
    assert "driver" not in machine.installed_versions([])


def test_hello_contains_the_version_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "driver_version", lambda: "30.0.220.3000")
    assert machine.installed_versions([])["driver"] == "30.0.220.3000"
