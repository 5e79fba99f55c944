"""One session as one client has it: a share in a model, its own retries, its own place in the queue. Any thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import Busy, Closed

if TYPE_CHECKING:
    from qnnbridge._remote_session import RemoteSession
    from qnnbridge_daemon.cancelling import Cancellation
    from qnnbridge_daemon.fair_share import FairShare, Queue
    from qnnbridge_daemon.limits import Account
    from qnnbridge_daemon.metering import Meter
    from qnnbridge_daemon.shared_sessions import SharedModel, SharedSessions


class ClientSession:
    """retry: how often a call is repeated when the NPU host dies, unless the call says otherwise."""

    def __init__(
        self,
        model: SharedModel,
        retry: int,
        owner: object,
        sessions: SharedSessions,
        share: tuple[FairShare, Queue],
        account: Account,
        total: Meter,
    ) -> None:
        self.model = model
        self.retry = retry
        self._owner = owner
        self._sessions = sessions
        self._share, self._queue = share
        self._account = account
        self._total = total
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """Held while it gets a model of its own, which may take minutes; `close` does not wait for that."""
        self._closed = False

    @contextlib.contextmanager
    def call(self, cancellation: Cancellation, size: int) -> Iterator[RemoteSession]:
        """Around a call of so many bytes: waits for its turn, counts it. Raises `Busy`, `Cancelled`, `Closed`."""
        begin = time.monotonic()
        failed = True
        try:
            with self._share.turn(self._queue, cancellation):
                model = self._model()
                with model.use(self._sessions.count_reload) as remote:
                    yield remote
            failed = False
        except Busy:
            self._account.meter.refused()
            self._total.refused()
            raise
        finally:
            seconds = time.monotonic() - begin
            for meter in (self._account.meter, self.model.meter, self._total):
                meter.count(seconds, size, failed=failed)

    def keep(self, value: Any) -> None:
        """A result that waits here until the client takes it. Raises `Busy`."""
        size = getattr(value, "nbytes", None)
        if size is not None and type(value).__module__ == "numpy":
            self._account.take(size)
            self._account.give_back_with(value, size)

    def go_private(self, make: Callable[[], Any]) -> None:
        """It gets a state of its own: from now on it is nobody else's."""
        with self._changing:
            with self._lock:
                before = self.model
                if not before.shared or self._closed:
                    return
            own, _ = self._sessions.open(self._owner, None, before.label, make)
            with self._lock:
                closed = self._closed  # and `before` is released
                if not closed:
                    self.model = own
            self._sessions.release(self._owner, own if closed else before)

    def close(self) -> bool:
        """Whether it was open."""
        with self._lock:
            was_open, self._closed = not self._closed, True
        if was_open:
            self._sessions.release(self._owner, self.model)
            self._account.close_session()
        return was_open

    def _model(self) -> SharedModel:
        if self._closed:
            raise Closed("The session is closed.", fix="Create a new one.")
        return self.model


__all__ = ["ClientSession"]
