"""Fixtures of the labs: interpreters that a test can pass to `qnnbridge.Host` or run a program with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from labs import WindowsArm64Lab, WindowsLab, demand
from tests import needs

pytest.register_assert_rewrite("foreign_host")

HOST_VERSIONS = ("3.11", "3.12", "3.13")
FIXTURES_OF_LABS = {"windows_python": "windows", "windows_arm64": "windows_arm64"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(ours):
            item.add_marker(pytest.mark.lab)
            for fixture, lab in FIXTURES_OF_LABS.items():
                if fixture in getattr(item, "fixturenames", ()) and needs.lab_of(item.path.as_posix()) != lab:
                    raise pytest.UsageError(f"{item.nodeid} is for the lab {lab}, and `lab_of` does not know that")


@pytest.fixture(scope="session")
def arm64_python() -> str:
    """An emulated ARM64 machine without an NPU."""
    return str(demand("arm64/python-arm64", "setup_arm64.sh"))


@pytest.fixture(scope="session")
def arm64_python_fake_npu() -> str:
    """An emulated ARM64 machine with a device node that makes the real QNN provider report an NPU, which cannot
    start.
    """
    return str(demand("arm64/python-arm64-fake-npu", "setup_arm64.sh"))


@pytest.fixture(scope="session")
def arm64_python_broken() -> str:
    """An emulated ARM64 machine on which `import onnxruntime` ends the process by SIGSEGV."""
    return str(demand("arm64/python-arm64-broken", "setup_arm64.sh"))


@pytest.fixture(scope="session")
def windows_python() -> Iterator[WindowsLab]:
    """A Windows x64 machine with the QNN simulator."""
    lab = WindowsLab(demand("windows/python-win", "setup_windows.sh").parent)
    lab.start()
    yield lab
    lab.stop()


@pytest.fixture(scope="session")
def windows_arm64() -> Iterator[WindowsArm64Lab]:
    """A Windows ARM64 machine; with an NPU device that does not work where a test requests that."""
    lab = WindowsArm64Lab.set_up()
    lab.start()
    yield lab
    lab.stop()


@pytest.fixture(scope="session")
def python310() -> Path:
    """Python 3.10 with the base installation: an application's side, no onnxruntime."""
    return demand("pythons/py310/bin/python", "setup_pythons.sh")


@pytest.fixture(scope="session")
def host_pythons() -> Mapping[str, str]:
    """Interpreters that can be hosts, by version."""
    return {
        version: str(demand(f"pythons/py{version.replace('.', '')}/bin/python", "setup_pythons.sh"))
        for version in HOST_VERSIONS
    }
