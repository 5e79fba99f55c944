"""Windows functions that Python does not offer, with their types. This module only declares and calls them."""

from __future__ import annotations

import _winapi
import contextlib
import ctypes
import msvcrt
import os
import sys
from ctypes import wintypes

assert sys.platform == "win32"

# Error mode without dialogs when a program crashes or a library is missing.
NO_DIALOGS = msvcrt.SEM_FAILCRITICALERRORS | msvcrt.SEM_NOGPFAULTERRORBOX | msvcrt.SEM_NOOPENFILEERRORBOX

# Constants of winnt.h: JobObjectExtendedLimitInformation, and two of its LimitFlags.
_JOB_EXTENDED_LIMITS = 9
_JOB_DIE_ON_UNHANDLED_EXCEPTION = 0x0400
_JOB_KILL_ON_CLOSE = 0x2000

# FilePipeLocalInformation of ntifs.h. The Win32 API cannot report the free space in a pipe.
_FILE_PIPE_LOCAL_INFORMATION = 24

# The libraries are shared by all Windows modules, so that the types of a function are declared only once. With
# use_last_error, ctypes keeps the error of each call, which Python's own calls would otherwise overwrite.
kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class _PipeLocalInformation(ctypes.Structure):
    _fields_ = (
        ("NamedPipeType", wintypes.ULONG),
        ("NamedPipeConfiguration", wintypes.ULONG),
        ("MaximumInstances", wintypes.ULONG),
        ("CurrentInstances", wintypes.ULONG),
        ("InboundQuota", wintypes.ULONG),
        ("ReadDataAvailable", wintypes.ULONG),
        ("OutboundQuota", wintypes.ULONG),
        ("WriteQuotaAvailable", wintypes.ULONG),
        ("NamedPipeState", wintypes.ULONG),
        ("NamedPipeEnd", wintypes.ULONG),
    )


class _IoStatus(ctypes.Structure):
    _fields_ = (("Status", ctypes.c_void_p), ("Information", ctypes.c_void_p))


kernel32.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
kernel32.CreateJobObjectW.restype = wintypes.HANDLE
kernel32.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD)
kernel32.QueryInformationJobObject.argtypes = (
    *(wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD),
    ctypes.c_void_p,
)
kernel32.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
kernel32.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
kernel32.ResumeThread.argtypes = (wintypes.HANDLE,)
kernel32.ResumeThread.restype = wintypes.DWORD
kernel32.GetDriveTypeW.argtypes = (wintypes.LPCWSTR,)
kernel32.GetDllDirectoryW.argtypes = (wintypes.DWORD, wintypes.LPWSTR)
kernel32.SetDllDirectoryW.argtypes = (wintypes.LPCWSTR,)
# Longest path of Windows in UTF-16 units, including the terminating zero.
_MOST_CHARACTERS = 32768
kernel32.CreateFileW.argtypes = (
    *(wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p),
    *(wintypes.DWORD, wintypes.DWORD, wintypes.HANDLE),
)
kernel32.CreateFileW.restype = wintypes.HANDLE
_INVALID_HANDLE = ctypes.c_void_p(-1).value
kernel32.CancelIoEx.argtypes = (wintypes.HANDLE, ctypes.c_void_p)
kernel32.DisconnectNamedPipe.argtypes = (wintypes.HANDLE,)
kernel32.GetCurrentProcess.restype = wintypes.HANDLE
_ntdll.NtQueryInformationFile.argtypes = (
    wintypes.HANDLE,
    ctypes.POINTER(_IoStatus),
    ctypes.c_void_p,
    wintypes.ULONG,
    ctypes.c_int,
)


def _last_error() -> OSError:
    return ctypes.WinError(ctypes.get_last_error())


def open_file(path: str, access: int, share: int, how: int, flags: int, security: int = 0) -> int:
    """Open a file and return its handle. `security` is the address of SECURITY_ATTRIBUTES, or 0. Raise `OSError`.

    Before Python 3.11.8 and 3.12.2, `_winapi.CreateFile` can only open paths of at most 260 characters, all in the
    code page (python/cpython#114611).
    """
    handle: int | None = kernel32.CreateFileW(path, access, share, security or None, how, flags, None)
    if handle is None or handle == _INVALID_HANDLE:
        raise _last_error()
    return handle


def descriptor_of(handle: int, access: int) -> int:
    """Return a descriptor (os.O_RDONLY or os.O_WRONLY) that owns the handle. If this fails, close the handle and
    raise `OSError`."""
    try:
        return msvcrt.open_osfhandle(handle, access | os.O_BINARY | os.O_NOINHERIT)
    except OSError:  # all 8192 descriptors of the C runtime are in use, or the handle is invalid
        with contextlib.suppress(OSError):
            _winapi.CloseHandle(handle)
        raise


def create_job() -> int:
    """Create a job. When its last handle is closed, the job ends all its processes. A crash of a process shows
    no dialog."""
    job: int | None = kernel32.CreateJobObjectW(None, None)
    if not job:
        raise _last_error()
    limits = _ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = _JOB_KILL_ON_CLOSE | _JOB_DIE_ON_UNHANDLED_EXCEPTION
    if not kernel32.SetInformationJobObject(job, _JOB_EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)):
        error = _last_error()
        _winapi.CloseHandle(job)
        raise error
    return job


def job_flags() -> int | None:
    """Return the limits of this process's job (the innermost of nested jobs); ``None`` if it is not in a job."""
    limits = _ExtendedLimits()
    asked = kernel32.QueryInformationJobObject(
        None, _JOB_EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits), None
    )
    return int(limits.BasicLimitInformation.LimitFlags) if asked else None


def in_job_that_kills() -> bool:
    """Return whether this process is in a job that ends all its processes when it is closed."""
    return bool((job_flags() or 0) & _JOB_KILL_ON_CLOSE)


def assign_to_job(job: int, process: int) -> None:
    if not kernel32.AssignProcessToJobObject(job, process):
        raise _last_error()


def terminate_job(job: int, exit_code: int) -> None:
    if not kernel32.TerminateJobObject(job, exit_code):
        raise _last_error()


def resume_thread(thread: int) -> None:
    # (DWORD)-1: the call failed. Otherwise the result is the previous number of suspensions.
    if kernel32.ResumeThread(thread) == 0xFFFFFFFF:
        raise _last_error()


def dll_folder() -> str:
    """Return the folder in which Windows searches for DLLs before the system's folders; '' if it is not set."""
    buffer = ctypes.create_unicode_buffer(_MOST_CHARACTERS)
    kernel32.GetDllDirectoryW(_MOST_CHARACTERS, buffer)
    return buffer.value


def set_dll_folder(folder: str) -> None:
    # NULL restores the default. An empty string would remove the current folder from the search.
    kernel32.SetDllDirectoryW(folder or None)


def cancel_io(file: int) -> None:
    """Cancel blocked system calls of this process's threads on this handle. The calls fail."""
    kernel32.CancelIoEx(file, None)


def disconnect_pipe(pipe: int) -> None:
    """Disconnect the client of this end of a named pipe."""
    kernel32.DisconnectNamedPipe(pipe)


def write_quota(pipe: int) -> int:
    """Return how many bytes can be written to the pipe without waiting; 0 if the number is unknown (always on
    Wine)."""
    status, information = _IoStatus(), _PipeLocalInformation()
    result = _ntdll.NtQueryInformationFile(
        pipe,
        ctypes.byref(status),
        ctypes.byref(information),
        ctypes.sizeof(information),
        _FILE_PIPE_LOCAL_INFORMATION,
    )
    return int(information.WriteQuotaAvailable) if result == 0 else 0


_MACHINES = {0x014C: "x86", 0x8664: "x64", 0xAA64: "ARM64"}
_MACHINES_BY_NAME = {"X86": "x86", "AMD64": "x64", "ARM64": "ARM64"}


def native_machine() -> str:
    """Return the real machine type of the computer. All other functions report the emulated type under
    emulation."""
    try:
        is_wow64_process2 = kernel32.IsWow64Process2
    except AttributeError:  # versions before Windows 10 1709 lack this function
        name = os.environ.get("PROCESSOR_ARCHITEW6432") or os.environ.get("PROCESSOR_ARCHITECTURE", "")
        return _MACHINES_BY_NAME.get(name.upper(), name)
    process, native = wintypes.USHORT(), wintypes.USHORT()
    is_wow64_process2.argtypes = (
        wintypes.HANDLE,
        ctypes.POINTER(wintypes.USHORT),
        ctypes.POINTER(wintypes.USHORT),
    )
    if not is_wow64_process2(kernel32.GetCurrentProcess(), ctypes.byref(process), ctypes.byref(native)):
        raise _last_error()
    return _MACHINES.get(native.value, hex(native.value))
