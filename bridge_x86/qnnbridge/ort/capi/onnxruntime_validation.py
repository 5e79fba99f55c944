"""``onnxruntime.capi.onnxruntime_validation``: what the package says of itself."""

from __future__ import annotations

import linecache
import platform
import warnings

from qnnbridge import ort


def check_distro_info() -> None:
    """Nothing to check: native code runs in the host."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Name, version, version of CUDA (none)."""
    from qnnbridge.ort._environment import host_version

    return "onnxruntime", host_version(), ""


def check_training_module() -> tuple[bool, str, str, str]:
    """Whether training is part of it (never), and what the function above returns."""
    return False, *get_package_name_and_version_info()


for _function in (check_distro_info, get_package_name_and_version_info, check_training_module):
    ort.introduce(_function, "capi.onnxruntime_validation")

__all__ = [
    "check_distro_info",
    "check_training_module",
    "get_package_name_and_version_info",
    # ONNX Runtime's module imports these three, so a walk of its names finds them in it.
    "linecache",
    "platform",
    "warnings",
]
