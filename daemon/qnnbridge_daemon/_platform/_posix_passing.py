"""Memory of a client, kept so that the NPU host can be shown it, on Linux: by a descriptor of this process.

The client closes its own as soon as the daemon has mapped the memory.
"""

from __future__ import annotations

import os
import sys
from typing import Any

assert sys.platform != "win32"

from qnnbridge_host._platform._posix_sharing import open_stream  # noqa: E402 - type checkers find it empty on Windows


class KeptMemory:
    """See the module. Any thread."""

    def __init__(self, where: dict[str, Any]) -> None:
        """Raises `OSError`, `ValueError`."""
        self._fd = open_stream(where, write=False)
        self._place = {**where, "pid": os.getpid(), "fd": self._fd}

    def share_handle(self, _pid: int) -> dict[str, Any]:
        """For the host with this process id. It opens it here, as the daemon did at the client."""
        return self._place

    def close(self) -> None:
        """Once. Nobody will be shown it any more."""
        os.close(self._fd)
