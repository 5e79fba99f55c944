"""What a server reads and writes: its client's streams, and the process that ends with the client."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol

from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write

if TYPE_CHECKING:
    from qnnbridge_host.fastpath.shared_memory import Slabs

# After GOODBYE. The client may kill the host earlier.
DRAIN_TIMEOUT_S = 10.0

EXIT_OK = 0
EXIT_PROTOCOL = 3
# A defect of the host itself.
EXIT_DEFECT = 4


class ServerTransport(Protocol):
    """The streams and the process of a server: its own process, or one shared with servers of other clients."""

    @property
    def slabs(self) -> Slabs:
        """For the client's shared memory."""

    @property
    def drain_timeout_s(self) -> float:
        """Seconds that calls under way may take after the client's GOODBYE."""

    def read_into(self, buffer: memoryview, use: Callable[[int], None]) -> None:
        """Wait for bytes of the client, then ``use(count)``; 0 at the end. Raises `OSError`."""

    def write_all(self, chunks: list[memoryview]) -> None:
        """Send the client everything. Raises `OSError`."""

    def start_thread(self, work: Callable[[], None]) -> None: ...

    def complain(self, text: str) -> None:
        """Log an error of the client."""

    def end(self, code: int) -> None:
        """Stop serving the client. Returns in a process that continues."""

    def leave(self, code: int) -> NoReturn:
        """`end` for a thread of the server: never returns."""


class ProcessTransport:
    """A process that ends with its client."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self.read_into = ByteReader(in_fd).read_into
        self.write_all = ByteWriter(blocking_write(out_fd)).write_all
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self._slabs: Slabs | None = None

    @property
    def slabs(self) -> Slabs:
        if self._slabs is None:  # one server asks, under its lock
            from qnnbridge_host.fastpath.shared_memory import Slabs

            self._slabs = Slabs()
        return self._slabs

    def start_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="qnnbridge worker", daemon=True).start()

    def complain(self, text: str) -> None:
        print(f"qnnbridge host: {text}", file=sys.stderr, flush=True)

    def end(self, code: int) -> None:
        leave(code)

    def leave(self, code: int) -> NoReturn:
        leave(code)


def leave(code: int) -> NoReturn:
    """End the process now.

    Not `sys.exit`: a daemon thread inside native code at interpreter exit aborts the process (measured with the
    QNN libraries: "terminate called without an active exception").
    """
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)
