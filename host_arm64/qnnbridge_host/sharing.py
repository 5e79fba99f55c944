"""What the application shares with this host: pieces of memory, by number. Any thread."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.lines import MAX_SLABS

if sys.platform == "win32":
    from qnnbridge_host._platform._win32_sharing import AVAILABLE, map_memory, open_stream
else:
    from qnnbridge_host._platform._posix_sharing import AVAILABLE, map_memory, open_stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["AVAILABLE", "Slab", "Slabs", "open_stream"]


@dataclasses.dataclass(frozen=True, slots=True)
class Slab:
    """A piece of shared memory. host_writes: this side writes it and the application reads; else the reverse."""

    data: npt.NDArray[np.uint8]
    host_writes: bool

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """The tensor that lies there."""
        import numpy as np

        view: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, self.data, offset)
        return view


class Slabs:
    """The pieces that are attached. A plan that uses one keeps it mapped after its release.

    Requests are served by threads of their own, which may overtake each other: to map a large piece takes a while.
    What was released after it was to be attached, in the order in which both were read (`announce`), is not kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, Slab] = {}
        self._coming: dict[int, bool] = {}
        """What is to be attached, and whether it is still wanted."""

    def __len__(self) -> int:
        return len(self._slabs)

    def announce(self, header: Mapping[str, Any]) -> None:
        """A request was read, and will be served; for the thread that reads. Waits for nothing."""
        op, number = header.get("op"), header.get("slab")
        if op not in ("slab.attach", "slab.release") or type(number) is not int:
            return
        with self._lock:
            if op == "slab.attach":
                self._coming.pop(number, None)
                self._coming[number] = True
                if len(self._coming) > MAX_SLABS:  # the oldest were withdrawn, or refused
                    del self._coming[next(iter(self._coming))]
            elif number in self._coming:
                self._coming[number] = False

    def attach(self, number: int, where: Mapping[str, Any], size: int, *, host_writes: bool) -> None:
        with self._lock:
            full = len(self._slabs) >= MAX_SLABS or number in self._slabs
        if full:
            raise InvalidArgument(f"Slab {number} cannot be attached: it is already, or there are too many.")
        slab = self._map(where, size, host_writes)
        with self._lock:
            wanted = self._coming.pop(number, True)
            if wanted:
                self._slabs[number] = slab
        if not wanted:
            raise InvalidArgument(f"Slab {number} was released before it was attached.")

    def _map(self, where: Mapping[str, Any], size: int, host_writes: bool) -> Slab:
        """Raises `OSError`, `ValueError`."""
        import numpy as np

        return Slab(np.frombuffer(map_memory(where, size, write=host_writes), np.uint8), host_writes)

    def own(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory for tensors that are not shared."""
        import numpy as np

        return np.empty(size, np.uint8)

    def release(self, number: int) -> None:
        """One that is unknown is no error."""
        with self._lock:
            self._slabs.pop(number, None)

    def get(self, number: int) -> Slab:
        with self._lock:
            slab = self._slabs.get(number)
        if slab is None:
            raise InvalidArgument(f"There is no slab {number}.")
        return slab
