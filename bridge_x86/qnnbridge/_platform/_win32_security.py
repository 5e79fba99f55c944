"""Who is who on Windows, and who may do what: users by their SID, access lists in their text form (SDDL).

No state; any thread. Raises `OSError` (`ctypes.WinError`) throughout.
"""

from __future__ import annotations

import _winapi
import ctypes
import re
import sys
from ctypes import wintypes
from typing import Final

assert sys.platform == "win32"

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
    """Security attributes for something that this user and the system may use, and nobody else.

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


def access_list(where: str | int) -> str:
    """Owner and access list of a file (its path) or of an object (its handle), as SDDL."""
    descriptor = ctypes.c_void_p()
    nothing = (None, None, None, None, ctypes.byref(descriptor))
    if isinstance(where, str):
        code = _advapi32.GetNamedSecurityInfoW(where, FILE_OBJECT, _OWNER_AND_DACL, *nothing)
    else:
        code = _advapi32.GetSecurityInfo(where, KERNEL_OBJECT, _OWNER_AND_DACL, *nothing)
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
    """Who may do anything at all (SIDs or their abbreviations); ``None`` if that is everybody, for want of a
    list."""
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
