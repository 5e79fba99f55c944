"""``onnxruntime.capi``: the modules from which applications import error classes and native classes."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "_ld_preload",
    "_pybind_state",
    "build_and_package_info",
    "onnxruntime_inference_collection",
    "onnxruntime_pybind11_state",
    "onnxruntime_validation",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    from qnnbridge.ort._errors import missing

    raise missing("onnxruntime.capi", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
