"""``onnxruntime.capi.onnxruntime_validation``: what the package says of itself."""

from __future__ import annotations


def check_distro_info() -> None:
    """Nothing to check: native code runs in the host."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Name, version, version of CUDA (none)."""
    from qnnbridge.ort._environment import host_version

    return "onnxruntime", host_version(), ""
