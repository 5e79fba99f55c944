"""All fast channels of one client, and the requests that open them and attach memory.

Any thread of the server serves such a request, so the order of service is not the order of the requests. Where the
order matters, the request numbers show it. Any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge_host.fastpath.channel import CallSink, HostChannel
from qnnbridge_host.fastpath.shared_memory import Slabs, open_stream
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.fastpath import CALL_SHIFT, LAST_NUMBER, MAX_CHANNELS, PHASE_RECORD_BYTES
from qnnbridge_protocol.frames import desync


class OpenChannels:
    """The open channels of one client, and the requests that open them and attach memory."""

    def __init__(self, sink: CallSink, slabs: Slabs) -> None:
        self.sink = sink
        self.slabs = slabs
        self.closed = False
        self._lock = threading.Lock()
        self._open: set[HostChannel] = set()
        self.operations: dict[str, Callable[[Mapping[str, Any], int], None]] = {
            "channel.open": self._open_channel,
            "slab.attach": self._attach,
            "slab.release": self._release,
        }

    def __len__(self) -> int:
        return len(self._open)

    def ended(self, channel: HostChannel) -> None:
        with self._lock:
            self._open.discard(channel)

    def close(self) -> None:
        """Take no more calls and answer none: the client is gone, or takes its calls for lost with the connection.

        A channel ends when its client closes it, or with its next call.
        """
        # Channels look at it before each read; those that wait in a read end with their client's end of the
        # pipe.
        self.closed = True
        with self._lock:
            channels = list(self._open)
        for channel in channels:
            channel.ended = True
            channel.release()

    def withdraw(self, target: int) -> bool:
        """Withdraw the call with this id: if it is read later, it is not started. Returns whether it is unanswered.

        Callers look among the requests in flight afterwards. A call that arrives does both in the reverse order
        (it enters that table, then looks here), so one of the two sees the other.
        """
        with self._lock:
            # At most 64 channels; cancels are rare.
            channel = next((channel for channel in self._open if channel.number == target >> CALL_SHIFT), None)
        return channel is not None and channel.withdraw(target & LAST_NUMBER)

    def _open_channel(self, header: Mapping[str, Any], _request_id: int) -> None:
        number, slot, phases = (header.get(key) for key in ("channel", "slot", "phases"))
        if (
            type(number) is not int
            or not 0 < number < 2**31
            or type(slot) is not int
            or not 0 <= slot < MAX_CHANNELS
        ):
            raise desync("channel.open without a proper description")
        if phases is None:
            raise InvalidArgument(
                "A channel needs shared memory for its phases.", fix="Make calls without it by the connection."
            )
        at = slot * PHASE_RECORD_BYTES
        # A view: the host writes the phase there, and the application reads it after a death.
        record = self.slabs.get(phases).data.data[at : at + PHASE_RECORD_BYTES]
        with self._lock:
            if len(self._open) >= MAX_CHANNELS:
                raise InvalidArgument(f"There are {MAX_CHANNELS} channels already.")
            ends: list[int] = []
            try:
                ends.append(open_stream(_share_handle(header, "read"), write=False))
                ends.append(open_stream(_share_handle(header, "write"), write=True))
                channel = HostChannel(self, number, (ends[0], ends[1]), record)
                channel.start()
                self._open.add(channel)
            except (OSError, ValueError, RuntimeError) as error:
                # `HostChannel` owns them only once it has started.
                for fd in ends:
                    os.close(fd)
                raise InvalidArgument(f"The streams of a channel cannot be opened: {error}.") from error

    def _attach(self, header: Mapping[str, Any], request_id: int) -> None:
        number, size, writes = (header.get(key) for key in ("slab", "size", "host_writes"))
        if type(number) is not int or type(size) is not int or size <= 0 or type(writes) is not bool:
            raise desync("slab.attach without a proper description")
        try:
            self.slabs.attach(number, _share_handle(header, "where"), size, host_writes=writes, asked=request_id)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"Shared memory cannot be opened: {error}.") from error

    def _release(self, header: Mapping[str, Any], request_id: int) -> None:
        number = header.get("slab")
        if type(number) is int:
            self.slabs.release(number, asked=request_id)
            with self._lock:
                channels = list(self._open)
            for channel in channels:
                channel.forget_slab(number)


def _share_handle(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    share_handle = header.get(name)
    if not isinstance(share_handle, dict):
        raise desync(f"{name} names no shared object")
    return share_handle


__all__ = ["CallSink", "OpenChannels"]
