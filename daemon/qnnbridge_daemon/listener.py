"""Accepts and authenticates clients of this user, and returns the two streams of a connection.

Invariants: accepting never waits for a client; a visitor has five seconds; at most 64 visitors are unproven at a
time, and the oldest goes when another one comes. So no number of silent or half-open visitors keeps a good one out:
its own dialogue takes milliseconds.

Threads: one accepts; each visitor gets one, which becomes the thread of its connection.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from qnnbridge_os.door import DaemonEndpoint, Streams
from qnnbridge_protocol.auth import PROOF_BYTES, AdmissionCode, ClientIdentity, DaemonAnswer, DaemonSide, NotProven
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge_os.door import DaemonStream

_log = log_of("qnnbridge.daemon.door")

DIALOGUE_TIMEOUT_S: Final = 5.0
# Each holds a descriptor and a thread.
UNPROVEN_MAX: Final = 64
_NO_DESCRIPTORS_PAUSE_S: Final = 0.1


class ClientEnds(NamedTuple):
    """The daemon's ends of a connection, owned by the broker, and the client's identity. pid: from the system, else
    from the client."""

    in_fd: int
    out_fd: int
    pid: int = 0
    name: str = ""


class Listener:
    """Accepts connections and hands on the authenticated ones."""

    def __init__(
        self, folder: Path, endpoint: str, token: bytes, instance: bytes, serve: Callable[[ClientEnds], None]
    ) -> None:
        """serve: called in the connection's own thread; owns the descriptors. Raises `OSError`."""
        self._token = token
        self._instance = instance
        self._serve = serve
        self._gate = DaemonEndpoint(folder, endpoint)
        self._lock = threading.Lock()
        self._unproven: collections.OrderedDict[int, DaemonStream] = collections.OrderedDict()
        self._leaving = False
        self._refused = 0
        self._thread = threading.Thread(target=self._accept_for_ever, name="qnnbridge door", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Visitors that did not prove themselves, or not in time."""
        return self._refused

    @property
    def is_there(self) -> bool:
        """Whether clients find its endpoint."""
        return self._gate.is_there

    def close(self) -> None:
        """Stop accepting clients and break off authentications. Connections continue. Idempotent."""
        self._leaving = True
        self._gate.close()
        # Bounded: an accept that does not return must not keep the daemon from leaving.
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
                # Out of descriptors: the oldest visitors hold some.
                _log.warning("a visitor could not be let in: %s", error)
                self._drop_oldest()
                time.sleep(_NO_DESCRIPTORS_PAUSE_S)
                continue
            if stream is None:
                self._gate.release()
                return
            self._receive(stream)

    def _receive(self, stream: DaemonStream) -> None:
        with self._lock:
            # The id is unique while the stream is in the table, which keeps it alive.
            self._unproven[id(stream)] = stream
        if len(self._unproven) > UNPROVEN_MAX:
            # Dropping the oldest and not the newest: a good client that comes now has its turn, a silent one
            # has had it.
            self._drop_oldest()
        try:
            threading.Thread(target=self._attend, args=(stream,), name="qnnbridge visitor", daemon=True).start()
        except RuntimeError as error:
            _log.warning("no thread for a visitor: %s", error)
            self._done_with(stream)

    def _drop_oldest(self) -> None:
        with self._lock:
            if self._unproven:
                _, oldest = self._unproven.popitem(last=False)
                oldest.drop()

    def _done_with(self, stream: DaemonStream) -> None:
        with self._lock:  # `drop` must not meet a descriptor that has been closed
            self._unproven.pop(id(stream), None)
            stream.close()

    # --- one visitor ---

    def _attend(self, stream: DaemonStream) -> None:
        entered = None
        try:
            entered = self._let_in(stream)
        except (OSError, NotProven) as error:
            self._refused += 1
            _log.info("a visitor (process %s) was sent away: %s", stream.peer_pid or "unknown", error)
        finally:
            self._done_with(stream)
        if entered is not None:
            _log.info("%s (process %d) has connected", entered.name, entered.pid)
            # Outside of the dialogue's try: an error of serving is not a failed proof.
            self._serve(entered)

    def _let_in(self, stream: DaemonStream) -> ClientEnds | None:
        deadline = time.monotonic() + DIALOGUE_TIMEOUT_S
        # The user of the other end, from the system, before a byte is exchanged.
        stream.check_peer()
        side = DaemonSide(self._token, self._instance)
        stream.send(side.challenge, deadline)
        visitor = side.check(stream.receive(PROOF_BYTES, deadline))
        # Said in the dialogue, after the proof: a stranger learns nothing about the daemon.
        if self._leaving:
            stream.send(side.answer(DaemonAnswer(AdmissionCode.LEAVING)), deadline)
            return None
        return self._hand_out(stream, side, visitor, deadline)

    def _hand_out(
        self, stream: DaemonStream, side: DaemonSide, visitor: ClientIdentity, deadline: float
    ) -> ClientEnds | None:
        try:
            streams = Streams()
        except OSError as error:
            _log.warning("no descriptors for %s: %s", visitor.name, error)
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
            # The client has its own copies; with ours open it would never see the end of the connection.
            streams.release_theirs()
        return ClientEnds(streams.in_fd, streams.out_fd, stream.peer_pid or visitor.pid, visitor.name)
