"""``onnxruntime.capi._pybind_state``: everything that ONNX Runtime defines natively, by another name."""

from __future__ import annotations

from typing import Any

from qnnbridge.ort.capi import onnxruntime_pybind11_state
from qnnbridge.ort.capi.onnxruntime_pybind11_state import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)
