"""``onnxruntime.capi.onnxruntime_validation``: name, version and features of the package."""

from __future__ import annotations

import linecache
import platform
import warnings

from qnnbridge import ort


def check_distro_info() -> None:
    """Do nothing, because native code runs in the host."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the package name, its version, and the version of CUDA (none)."""
    from qnnbridge.ort._environment import host_version

    return "onnxruntime", host_version(), ""


def check_training_module() -> tuple[bool, str, str, str]:
    """Return whether the package contains training (always false), and the result of
    `get_package_name_and_version_info`."""
    return False, *get_package_name_and_version_info()


for _function in (check_distro_info, get_package_name_and_version_info, check_training_module):
    ort.set_module(_function, "capi.onnxruntime_validation")

__all__ = [
    "check_distro_info",
    "check_training_module",
    "get_package_name_and_version_info",
    # ONNX Runtime's module imports these modules, so programs may use them as its attributes.
    "linecache",
    "platform",
    "warnings",
]
