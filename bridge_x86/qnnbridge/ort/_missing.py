"""What is said of a name that ONNX Runtime has and `qnnbridge.ort` lacks.

The error is an `AttributeError`, so ``hasattr`` and ``getattr`` with a default work; it says why, not only that.
"""

from __future__ import annotations

from collections.abc import Mapping

_KERNEL_TOOLS = "It is a tool of ONNX Runtime's build, which works on memory of its own process."
_WHY: Mapping[str, str] = {
    "quantization": "Quantizing works on files and needs no NPU: use `qnnbridge quantize`, or the package "
    "onnxruntime itself in an environment without the drop-in.",
    "tools": "The tools work on files and need no NPU: use them with the package onnxruntime itself.",
    "transformers": "The transformer tools work on files and need no NPU: use them with onnxruntime itself.",
    "training": "Training is no part of onnxruntime-qnn.",
    "get_registered_ep_kernel_defs": _KERNEL_TOOLS,
    "get_all_opkernel_def": _KERNEL_TOOLS,
    "get_all_operator_schema": _KERNEL_TOOLS,
    "get_session_initializer": "It hands out a pointer into ONNX Runtime's memory, which is in another process.",
    "SessionObjectInitializer": "It is a pointer into ONNX Runtime's memory, which is in another process.",
}


class NotOffered(AttributeError):
    """A name of ONNX Runtime that this side of the bridge does not have."""


def missing(module: str, name: str) -> NotOffered:
    """The error for one name; not raised here."""
    if name.startswith("__"):
        return NotOffered(f"module {module!r} has no attribute {name!r}")
    why = _WHY.get(name)
    text = f"{module}.{name} is not offered through qnnbridge."
    return NotOffered(f"{text} {why}" if why else f"{text} docs/ort-api.md lists what is.")
