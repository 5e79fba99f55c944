"""`LoraAdapter`: a file with the parameters of a LoRA adapter, for ``RunOptions.add_active_adapter``.

The file is read in the host, once; what travels with a run is its path.
"""

from __future__ import annotations

import os

from qnnbridge_protocol.errors import NoSuchFile, RemoteRuntimeError


class LoraAdapter:
    """With the one method of ``onnxruntime.LoraAdapter``."""

    def __init__(self) -> None:
        self._path: str | None = None

    def Load(self, path: str | os.PathLike[str], /) -> None:  # noqa: N802 - ONNX Runtime's own name
        """Choose the file. Raises `NoSuchFile`; what is wrong inside of it, the first run tells."""
        absolute = os.path.abspath(os.fsdecode(path))
        if not os.path.isfile(absolute):
            raise NoSuchFile(f"There is no LoRA adapter file {os.fsdecode(path)}.", details={"path": absolute})
        self._path = absolute

    @property
    def path(self) -> str:
        """The absolute path. Raises an error that is also a `RuntimeError` before `Load`."""
        if self._path is None:
            raise RemoteRuntimeError("The LoraAdapter is empty.", fix="Call its Load(path) first.")
        return self._path
