"""`OrtValue`, `OrtDevice` and `SparseTensor` under the names that ``onnxruntime`` gives them."""

from __future__ import annotations

from qnnbridge.devices import OrtDevice
from qnnbridge.ort_value import OrtValue
from qnnbridge.sparse_tensor import SparseCooView, SparseCsrView, SparseTensor

__all__ = ["OrtDevice", "OrtValue", "SparseCooView", "SparseCsrView", "SparseTensor"]
