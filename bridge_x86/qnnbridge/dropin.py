"""Put `qnnbridge.ort` in place of ``onnxruntime``: ``import qnnbridge.dropin`` before anything that imports it.

In this process a finder in front of all others answers ``onnxruntime`` and its submodules
(`qnnbridge.ort._import_hook`), and Python processes that it starts find a small package of that name first
on their path (same module). The host's own interpreter is isolated from both. Importing this module is all;
it may be imported any number of times.
"""

from __future__ import annotations

from qnnbridge.ort._import_hook import install

install()

__all__ = ["install"]
