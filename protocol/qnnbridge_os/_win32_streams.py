"""Wait for and write to pipes on Windows, which supports neither polling nor partial writes of pipes.

A thread for each pipe does the writes that could block, from a separate buffer. So a caller whose deadline expires
knows exactly which bytes will be written. (A cancelled system call does not report how many bytes it has written.)

Thread-safe; one writer at a time per pipe.
"""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import errno
import msvcrt
import os
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import wintypes
from typing import Any

from qnnbridge_os import _win32_api as api
from qnnbridge_os.fds import OwnedFds, closed_by_others
from qnnbridge_os.native import Lock, SimpleQueue, sleep
from qnnbridge_os.shield import Changes, is_interruptible, start_thread

assert sys.platform == "win32"

from qnnbridge_os.sharing import map_shared  # noqa: E402 - type checkers find it empty on Linux

# Size of a pipe, and of the buffer of its writer thread.
BUFFER_BYTES = 1 << 20
# Up to this size, joining chunks is faster than a system call for each chunk.
_JOIN_BYTES = 1 << 16

_SPIN_S = 0.0005
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.008
_CTRL_C_INTERVAL_S = 0.1


def enlarge_pipe(fd: int) -> None:
    """Do nothing: a pipe's size is fixed when it is created, and the spawner creates large pipes."""


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait up to `timeout_s` for data, the end of the file or an error. Return whether a read would return
    immediately.

    The pipe is polled: without pause for half a millisecond, to receive quick answers without delay, then at
    growing intervals of 1 to 8 ms. Unlike a blocking read, sleeping can be interrupted by Ctrl+C.
    """
    pipe = msvcrt.get_osfhandle(fd)
    start = time.monotonic()
    pause_s = 0.0
    while True:
        try:
            if _winapi.PeekNamedPipe(pipe, 0)[0]:
                return True
        except OSError:
            return True  # broken pipe: this is the end of the file
        waited_s = time.monotonic() - start
        if timeout_s is not None and waited_s >= timeout_s:
            return False
        if waited_s > _SPIN_S:
            pause_s = min(max(pause_s * 1.5, _FIRST_WAIT_S), _LONGEST_WAIT_S)
            if timeout_s is not None:
                pause_s = min(pause_s, timeout_s - waited_s)
        # A sleep of 0 gives the rest of the time slice to other threads, so that a host on the same core can
        # answer.
        sleep(pause_s)


def let_ctrl_c_through(fd: int) -> None:
    """Wait for data before a read that may block forever, because Ctrl+C does not interrupt the read. Only the
    main thread gets Ctrl+C, so only the main thread waits here."""
    if is_interruptible():
        wait_readable(fd, None)


def write_some(fd: int, chunks: Sequence[memoryview], timeout_s: float | None) -> int:
    """Write or buffer as much of the chunks as fits, in order; return the number of bytes.

    Only for descriptors of a `ChildProcess`, which stops the pipe's thread when it is closed.

    Raises:
        TimeoutError: nothing could be accepted in time.
        BrokenPipeError: the other side has closed the pipe.
    """
    with _writers_lock:
        writer = _writers.get(fd)
        if writer is None:
            writer = _writers[fd] = _PipeWriter(fd)
    return writer.take(chunks, timeout_s)


# Longest wait of a single write. Between writes the caller checks its deadline, and Ctrl+C takes effect.
_MOMENT_S = 0.05


def writer(fd: int) -> Callable[[list[memoryview]], int]:
    """Return a function that writes to the pipe and waits only briefly. The function raises `BlockingIOError` if
    the pipe stays full."""

    def write(chunks: list[memoryview]) -> int:
        try:
            return write_some(fd, chunks, _MOMENT_S)
        except TimeoutError:
            raise BlockingIOError(errno.EAGAIN, "the pipe is full") from None

    return write


def wait_writable(fd: int, timeout_s: float | None) -> bool:
    """Return whether the deadline allows another write. Windows does not report a pipe's free space; the
    function that `writer` returns waits for free space."""
    return timeout_s is None or timeout_s > 0


def is_writing(fd: int) -> bool:
    """Return whether a thread waits in a write to the pipe.

    While a thread waits, the pipe must not be queried, not even for its type (`os.fstat`): Windows processes calls
    one after the other, so the query would block until the other side reads.
    """
    writer = _writers.get(fd)
    return writer is not None and writer.is_busy


def stop_writing(fd: int) -> None:
    """Stop the pipe's thread before the descriptor is closed. Do not wait for a running write."""
    with _writers_lock:
        writer = _writers.pop(fd, None)
    if writer is not None:
        writer.stop()


class _PipeWriter:
    """State of a pipe's write end. It has a separate descriptor, which the thread closes when it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._pipe = msvcrt.get_osfhandle(self._fd)
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        # Queue for the thread: number of bytes of the buffer to write; 0 ends the thread.
        self._orders: SimpleQueue[int] = SimpleQueue()
        self._buffer: bytearray | None = None
        self._taken = 0  # bytes in the buffer that the thread still has to write
        self._stopped = False
        self._error: OSError | None = None

    def take(self, chunks: Sequence[memoryview], timeout_s: float | None) -> int:
        flat = [chunk.cast("B") for chunk in chunks if chunk.nbytes]
        if not flat:
            return 0
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._await_thread(deadline)
            first = _joined(flat)
            # The quota may be too low, never too high, because a pending read of the other side counts as used
            # space. With enough space the write returns immediately, so the thread is not needed.
            if api.write_quota(self._pipe) >= len(first):
                return _write(self._fd, first)
            return self._hand_over(flat)

    @property
    def is_busy(self) -> bool:
        return self._taken > 0

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            # The thread closes the descriptor when it ends. If it was never started, close the descriptor here.
            if self._buffer is None:
                os.close(self._fd)
            else:
                self._orders.put(0)
        self._changes.notify()

    def _await_thread(self, deadline: float | None) -> None:
        """Wait until the thread has written its data. Wait in short intervals, because Ctrl+C does not interrupt
        this wait."""
        while self._taken and not self._stopped:
            left_s = _CTRL_C_INTERVAL_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the other side did not read in time")
            # Release the lock, which the thread needs to report that it has written the data.
            self._lock.release()
            try:
                self._changes.wait_for(lambda: self._stopped or not self._taken, min(left_s, _CTRL_C_INTERVAL_S))
            finally:
                self._lock.acquire()
        # Raise the error of the thread's last write here, because that write's caller has already returned.
        if self._error is not None:
            raise self._error
        if self._stopped:
            raise BrokenPipeError(errno.EPIPE, "the pipe was closed")

    def _hand_over(self, chunks: Sequence[memoryview]) -> int:
        # Create the thread and its buffer on first use, since most pipes never need them.
        if self._buffer is None:
            self._buffer = bytearray(BUFFER_BYTES)
            try:
                start_thread("qnnbridge-pipe-writer", self._run)
            except RuntimeError as error:  # the interpreter is shutting down
                self._buffer = None
                raise BrokenPipeError(errno.EPIPE, str(error)) from error
        # Copy the chunks: the caller may change or free its memory while the thread writes.
        taken = 0
        for chunk in chunks:
            piece = chunk[: BUFFER_BYTES - taken]
            self._buffer[taken : taken + len(piece)] = piece
            taken += len(piece)
            if taken == BUFFER_BYTES:
                break
        # Set the count before passing the order to the thread, which resets the count to 0 when it has written the
        # data.
        self._taken = taken
        self._orders.put(taken)
        return taken

    def _run(self) -> None:
        assert self._buffer is not None
        buffer = memoryview(self._buffer)
        try:
            while (count := self._orders.get()) and not self._stopped:
                rest = buffer[:count]
                error: OSError | None = None
                try:
                    while rest:
                        rest = rest[_write(self._fd, rest) :]
                except OSError as failure:
                    error = failure
                # Reset the count and store the error under the lock. Otherwise `_await_thread` could see the end of
                # the write before the error.
                with self._lock:
                    self._taken = 0
                    self._error = error
                self._changes.notify()
        finally:
            os.close(self._fd)


def _joined(chunks: Sequence[memoryview]) -> memoryview:
    """Join the first chunks if they are small, else take only the first chunk; return the result."""
    count = size = 0
    for chunk in chunks:
        if size + len(chunk) > _JOIN_BYTES:
            break
        count, size = count + 1, size + len(chunk)
    return memoryview(b"".join(chunks[:count])) if count > 1 else chunks[0]


def _write(fd: int, piece: memoryview) -> int:
    try:
        return os.write(fd, piece)
    except OSError as error:
        # the C runtime's error code for ERROR_NO_DATA: the other side has closed the pipe
        if error.errno == errno.EINVAL:
            raise BrokenPipeError(errno.EPIPE, "the other side has closed the pipe") from error
        raise


_writers: dict[int, _PipeWriter] = {}
_writers_lock = Lock()


# Whether the host can open streams in addition to its standard streams on this system.
CHANNELS = True

# Whether memory can be shared on this system.
MEMORY = True

# Description of a shared stream or memory block by which the host can open it (a "share", see `sharing`).
ShareHandle = dict[str, Any]

_PAGE_READWRITE = 0x4
_PROCESS_DUP_HANDLE = 0x40
_INVALID_HANDLE = ctypes.c_void_p(-1).value

api.kernel32.CreateFileMappingW.argtypes = (
    *(wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
    wintypes.LPCWSTR,
)
api.kernel32.CreateFileMappingW.restype = wintypes.HANDLE


class SharedMemory:
    """A block of memory that is mapped here and can be shared with another process."""

    def __init__(self, size: int, *, writable: bool) -> None:
        """Create the memory. Raise `OSError`."""
        self.size = size
        # The invalid handle means that the page file backs the memory. The memory has no name, so no other process
        # can open it, and it is freed with its last user.
        section = api.kernel32.CreateFileMappingW(
            _INVALID_HANDLE, None, _PAGE_READWRITE, size >> 32, size & 0xFFFFFFFF, None
        )
        if not section:
            raise ctypes.WinError(ctypes.get_last_error())
        self._section: int | None = section
        try:
            self._view: memoryview | None = map_shared(section, size, writable=writable)
        except BaseException:
            self.close()
            raise

    def share_handle(self, pid: int) -> ShareHandle:
        """Return a share of the memory that the host process `pid` can open."""
        assert self._section is not None
        return {"handle": give_handle(self._section, pid)}

    def take_view(self) -> memoryview:
        """Return the memory. Call this only once. The memory stays mapped as long as the view is referenced."""
        view, self._view = self._view, None
        assert view is not None
        return view

    def close(self) -> None:
        """Close the section, so that no further process can open the memory."""
        section, self._section = self._section, None
        if section is not None:
            _winapi.CloseHandle(section)

    def __del__(self) -> None:
        if getattr(self, "_section", None) is not None:
            self.close()


class ChannelStreams:
    """This side's ends of a channel's two pipes. Until `opened` is called, the object also owns the host's ends."""

    # False: Ctrl+C does not interrupt a read that waits, so callers poll instead.
    MAY_BLOCK = False

    def __init__(self) -> None:
        self._fds = OwnedFds()
        self._theirs: list[int] = []
        self.write_fd = self.read_fd = -1
        try:
            their_read, ours = _winapi.CreatePipe(None, BUFFER_BYTES)
            self._theirs.append(their_read)
            self.write_fd = self._fds.adopt(api.descriptor_of(ours, os.O_WRONLY))
            ours, their_write = _winapi.CreatePipe(None, BUFFER_BYTES)
            self._theirs.append(their_write)
            self.read_fd = self._fds.adopt(api.descriptor_of(ours, os.O_RDONLY))
        except BaseException:
            self.opened()
            self._fds.close_all()
            raise

    def poll(self, milliseconds: float) -> bool:
        """Wait at most `milliseconds` for data; return whether data can be read."""
        return wait_readable(self.read_fd, milliseconds / 1000)

    def share_handles(self, pid: int) -> tuple[ShareHandle, ShareHandle]:
        """Return shares of the host's ends that the host process `pid` can open: (read, write)."""
        read = {"handle": give_handle(self._theirs[0], pid)}
        try:
            return read, {"handle": give_handle(self._theirs[1], pid)}
        except BaseException:
            reclaim(read, pid)
            raise

    def opened(self) -> None:
        """Close the host's ends once the host has opened them; else the streams would not end when it dies."""
        while self._theirs:
            _winapi.CloseHandle(self._theirs.pop())

    def enlarge(self) -> None:
        """Do nothing: the pipes are large when they are created."""

    def wake_reader(self, data: bytes | bytearray) -> None:
        """Do nothing: no thread waits in a read."""

    def write(self, data: bytes | bytearray) -> None:
        """Write a small message into an empty pipe. Raise `OSError`."""
        if not self._fds.is_ours(self.write_fd):
            raise closed_by_others()  # the descriptor number may belong to another file
        os.write(self.write_fd, data)

    def close(self) -> None:
        self.opened()
        if self.write_fd != -1:
            stop_writing(self.write_fd)
            # Cancel reads first, because closing would wait for a thread that reads (`WindowsChild.close`).
            for fd in (self.write_fd, self.read_fd):
                api.cancel_io(msvcrt.get_osfhandle(fd))
        self.write_fd = self.read_fd = -1
        self._fds.close_all()


def reclaim(share_handle: ShareHandle, pid: int) -> None:
    """Close a share's handle in the host process `pid`, which never learned of the handle and cannot close the
    handle."""
    handle = share_handle.pop("handle", None)
    if handle is not None:
        with contextlib.suppress(OSError):  # the process has ended, which closed the handle
            _take_handle_back(handle, pid)


def give_handle(handle: int, pid: int) -> int:
    """Duplicate a handle into another process, which must close it once it has received the number. Raise
    `OSError`."""
    target = _winapi.OpenProcess(_PROCESS_DUP_HANDLE, False, pid)
    try:
        us = _winapi.GetCurrentProcess()
        return _winapi.DuplicateHandle(us, handle, target, 0, False, _winapi.DUPLICATE_SAME_ACCESS)
    finally:
        _winapi.CloseHandle(target)


def _take_handle_back(handle: int, pid: int) -> None:
    source = _winapi.OpenProcess(_PROCESS_DUP_HANDLE, False, pid)
    try:
        us = _winapi.GetCurrentProcess()
        # Windows cannot close a handle of another process directly. Move the handle to this process and close it
        # here.
        how = _winapi.DUPLICATE_CLOSE_SOURCE | _winapi.DUPLICATE_SAME_ACCESS
        _winapi.CloseHandle(_winapi.DuplicateHandle(source, handle, us, 0, False, how))
    finally:
        _winapi.CloseHandle(source)
