"""Memory of a client's calls: what it shares with the daemon, and what its plans have here. All within its limit.

Any thread. What is mapped or made counts until nothing refers to it any more, whoever still does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_daemon.limits import Account
from qnnbridge_host.sharing import Slab, Slabs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ClientSlabs(Slabs):
    """See the module."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    def own(self, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Raises `Busy`."""
        import math

        size = math.prod(shape) * dtype.itemsize
        self._account.take(size)
        array = super().own(shape, dtype)
        self._account.give_back_with(array, size)
        return array

    def _map(self, where: Mapping[str, Any], size: int, host_writes: bool) -> Slab:
        """Raises `Busy`, too."""
        self._account.share(size)
        try:
            slab = super()._map(where, size, host_writes)
        except BaseException:
            self._account.unshare(size)
            raise
        # Plans refer to the memory, not to the slab.
        self._account.unshare_with(slab.data, size)
        return slab
