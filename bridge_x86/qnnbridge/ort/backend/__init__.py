"""``onnxruntime.backend``: ONNX's backend interface. Needs the package ``onnx`` in the application."""

from qnnbridge.ort.backend.backend import OnnxRuntimeBackend, is_compatible, prepare, run, supports_device
from qnnbridge.ort.backend.backend_rep import OnnxRuntimeBackendRep

__all__ = ["OnnxRuntimeBackend", "OnnxRuntimeBackendRep", "is_compatible", "prepare", "run", "supports_device"]
