"""Accept and authenticate clients of this user, and provide the two streams of each connection.

Invariants: accepting never waits for a client; a client has five seconds to authenticate; at most 64 clients
    authenticate at a time, and the oldest is dropped when another connects. So silent or incomplete connections
    cannot keep out a valid client, which authenticates in milliseconds.

Threads: one thread accepts connections; each client gets a thread, which becomes the thread of its connection.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from qnnbridge_os.daemon_endpoint import DaemonEndpoint, Streams
from qnnbridge_protocol.auth import PROOF_BYTES, AdmissionCode, ClientIdentity, DaemonAnswer, DaemonSide, NotProven
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge_os.daemon_endpoint import DaemonStream

_log = log_of("qnnbridge.daemon.listener")

DIALOGUE_TIMEOUT_S: Final = 5.0
# Maximum number of clients that authenticate at a time. Each of them holds a descriptor and a thread.
UNPROVEN_MAX: Final = 64
_NO_DESCRIPTORS_PAUSE_S: Final = 0.1


class ClientEnds(NamedTuple):
    """The daemon's ends of a connection, owned by the broker, and the client's identity.

    `pid` is the process id that the operating system reports; if it reports none, the id that the client sent.
    """

    in_fd: int
    out_fd: int
    pid: int = 0
    name: str = ""


class Listener:
    """Accepts connections, and passes on the authenticated connections."""

    def __init__(
        self, folder: Path, endpoint: str, token: bytes, instance: bytes, serve: Callable[[ClientEnds], None]
    ) -> None:
        """Start to listen. Raise `OSError`.

        `serve` is called in the connection's own thread, and owns the descriptors.
        """
        self._token = token
        self._instance = instance
        self._serve = serve
        self._gate = DaemonEndpoint(folder, endpoint)
        self._lock = threading.Lock()
        self._unproven: collections.OrderedDict[int, DaemonStream] = collections.OrderedDict()
        self._leaving = False
        self._refused = 0
        self._thread = threading.Thread(target=self._accept_for_ever, name="qnnbridge listener", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Number of clients that failed to authenticate in time."""
        return self._refused

    @property
    def is_there(self) -> bool:
        """Whether clients can find the endpoint."""
        return self._gate.is_there

    def close(self) -> None:
        """Stop accepting clients and abort authentications. Existing connections continue. Idempotent."""
        self._leaving = True
        self._gate.close()
        # Limit the wait, because an accept that does not return must not keep the daemon from ending.
        self._thread.join(DIALOGUE_TIMEOUT_S)
        with self._lock:
            for stream in self._unproven.values():
                stream.drop()

    # --- accepting ---

    def _accept_for_ever(self) -> None:
        while True:
            try:
                stream = self._gate.accept()
            except OSError as error:
                # The process has no free descriptors. Drop clients that have not authenticated yet, because each
                # holds one.
                _log.warning("a client could not be accepted: %s", error)
                self._drop_oldest()
                time.sleep(_NO_DESCRIPTORS_PAUSE_S)
                continue
            if stream is None:
                self._gate.release()
                return
            self._receive(stream)

    def _receive(self, stream: DaemonStream) -> None:
        with self._lock:
            # Use `id` as key: it is unique while the table keeps the stream alive.
            self._unproven[id(stream)] = stream
        if len(self._unproven) > UNPROVEN_MAX:
            # Drop the oldest and not the newest: an old silent client has had enough time.
            self._drop_oldest()
        try:
            threading.Thread(target=self._attend, args=(stream,), name="qnnbridge admission", daemon=True).start()
        except RuntimeError as error:
            _log.warning("no thread can be started for a client: %s", error)
            self._done_with(stream)

    def _drop_oldest(self) -> None:
        with self._lock:
            if self._unproven:
                _, oldest = self._unproven.popitem(last=False)
                oldest.drop()

    def _done_with(self, stream: DaemonStream) -> None:
        with self._lock:  # other threads call `drop` under this lock, never with a closed descriptor
            self._unproven.pop(id(stream), None)
            stream.close()

    # --- one client ---

    def _attend(self, stream: DaemonStream) -> None:
        entered = None
        try:
            entered = self._admit(stream)
        except (OSError, NotProven) as error:
            self._refused += 1
            _log.info("a client (process %s) was rejected: %s", stream.peer_pid or "unknown", error)
        finally:
            self._done_with(stream)
        if entered is not None:
            _log.info("%s (process %d) has connected", entered.name, entered.pid)
            # Serve outside of the `try` of the authentication, because an error while serving is not a failed
            # authentication.
            self._serve(entered)

    def _admit(self, stream: DaemonStream) -> ClientEnds | None:
        deadline = time.monotonic() + DIALOGUE_TIMEOUT_S
        # Check the user of the other process, as reported by the system, before any byte is exchanged.
        stream.check_peer()
        side = DaemonSide(self._token, self._instance)
        stream.send(side.challenge, deadline)
        client = side.check(stream.receive(PROOF_BYTES, deadline))
        # Report the end of the daemon only after the authentication, so that an unauthenticated process gets no
        # information about the daemon.
        if self._leaving:
            stream.send(side.answer(DaemonAnswer(AdmissionCode.LEAVING)), deadline)
            return None
        return self._hand_over_streams(stream, side, client, deadline)

    def _hand_over_streams(
        self, stream: DaemonStream, side: DaemonSide, client: ClientIdentity, deadline: float
    ) -> ClientEnds | None:
        try:
            streams = Streams()
        except OSError as error:
            _log.warning("no descriptors for %s: %s", client.name, error)
            stream.send(side.answer(DaemonAnswer(AdmissionCode.NO_ROOM)), deadline)
            return None
        try:
            streams.hand_over(
                stream, lambda handles: side.answer(DaemonAnswer(AdmissionCode.WELCOME, handles)), deadline
            )
        except BaseException:
            streams.close_ours()
            raise
        finally:
            # Close the client's ends in this process: the client has copies, and would not notice the end of the
            # connection while these descriptors are open.
            streams.release_theirs()
        return ClientEnds(streams.in_fd, streams.out_fd, stream.peer_pid or client.pid, client.name)
