"""Memory of a client, kept so that the NPU host can be shown it, on Windows: by a handle of this process.

The client has duplicated its handle into this process, which duplicates it onward: into each NPU host anew, since
a handle means something in one process only. This process has started the host and belongs to the same user, so it
may do that (PROCESS_DUP_HANDLE), and the handle has all the rights that the client's has.
"""

from __future__ import annotations

import _winapi
import sys
from typing import Any

assert sys.platform == "win32"

from qnnbridge._platform._win32_streams import give_handle  # noqa: E402 - type checkers find it empty on Linux


class KeptMemory:
    """See the module. Any thread."""

    def __init__(self, where: dict[str, Any]) -> None:
        """The handle stays in `where`, for who maps the memory. Raises `OSError`, `ValueError`."""
        handle = where.get("handle")
        if type(handle) is not int or handle <= 0:
            raise ValueError("memory is named by its handle in this process")
        us = _winapi.GetCurrentProcess()
        self._handle = _winapi.DuplicateHandle(us, handle, us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)

    def share_handle(self, pid: int) -> dict[str, Any]:
        """For the host with this process id, which owns the handle when it has been told. Raises `OSError`."""
        return {"handle": give_handle(self._handle, pid)}

    def close(self) -> None:
        """Once. Nobody will be shown it any more."""
        _winapi.CloseHandle(self._handle)
