"""Open streams and memory of another process in this process.

A *share* is the description of a stream or memory block in a request. On Linux it is opened through the
application's entry in /proc. That requires neither a socket nor an inherited descriptor, only that both processes
belong to the same user. The share contains device and inode of the file, to detect a descriptor that the
application has closed and reused.

On Windows a share contains a handle that was duplicated into this process. This process owns the handle as soon as
it has read the request, even if the request fails. Opening a share removes the handle from the share. A handle that
is still in a share when the request is answered is closed by `drop`, so that each handle is closed exactly once.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from typing import Any

if sys.platform == "win32":
    import _winapi
    import contextlib
    from ctypes import wintypes

    from qnnbridge_os._win32_api import descriptor_of, kernel32

    AVAILABLE = True

    _INVALID_HANDLE = 2**64 - 1

    def open_stream(where: dict[str, Any], *, write: bool) -> int:
        """Return a descriptor for one end of a pipe of the application. Raise `OSError` or `ValueError`."""
        return descriptor_of(_take_handle(where), os.O_WRONLY if write else os.O_RDONLY)

    def map_memory(where: dict[str, Any], size: int, *, write: bool) -> memoryview:
        """Map shared memory of the application and access all its pages. It is unmapped when the view is no
        longer referenced."""
        section = _take_handle(where)
        try:
            return map_shared(section, size, writable=write)
        finally:
            # The view keeps the section alive, so its handle is no longer needed.
            _close(section)

    def drop(where: dict[str, Any]) -> None:
        """Close the handle if the share still contains it."""
        with contextlib.suppress(ValueError):
            _close(_take_handle(where))

    def _take_handle(where: dict[str, Any]) -> int:
        handle = where.pop("handle", None)
        if type(handle) is not int or not 0 < handle < _INVALID_HANDLE:
            raise ValueError("a shared object must be given as a handle of this process")
        return handle

    def _close(handle: int) -> None:
        with contextlib.suppress(OSError):  # the application sent an invalid handle
            _winapi.CloseHandle(handle)

    _FILE_MAP_WRITE = 0x2
    _FILE_MAP_READ = 0x4

    kernel32.MapViewOfFile.argtypes = (
        *(wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD),
        ctypes.c_size_t,
    )
    kernel32.MapViewOfFile.restype = ctypes.c_void_p
    kernel32.UnmapViewOfFile.argtypes = (ctypes.c_void_p,)

    def map_shared(section: int, size: int, *, writable: bool) -> memoryview:
        """Map the whole section and access all its pages. It is unmapped when the view is no longer referenced.
        Raise `OSError`."""
        # FILE_MAP_WRITE also allows reading.
        address = kernel32.MapViewOfFile(section, _FILE_MAP_WRITE if writable else _FILE_MAP_READ, 0, 0, size)
        if not address:
            raise ctypes.WinError(ctypes.get_last_error())
        memory = (ctypes.c_ubyte * size).from_address(address)
        # Do not unmap at the end of the program: arrays may still be read, and Windows then unmaps the memory
        # itself.
        weakref.finalize(memory, kernel32.UnmapViewOfFile, address).atexit = False
        view = memoryview(memory).cast("B")
        # Access each page now, because a page fault during a call costs a microsecond. 4096 is the page size of
        # Windows on x86, x64 and ARM64.
        for offset in range(0, size, 4096):
            view[offset]
        return view if writable else view.toreadonly()

else:
    import fcntl
    import functools
    import mmap
    from collections.abc import Callable, Mapping

    # Whether this host can open streams and memory of an application.
    AVAILABLE = sys.platform == "linux"

    def open_stream(where: Mapping[str, Any], *, write: bool) -> int:
        """Return a separate descriptor for one end of a pipe of the application. Raise `OSError` or
        `ValueError`."""
        return _open(where, os.O_WRONLY if write else os.O_RDONLY)

    def map_memory(where: Mapping[str, Any], size: int, *, write: bool) -> memoryview:
        """Map shared memory of the application and access all its pages. It is unmapped when the view is no
        longer referenced."""
        fd = _open(where, os.O_RDWR if write else os.O_RDONLY)
        try:
            # An access after the end of the file would end the process (SIGBUS).
            if os.fstat(fd).st_size != size:
                raise ValueError(f"the memory has {os.fstat(fd).st_size} bytes, not {size}")
            return map_shared(fd, size, writable=write)
        finally:
            # The mapping remains valid without the descriptor.
            os.close(fd)

    def drop(_where: dict[str, Any]) -> None:
        """Do nothing: an unopened share refers to a descriptor of the application, which the application closes."""

    def check_sealed(where: Mapping[str, Any]) -> None:
        """Raise `ValueError` for memory that can be shrunk, because access to a removed page would end the process.
        Raise `OSError` if the check fails.

        Called by the daemon, because it serves several applications. The check is not possible in an emulated
        process.
        """
        fd = _open(where, os.O_RDONLY)
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the memory is not sealed against shrinking")
        finally:
            os.close(fd)

    def _open(where: Mapping[str, Any], access: int) -> int:
        pid, number, device, inode = (where.get(key) for key in ("pid", "fd", "device", "inode"))
        if not all(type(value) is int for value in (pid, number, device, inode)):
            raise ValueError("a shared file must be given by pid, fd, device and inode")
        # Opening this path creates a separate open file, so O_NONBLOCK of the application's descriptor does not
        # apply to `fd`.
        fd = os.open(f"/proc/{pid}/fd/{number}", access | os.O_CLOEXEC)
        status = os.fstat(fd)
        # The descriptor may have been closed, and its number reused for another file, since the application sent
        # it.
        if (status.st_dev, status.st_ino) != (device, inode):
            os.close(fd)
            raise ValueError(f"descriptor {number} of process {pid} now refers to another file")
        return fd

    # Call mmap(2) directly, because `mmap.mmap` would keep a descriptor open for each of hundreds of mappings.
    _FAILED = ctypes.c_void_p(-1).value
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    # Without a result type ctypes would truncate the address to 32 bits.
    _libc.mmap.restype = ctypes.c_void_p
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def map_shared(
        fd: int,
        size: int,
        *,
        writable: bool,
        when_gone: Callable[[object, Callable[[], object]], object] = weakref.finalize,
    ) -> memoryview:
        """Map the whole file and access all its pages. It is unmapped when the view is no longer referenced. Raise
        `OSError`.

        `when_gone(object, callback)` must call the callback after the object has been garbage-collected.
        """
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Populate the pages now, because a page fault during a call costs a microsecond.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        address = _libc.mmap(None, size, access, flags, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        memory = (ctypes.c_ubyte * size).from_address(address)
        # Every view and array of the memory refers to this object, so this object is freed last.
        ended = when_gone(memory, functools.partial(_libc.munmap, address, size))
        if isinstance(ended, weakref.finalize):
            # Arrays may be read until the very end of the program, when the kernel unmaps the memory.
            ended.atexit = False
        view = memoryview(memory).cast("B")
        return view if writable else view.toreadonly()

    # Flag of mmap(2) on Linux that the module `mmap` lacks.
    _MAP_FIXED = 0x10

    def unshare(address: int, size: int) -> None:
        """Replace a shared mapping with a private copy at the same address. Raise `OSError`."""
        contents = ctypes.string_at(address, size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        if _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        ctypes.memmove(address, contents, size)
