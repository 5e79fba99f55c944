"""What the application has dropped, until the next call reports it to the host. Any thread, finalizers too."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qnnbridge_os.native import RLock

if TYPE_CHECKING:
    import weakref

    from qnnbridge._supervision.host_process import HostProcess

# In the queue it keeps calls from the fast path.
_SLOW = ("", -1, 0)


class Releases:
    """waiting: operation that releases it, generation and number of each."""

    def __init__(self) -> None:
        # A deque: `append` is atomic, so a finalizer in the middle of any other line does no harm.
        self.waiting: collections.deque[tuple[str, int, int]] = collections.deque()
        # Re-entrant: a signal handler may make a call while its thread is in here.
        self._lock = RLock()

    def add(self, operation: str, generation: int, number: int) -> None:
        """Neither locks nor blocks."""
        self.waiting.append((operation, generation, number))

    def keep_slow(self) -> None:
        """The next call takes the slow path."""
        self.waiting.append(_SLOW)

    def send(self, process: HostProcess) -> None:
        """Release what lives in this process; what lived in others is gone."""
        if not self.waiting:
            return
        with self._lock:
            # Taken out when all are released: an interrupt has some released twice, which does no harm.
            known = list(self.waiting)
            mine = [one for one in known if one[1] == process.generation]
            for operation, _, number in mine:
                if operation != "object.release":
                    process.channel.one_way.add({"op": operation, "session": number})
            objects = [number for operation, _, number in mine if operation == "object.release"]
            if objects:
                process.channel.one_way.add({"op": "object.release", "objects": objects})
            # Not `clear`: what was appended meanwhile stays for the next call.
            for _ in known:
                self.waiting.popleft()


def call_if_alive(method: weakref.WeakMethod[Callable[..., Any]], *arguments: Any) -> None:
    """Nothing, if its object is gone."""
    function = method()
    if function is not None:
        function(*arguments)
