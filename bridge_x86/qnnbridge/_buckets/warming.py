"""Makes variants ahead of their first call, several at a time if wished."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from qnnbridge._buckets.plan import Sizes
from qnnbridge._buckets.variants import Variants
from qnnbridge_protocol.errors import BridgeError, OptionError

_log = logging.getLogger("qnnbridge.buckets")

# Called with how many variants are made, how many there are, and the sizes of the next; of the last at the end.
# With several workers from their threads, one call at a time.
Progress = Callable[[int, int, Mapping[str, int]], None]


def warm(
    variants: Variants, wanted: Sequence[Sizes], workers: int, deadline: float | None, on_progress: Progress | None
) -> None:
    """Raises the first error; what is not begun then is left."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers={workers!r} is no number of workers.", fix="Give 1 or more.")
    work = _Work(variants, wanted, deadline, on_progress)
    if workers == 1 or len(wanted) < 2:
        work.go_on()
    else:
        # Not a pool of the standard library: it would keep the interpreter from ending while one compiles.
        threads = [
            threading.Thread(target=work.go_on, name="qnnbridge warm", daemon=True)
            for _ in range(min(workers, len(wanted)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if work.failure is not None:
        raise work.failure


class _Work:
    """What is left to do, shared by the workers."""

    def __init__(
        self, variants: Variants, wanted: Sequence[Sizes], deadline: float | None, on_progress: Progress | None
    ) -> None:
        self._variants = variants
        self._left = collections.deque(wanted)
        self._total = len(wanted)
        self._done = 0
        self._deadline = deadline
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    def go_on(self) -> None:
        """Until nothing is left, or something failed."""
        while True:
            with self._lock:
                if self.failure is not None or not self._left:
                    return
                sizes = self._left.popleft()
                self._tell(sizes)
            try:
                self._variants.get(sizes, "warm", self._deadline)
            except BridgeError as error:
                with self._lock:
                    self.failure = self.failure or error
                return
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits
                with self._lock:
                    self.failure = self.failure or error
                return
            with self._lock:
                self._done += 1
                if self._done == self._total:
                    self._tell(sizes)

    def _tell(self, sizes: Sizes) -> None:
        """Showing progress must not decide whether the work succeeds."""
        if self._on_progress is None:
            return
        try:
            self._on_progress(self._done, self._total, self._variants.plan.named(sizes))
        except Exception:  # noqa: BLE001 - see above
            _log.exception("on_progress failed")
