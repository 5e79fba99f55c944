"""Sessions, objects and memory of one client in the NPU host. Thread-safe.

A client's session is one use of a shared model, with its own number of retries and its own queue. Objects have
other numbers for the client than in the NPU host. Everything is released when the client disconnects.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge._fastpath import slab_numbers
from qnnbridge._host_objects import HostObject, forward_creation
from qnnbridge._threads import TerminateRelay
from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge_daemon.fair_share import Cancellation
from qnnbridge_host.fastpath import AttachedSlab, Slabs
from qnnbridge_os.daemon_endpoint import KeptMemory
from qnnbridge_protocol.elements import element_of
from qnnbridge_protocol.errors import BridgeError, Busy, Cancelled, Closed
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._fastpath.call import CallSignature, TensorSignature
    from qnnbridge._fastpath.channel import FastChannel
    from qnnbridge._host import Host
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_daemon.accounts import Account, Meter
    from qnnbridge_daemon.fair_share import FairShare, Queue
    from qnnbridge_daemon.shared_sessions import Make, SharedModel, SharedSessions
    from qnnbridge_host.engine.calls import BoundCall, BoundTensor, StopHandle
    from qnnbridge_host.request.in_flight import Answer, Request


class ClientSession:
    """A client's session. `retry`: how often a call is repeated when the NPU host crashes, unless the call has its
    own number."""

    def __init__(self, model: SharedModel, retry: int, broker: DaemonServices, client: ClientHoldings) -> None:
        self.model = model
        self.retry = retry
        self._broker = broker
        self._client = client
        self._lock = threading.Lock()
        # Held while the session creates its own model, which may take minutes; `close` does not wait for it.
        self._changing = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def call(self, cancellation: Cancellation, size: int, *, waits: bool = True) -> Iterator[RemoteSession]:
        """Wait for the turn of a call of this many bytes, and count the call.

        Args:
            waits: False for a call without work for the NPU, which need not wait for its turn.

        Raises:
            Busy, Cancelled, Closed: the call cannot start; the class of the error is the reason.
        """
        begin = time.monotonic()
        failed = True
        try:
            # A run that is terminated immediately does no work: start it without a slot (`waits` is False).
            share = self._broker.fair_share
            turn = share.turn(self._client.queue, cancellation) if waits else contextlib.nullcontext()
            with turn:
                # Get the model after the wait, because the session may have been closed or made private in the
                # meantime.
                model = self._model()
                with model.use(self._broker.sessions.count_reload) as remote:
                    yield remote
            failed = False
        except Busy:
            self._client.account.meter.refused()
            self._broker.meter.refused()
            raise
        finally:
            seconds = time.monotonic() - begin
            for meter in (self._client.account.meter, self.model.meter, self._broker.meter):
                meter.count(seconds, size, failed=failed)

    def keep(self, value: Any) -> None:
        """Count the memory of a result until it is freed. Raise `Busy` if this exceeds the client's limit."""
        size = getattr(value, "nbytes", None)
        if size is not None and type(value).__module__ == "numpy":
            self._client.account.take(size)
            self._client.account.release_with(value, size)

    def go_private(self, make: Make, cancellation: Cancellation) -> None:
        """Replace the shared session by a session that only this client uses, because the client will change its
        state."""
        with self._changing:
            with self._lock:
                before = self.model
                if not before.shared or self._closed:
                    return
            # Do not hold the lock: the creation may take minutes, and `close` must be possible in the meantime.
            own, _ = self._broker.sessions.open(self._client, None, before.label, make, cancellation)
            with self._lock:
                closed = self._closed  # if true, `close` has released `before`
                if not closed:
                    self.model = own
            # Release exactly one model: the old one, or the new one if the session was closed in the meantime.
            self._broker.sessions.release(self._client, own if closed else before)

    def close(self) -> bool:
        """Close the session; return whether it was open."""
        with self._lock:
            was_open, self._closed = not self._closed, True
        if was_open:
            self._broker.sessions.release(self._client, self.model)
            self._client.account.close_session()
        return was_open

    def _model(self) -> SharedModel:
        if self._closed:
            raise Closed("The session is closed.", fix="Create a new session.")
        return self.model


class BoundSession:
    """A client's session as used by plans of the fast path. Plans may outlive the session and must not keep it
    loaded."""

    def __init__(self, session: ClientSession) -> None:
        self._session = weakref.ref(session)

    def run_bound(self, call: BoundCall, stop: StopHandle, _enter: Callable[[str], None]) -> list[Any] | None:
        """Run the call of a fast-path plan; see `EngineSession.run_bound`."""
        # Use a weak reference, so that the plan of a closed session raises `Closed` and does not keep a model
        # loaded.
        session = self._session()
        if session is None:
            raise Closed("The session is closed.", fix="Create a new session.")
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
    from qnnbridge._fastpath.call import OutputPlacement
    from qnnbridge._session.fast_calls import FastCallFailed, run
    from qnnbridge._supervision.retries import CallLimits

    signature = call.native
    if signature is None:
        # Store the signature in the plan's call: a plan belongs to one channel, and runs one call at a time.
        signature = call.native = _signature_of(call)
    arrays = [tensor.array for tensor in call.outputs]
    failure = None
    if signature is not False:
        watch = _ChannelWatch(cancellation)
        try:
            names = tuple(call.output_names)
            results = run(remote, lambda *_: signature, names, call.feeds, None, OutputPlacement(arrays), watch)
            if results is not None:
                # The NPU host has written to the client's memory, so there is nothing to copy or send.
                if all(result is array for result, array in zip(results, arrays, strict=True)):
                    return None
                return call.take(results)
        except FastCallFailed as error:
            failure = error.without_traceback()
        finally:
            watch.close()
    feeds = [(tensor.name, tensor.array, None) for tensor in call.inputs]
    values = remote.run(
        call.output_names,
        feeds,
        None,
        CallLimits(retry=retry),
        stop=cancellation,
        failed=failure,
    )
    return call.take(values)


class _ChannelWatch:
    """Forwards the cancellation of a call to the channel on which the call runs in the NPU host."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._remove: Callable[[], None] | None = None

    def __call__(self, process: HostProcess, channel: FastChannel) -> None:
        # The watch is created before the call is sent, so the call has the next number.
        target = channel.next_call_id

        def ask(_terminate: bool) -> None:
            try:  # the host also accepts a cancellation that arrives before its call
                process.channel.cancel(target, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
                pass  # the call itself raises the error of the channel

        self._remove = self._cancellation.add_terminate_listener(ask)
        # If the cancellation came before the listener was added, the call is not sent at all.
        self._cancellation.check()

    def close(self) -> None:
        if self._remove is not None:
            self._remove()


def _signature_of(call: BoundCall) -> CallSignature | bool:
    """Return the signature of a call; False if the call cannot use the fast path."""
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


# --- objects ---------------------------------------------------------------------------------------------

# Maximum number of objects of one client. The NPU host's own limit applies to all clients together.
MAX_OBJECTS: Final = 1000


class DaemonServices(Protocol):
    """Services of the daemon that the handlers of every client use."""

    host: Host
    fair_share: FairShare
    sessions: SharedSessions
    meter: Meter

    def status(self) -> dict[str, Any]: ...

    def request_stop(self, drain_s: float | None) -> None: ...


class ClientHoldings(Protocol):
    """A client's resources and its queue."""

    account: Account
    queue: Queue


class _Held(NamedTuple):
    """An object of a client.

    Attributes:
        object: the object in the NPU host.
        memory: size of its KV cache.
        steps: lock that is held during a step of a generator. The client requests the next step before a step has
            ended. The next step waits for this lock, so that it does not occupy a slot of the NPU host.
    """

    object: HostObject
    memory: int
    steps: threading.Lock


class ClientObjects:
    """Objects of one client in the NPU host."""

    def __init__(self, broker: DaemonServices, client: ClientHoldings, limit: int = MAX_OBJECTS) -> None:
        self._broker = broker
        self._client = client
        self._limit = limit
        self._lock = threading.Lock()
        # Objects by number.
        self._held: dict[int, _Held] = {}
        self._closed = False
        self.operations: dict[str, Callable[[Request, Cancellation], Answer]] = {
            "object.create": self._create,
            "object.call": self._call,
            "object.release": self._release,
        }

    def __len__(self) -> int:
        return len(self._held)

    def _create(self, request: Request, cancellation: Cancellation) -> Answer:
        header = request.header
        self._check_limit()
        others = self._others(header)
        while True:
            try:
                made, frame = forward_creation(self._broker.host, _forwarded(header), request.buffers, others)
                break
            except BridgeError as error:
                cancellation.check()
                if not (error.details.get("npu_memory") and self._broker.sessions.make_room(error, None)):
                    raise
        self._keep(request.id, made, 0, cancellation)
        return {**frame.header, "object": request.id}, frame.buffers

    def _call(self, request: Request, cancellation: Cancellation) -> Answer:
        header = request.header
        held = self._find(header.get("object"))
        found = held.object
        forwarded = {**_forwarded(header), "objects": found.numbers_of(self._others(header))}
        if header.get("operation") == "generator" and isinstance(header.get("arguments"), dict):
            # Send the host the remaining memory limit, so that it does not create a generator that `_keep` will
            # refuse.
            self._forget_memory_before(found.generation)
            forwarded["arguments"] = {**header["arguments"], "kv_room": self._client.account.kv_room}
        self._check_limit()
        with (
            held.steps if header.get("operation") == "step" else contextlib.nullcontext(),
            self._broker.fair_share.turn(self._client.queue, cancellation),
            TerminateRelay(cancellation, found.process().channel, False) as on_sent,
        ):
            frame = found.forward(forwarded, request.buffers, on_sent=on_sent, on_news=_relay(request))
        number = frame.header.get("object")
        if type(number) is not int:
            self._client.account.reuse(_reused(header, frame.header.get("result")))
            return frame.header, frame.buffers
        made = HostObject(self._broker.host, found.generation, number, str(header.get("operation")))
        self._keep(request.id, made, _memory_of(frame.header.get("result")), cancellation)
        return {**frame.header, "object": request.id}, frame.buffers

    def _release(self, request: Request, _cancellation: Cancellation) -> Answer:
        numbers = request.header.get("objects")
        for number in numbers if isinstance(numbers, list) else ():
            with self._lock:
                held = self._held.pop(number, None) if type(number) is int else None
            if held is not None:
                self._drop(held.object, held.memory)
        return {}, ()

    def close(self) -> None:
        """Release everything the client holds."""
        with self._lock:
            self._closed = True
            held = sorted(self._held.items(), reverse=True)
            self._held.clear()
        for _, one in held:
            self._drop(one.object, one.memory)

    def _drop(self, one: HostObject, memory: int) -> None:
        one.release()
        self._client.account.drop_kv(memory)

    def _keep(self, number: int, made: HostObject, memory: int, cancellation: Cancellation) -> None:
        """Record a new object that needs `memory` bytes. Raise `Busy` or `Cancelled`."""
        self._forget_memory_before(made.generation)
        try:
            self._client.account.hold_kv(memory)
        except Busy:
            made.release()
            raise
        with self._lock:
            gone = self._closed or cancellation.terminate
            if not gone:
                self._held[number] = _Held(made, memory, threading.Lock())
        if gone:
            self._drop(made, memory)
            raise Cancelled("The creation of the object was cancelled.")

    def _forget_memory_before(self, generation: int) -> None:
        """Stop counting the memory of objects of ended hosts: a client recreates such objects before it releases
        the old ones."""
        with self._lock:
            held = self._held.items()
            lost = {n: one for n, one in held if one.memory and one.object.generation < generation}
            self._held.update((number, one._replace(memory=0)) for number, one in lost.items())
        self._client.account.drop_kv(sum(one.memory for one in lost.values()))

    def _find(self, number: Any) -> _Held:
        with self._lock:
            held = self._held.get(number) if type(number) is int else None
        if held is None:
            raise Closed("The object was released.", fix="Create a new object.")
        return held

    def _others(self, header: dict[str, Any]) -> list[HostObject]:
        numbers = header.get("objects")
        return [self._find(number).object for number in numbers] if isinstance(numbers, list) else []

    def _check_limit(self) -> None:
        if len(self._held) >= self._limit:
            raise Busy(
                f"This application has {self._limit} objects, the daemon's maximum for one application.",
                cause="The daemon is shared with other applications, so each has limits.",
                fix="Release objects that are no longer needed by deleting the last reference to them.",
                details={"limit": "objects", "value": self._limit},
            )


def _reused(header: dict[str, Any], result: Any) -> int:
    """Return how many tokens were in the KV cache when a `step` processed a prompt; 0 if they were processed
    again."""
    arguments = header.get("arguments")
    if header.get("operation") != "step" or not header.get("values") or not isinstance(arguments, dict):
        return 0
    length, replayed = arguments.get("length"), arguments.get("restore")
    # The third number in a step's result is the number of new native generators that processed the history again.
    kept = isinstance(result, (list, tuple)) and len(result) > 2 and result[2] == 0
    return length if type(length) is int and length > 0 and kept and not replayed else 0


def _memory_of(result: Any) -> int:
    """Return the size of the KV cache if the result is a generator; 0 otherwise."""
    size_bytes = result.get("kv_bytes") if isinstance(result, dict) else None
    return size_bytes if type(size_bytes) is int and size_bytes > 0 else 0


def _forwarded(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header without object numbers, which differ between client and NPU host."""
    return {key: value for key, value in header.items() if key not in ("object", "objects")}


def _relay(request: Request) -> Callable[[Frame], None]:
    """Return a function that passes events about a request in the NPU host to the client."""

    def take(frame: Frame) -> None:
        if frame.kind is Kind.EVENT:
            request.emit(dict(frame.header))

    return take


# --- memory ----------------------------------------------------------------------------------------------
# Slabs (blocks of memory that the client shares with the daemon), and memory of the client's plans, count for its
# limit. The NPU host maps the same memory, so that the daemon does not copy tensors. The daemon's own fast
# channels treat a slab like an array of an application (`qnnbridge._fastpath.memory`). If the mapping fails (for
# example without a free descriptor or handle), the contents are copied. Memory counts until its last reference is
# gone; finalizers only append to a queue, which a later call processes.


class ForeignSlab:
    """A client's slab for the daemon's own fast channels: memory that the NPU host can map."""

    __slots__ = ("data", "host_writes", "number", "share_handle", "size")

    def __init__(self, kept: KeptMemory, data: npt.NDArray[np.uint8], host_writes: bool) -> None:
        self.number = next(slab_numbers)
        self.size = data.nbytes
        self.host_writes = host_writes
        self.data = data
        self.share_handle = kept.share_handle


class ClientSlab(AttachedSlab):
    """A slab that a client shares with the daemon, and its registration in the NPU host."""

    __slots__ = ("foreign", "host")

    def __init__(self, data: npt.NDArray[np.uint8], host_writes: bool, host: Host, foreign: ForeignSlab) -> None:
        super().__init__(data, host_writes)
        self.host = host
        self.foreign = foreign

    def view(self, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> npt.NDArray[Any]:
        """Return an array that the daemon's fast channels recognise as memory that the NPU host can access in
        place."""
        from qnnbridge._fastpath.memory import SharedBlock

        plain = AttachedSlab.view(self, shape, dtype, offset)
        return SharedBlock(self.host.arrays, self.foreign, offset).make_array(plain)


class GoneSlabs:
    """Slabs that are no longer referenced and must be released in the NPU host. One object serves all clients and
    outlives them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._numbers: collections.deque[int] = collections.deque()

    def watch(self, slab: ForeignSlab, kept: KeptMemory) -> None:
        """Release a slab, and close `kept`, when its memory is not referenced any more."""
        # The finalizer belongs to the array instead of the slab, because plans and running calls refer to the
        # array.
        weakref.finalize(slab.data, _release, kept, slab.number, self._numbers).atexit = False

    def settle(self) -> None:
        """Release the unreferenced slabs in the NPU host. The call may wait briefly for the host."""
        while self._numbers:
            self._host.forget_slab(self._numbers.popleft())


class ClientSlabs(Slabs):
    """All slabs (blocks of shared memory) of one client, within its limit."""

    def __init__(self, account: Account, host: Host, gone: GoneSlabs) -> None:
        super().__init__()
        self._account = account
        self._host = host
        self._gone = gone

    def close(self) -> None:
        """Release all slabs of the disconnected client."""
        with self._lock:
            self._slabs.clear()

    def _map(self, where: dict[str, Any], size: int, host_writes: bool) -> AttachedSlab:
        """Map a slab of the client. Raise `Busy`, in addition to the errors of the base class."""
        # Count the memory before mapping it, so that nothing is mapped beyond the limit.
        self._account.take(size, shared=True)
        kept = None
        try:
            if sys.platform == "linux":
                from qnnbridge_os.sharing import check_sealed

                # Refuse memory that the client could shrink: the next access would crash the daemon by SIGBUS.
                check_sealed(where)
            # Duplicate the handle before the mapping, which closes it.
            kept = _keep(where)
            slab = super()._map(where, size, host_writes)
        except BaseException:
            if kept is not None:
                kept.close()
            self._account.give_back(size, shared=True)
            raise
        # Count the memory until the array is freed, because plans refer to the array and not to the slab.
        self._account.release_with(slab.data, size, shared=True)
        if kept is None:
            return slab
        foreign = ForeignSlab(kept, slab.data, host_writes)
        self._gone.watch(foreign, kept)
        return ClientSlab(slab.data, host_writes, self._host, foreign)


def _keep(where: dict[str, Any]) -> KeptMemory | None:
    """Keep a descriptor or handle of the memory for the NPU host. Return ``None`` if no descriptor or handle is
    free; calls then copy the contents."""
    try:
        return KeptMemory(where)
    except (OSError, ValueError):
        return None


def _release(kept: KeptMemory, number: int, gone: collections.deque[int]) -> None:
    kept.close()
    gone.append(number)
