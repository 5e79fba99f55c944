"""``onnxruntime.capi.build_and_package_info``: name and version of the host's package."""

from __future__ import annotations

package_name = "onnxruntime"


def __getattr__(name: str) -> str:
    if name == "__version__":
        from qnnbridge.ort._environment import host_version

        return host_version()
    raise AttributeError(f"module 'onnxruntime.capi.build_and_package_info' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__"})
