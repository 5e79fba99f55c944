"""Memory of a client's calls: what it shares with the daemon, and what its plans have here. All within its limit.

A slab of a client is passed on: the NPU host maps it, too, where the client has it, so that tensors go from one to
the other without a copy here. To the daemon's own lines it looks like an array of an application of theirs
(`qnnbridge.repeated.arrays`). Where that cannot be had, what lies in it is copied.

Any thread. What is mapped or made counts until nothing refers to it any more, whoever still does; finalizers only
leave a note, and somebody works through the notes later.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from qnnbridge.repeated.sharing import next_slab_number
from qnnbridge_daemon.limits import Account
from qnnbridge_host.sharing import Slab, Slabs, open_stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge.host import Host
    from qnnbridge.repeated.memory import Slab as OwnSlab

PASSED_ON = sys.platform == "linux"
"""Whether the place of a slab means the same to every process of the user. A handle of Windows does not."""


class ForeignSlab:
    """A client's slab as the daemon's own lines see it: something that the NPU host can be shown.

    The client closes its descriptor as soon as the slab is mapped here, so the host is shown one of ours.
    """

    __slots__ = ("_place", "data", "host_writes", "number", "size")

    def __init__(self, fd: int, place: Mapping[str, Any], data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.number = next_slab_number()
        self.size = data.nbytes
        self.host_writes = host_writes
        self.data = data
        self._place = {**place, "pid": os.getpid(), "fd": fd}

    def place(self, _pid: int) -> dict[str, Any]:
        """The host opens it here, as the daemon did at the client."""
        return self._place


@dataclasses.dataclass(frozen=True, slots=True)
class ClientSlab(Slab):
    """See the module."""

    host: Host
    foreign: ForeignSlab

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """An array that the daemon's lines know as one that the NPU host can read or write in place."""
        import numpy as np

        from qnnbridge.repeated.arrays import Freed, SharedBlock

        plain = Slab.view(self, shape, dtype, offset)
        # Nothing is given back when it is gone: the memory is the client's.
        nobody: collections.deque[Freed] = collections.deque(maxlen=0)
        block = SharedBlock(self.host.arrays, cast("OwnSlab", self.foreign), offset, plain.nbytes, nobody)
        block.__array_interface__ = plain.__array_interface__
        array: npt.NDArray[Any] = np.asarray(block)
        block.array = weakref.ref(array)
        return array


class GoneSlabs:
    """What clients had passed on and nobody refers to any more. One for all clients: it outlives them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers: collections.deque[int] = collections.deque()

    def watch(self, slab: ForeignSlab, fd: int) -> None:
        """fd: to be closed with it."""
        weakref.finalize(slab.data, _let_go, fd, slab.number, self._numbers).atexit = False

    def settle(self) -> None:
        """Let the NPU host forget them. May have to wait for it, not for long."""
        while self._numbers:
            self._host.forget_slab(self._numbers.popleft())


class ClientSlabs(Slabs):
    """See the module."""

    def __init__(self, account: Account, host: Host, gone: GoneSlabs) -> None:
        super().__init__()
        self._account = account
        self._host = host
        self._gone = gone

    def own(self, size: int) -> npt.NDArray[np.uint8]:
        """Raises `Busy`."""
        self._account.take(size)
        array = super().own(size)
        self._account.give_back_with(array, size)
        return array

    def close(self) -> None:
        """The client is gone."""
        with self._lock:
            self._slabs.clear()

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> Slab:
        """Raises `Busy`, too."""
        self._account.share(size)
        try:
            if sys.platform == "linux":
                from qnnbridge_host._platform._posix_sharing import check_sealed

                check_sealed(where)
            slab = super()._map(where, size, host_writes)
        except BaseException:
            self._account.unshare(size)
            raise
        # Plans refer to the memory, not to the slab.
        self._account.unshare_with(slab.data, size)
        if not PASSED_ON:
            return slab
        try:
            fd = open_stream(where, write=False)
        except (OSError, ValueError):
            return slab  # no descriptor for it: what lies in it is copied
        foreign = ForeignSlab(fd, where, slab.data, host_writes)
        self._gone.watch(foreign, fd)
        return ClientSlab(slab.data, host_writes, self._host, foreign)


def _let_go(fd: int, number: int, gone: collections.deque[int]) -> None:
    os.close(fd)
    gone.append(number)
