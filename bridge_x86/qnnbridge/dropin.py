"""Replace ``onnxruntime`` by `qnnbridge.ort`: ``import qnnbridge.dropin`` before anything that imports onnxruntime.

In this process an import hook provides ``onnxruntime`` and its submodules (`qnnbridge.ort._import_hook`). Python
processes that this process starts find a small package named onnxruntime at the start of their path. The host's
interpreter is isolated and not affected. Importing this module is sufficient; it may be imported repeatedly.
"""

from __future__ import annotations

from qnnbridge.ort._import_hook import install

install()

__all__ = ["install"]
