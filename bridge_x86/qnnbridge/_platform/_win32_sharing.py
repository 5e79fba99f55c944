"""Streams and memory that are shared with the host, on Windows: handles are duplicated into its process.

The memory is a section without a name. Threads: any.
"""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import msvcrt
import os
import sys
import weakref
from ctypes import wintypes
from typing import Any

from qnnbridge._platform._fds import OwnedFds

assert sys.platform == "win32"

from qnnbridge._platform import _win32_api as api  # noqa: E402 - type checkers find it empty on Linux
from qnnbridge._platform._win32_pipes import BUFFER_BYTES, stop_writing, wait_readable  # noqa: E402

# Whether the host can open further streams here.
LINES = True

# Whether memory can be shared here.
MEMORY = True

# How the host finds what is shared.
Place = dict[str, Any]

_PAGE_READWRITE = 0x4
_FILE_MAP_WRITE = 0x2
_FILE_MAP_READ = 0x4
_PROCESS_DUP_HANDLE = 0x40
_INVALID_HANDLE = ctypes.c_void_p(-1).value

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel32.CreateFileMappingW.argtypes = (
    *(wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
    wintypes.LPCWSTR,
)
_kernel32.CreateFileMappingW.restype = wintypes.HANDLE
_kernel32.MapViewOfFile.argtypes = (
    *(wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
    ctypes.c_size_t,
)
_kernel32.MapViewOfFile.restype = ctypes.c_void_p
_kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)


class SharedMemory:
    """A piece of memory that is mapped here, and what it takes to show it to another process."""

    def __init__(self, size: int, *, writable: bool) -> None:
        """Raises `OSError`."""
        self.size = size
        section = _kernel32.CreateFileMappingW(
            _INVALID_HANDLE, None, _PAGE_READWRITE, size >> 32, size & 0xFFFFFFFF, None
        )
        if not section:
            raise ctypes.WinError(ctypes.get_last_error())
        self._section: int | None = section
        address = _kernel32.MapViewOfFile(section, _FILE_MAP_WRITE if writable else _FILE_MAP_READ, 0, 0, size)
        if not address:
            error = ctypes.WinError(ctypes.get_last_error())
            self.close()
            raise error
        memory = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(memory, _kernel32.UnmapViewOfFile, address).atexit = False
        view = memoryview(memory).cast("B")
        # Touched now: a page that is missing costs a microsecond when it is met in a call.
        for offset in range(0, size, 4096):
            view[offset]
        self._view: memoryview | None = view if writable else view.toreadonly()

    def place(self, pid: int) -> Place:
        """For the host with this process id."""
        assert self._section is not None
        return {"handle": give_handle(self._section, pid)}

    def take_view(self) -> memoryview:
        """The memory, once: from then on it stays mapped as long as something refers to this."""
        view, self._view = self._view, None
        assert view is not None
        return view

    def close(self) -> None:
        """Nobody else will be shown it."""
        section, self._section = self._section, None
        if section is not None:
            _winapi.CloseHandle(section)

    def __del__(self) -> None:
        if getattr(self, "_section", None) is not None:
            self.close()


class LineStreams:
    """Our ends of a line's two pipes, and until `opened` the host's ends."""

    # Nothing but the host ends a read that waits: Ctrl+C has to come through.
    MAY_BLOCK = False

    def __init__(self) -> None:
        self._fds = OwnedFds()
        self._theirs: list[int] = []
        self.write_fd = self.read_fd = -1
        try:
            their_read, ours = _winapi.CreatePipe(None, BUFFER_BYTES)
            self._theirs.append(their_read)
            self.write_fd = self._adopt(ours, os.O_WRONLY)
            ours, their_write = _winapi.CreatePipe(None, BUFFER_BYTES)
            self._theirs.append(their_write)
            self.read_fd = self._adopt(ours, os.O_RDONLY)
        except BaseException:
            self.opened()
            self._fds.close_all()
            raise

    def _adopt(self, handle: int, access: int) -> int:
        try:
            return self._fds.adopt(msvcrt.open_osfhandle(handle, access | os.O_BINARY | os.O_NOINHERIT))
        except OSError:  # no number left for it
            _winapi.CloseHandle(handle)
            raise

    def poll(self, milliseconds: float) -> bool:
        """Waits for at most so many milliseconds until there is something to read; falsy if nothing came."""
        return wait_readable(self.read_fd, milliseconds / 1000)

    def places(self, pid: int) -> tuple[Place, Place]:
        """Of what the host reads from and of what it writes to."""
        read = {"handle": give_handle(self._theirs[0], pid)}
        try:
            return read, {"handle": give_handle(self._theirs[1], pid)}
        except BaseException:
            take_back(read, pid)
            raise

    def opened(self) -> None:
        """The host has its ends, so that a death on either side is the end of the streams."""
        while self._theirs:
            _winapi.CloseHandle(self._theirs.pop())

    def enlarge(self) -> None:
        """Nothing to do: they are made large."""

    def nudge(self, data: bytes | bytearray) -> None:
        """Nobody waits in a read."""

    def write(self, data: bytes | bytearray) -> None:
        """Something small, into a pipe that is empty. Raises `OSError`."""
        os.write(self.write_fd, data)

    def close(self) -> None:
        self.opened()
        if self.write_fd != -1:
            stop_writing(self.write_fd)
            for fd in (self.write_fd, self.read_fd):
                api.cancel_io(msvcrt.get_osfhandle(fd))
        self.write_fd = self.read_fd = -1
        self._fds.close_all()


def take_back(place: Place, pid: int) -> None:
    """What the host with this process id was to open, and has not been told of: it owns it only then."""
    handle = place.pop("handle", None)
    if handle is not None:
        with contextlib.suppress(OSError):  # the process is gone, and the handle with it
            _take_handle_back(handle, pid)


def give_handle(handle: int, pid: int) -> int:
    """The handle in the other process, which has to close it when it is told of it. Raises `OSError`."""
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
        how = _winapi.DUPLICATE_CLOSE_SOURCE | _winapi.DUPLICATE_SAME_ACCESS
        _winapi.CloseHandle(_winapi.DuplicateHandle(source, handle, us, 0, False, how))
    finally:
        _winapi.CloseHandle(source)


__all__ = ["LINES", "MEMORY", "LineStreams", "Place", "SharedMemory", "give_handle", "take_back"]
