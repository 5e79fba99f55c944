"""`OrtValue`, `OrtDevice` and `SparseTensor` under the names that ``onnxruntime`` gives them."""

from __future__ import annotations

from qnnbridge._ort_value import OrtValue
from qnnbridge._providers import OrtDevice
from qnnbridge._sparse_tensor import SparseCooView, SparseCsrView, SparseTensor

__all__ = ["OrtDevice", "OrtValue", "SparseCooView", "SparseCsrView", "SparseTensor"]
