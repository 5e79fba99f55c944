"""One client of the daemon: its two pipes, its connection, which is served like the connection of a host, and
everything that is released with it.

`serve` runs in the thread that calls it; `ClientTransport` starts the server's other threads. Invariant: when any
thread notices that the client is gone, the client's calls are withdrawn and its sessions released at once, and
`serve` returns when no thread works for the client any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, TypeVar

from qnnbridge_daemon.accounts import Account, BrokerSettings
from qnnbridge_daemon.client_sessions import ClientSlabs, DaemonServices, GoneSlabs
from qnnbridge_daemon.handlers import BrokerHandlers
from qnnbridge_daemon.listener import ClientEnds
from qnnbridge_host.serve.server import Server
from qnnbridge_os.descriptors import ByteReader, ByteWriter
from qnnbridge_os.processes import stop_writing, wait_writable, writer
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import VersionMismatch
from qnnbridge_protocol.visible import log_of

# --- the two pipes to one client -------------------------------------------------------------------------
# One of several clients may stop reading while a gigabyte of answers waits, or stop writing in the middle of a
# frame. This blocks only the client's own threads, and another thread can end the connection at any time (`end`).
# The server's locks ensure that only one thread reads and one writes at a time. The descriptors are closed after
# the last thread has left them.

T = TypeVar("T")

# Interval in which a thread that waits for space in a pipe checks whether the connection has been ended.
_LOOK_S = 1.0


class ClientStreams:
    """Read from and write to one client. The object owns both descriptors."""

    def __init__(self, in_fd: int, out_fd: int, stall_s: float) -> None:
        """Take ownership of both descriptors. stall_s: seconds after which a client that reads no byte of an answer
        is disconnected."""
        self._in_fd = in_fd
        self._out_fd = out_fd
        self.stall_s = stall_s
        self._reader = ByteReader(in_fd)
        self._writer = ByteWriter(writer(out_fd))
        self._lock = threading.Lock()
        self._users = 0
        self._interrupt = Interrupt(in_fd)
        self.ended = False
        # Whether the client was disconnected because it did not read its answers.
        self.stalled = False
        if sys.platform != "win32":
            os.set_blocking(out_fd, False)

    def read_into(self, buffer: memoryview, use: Callable[[int], T]) -> None:
        """Read bytes. Raise `OSError` if the connection fails or another thread calls `end`."""
        self._enter()
        try:
            # Wait separately from the read, so that `end` can stop the wait without closing a descriptor that is in
            # use.
            self._interrupt.wait()
            if self.ended:
                raise _ended()
            self._reader.read_into(buffer, use)
        finally:
            self._exit()

    def write_all(self, chunks: Iterable[memoryview]) -> None:
        """Write all bytes. Raise `OSError` if the connection fails or the client reads nothing for too long."""
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
                    # Measure the time since the last byte instead of the time of the whole answer, so that a slow
                    # client is not disconnected.
                    stuck_since = now if stuck_since is None else stuck_since
                    left_s = self.stall_s - (now - stuck_since)
                    if left_s <= 0:
                        self.stalled = True
                        raise OSError(errno.ETIMEDOUT, "the client does not read") from None
                    wait_writable(self._out_fd, min(left_s, _LOOK_S))
        except OSError:
            # Send nothing more on this connection, because it is in the middle of a frame.
            self._writer.discard()
            raise
        finally:
            self._exit()

    def end(self) -> None:
        """End the connection: readers and writers soon get an `OSError`. Idempotent."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            # The last user closes the descriptors (`_exit`). If they were closed while a thread reads, their
            # numbers could be reused.
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
        """Wakes a thread that waits for the client's next byte."""

        def __init__(self, fd: int) -> None:
            self._fd = fd
            self._closed = False
            self._lock = threading.Lock()

        def wait(self) -> None:
            """Do nothing on Windows, where the read itself waits and can be cancelled."""

        def strike(self) -> None:
            threading.Thread(target=self._strike_on, name="qnnbridge interrupt", daemon=True).start()

        def close(self) -> None:
            with self._lock:  # after `close` the descriptor's number may be reused for another pipe
                self._closed = True

        def _strike_on(self) -> None:
            """Cancel the read repeatedly, because the reading thread may not have started to read yet."""
            while True:
                with self._lock:
                    if self._closed:
                        return
                    with contextlib.suppress(OSError):
                        # CancelIoEx ends a pending read of any thread, but not a read that begins a moment later.
                        api.cancel_io(msvcrt.get_osfhandle(self._fd))
                time.sleep(_STRIKE_INTERVAL_S)

else:
    import select

    class Interrupt:
        """Wakes a thread that waits for the client's next byte."""

        def __init__(self, fd: int) -> None:
            self._wake_r, self._wake_w = os.pipe()
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
            self._poll.register(self._wake_r, select.POLLIN)

        def wait(self) -> None:
            """Wait until data can be read, or until `strike` is called."""
            self._poll.poll()

        def strike(self) -> None:
            os.write(self._wake_w, b"!")

        def close(self) -> None:
            os.close(self._wake_r)
            os.close(self._wake_w)


# --- the connection --------------------------------------------------------------------------------------

_log = log_of("qnnbridge.daemon")

# Seconds after a client's GOODBYE in which its open calls may finish.
DRAIN_TIMEOUT_S = 2.0


# A BaseException, so that no `except Exception` of the server treats it as an error of a request.
class Left(BaseException):
    """Raised in a thread of a server that notices that its client is gone, to end the thread."""


class ClientTransport:
    """A `ServerTransport` for a server in a process that also serves other clients."""

    def __init__(self, streams: ClientStreams, slabs: ClientSlabs, name: str, on_left: Callable[[], None]) -> None:
        self.slabs = slabs
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self.read_into = streams.read_into
        self.write_all = streams.write_all
        self._streams = streams
        self._name = name
        self._on_left = on_left
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self.left = False

    def start_thread(self, work: Callable[[], None]) -> None:
        def until_it_leaves() -> None:
            try:
                work()
            except Left:
                pass
            except Exception:  # noqa: BLE001 - as in `Client.serve`; the client must not wait for this thread
                _log.exception("%s is not served any more", self._name)
                self.end()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=until_it_leaves, name="qnnbridge client", daemon=True)
        with self._lock:  # a thread that ends immediately must not be removed before it is added
            thread.start()
            self._threads.add(thread)

    def complain(self, text: str) -> None:
        _log.warning("%s: %s", self._name, text)

    def leave(self, code: int) -> NoReturn:
        self.end(code)
        raise Left

    def end(self, _code: int = 0) -> None:
        """End the connection. Thread-safe and idempotent."""
        with self._lock:
            # Only the first thread that gets here closes the streams and releases the client's resources.
            first, self.left = not self.left, True
        if first:
            self._streams.end()
            self._on_left()

    def join(self) -> None:
        """Wait for all threads except this one."""
        while True:
            with self._lock:
                # Read the set again after each thread, because a thread may start another one before it ends.
                thread = next((t for t in self._threads if t is not threading.current_thread()), None)
            if thread is None:
                return
            thread.join()


class ClientServices(DaemonServices, Protocol):
    """Services of the daemon that a connected client uses."""

    settings: BrokerSettings
    gone_slabs: GoneSlabs

    def introduction(self) -> Hello: ...

    def on_mismatch(self, error: VersionMismatch, client: Hello) -> None: ...


class Client:
    """One connected application. `number` identifies it in the daemon and is never reused."""

    def __init__(self, broker: ClientServices, number: int, ends: ClientEnds) -> None:
        self.number = number
        self.pid = ends.pid
        self.name = ends.name
        self.since = time.monotonic()
        self.account = Account(broker.settings.limits)
        self.queue = broker.fair_share.join()
        self._broker = broker
        self._streams = ClientStreams(ends.in_fd, ends.out_fd, broker.settings.stall_s)
        self._slabs = ClientSlabs(self.account, broker.host, broker.gone_slabs)
        self._transport = ClientTransport(self._streams, self._slabs, self.label, self._on_left)
        self.handlers = BrokerHandlers(broker, self)
        self._server = Server(self._transport, broker.introduction(), self.handlers, on_mismatch=broker.on_mismatch)

    @property
    def label(self) -> str:
        return f"client {self.number} ({self.name or 'unnamed'}, pid {self.pid})"

    def serve(self) -> None:
        """Serve the client until it disconnects."""
        try:
            self._server.run()
        except Left:
            pass
        except Exception:  # noqa: BLE001 - a defect that concerns one client must not end the others
            _log.exception("%s is not served any more", self.label)
        finally:
            # Release the resources only after the threads have ended, because the threads use them.
            self._transport.end()
            self._transport.join()
            self.handlers.close()
            self._slabs.close()

    @property
    def greeted(self) -> bool:
        """Whether the client is served; False before its HELLO, and if it was refused."""
        return self._server.greeted

    @property
    def silent_s(self) -> float:
        """Seconds since the connection if the client has sent no HELLO; 0 after its HELLO."""
        return 0.0 if self.greeted else time.monotonic() - self.since

    @property
    def answered(self) -> bool:
        """Whether the client has the answers to all its calls, except calls that came too late to be started."""
        return self._server.unanswered <= self.queue.late

    def drain(self, timeout_s: float) -> bool:
        """Wait until all calls are answered; return False after the timeout. Thread-safe."""
        return self._server.drain(timeout_s)

    def end(self) -> None:
        """Stop serving the client. Thread-safe."""
        self._transport.end()

    def status(self) -> dict[str, Any]:
        account, meter = self.account, self.account.meter
        account.settle()
        return {
            "id": self.number,
            "pid": self.pid,
            "name": self.name,
            "connected_s": round(time.monotonic() - self.since, 1),
            "sessions": account.sessions,
            "calls": meter.calls,
            "errors": meter.errors,
            "busy": meter.busy,
            "in_flight": self.queue.running,
            "waiting": len(self.queue.waiting),
            "bytes": meter.bytes,
            "shared_bytes": account.shared_bytes,
            "kv_bytes": account.kv_bytes,
            "reused_prefixes": account.reused_prefixes,
            "reused_tokens": account.reused_tokens,
            "calls_per_s": meter.calls_per_s,
            "latency_ms": meter.latency_ms(),
        }

    def _on_left(self) -> None:
        if self._streams.stalled:
            _log.warning("%s has read no answers for %g s: disconnected", self.label, self._streams.stall_s)
        # Withdraw the client's requests first, because they use its sessions. Remove its queue last.
        self._server.abandon()
        self.handlers.close()
        self._broker.fair_share.leave(self.queue)
