"""Replace ``onnxruntime`` by `qnnbridge.ort`: ``import qnnbridge.dropin`` before anything that imports onnxruntime.

In this process the first finder provides ``onnxruntime`` and its submodules (`qnnbridge.ort._import_hook`); Python
processes started by this process find a small package of that name first on their path (same module). The host's
interpreter is isolated from both. Importing this module is sufficient; it may be imported any number of times.
"""

from __future__ import annotations

from qnnbridge.ort._import_hook import install

install()

__all__ = ["install"]
