"""Deadlines, worker threads, admission of requests, receiving and (un)packing bodies."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from starlette.requests import Request

from qnnbridge_protocol.errors import Busy, DeadlineExceeded
from qnnbridge_serve.errors import Refused, wrong

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has closed its connection."""


# --- deadlines: times of `time.monotonic` ---


def deadline_after(timeout_s: float | None) -> float | None:
    """From now on; ``None`` for no limit."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def time_left_s(deadline: float | None) -> float | None:
    """Seconds until then. Raises `DeadlineExceeded` if there are none left."""
    if deadline is None:
        return None
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise not_started()
    return left_s


def check_answer_time(deadline: float | None) -> None:
    """Raises `DeadlineExceeded` when the time is over while an answer is written."""
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlineExceeded(
            "The time for the request was over while its answer was written.",
            fix="Ask for binary outputs (binary_data_output), or grant more time (--timeout).",
            details={"state": "finished"},
        )


def not_started() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The time for the request was over before its turn came.",
        fix="Send fewer requests at once, or grant more time (--timeout, the parameter timeout).",
        details={"state": "not-started"},
    )


# --- threads ---

# A thread without a job ends then. To start one for each request takes as long as the request.
LINGER_S: Final = 10.0


class Workers:
    """Jobs in the order of their arrival, `threads` at a time. The threads keep no program from ending."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = f"qnnbridge serve {name}"
        self._most = threads
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        # Guards the queue and both counts; held for a few lines only.
        self._coming = threading.Condition()
        self._threads = 0
        self._idle = 0

    async def do(self, job: Callable[[], Result]) -> Result:
        """The job's result, or its error."""
        return await asyncio.wrap_future(self._submit(job))

    async def do_for(
        self, job: Callable[[], Result], deadline: float | None, gone: Callable[[], Awaitable[Any]]
    ) -> Result:
        """`do`, dropped if its turn has not come at the deadline (`time.monotonic`) or when the client is gone.

        A job that has begun is always waited for: it knows its deadline itself.

        Args:
            gone: Returns when the client is.
        """
        future = self._submit(job)
        result = asyncio.wrap_future(future)
        watch = asyncio.ensure_future(gone())
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            # `wait` cancels nothing by itself: what becomes of the job is decided below.
            await asyncio.wait({result, watch}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            # `cancel` is false for a job that has begun; then its result, or its own error, is waited for.
            if not result.done() and future.cancel():
                raise ClientGone if watch.done() else not_started()
            return await result
        finally:
            watch.cancel()

    def _submit(self, job: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def work() -> None:
            # Dropped while it waited: nobody takes the result.
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - passed on to the waiting caller
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._coming:
            self._jobs.append(work)
            # Decided under the lock, so that no two requests start the same thread too many.
            another = len(self._jobs) > self._idle and self._threads < self._most
            self._threads += another
            self._coming.notify()
        if another:
            self._start()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # no more threads: the job waits for one that there is
            with self._coming:
                self._threads -= 1
                if self._threads:
                    return
                # There is no thread at all: a job is done here, in the event loop, rather than never.
                job = self._jobs.popleft()
            job()

    def _work(self) -> None:
        while True:
            with self._coming:
                self._idle += 1
                self._coming.wait_for(lambda: bool(self._jobs), LINGER_S)
                self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()
            del job  # and with it the request


# --- admission ---


# A client that has taken nothing of its answer for so long loses it when its memory is needed for other requests.
IDLE_S: Final = 2.0


class Admission:
    """Places and memory for requests, and memory for answers that are being sent. Any thread.

    Args:
        most: Requests that are worked on or wait for that.
        most_bytes: Of the bodies of all, as received and as unpacked, also of those that are still coming, and of
            the answers that their clients have not taken yet.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0
        # Answers that are being sent, by their tickets.
        self._sending: dict[Ticket, SentAnswer] = {}

    def enter(self) -> Ticket:
        """A ticket for a request whose body follows. Raises `Busy` without a free place."""
        with self._lock:
            # Looked at and not taken: hundreds of clients that send slowly would have all others refused.
            self._refuse_if_full()
        return Ticket(self)

    def take_place(self) -> None:
        with self._lock:
            self._refuse_if_full()
            self._count += 1

    def _refuse_if_full(self) -> None:
        if self._count >= self._most:
            raise Busy(
                f"{self._count} requests are being worked on or wait, and no more are taken.",
                fix="Send it again a little later, or give the server a longer --queue.",
            )

    def take(self, size: int) -> None:
        with self._lock:
            self._cut_off_idle(size)
            if self._bytes + size > self._most_bytes:
                raise Busy(
                    f"The requests and answers under way have {self._bytes} bytes; {size} more are not taken.",
                    fix="Send it again a little later, or give the server a larger --max-request.",
                )
            self._bytes += size

    def send(self, ticket: Ticket, size: int, abort: Callable[[], None]) -> None:
        """Count an answer that exists already, so it is not refused. abort: ends its connection."""
        with self._lock:
            self._cut_off_idle(size)
            self._bytes += size
            self._sending[ticket] = SentAnswer(size, abort, time.monotonic())

    def taken_on(self, ticket: Ticket) -> None:
        """The client has taken a part of its answer."""
        with self._lock:
            answer = self._sending.get(ticket)
            if answer is not None:
                answer.since = time.monotonic()

    def sent(self, ticket: Ticket) -> None:
        with self._lock:
            answer = self._sending.pop(ticket, None)
            self._bytes -= 0 if answer is None else answer.size

    def leave(self, places: int, size: int) -> None:
        with self._lock:
            self._count -= places
            self._bytes -= size

    def _cut_off_idle(self, size: int) -> None:
        """Under the lock: make room by ending the answers that their clients have left alone for longest."""
        now = time.monotonic()
        while self._sending and self._bytes + size > self._most_bytes:
            ticket, answer = min(self._sending.items(), key=lambda item: item[1].since)
            if now - answer.since < IDLE_S:
                return
            del self._sending[ticket]
            self._bytes -= answer.size
            answer.abort()


@dataclasses.dataclass(slots=True)
class SentAnswer:
    """An answer that is being sent. since: when its client took the last part of it, on `time.monotonic`."""

    size: int
    abort: Callable[[], None]
    since: float


class Ticket:
    """The places and bytes of one request, released at the end of the ``with``. One thread at a time."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._places = 0
        self._bytes = 0
        self._unpacked = 0

    def take_place(self) -> None:
        """The whole request is there: it counts from now on. A slow client takes no place from others. Raises
        `Busy`."""
        self._admission.take_place()
        self._places += 1

    def take(self, size: int) -> None:
        """Reserve more bytes. Raises `Busy`."""
        self._admission.take(size)
        self._bytes += size

    def unpack(self, size: int, most: int) -> None:
        """Reserve bytes that are made of the body. Raises `Busy`; `Refused` if they are more than `most` in all."""
        self._unpacked += size
        if self._unpacked > most:
            raise Refused(413, f"The body, unpacked, has more than {most} bytes; see the server's --max-request.")
        self.take(size)

    def begin_answer(self, size: int, abort: Callable[[], None]) -> None:
        """The work is done: the answer's bytes count in place of the request, until the end of the ``with``.

        abort: ends the connection; any thread.
        """
        self._leave()
        self._admission.send(self, size, abort)

    def taken_on(self) -> None:
        """The client has taken a part of the answer."""
        self._admission.taken_on(self)

    def _leave(self) -> None:
        self._admission.leave(self._places, self._bytes)
        self._places = self._bytes = 0

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._admission.sent(self)


# --- bodies ---

# How long a client may pause in the middle of a body.
SILENCE_TIMEOUT_S: Final = 30.0


async def receive_body(request: Request, ticket: Ticket, most: int) -> list[bytes]:
    """The parts of the body. Raises `Refused`, `Busy` and `ClientGone`."""
    return [part async for part in body_parts(request, ticket, most)]


async def body_parts(request: Request, ticket: Ticket, most: int) -> AsyncGenerator[bytes, None]:
    """The parts of the body as they come. Raises `Refused`, `Busy` and `ClientGone`."""
    announced = request.headers.get("content-length")
    if announced is not None:
        # 18 digits fit 64 bits; `int` of a text of any length would take time.
        if not (announced.isascii() and announced.isdecimal()) or len(announced) > 18:
            raise wrong("Content-Length is no number.")
        # Refused before a byte of the body is read.
        if int(announced) > most:
            raise _too_large(most)
    size = 0
    silence = _Silence()
    try:
        while True:
            silence.begin()
            message = await request.receive()
            silence.end()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            # A body in chunks announces no size, so it is counted as well.
            size += len(part)
            if size > most:
                raise _too_large(most)
            ticket.take(len(part))  # not the announced size: a slow client would keep others out
            yield part
            if not message.get("more_body", False):
                return
    except asyncio.CancelledError:
        if silence.was_too_long():
            raise Refused(408, f"Nothing came for {SILENCE_TIMEOUT_S:g} s in the middle of the request.") from None
        raise
    finally:
        silence.end()


class _Silence:
    """Cancels this task when it lasts too long. `asyncio.wait_for` takes a task for each part of a body."""

    def __init__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._too_long = False

    def begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SILENCE_TIMEOUT_S, self._cancel)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cancel(self) -> None:
        self._too_long = True
        self._task.cancel()

    def was_too_long(self) -> bool:
        """Whether the cancellation was this one, and none by the server besides."""
        # What is left of the count then are cancellations by others, which have to go on.
        uncancel = getattr(self._task, "uncancel", None)  # from Python 3.11 on
        return self._too_long and (uncancel is None or uncancel() == 0)


def _too_large(most: int) -> Refused:
    return Refused(
        413, f"The request has more than {most} bytes; the server's --max-request says how many it takes."
    )


_STEP_BYTES: Final = 1024**2
# Of the packed body at a time: what lies behind the end of a member is copied.
_FEED_BYTES: Final = 64 * 1024
_FEW_MEMBERS: Final = 16
# On average a gzip member is to have so much: to begin one takes longer than to unpack that.
_MEMBER_BYTES: Final = 1024
_EITHER: Final = 32 + zlib.MAX_WBITS  # a gzip or a zlib header; HTTP's "deflate" is zlib's format
_LEVEL: Final = 1  # tensors hardly get smaller with more work


def check_encoding(encoding: str | None) -> str | None:
    """``Content-Encoding``, or ``None`` for a body as it is. Raises `Refused`."""
    found = (encoding or "identity").strip().lower()
    if found == "identity":
        return None
    if found not in ("gzip", "deflate"):
        raise Refused(415, f"Content-Encoding {found[:40]!r} is not known; gzip and deflate are.")
    return found


def unpack(data: memoryview, take: Callable[[int], None]) -> bytes:
    """The body of which `data` is the compressed form.

    Args:
        take: Called with the size of each part as it is made; raises when it is too much, or too late.
    """
    parts: list[bytes] = []
    at = members = 0
    unpacker = None
    rest: bytes | memoryview = b""
    while rest or at < len(data) or unpacker is not None:
        if not rest:
            rest = data[at : at + _FEED_BYTES]
            at += len(rest)
        if unpacker is None:  # gzip may have several members
            unpacker = zlib.decompressobj(_EITHER)
            members += 1
            if members > _FEW_MEMBERS + len(data) // _MEMBER_BYTES:
                raise wrong("The body cannot be unpacked: it is in too many pieces.")
        try:
            # A step at a time: `take` refuses a bomb before it has become large.
            part = unpacker.decompress(rest, _STEP_BYTES)
        except zlib.error as error:
            raise wrong(f"The body cannot be unpacked: {error}.") from None
        if not part and not rest and not unpacker.eof:
            raise wrong("The body cannot be unpacked: its end is missing.")
        rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        take(len(part))
        parts.append(part)
        if unpacker.eof:
            unpacker = None
    return b"".join(parts)


def wanted_encoding(accept: str | None) -> str | None:
    """The encoding of the answer: packed only for a client that accepts one encoding and nothing else.

    Libraries accept gzip in every request, and packing floats takes more time than sending them.
    """
    found = (accept or "").strip().lower()
    return found if found in ("gzip", "deflate") else None


def pack(data: bytes, encoding: str, check: Callable[[], object] = lambda: None) -> bytes:
    """check: called between steps; raises when the time is over."""
    # 16 more is how zlib is asked for the head and the checksum of gzip.
    packer = zlib.compressobj(_LEVEL, wbits=zlib.MAX_WBITS + (16 if encoding == "gzip" else 0))
    body = memoryview(data)
    parts: list[bytes] = []
    for begin in range(0, len(body), _STEP_BYTES):
        check()
        parts.append(packer.compress(body[begin : begin + _STEP_BYTES]))
    return b"".join([*parts, packer.flush()])
