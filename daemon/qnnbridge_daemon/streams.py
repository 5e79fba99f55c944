"""The two pipes to one client, as a process that serves several has to treat them.

A client may stop reading with a gigabyte to come, or stop writing in the middle of a frame: that holds up its own
threads alone, and can be ended from outside at any time (`end`). Any thread; one reads and one writes
at a time (the server's locks). The descriptors are closed when the last thread is out of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from qnnbridge_os.descriptors import ByteReader, ByteWriter
from qnnbridge_os.processes import stop_writing, wait_writable, writer

T = TypeVar("T")

# How often a thread that waits for room looks whether the connection has been ended.
_LOOK_S = 1.0


class ClientStreams:
    """Owns the descriptors."""

    def __init__(self, in_fd: int, out_fd: int, stall_s: float) -> None:
        """stall_s: a client that reads no byte of an answer for this time is disconnected."""
        self._in_fd = in_fd
        self._out_fd = out_fd
        self.stall_s = stall_s
        self._reader = ByteReader(in_fd)
        self._writer = ByteWriter(writer(out_fd))
        self._lock = threading.Lock()
        self._users = 0
        self._interrupt = Interrupt(in_fd)
        self.ended = False
        # Whether it was given up for taking nothing.
        self.stalled = False
        if sys.platform != "win32":
            os.set_blocking(out_fd, False)

    def read_into(self, buffer: memoryview, use: Callable[[int], T]) -> None:
        """Raises `OSError`, also when the connection is ended meanwhile."""
        self._enter()
        try:
            # The wait is separate from the read, so that `end` can wake it without closing a descriptor that
            # is in use.
            self._interrupt.wait()
            if self.ended:
                raise _ended()
            self._reader.read_into(buffer, use)
        finally:
            self._exit()

    def write_all(self, chunks: Iterable[memoryview]) -> None:
        """Raises `OSError`, also when the client takes nothing for too long."""
        self._enter()
        try:
            self._writer.add(chunks)
            stuck_since: float | None = None
            while self._writer.pending:
                if self.ended:
                    raise _ended()
                try:
                    self._writer.write_some()
                    stuck_since = None
                except BlockingIOError:
                    now = time.monotonic()
                    # The time without a single byte, not that of the whole answer: a slow client is served
                    # for as long as it takes.
                    stuck_since = now if stuck_since is None else stuck_since
                    left_s = self.stall_s - (now - stuck_since)
                    if left_s <= 0:
                        self.stalled = True
                        raise OSError(errno.ETIMEDOUT, "the client does not read") from None
                    wait_writable(self._out_fd, min(left_s, _LOOK_S))
        except OSError:
            # What is left would be the middle of a frame; nothing more is sent on this connection.
            self._writer.discard()
            raise
        finally:
            self._exit()

    def end(self) -> None:
        """Readers and writers get an `OSError`, soon. Idempotent."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            # The last user closes (`_exit`): a number that is closed under a reader may be another file's the
            # next moment.
            if self._users:
                self._interrupt.strike()
                return
        self._close()

    def _enter(self) -> None:
        with self._lock:
            if self.ended:
                raise _ended()
            self._users += 1

    def _exit(self) -> None:
        with self._lock:
            self._users -= 1
            last = self.ended and not self._users
        if last:
            self._close()

    def _close(self) -> None:
        self._interrupt.close()
        stop_writing(self._out_fd)
        os.close(self._in_fd)
        os.close(self._out_fd)


def _ended() -> OSError:
    return OSError(errno.ECANCELED, "the connection was ended")


if sys.platform == "win32":
    _STRIKE_INTERVAL_S = 0.02

    import msvcrt

    from qnnbridge_os import _win32_api as api

    class Interrupt:
        """Brings a thread back that waits for the client's next byte."""

        def __init__(self, fd: int) -> None:
            self._fd = fd
            self._closed = False
            self._lock = threading.Lock()

        def wait(self) -> None:
            """Nothing: the read itself waits, and can be cancelled."""

        def strike(self) -> None:
            threading.Thread(target=self._strike_on, name="qnnbridge interrupt", daemon=True).start()

        def close(self) -> None:
            with self._lock:  # behind this the number may be that of another pipe
                self._closed = True

        def _strike_on(self) -> None:
            """Again and again: a thread that is about to read is not in the read yet."""
            while True:
                with self._lock:
                    if self._closed:
                        return
                    with contextlib.suppress(OSError):
                        # CancelIoEx ends a read that waits, in any thread; one that begins a moment later is
                        # not touched by it.
                        api.cancel_io(msvcrt.get_osfhandle(self._fd))
                time.sleep(_STRIKE_INTERVAL_S)

else:
    import select

    class Interrupt:
        """Brings a thread back that waits for the client's next byte."""

        def __init__(self, fd: int) -> None:
            self._wake_r, self._wake_w = os.pipe()
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
            self._poll.register(self._wake_r, select.POLLIN)

        def wait(self) -> None:
            """Until there is something to read, or `strike`."""
            self._poll.poll()

        def strike(self) -> None:
            os.write(self._wake_w, b"!")

        def close(self) -> None:
            os.close(self._wake_r)
            os.close(self._wake_w)
