"""Fast channels on other machines: an emulated ARM64 host, and Windows on both sides."""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab
from quick_calls import exercise

import qnnbridge

SHARED = {
    "wrong": 0,
    "shared": True,
    "shared_memory": "available",
    "again in the next host": True,
    "generation": 2,
}
CONNECTION = {**SHARED, "shared": False, "again in the next host": False, "shared_memory": "off: switched off"}


@pytest.mark.parametrize(
    ("shared_memory", "expected"), [(True, SHARED), (False, CONNECTION)], ids=["shared", "connection"]
)
def test_an_arm64_host_serves_repeated_calls(
    shared_memory: bool, expected: dict[str, Any], arm64_python: str
) -> None:
    with qnnbridge.Host(python=arm64_python, shared_memory=shared_memory) as host:
        assert exercise(host) == expected


def test_windows_serves_repeated_calls_with_shared_memory_and_without(windows_python: WindowsLab) -> None:
    assert windows_python.run(HERE / "quick_calls.py").json() == {"shared": SHARED, "connection": CONNECTION}
