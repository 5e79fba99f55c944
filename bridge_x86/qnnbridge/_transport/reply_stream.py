"""`ReplyStream`: a request whose answer comes in parts, EVENT frames first and the REPLY last.

The caller takes a part when it wants one. Between two parts nothing is read for it, so the host must send a bounded
number of them. One thread uses a stream at a time; streams of one channel are used by any number of threads.
"""

from __future__ import annotations

import collections
from typing import Any

from qnnbridge._transport.channel import Channel, ChannelFailed
from qnnbridge._transport.open_requests import MAX_STREAMS, CallContext, Waiter
from qnnbridge_protocol.errors import from_wire
from qnnbridge_protocol.frames import Frame, Kind


class ReplyStream:
    """A request whose answer comes in parts. Made by `open`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._news: collections.deque[Frame] = collections.deque()
        self._waiter = Waiter(self._take_news)
        self._waiter.news = self._news
        self._open = True

    @classmethod
    def open(
        cls,
        channel: Channel,
        header: dict[str, Any],
        buffers: tuple[Any, ...],
        deadline: float | None,
        context: CallContext,
    ) -> ReplyStream | None:
        """Send the request. ``None`` if too many streams are open: use `Channel.call`, which gets the REPLY alone.

        Raises `ChannelFailed`, `ChannelRetired`, `Deadline`, `TooLarge`.
        """
        if len(channel.requests.streams) >= MAX_STREAMS:
            return None
        stream = cls(channel)
        try:
            # Entered before it is sent, so that no more than `MAX_STREAMS` are ever open; `abandon` takes it
            # out.
            channel.requests.streams[stream._waiter] = None
            channel._send((Kind.REQUEST, header, buffers), deadline, stream._waiter, context)
        except BaseException:
            stream.abandon()
            raise
        return stream

    @property
    def request_id(self) -> int:
        return self._waiter.request_id or 0

    def next(self, deadline: float | None) -> Frame:
        """The next EVENT, or the REPLY, which is the last. Past the deadline the stream stays open.

        Raises:
            BridgeError: the error that the host answered with.
            Deadline, ChannelFailed: as `Channel.call`.
        """
        while True:
            if self._news:
                return self._news.popleft()
            try:
                answer = self._channel._await(self._waiter, deadline)
            except ChannelFailed as failure:
                failure.request_id = self._waiter.request_id
                self._release()
                raise
            if answer is None or self._news:
                # Also when the REPLY is there already: the host sent its parts first, and the caller gets
                # them in order.
                continue  # the parts that came before the answer
            self._release()
            if answer.kind is Kind.ERROR:
                raise from_wire(answer.header.get("error") or {})
            return answer

    def close(self) -> None:
        """Give it up: the host is asked to stop, and what it still sends is dropped. Idempotent."""
        if not self._open:
            return
        self._release()
        if self._waiter.answer is None and not self._channel.failed:
            # Leave first: parts that still come have no caller then, and are dropped.
            self._channel._leave(self.request_id)
            self._channel._withdraw(self.request_id)

    def abandon(self) -> None:
        """`close` for a finalizer: the host gets no message, and sends what it was asked for."""
        if self._open:
            self._release()
            self._channel.requests.leave(self.request_id)

    def _take_news(self, frame: Frame) -> None:
        if frame.kind is Kind.EVENT:
            self._news.append(frame)
            self._waiter.wake()

    def _release(self) -> None:
        self._open = False
        self._channel.requests.streams.pop(self._waiter, None)


__all__ = ["ReplyStream"]
