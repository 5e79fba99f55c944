"""Deadlines, worker threads, admission of requests, and receiving and (de)compressing bodies."""

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
    """Return the deadline `timeout_s` seconds from now; ``None`` for no limit."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def time_left_s(deadline: float | None) -> float | None:
    """Return the seconds until the deadline. Raise `DeadlineExceeded` after it."""
    if deadline is None:
        return None
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise not_started()
    return left_s


def check_answer_time(deadline: float | None) -> None:
    """Raise `DeadlineExceeded` if the deadline passes while an answer is being written."""
    if deadline is not None and time.monotonic() >= deadline:
        raise DeadlineExceeded(
            "The request timed out while its answer was being written.",
            fix="Request binary outputs (binary_data_output), or grant more time (--timeout).",
            details={"state": "finished"},
        )


def not_started() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The request timed out while it waited for its turn.",
        fix="Send fewer requests at once, or grant more time (--timeout, the parameter timeout).",
        details={"state": "not-started"},
    )


# --- threads ---

# Seconds after which an idle thread ends. Without idle threads, each request would start a thread, which takes as
# long as the request.
LINGER_S: Final = 10.0


class Workers:
    """Pool of daemon threads, which runs jobs in the order of their arrival.

    Args:
        name: part of the names of the threads.
        threads: maximum number of threads.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = f"qnnbridge serve {name}"
        self._most = threads
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        # This condition guards the queue and the counts of threads, and is held only briefly.
        self._coming = threading.Condition()
        self._threads = 0
        self._idle = 0

    def start(self, job: Callable[[], Result]) -> asyncio.Future[Result]:
        """Start a job. Return the future of its result. Called in the event loop."""
        return asyncio.wrap_future(self._submit(job))

    async def do(self, job: Callable[[], Result]) -> Result:
        """Run a job. Return its result or raise its error."""
        return await self.start(job)

    async def do_for(
        self, job: Callable[[], Result], deadline: float | None, gone: Callable[[], Awaitable[Any]]
    ) -> Result:
        """Run a job, but drop it if it has not started at the deadline, or when the client disconnects.

        A job that has started is always awaited: it checks the deadline itself.

        Args:
            job: the job.
            deadline: time of `time.monotonic`; ``None`` for no limit.
            gone: returns when the client has closed its connection.
        """
        future = self._submit(job)
        result = asyncio.wrap_future(future)
        watch = asyncio.ensure_future(gone())
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            # At the timeout, `wait` does not cancel the job, which may have started.
            await asyncio.wait({result, watch}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            # `cancel` returns False for a started job; then the result or error of the job is awaited.
            if not result.done() and future.cancel():
                raise ClientGone if watch.done() else not_started()
            return await result
        finally:
            watch.cancel()

    def _submit(self, job: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def work() -> None:
            # Skip a job that was cancelled while it waited.
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
            # Decide under the lock, so that concurrent requests do not start too many threads.
            another = len(self._jobs) > self._idle and self._threads < self._most
            self._threads += another
            self._coming.notify()
        if another:
            self._start()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # no thread can be started, so the job waits for an existing thread
            with self._coming:
                self._threads -= 1
                if self._threads:
                    return
                # No thread exists, so run the job here, in the event loop.
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
            del job  # frees the memory of the request


# --- admission ---


# To free memory, an answer may be dropped if the client has received nothing of it for this many seconds.
IDLE_S: Final = 2.0


class Admission:
    """Limit the number of requests, and the memory of requests and answers. Safe to use from any thread.

    Args:
        most: maximum number of running and waiting requests.
        most_bytes: maximum size of all bodies, compressed and decompressed, including those still being received,
            and of all answers that clients have not received completely.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0
        # Answers that are being sent, by ticket.
        self._sending: dict[Ticket, SentAnswer] = {}

    def enter(self) -> Ticket:
        """Return a ticket for a request whose body follows. Raise `Busy` if the queue is full."""
        with self._lock:
            # Do not count the request before its body has arrived: otherwise a few hundred slow clients could block
            # all others.
            self._refuse_if_full()
        return Ticket(self)

    def take_place(self) -> None:
        with self._lock:
            self._refuse_if_full()
            self._count += 1

    def _refuse_if_full(self) -> None:
        if self._count >= self._most:
            raise Busy(
                f"{self._count} requests are running or waiting, and no more are accepted.",
                fix="Send the request again later, or start the server with a larger --queue.",
            )

    def take(self, size: int) -> None:
        with self._lock:
            self._cut_off_idle(size)
            if self._bytes + size > self._most_bytes:
                raise Busy(
                    f"Open requests and answers use {self._bytes} bytes; {size} more bytes exceed the limit.",
                    fix="Send the request again later, or start the server with a larger --max-request.",
                )
            self._bytes += size

    def send(self, ticket: Ticket, size: int, abort: Callable[[], None]) -> None:
        """Count a finished answer's memory; never refuse it. abort: function that ends the answer's connection."""
        with self._lock:
            self._cut_off_idle(size)
            self._bytes += size
            self._sending[ticket] = SentAnswer(size, abort, time.monotonic())

    def note_progress(self, ticket: Ticket) -> None:
        """Record that the client has received a part of its answer."""
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
        """Free memory for `size` bytes by dropping the answers that have been idle for longest.

        Called under the lock.
        """
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
    """Answer being sent. since: time (`time.monotonic`) at which the client last received a part of it."""

    size: int
    abort: Callable[[], None]
    since: float


class Ticket:
    """Reserved queue place and memory of a request, released at the end of the ``with`` block. Not thread-safe."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._places = 0
        self._bytes = 0
        self._unpacked = 0

    def take_place(self) -> None:
        """Count the request, once it has been received completely, so that slow clients do not block others.

        Raises:
            Busy: the queue is full.
        """
        self._admission.take_place()
        self._places += 1

    def take(self, size: int) -> None:
        """Reserve memory for more bytes of the request. Raise `Busy` if that exceeds the limit."""
        self._admission.take(size)
        self._bytes += size

    def unpack(self, size: int, most: int) -> None:
        """Reserve bytes for data decoded from the body.

        Raise `Busy`, or `Refused` if they exceed `most` in total.
        """
        self._unpacked += size
        if self._unpacked > most:
            raise Refused(413, f"The decompressed body has more than {most} bytes; see the server's --max-request.")
        self.take(size)

    def begin_answer(self, size: int, abort: Callable[[], None]) -> None:
        """Release the request's memory, and count the answer's memory until the end of the ``with`` block.

        abort: function that ends the connection; called by any thread.
        """
        self._leave()
        self._admission.send(self, size, abort)

    def note_progress(self) -> None:
        """Record that the client has received a part of the answer."""
        self._admission.note_progress(self)

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
    """Return the parts of the body. Raise `Refused`, `Busy` or `ClientGone`."""
    return [part async for part in body_parts(request, ticket, most)]


async def body_parts(request: Request, ticket: Ticket, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the parts of the body as they arrive. Raise `Refused`, `Busy` or `ClientGone`."""
    announced = request.headers.get("content-length")
    if announced is not None:
        # Accept at most 18 digits, which fit into 64 bits: `int` of a very long text would take time.
        if not (announced.isascii() and announced.isdecimal()) or len(announced) > 18:
            raise wrong("Content-Length is not a number.")
        # Refuse a large body before a byte of it is read.
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
            # A chunked body does not announce its size, so the bytes are counted.
            size += len(part)
            if size > most:
                raise _too_large(most)
            # Reserve memory for received bytes only: if the announced size were reserved, slow clients could block
            # others.
            ticket.take(len(part))
            yield part
            if not message.get("more_body", False):
                return
    except asyncio.CancelledError:
        if silence.was_too_long():
            raise Refused(
                408, f"No data arrived for {SILENCE_TIMEOUT_S:g} s in the middle of the request."
            ) from None
        raise
    finally:
        silence.end()


class _Silence:
    """Timer that cancels the current task if the client sends nothing for too long.

    It is cheaper than `asyncio.wait_for`, which starts a task for each part.
    """

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
        """Return whether this timer cancelled the task, and the server did not."""
        # A cancellation that is left after `uncancel` comes from the server, and must not be hidden.
        uncancel = getattr(self._task, "uncancel", None)  # from Python 3.11 on
        return self._too_long and (uncancel is None or uncancel() == 0)


def _too_large(most: int) -> Refused:
    return Refused(413, f"The request has more than {most} bytes; see the server's --max-request.")


_STEP_BYTES: Final = 1024**2
# Number of compressed bytes per step; small, because zlib copies the rest of the step at the end of a gzip member.
_FEED_BYTES: Final = 64 * 1024
_FEW_MEMBERS: Final = 16
# Minimum average size of gzip members in bytes: starting a member takes longer than decompressing this many bytes.
_MEMBER_BYTES: Final = 1024
_EITHER: Final = 32 + zlib.MAX_WBITS  # accept a gzip or a zlib header; HTTP's "deflate" is zlib's format
_LEVEL: Final = 1  # higher levels hardly compress tensors further


def check_encoding(encoding: str | None) -> str | None:
    """Return the ``Content-Encoding``, or ``None`` for an uncompressed body. Raise `Refused` if it is unknown."""
    found = (encoding or "identity").strip().lower()
    if found == "identity":
        return None
    if found not in ("gzip", "deflate"):
        raise Refused(415, f"Content-Encoding {found[:40]!r} is not supported; gzip and deflate are.")
    return found


def unpack(data: memoryview, take: Callable[[int], None]) -> bytes:
    """Decompress a body.

    Args:
        data: the compressed body.
        take: called with the size of each decompressed part; raises an error above the limit or after the deadline.
    """
    parts: list[bytes] = []
    at = members = 0
    unpacker = None
    rest: bytes | memoryview = b""
    while rest or at < len(data) or unpacker is not None:
        if not rest:
            rest = data[at : at + _FEED_BYTES]
            at += len(rest)
        if unpacker is None:  # the next member of gzip data begins
            unpacker = zlib.decompressobj(_EITHER)
            members += 1
            if members > _FEW_MEMBERS + len(data) // _MEMBER_BYTES:
                raise wrong("The body cannot be decompressed: it consists of too many gzip members.")
        try:
            # Decompress in steps, so that `take` can refuse a decompression bomb in time.
            part = unpacker.decompress(rest, _STEP_BYTES)
        except zlib.error as error:
            raise wrong(f"The body cannot be decompressed: {error}.") from None
        if not part and not rest and not unpacker.eof:
            raise wrong("The body cannot be decompressed: its end is missing.")
        rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        take(len(part))
        parts.append(part)
        if unpacker.eof:
            unpacker = None
    return b"".join(parts)


def wanted_encoding(accept: str | None) -> str | None:
    """Return the encoding of the answer; ``None`` unless the client accepts exactly one encoding.

    A list of encodings is no request to compress: many libraries send one by default, and compressing floats takes
    more time than sending them.
    """
    found = (accept or "").strip().lower()
    return found if found in ("gzip", "deflate") else None


def pack(data: bytes, encoding: str, check: Callable[[], object] = lambda: None) -> bytes:
    """Compress a body. check: called between steps; raises an error after the deadline."""
    # Adding 16 makes zlib write the header and checksum of gzip.
    packer = zlib.compressobj(_LEVEL, wbits=zlib.MAX_WBITS + (16 if encoding == "gzip" else 0))
    body = memoryview(data)
    parts: list[bytes] = []
    for begin in range(0, len(body), _STEP_BYTES):
        check()
        parts.append(packer.compress(body[begin : begin + _STEP_BYTES]))
    return b"".join([*parts, packer.flush()])
