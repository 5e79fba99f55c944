"""Shared memory of the client, by slab number. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_os.sharing import AVAILABLE, drop, map_memory, open_stream
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.fastpath import MAX_SLABS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["AVAILABLE", "AttachedSlab", "Slabs", "drop_handles", "open_stream"]

# Request fields that hold share handles.
HANDLE_FIELDS = ("read", "write", "where")


def drop_handles(header: Mapping[str, Any]) -> None:
    """Close the share handles of a request that is answered, or never served, as far as they were not opened."""
    for name in HANDLE_FIELDS:
        share_handle = header.get(name)
        if isinstance(share_handle, dict):
            drop(share_handle)


class AttachedSlab:
    """A mapped slab of the client. host_writes: this side writes it and the client reads it; otherwise the
    reverse."""

    __slots__ = ("data", "host_writes")

    def __init__(self, data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.data = data
        self.host_writes = host_writes

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """The tensor that lies there."""
        import numpy as np

        view: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, self.data, offset)
        return view


class Slabs:
    """The attached slabs. A plan keeps its slabs mapped after their release.

    asked: the number of the request, which tells the order in which the client asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, AttachedSlab] = {}
        # Releases of slabs that are not attached (yet). A client that does not wait for the reply to an attach
        # releases the slab right behind it, and the release may be served first.
        self._released_at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def __contains__(self, number: int) -> bool:
        return number in self._slabs

    def attach(self, number: int, where: dict[str, Any], size: int, *, host_writes: bool, asked: int) -> None:
        with self._lock:
            full = len(self._slabs) >= MAX_SLABS or number in self._slabs
        if full:
            raise InvalidArgument(f"Slab {number} cannot be attached: it is already, or there are too many.")
        # Outside of the lock: mapping may take long for large memory. The number is looked at again below.
        slab = self._map(where, size, host_writes)
        with self._lock:
            # Requests are served by several threads; their numbers say that the release was asked for later
            # than the attach.
            if self._released_at.pop(number, 0) > asked:
                raise InvalidArgument(f"Slab {number} was released before it was attached.")
            self._slabs[number] = slab

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> AttachedSlab:
        """Raises `OSError`, `ValueError`."""
        import numpy as np

        return AttachedSlab(np.frombuffer(map_memory(where, size, write=host_writes), np.uint8), host_writes)

    def release(self, number: int, *, asked: int) -> None:
        """Forget a slab; an unknown one is no error."""
        with self._lock:
            if self._slabs.pop(number, None) is None:
                self._released_at[number] = asked
                if len(self._released_at) > MAX_SLABS:
                    # The oldest: a client that only releases must not fill the memory.
                    del self._released_at[next(iter(self._released_at))]

    def get(self, number: int) -> AttachedSlab:
        with self._lock:
            slab = self._slabs.get(number)
        if slab is None:
            raise InvalidArgument(f"There is no slab {number}.")
        return slab
