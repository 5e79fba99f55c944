"""Reading and writing real pipes: no data is lost, duplicated or reordered, not even by Ctrl+C."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from tests import needs

from qnnbridge._transport.channel import Channel
from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.errors import HostCrashed

# Capacity of a pipe on Linux; other systems have less.
PIPE_BYTES = 64 * 1024

needs_signals = needs.posix


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe. A test may close either."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def interrupt() -> Iterator[Callable[..., None]]:
    """Function that installs an action for SIGALRM: a given function runs, then KeyboardInterrupt is raised, as at
    Ctrl+C.

    An alarm before or after the driver is postponed, so that it always interrupts the driver.
    """
    drivers = {ByteReader.read_into.__code__, ByteWriter.write_some.__code__}

    def install(before: Callable[[], object] = lambda: None) -> None:
        def handler(_number: int, frame: FrameType | None) -> None:
            while frame is not None and frame.f_code not in drivers:
                frame = frame.f_back
            if frame is None:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                return
            before()
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, handler)

    old = signal.getsignal(signal.SIGALRM)
    yield install
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def pattern(size: int) -> bytes:
    return bytes(itertools.islice(itertools.cycle(range(251)), size))


class Sink:
    """Destination of read bytes."""

    def __init__(self, fd: int, size: int = 4096) -> None:
        self.reader = ByteReader(fd)
        self.data = bytearray()
        self.ended = False
        self._buffer = memoryview(bytearray(size))

    def read(self) -> int:
        return self.reader.read_into(self._buffer, self._take)

    def read_to_the_end(self) -> bytes:
        while not self.ended:
            self.read()
        return bytes(self.data)

    def _take(self, count: int) -> int:
        self.ended = count == 0
        self.data += self._buffer[:count]
        return count


def read_all(fd: int) -> tuple[threading.Thread, Sink]:
    """Read in another thread until the end."""
    sink = Sink(fd)
    thread = threading.Thread(target=sink.read_to_the_end)
    thread.start()
    return thread, sink


# --- reading ---------------------------------------------------------------------------------------------


def test_written_bytes_are_read(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"abc")
    sink = Sink(pipe[0])
    assert sink.read() == 3
    assert sink.data == b"abc"


def test_no_more_is_read_than_the_buffer_holds(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"abcdef")
    sink = Sink(pipe[0], size=4)
    assert [sink.read(), sink.read()] == [4, 2]
    assert sink.data == b"abcdef"


def test_the_end_of_the_stream_is_a_count_of_zero_every_time(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    sink = Sink(pipe[0])
    assert [sink.read(), sink.read()] == [0, 0]


def test_no_data_yet_is_not_the_end_of_the_stream(pipe: tuple[int, int]) -> None:
    """Use a non-blocking descriptor, as a socket that is shared with a writer."""
    os.set_blocking(pipe[0], False)
    sink = Sink(pipe[0])
    with pytest.raises(BlockingIOError):
        sink.read()
    assert not sink.reader.torn
    assert not sink.reader.ready
    os.write(pipe[1], b"abc")
    assert sink.read() == 3


def test_the_result_of_the_consumer_is_returned(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"abc")
    assert ByteReader(pipe[0]).read_into(memoryview(bytearray(9)), lambda count: "x" * count) == "xxx"


def test_a_consumer_that_fails_marks_the_stream_as_torn(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"abc")
    reader = ByteReader(pipe[0])
    with pytest.raises(ZeroDivisionError):
        reader.read_into(memoryview(bytearray(9)), lambda count: count // 0)
    assert reader.torn


def test_the_descriptor_stays_open_when_the_reader_is_deleted(pipe: tuple[int, int]) -> None:
    reader = ByteReader(pipe[0])
    del reader
    os.write(pipe[1], b"abc")
    assert os.read(pipe[0], 9) == b"abc"


# --- writing ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["gathering", "plain"])
def each_way_of_writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test also without a gathering write, as on Windows."""
    if request.param == "plain":
        monkeypatch.delattr(os, "writev", raising=False)


@pytest.mark.usefixtures("each_way_of_writing")
@pytest.mark.parametrize(
    "chunks",
    [
        [b"a"],
        [b"abc", b"", b"def"],
        [bytes([n % 251]) for n in range(3000)],
        [pattern(3 * 1024 * 1024 + 1)],
        [pattern(n) for n in (1, 70_000, 0, 3, 200_000, 64)],
    ],
    ids=["one", "with an empty one", "3000", "3 MiB", "mixed"],
)
def test_chunks_arrive_complete_and_in_order(pipe: tuple[int, int], chunks: list[bytes]) -> None:
    thread, sink = read_all(pipe[0])
    writer = ByteWriter(blocking_write(pipe[1]))
    writer.write_all(map(memoryview, chunks))
    assert not writer.pending
    assert not writer.torn
    os.close(pipe[1])
    thread.join()
    assert sink.data == b"".join(chunks)


@pytest.mark.usefixtures("each_way_of_writing")
def test_the_rest_of_a_write_to_a_full_pipe_stays_pending(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    chunks = [pattern(n) for n in (10, 3 * PIPE_BYTES, 7, PIPE_BYTES)]
    writer = ByteWriter(blocking_write(pipe[1]))
    writer.add(map(memoryview, chunks))
    read = bytearray()
    stops = 0
    while writer.pending:
        with contextlib.suppress(BlockingIOError):
            writer.write_all([])
        assert not writer.torn
        stops += writer.pending
        read += os.read(pipe[0], 10_000)
    assert stops > 3
    while len(read) < sum(map(len, chunks)):
        read += os.read(pipe[0], 10 * PIPE_BYTES)
    assert read == b"".join(chunks)


def test_added_bytes_follow_the_pending_ones(pipe: tuple[int, int]) -> None:
    writer = ByteWriter(blocking_write(pipe[1]))
    writer.add([memoryview(b"one "), memoryview(b"two ")])
    writer.add([memoryview(b"three "), memoryview(b"")])
    writer.write_all([memoryview(b"four")])
    assert os.read(pipe[0], 99) == b"one two three four"


@pytest.mark.parametrize("portion", [1, 2, 3, 5, 100])
def test_a_partial_write_continues_where_it_stopped(portion: int) -> None:
    written = bytearray()

    def write(chunks: list[memoryview]) -> int:
        taken = b"".join(chunks)[:portion]
        written.extend(taken)
        return len(taken)

    writer = ByteWriter(write)
    writer.write_all([memoryview(b"ab"), memoryview(b""), memoryview(b"cdefg"), memoryview(b"h")])
    assert written == b"abcdefgh"
    assert not writer.pending


def test_a_broken_pipe_is_an_error_that_discards_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    writer = ByteWriter(blocking_write(pipe[1]))
    with pytest.raises(BrokenPipeError):
        writer.write_all([memoryview(b"abc")])
    assert writer.pending
    assert not writer.torn


def test_pending_bytes_can_be_discarded() -> None:
    writer = ByteWriter(lambda _chunks: 0)
    writer.add([memoryview(b"abc")])
    writer.discard()
    assert not writer.pending


# --- Ctrl+C ----------------------------------------------------------------------------------------------


@needs_signals
def test_an_interrupt_while_waiting_for_bytes_loses_nothing(
    pipe: tuple[int, int], interrupt: Callable[..., None]
) -> None:
    """The bytes arrive in the very moment of the interrupt."""
    pieces = (bytes([65 + n]) * (n + 1) for n in itertools.count())
    interrupt(lambda: os.write(pipe[1], next(pieces)))
    sink = Sink(pipe[0])
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        with pytest.raises(KeyboardInterrupt):
            sink.read()
        assert not sink.reader.torn
        sink.read()
    assert sink.data == b"".join(bytes([65 + n]) * (n + 1) for n in range(20))


@needs_signals
@needs.linux
def test_an_interrupt_directly_after_the_read_keeps_the_count_for_the_next_call(
    pipe: tuple[int, int], interrupt: Callable[..., None]
) -> None:
    """The kernel has delivered the bytes, and the interrupt occurs before their number is read."""
    interrupt()
    sink = Sink(pipe[0])
    waits_in_read = f"0 {pipe[0]:#x} "
    here = threading.get_native_id()
    libc = ctypes.PyDLL(None)  # its calls keep the GIL, so that the reader returns only after the signal

    def strike() -> None:
        while not Path(f"/proc/self/task/{here}/syscall").read_text().startswith(waits_in_read):
            os.sched_yield()
        libc.write(pipe[1], b"abc", 3)
        getattr(libc, "raise")(int(signal.SIGALRM))

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=strike)
    sys.setswitchinterval(10)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sink.read()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert sink.data == b""
    assert sink.reader.ready
    assert not sink.reader.torn
    assert sink.read() == 3, "at once: the pipe is empty"
    assert sink.data == b"abc"
    assert not sink.reader.ready


@needs_signals
def test_interrupts_at_random_moments_lose_nothing_or_raise_an_error(
    pipe: tuple[int, int], interrupt: Callable[..., None]
) -> None:
    interrupt()
    total, piece = 2_000_000, 2500  # several milliseconds, however quick the machine is
    data = pattern(total)

    def write() -> None:
        for at in range(0, total, piece):
            os.write(pipe[1], data[at : at + piece])
        os.close(pipe[1])

    def read() -> bool:
        """Return whether the write was interrupted."""
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            while not sink.ended and not sink.reader.torn:
                sink.read()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    thread = threading.Thread(target=write)
    sink = Sink(pipe[0], size=700)
    interrupts = 0
    thread.start()
    while read():
        interrupts += 1
    torn = sink.reader.torn
    while os.read(pipe[0], 10_000):
        pass  # so that the writer can finish
    thread.join()
    assert interrupts
    assert torn or sink.data == data


def iter_bytes(fd: int, count: int) -> bytes:
    """Read the next `count` bytes of a pipe."""
    data = b""
    while len(data) < count:
        data += os.read(fd, count - len(data))
    return data


@needs_signals
def test_an_interrupted_write_continues_where_it_stopped(
    pipe: tuple[int, int], interrupt: Callable[..., None]
) -> None:
    interrupt()
    data = bytes(range(256)) * (4 * PIPE_BYTES // 256)
    writer = ByteWriter(blocking_write(pipe[1]))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with pytest.raises(KeyboardInterrupt):
        writer.write_all([memoryview(data)])
    assert writer.pending
    assert not writer.torn
    sink = bytearray()
    reader = threading.Thread(target=lambda: sink.extend(iter_bytes(pipe[0], len(data))))
    reader.start()
    writer.write_all([])
    reader.join()
    assert sink == data


def test_a_pipe_is_not_inspected_during_a_write_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows would answer only after the write, which may never end."""
    connection: Any = SimpleNamespace(_marks={0: None}, fail=lambda error: error, _on_silence=lambda: None)
    with pytest.raises(HostCrashed, match="has closed the connection's descriptors"):
        Channel._check_ours(connection, 0)
    monkeypatch.setattr("qnnbridge._transport.channel.is_writing", lambda fd: True)
    Channel._check_ours(connection, 0)
