"""QNN built into ONNX Runtime: onnxruntime-qnn 1.x, whose module is ``onnxruntime`` itself.

QNN is named in the classic ``providers`` argument. The wheel says nothing of devices; whether it can reach an NPU
is seen from its files: a build for a machine with an NPU brings the library that talks to it (the stub), the pure
x64 build (1.22.2) has none and computes on the simulator. Immutable; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from qnnbridge_host.engine.providers import NoQnn, Providers, QnnAdapter
from qnnbridge_host.engine.qnn_options import PROVIDER
from qnnbridge_host.engine.sources import QnnSource
from qnnbridge_host.machine import QNN_DISTRIBUTION, Installed, parse_version
from qnnbridge_protocol.errors import ProviderUnavailable


class BuiltinQnn:
    """The QNN provider inside ONNX Runtime."""

    def __init__(self, library_folder: str, version: tuple[int, ...], source: QnnSource) -> None:
        self.library_folder: str | None = library_folder
        self.version = version
        self.source: QnnSource | None = source

    @property
    def simulator(self) -> bool:
        return not self._stubs()

    def require(self) -> None:
        """It exists if ONNX Runtime was built with it, which `load` has checked."""

    def devices(self) -> list[dict[str, Any]]:
        kind = "CPU" if self.simulator else "NPU"
        return [{"ep_name": PROVIDER, "device_type": kind, "stubs": self._stubs()}]

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        return ((PROVIDER, options),)

    def _stubs(self) -> list[str]:
        try:
            names = os.listdir(self.library_folder)
        except OSError:
            return []
        return sorted(n for n in names if n.startswith("QnnHtpV") and n.endswith("Stub.dll"))


def load(available: Sequence[str], found: Installed) -> QnnAdapter:
    """The adapter for an installed 1.x."""
    if found.qnn_folder is None or PROVIDER not in available:
        return NoQnn(
            ProviderUnavailable(
                "The installed onnxruntime has no QNNExecutionProvider.",
                cause=found.problem or f"It offers {', '.join(available)}.",
                fix="Uninstall onnxruntime and onnxruntime-qnn in the host's Python, then install onnxruntime-qnn.",
            )
        )
    release = found.onnxruntime_qnn
    source = QnnSource(
        "wheel", "", QNN_DISTRIBUTION, release, QNN_DISTRIBUTION, None, release, "it is ONNX Runtime itself here"
    )
    return BuiltinQnn(found.qnn_folder, parse_version(release), source)
