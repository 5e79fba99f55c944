"""``onnxruntime.backend``: ONNX's backend interface on top of sessions. Needs the package ``onnx`` on this side."""

from qnnbridge.ort.backend.backend import OnnxRuntimeBackend, is_compatible, prepare, run, supports_device
from qnnbridge.ort.backend.backend_rep import OnnxRuntimeBackendRep

__all__ = ["OnnxRuntimeBackend", "OnnxRuntimeBackendRep", "is_compatible", "prepare", "run", "supports_device"]
