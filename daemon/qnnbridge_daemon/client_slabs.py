"""Memory that a client shares with the daemon: attached within its limit, and given back when it is unmapped.

Any thread; finalizers only leave a note, and whoever attaches next works through the notes.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Mapping
from typing import Any

from qnnbridge_daemon.limits import Account
from qnnbridge_host.sharing import Slab, Slabs


class ClientSlabs(Slabs):
    """See the module."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account
        self._unmapped: collections.deque[int] = collections.deque()

    def attach(self, number: int, where: Mapping[str, Any], size: int, *, host_writes: bool) -> None:
        """Raises `Busy`, and what `Slabs.attach` raises."""
        self.settle()
        self._account.share(size)
        try:
            super().attach(number, where, size, host_writes=host_writes)
        except BaseException:
            self._account.unshare(size)
            raise

    def settle(self) -> None:
        """Take off the account what is not mapped any more."""
        while self._unmapped:
            self._account.unshare(self._unmapped.popleft())

    def _map(self, where: Mapping[str, Any], size: int, host_writes: bool) -> Slab:
        slab = super()._map(where, size, host_writes)
        # Plans refer to the memory, not to the slab.
        weakref.finalize(slab.data, self._unmapped.append, size).atexit = False
        return slab
