"""Memory of a client's calls: slabs that it shares with the daemon, and memory of its plans. All within its limit.

A slab of a client is passed on: the NPU host maps it, too, where the client has it, so that tensors go from one to
the other without a copy here. To the daemon's own fast channels it looks like an array of an application of theirs
(`qnnbridge._fastpath.memory`). Where this fails (no descriptor or handle left, an NPU host that does not
map it), its contents are copied.

Any thread. Memory counts until the last reference to it is gone; finalizers only
append to a queue, and a later call works through the queue.
"""

from __future__ import annotations

import collections
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._fastpath import slab_numbers
from qnnbridge_daemon.accounts import Account
from qnnbridge_host.fastpath.shared_memory import AttachedSlab, Slabs
from qnnbridge_os.door import KeptMemory

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._host import Host


class ForeignSlab:
    """A client's slab as the daemon's own fast channels see it: memory that the NPU host can map."""

    __slots__ = ("data", "host_writes", "number", "share_handle", "size")

    def __init__(self, kept: KeptMemory, data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.number = next(slab_numbers)
        self.size = data.nbytes
        self.host_writes = host_writes
        self.data = data
        self.share_handle = kept.share_handle


class ClientSlab(AttachedSlab):
    """One slab that a client shares with the daemon, and the NPU host's view of it."""

    __slots__ = ("foreign", "host")

    def __init__(self, data: npt.NDArray[np.uint8], host_writes: bool, host: Host, foreign: ForeignSlab) -> None:
        super().__init__(data, host_writes)
        self.host = host
        self.foreign = foreign

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """An array that the daemon's fast channels know as one that the NPU host can read or write in place."""
        from qnnbridge._fastpath.memory import SharedBlock

        plain = AttachedSlab.view(self, shape, dtype, offset)
        return SharedBlock(self.host.arrays, self.foreign, offset).make_array(plain)


class GoneSlabs:
    """Memory that clients had shared and that is not referenced any more. One for all clients: it outlives them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers: collections.deque[int] = collections.deque()

    def watch(self, slab: ForeignSlab, kept: KeptMemory) -> None:
        """kept: to be closed with it."""
        # On the array and not on the slab: plans and calls under way refer to the memory itself.
        weakref.finalize(slab.data, _release, kept, slab.number, self._numbers).atexit = False

    def settle(self) -> None:
        """Release them in the NPU host. May wait for it briefly."""
        while self._numbers:
            self._host.forget_slab(self._numbers.popleft())


class ClientSlabs(Slabs):
    """All slabs of one client, within its limit."""

    def __init__(self, account: Account, host: Host, gone: GoneSlabs) -> None:
        super().__init__()
        self._account = account
        self._host = host
        self._gone = gone

    def close(self) -> None:
        """The client is gone."""
        with self._lock:
            self._slabs.clear()

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> AttachedSlab:
        """Raises `Busy`, too."""
        # Before it is mapped: beyond the limit nothing is attached.
        self._account.share(size)
        kept = None
        try:
            if sys.platform == "linux":
                from qnnbridge_os.sharing import check_sealed

                # A client that could shrink its memory would kill the daemon by SIGBUS at the next access.
                check_sealed(where)
            # Before it is mapped: a handle is closed by that.
            kept = _keep(where)
            slab = super()._map(where, size, host_writes)
        except BaseException:
            if kept is not None:
                kept.close()
            self._account.unshare(size)
            raise
        # Plans refer to the memory, not to the slab.
        self._account.unshare_with(slab.data, size)
        if kept is None:
            return slab
        foreign = ForeignSlab(kept, slab.data, host_writes)
        self._gone.watch(foreign, kept)
        return ClientSlab(slab.data, host_writes, self._host, foreign)


def _keep(where: dict[str, Any]) -> KeptMemory | None:
    """``None`` without a descriptor or handle for it; its contents are then copied."""
    try:
        return KeptMemory(where)
    except (OSError, ValueError):
        return None


def _release(kept: KeptMemory, number: int, gone: collections.deque[int]) -> None:
    kept.close()
    gone.append(number)
