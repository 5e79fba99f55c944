"""One session as one client has it: a share in a model, its own retries, its own place in the queue. Any thread."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_daemon.fair_share import Cancellation
from qnnbridge_protocol.elements import element_of
from qnnbridge_protocol.errors import BridgeError, Busy, Closed

if TYPE_CHECKING:
    from qnnbridge._fastpath.call import CallSignature, TensorSignature
    from qnnbridge._fastpath.channel import FastChannel
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_daemon.accounts import Account, Meter
    from qnnbridge_daemon.fair_share import FairShare, Queue
    from qnnbridge_daemon.shared_sessions import Make, SharedModel, SharedSessions
    from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle


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
        # Held while it gets a model of its own, which may take minutes; `close` does not wait for that.
        self._changing = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def call(self, cancellation: Cancellation, size: int, *, waits: bool = True) -> Iterator[RemoteSession]:
        """Around a call of this many bytes: waits for its turn, counts it. Raises `Busy`, `Cancelled`, `Closed`.

        waits: false for a call that has no work for the NPU.
        """
        begin = time.monotonic()
        failed = True
        try:
            # A run that is asked to terminate at once needs no slot, and must not wait behind those that do.
            turn = self._share.turn(self._queue, cancellation) if waits else contextlib.nullcontext()
            with turn:
                # After the turn: the session may have been closed, or made private, while the call waited.
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
            self._account.release_with(value, size)

    def go_private(self, make: Make, cancellation: Cancellation) -> None:
        """It gets a state of its own: from now on it is not shared."""
        with self._changing:
            with self._lock:
                before = self.model
                if not before.shared or self._closed:
                    return
            # Without the lock: it may take minutes, and `close` must be able to come in between.
            own, _ = self._sessions.open(self._owner, None, before.label, make, cancellation)
            with self._lock:
                closed = self._closed  # and `before` is released
                if not closed:
                    self.model = own
            # Exactly one of both is given back: the old one, or the new one of a session that was closed
            # meanwhile.
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


class BoundSession:
    """A session of a client as its plans see it. A plan outlives its session, so it must not keep that alive."""

    def __init__(self, session: ClientSession) -> None:
        self._session = weakref.ref(session)

    def run_bound(self, call: BoundCall, stop: StopHandle, _enter: Callable[[str], None]) -> list[Any] | None:
        """See `EngineSession.run_bound`."""
        # A weak reference: the plan of a dead session answers "closed" and keeps no model loaded.
        session = self._session()
        if session is None:
            raise Closed("The session is closed.", fix="Create a new one.")
        cancellation = Cancellation()
        stop.attach(cancellation)
        try:
            size = sum(tensor.array.nbytes for tensor in (*call.inputs, *call.outputs))
            with session.call(cancellation, size) as remote:
                values = _run(remote, session.retry, call, cancellation)
            for value in values or ():
                session.keep(value)
            return values
        finally:
            stop.detach()


def _run(remote: RemoteSession, retry: int, call: BoundCall, cancellation: Cancellation) -> list[Any] | None:
    from qnnbridge._fastpath.call import Wish
    from qnnbridge._session.fast_calls import FastCallFailed, run

    signature = call.native
    if signature is None:
        # Kept at the plan, which belongs to one channel and one call at a time.
        signature = call.native = _signature_of(call)
    arrays = [tensor.array for tensor in call.outputs]
    failure = None
    if signature is not False:
        watch = _ChannelWatch(cancellation)
        try:
            names = tuple(call.output_names)
            results = run(remote, lambda *_: signature, names, call.feeds, None, Wish(arrays), watch)
            if results is not None:
                # The NPU host has written where the client reads: there is nothing to copy or to send.
                if all(result is array for result, array in zip(results, arrays, strict=True)):
                    return None
                return call.take(results)
        except FastCallFailed as error:
            failure = error.alone()
        finally:
            watch.close()
    feeds = [(tensor.name, tensor.array, None) for tensor in call.inputs]
    values = remote.run(
        call.output_names,
        feeds,
        None,
        timeout_s=None,
        retry=retry,
        on_deadline="raise",
        stop=cancellation,
        failed=failure,
    )
    return call.take(values)


class _ChannelWatch:
    """Cancels the call on its channel while the channel exists."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._remove: Callable[[], None] | None = None

    def __call__(self, process: HostProcess, channel: FastChannel) -> None:
        # The watch is set before the call is sent, so its number is the next one.
        target = channel.next_call_id  # by then the channel may carry another call

        def ask(_terminate: bool) -> None:
            try:  # it may be there before its call: the host knows of it then
                process.channel.cancel(target, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # the call itself reports what happened

        self._remove = self._cancellation.add_terminate_listener(ask)
        # Cancelled before the listener was there: the call is not sent at all.
        self._cancellation.check()

    def close(self) -> None:
        if self._remove is not None:
            self._remove()


def _signature_of(call: BoundCall) -> CallSignature | bool:
    """False for a call that cannot take the fast path."""
    from qnnbridge._fastpath.call import CallSignature

    inputs = [_tensor(tensor) for tensor in call.inputs]
    outputs = [_tensor(tensor) for tensor in call.outputs]
    if None in inputs or None in outputs:
        return False
    return CallSignature(tuple(filter(None, inputs)), tuple(filter(None, outputs)))


def _tensor(tensor: BoundTensor) -> TensorSignature | None:
    from qnnbridge._fastpath.call import TensorSignature

    array = tensor.array
    element = element_of(array.dtype)
    if element is None or not array.size:
        return None
    return TensorSignature(tensor.name, array.dtype, array.shape, element, array.nbytes)
