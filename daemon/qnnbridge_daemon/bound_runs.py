"""Repeated calls that a client makes over its fast channels: run in the NPU host over the daemon's own fast
channels.

The tensors lie in memory that the client shares, or in the daemon's if they came by the channel. From there they go
to the host the quick way that every application has (`qnnbridge._fastpath`). Where that cannot be had, the long
one. Any thread; a `BoundCall` is run by one at a time.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qnnbridge._transport.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_daemon.cancelling import Cancellation
from qnnbridge_protocol.elements import element_of
from qnnbridge_protocol.errors import BridgeError, Closed

if TYPE_CHECKING:
    from qnnbridge._fastpath.channel import FastChannel
    from qnnbridge._fastpath.signatures import CallSignature, TensorSignature
    from qnnbridge._remote_session import RemoteSession
    from qnnbridge._transport.host_process import HostProcess
    from qnnbridge_daemon.client_sessions import ClientSession
    from qnnbridge_host.engine.bound_call import BoundCall, BoundTensor
    from qnnbridge_host.engine.stop import StopHandle


class BoundSession:
    """A session of a client as its plans see it. A plan outlives its session, so it must not keep that alive."""

    def __init__(self, session: ClientSession) -> None:
        self._session = weakref.ref(session)

    def run_bound(self, call: BoundCall, stop: StopHandle, _enter: Callable[[str], None]) -> list[Any] | None:
        """See `EngineSession.run_bound`."""
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
    from qnnbridge._fastpath.runner import FastCallFailed, OptionalOutputs, run

    shape = call.native
    if shape is None:
        shape = call.native = _shape_of(call)
    arrays = OptionalOutputs(tensor.array for tensor in call.outputs)
    failure = None
    if shape is not False:
        watch = _ChannelWatch(cancellation)
        try:
            results = run(remote, shape, call.feeds, None, False, arrays, watch)
            if results is not None:
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
    """Cancels the call on the channel that it went by, as long as it is there."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._remove: Callable[[], None] | None = None

    def __call__(self, process: HostProcess, channel: FastChannel) -> None:
        target = channel.next_call_id  # by then the channel may carry the call of somebody else

        def ask(_terminate: bool) -> None:
            try:  # it may be there before its call: the host knows of it then
                process.channel.cancel(target, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # the call itself reports what happened

        self._remove = self._cancellation.add_terminate_listener(ask)
        self._cancellation.check()

    def close(self) -> None:
        if self._remove is not None:
            self._remove()


def _shape_of(call: BoundCall) -> CallSignature | bool:
    """False for what cannot go the quick way."""
    from qnnbridge._fastpath.signatures import CallSignature

    inputs = [_tensor(tensor) for tensor in call.inputs]
    outputs = [_tensor(tensor) for tensor in call.outputs]
    if any(tensor is None for tensor in (*inputs, *outputs)):
        return False
    return CallSignature(
        tuple(call.output_names),
        tuple(tensor for tensor in inputs if tensor is not None),
        tuple(tensor for tensor in outputs if tensor is not None),
    )


def _tensor(tensor: BoundTensor) -> TensorSignature | None:
    from qnnbridge._fastpath.signatures import TensorSignature

    array = tensor.array
    element = element_of(array.dtype)
    if element is None or not array.size:
        return None
    return TensorSignature(tensor.name, array.dtype, array.shape, element, array.nbytes)


__all__ = ["BoundSession"]
