"""``onnxruntime.capi._pybind_state``: another name of ``onnxruntime.capi.onnxruntime_pybind11_state``."""

from __future__ import annotations

from typing import Any

from qnnbridge.ort.capi import onnxruntime_pybind11_state

__all__ = onnxruntime_pybind11_state.__all__


def __getattr__(name: str) -> Any:
    if name == "_ld_preload":
        import importlib

        return importlib.import_module("qnnbridge.ort.capi._ld_preload")
    return getattr(onnxruntime_pybind11_state, name)


def __dir__() -> list[str]:
    return dir(onnxruntime_pybind11_state)
