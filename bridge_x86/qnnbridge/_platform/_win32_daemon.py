"""The connection to the daemon on Windows: a named pipe, the users at its ends, and the private folder.

A user is known by the SID, an access list by its text form (SDDL). The pipe is opened for overlapped calls, so that
each has a deadline. Raises `OSError` (`ctypes.WinError`) throughout. A stream belongs to one thread; `drop` may be
called by any.
"""

from __future__ import annotations

import _winapi
import ctypes
import errno
import msvcrt
import os
import re
import stat
import sys
import time
from ctypes import wintypes
from pathlib import Path
from typing import Any, Final

from qnnbridge._platform import _win32_api as api
from qnnbridge._platform._fds import OwnedFds

assert sys.platform == "win32"

from qnnbridge._platform._win32_streams import stop_writing, wait_readable  # noqa: E402 - type checkers find it empty on Linux

SYSTEM: Final = "SY"
ADMINISTRATORS: Final = "BA"

FILE_OBJECT: Final = 1
KERNEL_OBJECT: Final = 6

_OWNER_AND_DACL: Final = 0x1 | 0x4
_SDDL_REVISION: Final = 1
_TOKEN_QUERY: Final = 0x8
_TOKEN_USER: Final = 1
_QUERY_LIMITED_INFORMATION: Final = 0x1000

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)


class _SecurityAttributes(ctypes.Structure):
    _fields_ = (
        ("nLength", wintypes.DWORD),
        ("lpSecurityDescriptor", ctypes.c_void_p),
        ("bInheritHandle", wintypes.BOOL),
    )


_kernel32.LocalFree.argtypes = (ctypes.c_void_p,)
_kernel32.LocalFree.restype = ctypes.c_void_p
_advapi32.OpenProcessToken.argtypes = (wintypes.HANDLE, wintypes.DWORD, ctypes.POINTER(wintypes.HANDLE))
_advapi32.GetTokenInformation.argtypes = (
    *(wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD),
    ctypes.POINTER(wintypes.DWORD),
)
_advapi32.ConvertSidToStringSidW.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW.argtypes = (
    *(wintypes.LPCWSTR, wintypes.DWORD, ctypes.POINTER(ctypes.c_void_p)),
    ctypes.c_void_p,
)
_advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW.argtypes = (
    *(ctypes.c_void_p, wintypes.DWORD, wintypes.DWORD, ctypes.POINTER(ctypes.c_void_p)),
    ctypes.c_void_p,
)
_advapi32.GetSecurityInfo.argtypes = (
    *(wintypes.HANDLE, ctypes.c_int, wintypes.DWORD),
    *[ctypes.c_void_p] * 4,
    ctypes.POINTER(ctypes.c_void_p),
)
_advapi32.GetSecurityInfo.restype = wintypes.DWORD
_advapi32.GetNamedSecurityInfoW.argtypes = (
    *(wintypes.LPCWSTR, ctypes.c_int, wintypes.DWORD),
    *[ctypes.c_void_p] * 4,
    ctypes.POINTER(ctypes.c_void_p),
)
_advapi32.GetNamedSecurityInfoW.restype = wintypes.DWORD


class OwnerOnly:
    """Security attributes for an object that only this user and the system may use.

    `address` is good as long as this object lives. inherit: what is made inside of a folder is the same.
    """

    def __init__(self, *, inherit: bool = False) -> None:
        flags = "OICI" if inherit else ""
        sddl = f"D:P(A;{flags};FA;;;{user_sid()})(A;{flags};FA;;;{SYSTEM})"
        self._descriptor = ctypes.c_void_p()
        if not _advapi32.ConvertStringSecurityDescriptorToSecurityDescriptorW(
            sddl, _SDDL_REVISION, ctypes.byref(self._descriptor), None
        ):
            raise ctypes.WinError(ctypes.get_last_error())
        self._attributes = _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), self._descriptor, False)
        self.address = ctypes.addressof(self._attributes)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor:
            _kernel32.LocalFree(descriptor)


def user_sid(pid: int | None = None) -> str:
    """Of the user that a process runs for, default this one."""
    if pid is None:
        return _token_user(_winapi.GetCurrentProcess())
    process = _winapi.OpenProcess(_QUERY_LIMITED_INFORMATION, False, pid)
    try:
        return _token_user(process)
    finally:
        _winapi.CloseHandle(process)


def access_list(where: str | int, kind: int = KERNEL_OBJECT) -> str:
    """Owner and access list of a file (its path) or of what is open (its handle, and its kind), as SDDL."""
    descriptor = ctypes.c_void_p()
    nothing = (None, None, None, None, ctypes.byref(descriptor))
    if isinstance(where, str):
        code = _advapi32.GetNamedSecurityInfoW(where, FILE_OBJECT, _OWNER_AND_DACL, *nothing)
    else:
        code = _advapi32.GetSecurityInfo(where, kind, _OWNER_AND_DACL, *nothing)
    if code:
        raise ctypes.WinError(code)
    text = ctypes.c_void_p()
    try:
        if not _advapi32.ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor, _SDDL_REVISION, _OWNER_AND_DACL, ctypes.byref(text), None
        ):
            raise ctypes.WinError(ctypes.get_last_error())
        return _take_text(text)
    finally:
        _kernel32.LocalFree(descriptor)


def owner_of(sddl: str) -> str:
    """The owner's SID or its abbreviation; empty if the text names none."""
    found = re.match(r"O:(S-[\d-]+|[A-Z]{2})", sddl)
    return found[1] if found else ""


def allowed_in(sddl: str) -> set[str] | None:
    """The users with any right at all (SIDs or their abbreviations); ``None`` without a list: all users."""
    found = re.search(r"D:([A-Z]*)((?:\([^)]*\))*)", sddl)
    if found is None or "NO_ACCESS_CONTROL" in found[1]:
        return None
    entries = [entry.split(";") for entry in re.findall(r"\(([^)]*)\)", found[2])]
    return {entry[5] for entry in entries if len(entry) > 5 and entry[0] != "D" and not entry[0].startswith("OD")}


def _token_user(process: int) -> str:
    token = wintypes.HANDLE()
    if not _advapi32.OpenProcessToken(process, _TOKEN_QUERY, ctypes.byref(token)):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        size = wintypes.DWORD()
        _advapi32.GetTokenInformation(token, _TOKEN_USER, None, 0, ctypes.byref(size))
        if not size.value:
            raise ctypes.WinError(ctypes.get_last_error())
        user = ctypes.create_string_buffer(size.value)
        if not _advapi32.GetTokenInformation(token, _TOKEN_USER, user, size, ctypes.byref(size)):
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        _winapi.CloseHandle(token.value or 0)
    sid = ctypes.c_void_p.from_buffer(user)  # TOKEN_USER begins with the pointer to the SID
    text = ctypes.c_void_p()
    if not _advapi32.ConvertSidToStringSidW(sid, ctypes.byref(text)):
        raise ctypes.WinError(ctypes.get_last_error())
    return _take_text(text)


def _take_text(text: ctypes.c_void_p) -> str:
    """A string that Windows has made, which is given back."""
    try:
        return ctypes.wstring_at(text.value or 0)
    finally:
        _kernel32.LocalFree(text)


PIPE_PREFIX: Final = "\\\\.\\pipe\\qnnbridge-"

_IDENTIFICATION: Final = 0x00100000 | 0x00010000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION
_BUSY_WAIT_MS: Final = 200
_ERROR_PIPE_BUSY: Final = 231
_ERROR_SEM_TIMEOUT: Final = 121
for _function in (_kernel32.GetNamedPipeClientProcessId, _kernel32.GetNamedPipeServerProcessId):
    _function.argtypes = (wintypes.HANDLE, ctypes.POINTER(wintypes.ULONG))


class DaemonStream:
    """One connection at the door. peer_pid: as Windows reports it."""

    def __init__(self, handle: int, *, client: bool) -> None:
        self._handle = handle
        self._dropped = False
        asked = _kernel32.GetNamedPipeServerProcessId if client else _kernel32.GetNamedPipeClientProcessId
        pid = wintypes.ULONG()
        self.peer_pid = int(pid.value) if asked(handle, ctypes.byref(pid)) else 0

    def check_peer(self) -> None:
        """Raises `PermissionError` if another user is at the other end, or the user cannot be found out."""
        if not self.peer_pid:
            raise PermissionError("Windows does not tell which user is at the other end")
        try:
            theirs = user_sid(self.peer_pid)
        except OSError as error:
            raise PermissionError(
                f"process {self.peer_pid} belongs to another user, or runs as administrator ({error})"
            ) from error
        check_peer(theirs, user_sid())

    def receive(self, count: int, deadline: float) -> bytes:
        """So many bytes. Raises `TimeoutError`, `ConnectionError`."""
        data = b""
        while len(data) < count:
            pending, _ = _winapi.ReadFile(self._handle, count - len(data), overlapped=True)
            self.finish(pending, deadline)
            data += bytes(pending.getbuffer() or b"")
        return data

    def receive_with_ends(self, count: int, fds: OwnedFds, deadline: float) -> bytes:
        """`receive`; the handles are in the record, see `ends`."""
        return self.receive(count, deadline)

    def ends(self, handles: tuple[int, int], fds: OwnedFds) -> tuple[int, int]:
        """Descriptors for the two handles that the daemon has given to this process."""
        if not all(handles):
            raise ConnectionError("the daemon sent no streams")
        read_fd = fds.adopt(msvcrt.open_osfhandle(handles[0], os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT))
        write_fd = fds.adopt(msvcrt.open_osfhandle(handles[1], os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT))
        return read_fd, write_fd

    def send(self, data: bytes, deadline: float) -> None:
        """All of it. Raises `TimeoutError`, `ConnectionError`."""
        while data:
            pending, _ = _winapi.WriteFile(self._handle, data, overlapped=True)
            data = data[self.finish(pending, deadline) :]

    def drop(self) -> None:
        """Waiting calls fail. The handle stays until `close`."""
        self._dropped = True
        api.cancel_io(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            _winapi.CloseHandle(handle)

    def finish(self, pending: Any, deadline: float) -> int:
        """Wait for an operation; its count of bytes."""
        left_ms = int(max(0.0, deadline - time.monotonic()) * 1000)
        try:
            in_time = _winapi.WaitForMultipleObjects([pending.event], False, left_ms) == _winapi.WAIT_OBJECT_0
        except BaseException:
            pending.cancel()
            pending.GetOverlappedResult(True)
            raise
        if not in_time:
            pending.cancel()
        try:
            count, _ = pending.GetOverlappedResult(True)
        except OSError as error:
            raise ConnectionResetError(f"the other side closed the connection ({error})") from error
        if count:
            return int(count)
        # It was cancelled, or the stream has ended.
        if self._dropped:
            raise ConnectionAbortedError("others were waiting")
        if not in_time:
            raise TimeoutError("the other side did not answer in time")
        raise ConnectionResetError("the other side closed the connection")


def check_peer(user: str, own: str) -> None:
    """Raises `PermissionError` unless both ends belong to the same user."""
    if user != own:
        raise PermissionError(f"the other end belongs to user {user}, not to {own}")


def connect_to_daemon(endpoint: str, folder: Path, deadline: float) -> DaemonStream:
    """A connection to the daemon at this pipe. Raises `OSError` if there is none."""
    if not endpoint.startswith(PIPE_PREFIX):
        raise FileNotFoundError(errno.ENOENT, f"{endpoint} is no pipe of qnnbridge")
    access = _winapi.GENERIC_READ | _winapi.GENERIC_WRITE
    flags = _winapi.FILE_FLAG_OVERLAPPED | _IDENTIFICATION
    while True:
        try:
            handle = _winapi.CreateFile(
                endpoint, access, 0, _winapi.NULL, _winapi.OPEN_EXISTING, flags, _winapi.NULL
            )
            return DaemonStream(handle, client=True)
        except OSError as error:
            if error.winerror != _ERROR_PIPE_BUSY:
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError("the daemon accepts no connection")
        try:
            _winapi.WaitNamedPipe(endpoint, _BUSY_WAIT_MS)
        except OSError as error:
            if error.winerror not in (_ERROR_SEM_TIMEOUT, _ERROR_PIPE_BUSY):
                raise


def connection_ended(read_fd: int, timeout_s: float | None) -> bool:
    """Whether the other end of this pipe is closed. Waits for at most the given time for that."""
    if not wait_readable(read_fd, timeout_s):
        return False
    try:
        _winapi.PeekNamedPipe(msvcrt.get_osfhandle(read_fd), 0)
    except OSError:
        return True
    return False  # there is something to read


def abandon_stream(write_fd: int) -> None:
    """Let the other side see the end, and keep the number: another thread may be about to write to it."""
    stop_writing(write_fd)
    api.cancel_io(msvcrt.get_osfhandle(write_fd))
    null = os.open(os.devnull, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT)
    try:
        os.dup2(null, write_fd, inheritable=False)
    finally:
        os.close(null)


def release_stream(write_fd: int, read_fd: int) -> None:
    """Called before they are closed: ends the calls that wait in them."""
    stop_writing(write_fd)
    for fd in (write_fd, read_fd):
        api.cancel_io(msvcrt.get_osfhandle(fd))


_GENERIC_READ = 0x80000000
_GENERIC_WRITE = 0x40000000
_CREATE_NEW = 1
# The daemon may replace the file meanwhile, which it could not with Python's own open.
_SHARE_ALL = 0x1 | 0x2 | 0x4
# A link is opened itself, and not what it points to.
_OPEN_REPARSE_POINT = 0x00200000
_ERROR_ALREADY_EXISTS = 183

# The system and administrators can do everything anyway; "owner" and "creator owner" mean its owner, in other
# words.
_TRUSTED = {SYSTEM, ADMINISTRATORS, "S-1-5-18", "S-1-5-32-544", "OW", "CO", "S-1-3-0", "S-1-3-4"}
_kernel32.CreateDirectoryW.argtypes = (wintypes.LPCWSTR, ctypes.c_void_p)


def default_runtime_folder() -> Path:
    """Where such things of this user belong."""
    local = os.environ.get("LOCALAPPDATA")
    return Path(local, "qnnbridge", "run") if local else Path.home() / "AppData" / "Local" / "qnnbridge" / "run"


def make_private_folder(path: Path) -> None:
    """Make the folder for us alone, with those above it. One that exists is left as it is: `why_not_private`
    judges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    attributes = OwnerOnly(inherit=True)
    if not _kernel32.CreateDirectoryW(str(path), attributes.address):
        code = ctypes.get_last_error()
        if code != _ERROR_ALREADY_EXISTS:
            raise ctypes.WinError(code)


def why_not_private(path: Path) -> str | None:
    """The fault of a folder or file that only this user may use; ``None`` if there is none."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode) or status.st_reparse_tag:
        return "it is a link"
    return fault_of(access_list(str(path)), user_sid())


def fault_of(sddl: str, me: str) -> str | None:
    """Why an owner and an access list are not those of something that only the user `me` may use."""
    owner = owner_of(sddl)
    if owner not in {me, *_TRUSTED}:
        return f"it belongs to {owner}, not to you ({me})"
    allowed = allowed_in(sddl)
    if allowed is None:
        return "everybody may use it"
    others = allowed - _TRUSTED - {me}
    return f"others may use it ({', '.join(sorted(others))})" if others else None


def how_to_make_private(path: Path) -> str | None:
    return f'If no other user needs it: icacls "{path}" /inheritance:r /grant:r "%USERNAME%:(OI)(CI)F"'


def read_private_file(path: Path, limit: int) -> bytes:
    """The beginning of a file that only this user can have written: what was opened is looked at, not its name,
    which another file may have by now. Raises `OSError`."""
    handle = _winapi.CreateFile(
        str(path), _GENERIC_READ, _SHARE_ALL, _winapi.NULL, _winapi.OPEN_EXISTING, _OPEN_REPARSE_POINT, _winapi.NULL
    )
    with open(msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT:
            raise PermissionError(f"{path}: it is a link")
        problem = fault_of(access_list(handle, FILE_OBJECT), user_sid())
        if problem is not None:
            raise PermissionError(f"{path}: {problem}")
        return file.read(limit)


def write_private_file(path: Path, data: bytes) -> None:
    """Make a new file that only this user can read. Raises `FileExistsError`."""
    attributes = OwnerOnly()
    handle = _winapi.CreateFile(str(path), _GENERIC_WRITE, 0, attributes.address, _CREATE_NEW, 0, 0)
    with open(msvcrt.open_osfhandle(handle, os.O_WRONLY | os.O_BINARY | os.O_NOINHERIT), "wb") as file:
        file.write(data)
