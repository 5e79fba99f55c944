"""Folders and files that only this user may access.

On Linux owner and mode determine the access, on Windows the access list. On Windows a user is identified by the
SID, an access list is a string in SDDL, and functions raise `OSError` (`ctypes.WinError`).
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

if sys.platform == "win32":
    import _winapi
    import ctypes
    import re
    from ctypes import wintypes
    from typing import Final

    from qnnbridge_os._win32_api import descriptor_of, kernel32, open_file

    SYSTEM: Final = "SY"
    ADMINISTRATORS: Final = "BA"

    FILE_OBJECT: Final = 1
    KERNEL_OBJECT: Final = 6

    _OWNER_AND_DACL: Final = 0x1 | 0x4
    _SDDL_REVISION: Final = 1
    _TOKEN_QUERY: Final = 0x8
    _TOKEN_USER: Final = 1
    _QUERY_LIMITED_INFORMATION: Final = 0x1000

    _advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)

    class _SecurityAttributes(ctypes.Structure):
        _fields_ = (
            ("nLength", wintypes.DWORD),
            ("lpSecurityDescriptor", ctypes.c_void_p),
            ("bInheritHandle", wintypes.BOOL),
        )

    kernel32.LocalFree.argtypes = (ctypes.c_void_p,)
    kernel32.LocalFree.restype = ctypes.c_void_p
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
        """Security attributes (Windows) for an object that only this user and the system may access.

        `address` is valid as long as this object exists. `inherit`: whether objects created inside a folder get the
        same attributes.
        """

        def __init__(self, *, inherit: bool = False) -> None:
            flags = "OICI" if inherit else ""
            # D:P means that nothing is inherited from the parent folder; OICI: the list also applies to objects
            # created inside; FA: all rights.
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
                kernel32.LocalFree(descriptor)

    def user_sid(pid: int | None = None) -> str:
        """Return the SID of the user of a process. The default is this process."""
        if pid is None:
            return _token_user(_winapi.GetCurrentProcess())
        process = _winapi.OpenProcess(_QUERY_LIMITED_INFORMATION, False, pid)
        try:
            return _token_user(process)
        finally:
            _winapi.CloseHandle(process)

    def access_list(where: str | int, kind: int = KERNEL_OBJECT) -> str:
        """Return owner and access list, as SDDL, of a file (given by path) or of an open object (given by handle
        and object type)."""
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
            kernel32.LocalFree(descriptor)

    def owner_of(sddl: str) -> str:
        """Return the owner's SID or its abbreviation from an SDDL string; '' if the string contains no owner."""
        found = re.match(r"O:(S-[\d-]+|[A-Z]{2})", sddl)
        return found[1] if found else ""

    def allowed_in(sddl: str) -> set[str] | None:
        """Return the users that have any right (SIDs or abbreviations). ``None``: there is no access list, so
        all users have access."""
        found = re.search(r"D:([A-Z]*)((?:\([^)]*\))*)", sddl)
        # An object without an access list is open to all users; an empty list admits no user.
        if found is None or "NO_ACCESS_CONTROL" in found[1]:
            return None
        entries = [entry.split(";") for entry in re.findall(r"\(([^)]*)\)", found[2])]
        # Entries with D and OD deny rights, so they admit no user.
        return {
            entry[5] for entry in entries if len(entry) > 5 and entry[0] != "D" and not entry[0].startswith("OD")
        }

    def _token_user(process: int) -> str:
        token = wintypes.HANDLE()
        if not _advapi32.OpenProcessToken(process, _TOKEN_QUERY, ctypes.byref(token)):
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            size = wintypes.DWORD()
            # The first call only returns the size of the result.
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
        """Return a string that Windows has allocated, and free the string."""
        try:
            return ctypes.wstring_at(text.value or 0)
        finally:
            kernel32.LocalFree(text)

    _GENERIC_READ = 0x80000000
    _GENERIC_WRITE = 0x40000000
    _CREATE_NEW = 1
    # Allow the daemon to replace the file while it is open, which Python's own `open` would prevent.
    _SHARE_ALL = 0x1 | 0x2 | 0x4
    # Open a link itself and not its target.
    _OPEN_REPARSE_POINT = 0x00200000
    _ERROR_ALREADY_EXISTS = 183

    # System and administrators have access in any case; "owner" and "creator owner" stand for the owner. LA is this
    # computer's built-in administrator.
    _TRUSTED = {SYSTEM, ADMINISTRATORS, "LA", "S-1-5-18", "S-1-5-32-544", "OW", "CO", "S-1-3-0", "S-1-3-4"}
    # SDDL always uses abbreviations for service accounts, never their SIDs.
    _SERVICES = {"S-1-5-19": "LS", "S-1-5-20": "NS"}
    kernel32.CreateDirectoryW.argtypes = (wintypes.LPCWSTR, ctypes.c_void_p)

    def default_runtime_folder() -> Path:
        """Return the system's usual folder for private files of this user."""
        local = os.environ.get("LOCALAPPDATA")
        return Path(local, "qnnbridge", "run") if local else Path.home() / "AppData" / "Local" / "qnnbridge" / "run"

    def make_private_folder(path: Path) -> None:
        """Create the folder and its parents, readable by this user only. Do not change an existing folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        attributes = OwnerOnly(inherit=True)
        if not kernel32.CreateDirectoryW(str(path), attributes.address):
            code = ctypes.get_last_error()
            if code != _ERROR_ALREADY_EXISTS:
                raise ctypes.WinError(code)

    def why_not_private(path: Path) -> str | None:
        """Return the reason why other users may access a folder or file; ``None`` if only this user may."""
        status = os.lstat(path)
        # Python does not treat a junction as a symbolic link, although a junction refers to another folder.
        if stat.S_ISLNK(status.st_mode) or status.st_reparse_tag:
            return "it is a link"
        return fault_of(access_list(str(path)), user_sid())

    def fault_of(sddl: str, me: str) -> str | None:
        """Return why this owner and access list do not limit the access to the user `me`; ``None`` if they do."""
        owner, ours = owner_of(sddl), {me, _SERVICES.get(me, me), *_TRUSTED}
        # Accept the group of administrators: Windows makes it the owner of objects that an elevated program
        # creates.
        if owner not in ours:
            return f"it belongs to {owner}, not to you ({me})"
        allowed = allowed_in(sddl)
        if allowed is None:
            return "all users have access to it"
        others = allowed - ours
        return f"other users have access to it ({', '.join(sorted(others))})" if others else None

    def how_to_make_private(path: Path) -> str | None:
        # Use the SID in the command, because cmd and PowerShell refer to the variable with the user name
        # differently.
        inherit = "(OI)(CI)" if path.is_dir() else ""
        return f'If no other user needs access: icacls "{path}" /inheritance:r /grant:r "*{user_sid()}:{inherit}F"'

    def read_private_file(path: Path, limit: int) -> bytes:
        """Return at most `limit` bytes of a file that only this user can have written. Raise `OSError`.

        The check uses the opened file and not its name, which may now refer to another file.
        """
        handle = open_file(str(path), _GENERIC_READ, _SHARE_ALL, _winapi.OPEN_EXISTING, _OPEN_REPARSE_POINT)
        with open(descriptor_of(handle, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT:
                raise PermissionError(f"{path}: it is a link")
            problem = fault_of(access_list(handle, FILE_OBJECT), user_sid())
            if problem is not None:
                raise PermissionError(f"{path}: {problem}")
            return file.read(limit)

    def write_private_file(path: Path, data: bytes) -> None:
        """Create a file that only this user can read. Raise `FileExistsError`."""
        attributes = OwnerOnly()
        # Share mode 0: no other process can open the file before it is written completely.
        handle = open_file(str(path), _GENERIC_WRITE, 0, _CREATE_NEW, 0, attributes.address)
        with open(descriptor_of(handle, os.O_WRONLY), "wb") as file:
            file.write(data)

else:
    import shlex
    import tempfile

    _OTHERS = stat.S_IRWXG | stat.S_IRWXO

    def default_runtime_folder() -> Path:
        """Return the system's usual folder for sockets of this user."""
        # systemd creates the folder XDG_RUNTIME_DIR at login for this user only (mode 0700).
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        if runtime and os.path.isdir(runtime):
            return Path(runtime, "qnnbridge")
        # Another user may have created this folder first. `why_not_private` then refuses it.
        return Path(tempfile.gettempdir(), f"qnnbridge-{os.getuid()}")

    def make_private_folder(path: Path) -> None:
        """Create the folder and its parents, readable by this user only. Do not change an existing folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Set the mode in the same call that creates the folder, so that other users never have access.
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass

    def why_not_private(path: Path) -> str | None:
        """Return the reason why other users may access a folder or file; ``None`` if only this user may."""
        return _why_not_private(os.lstat(path))

    def _why_not_private(status: os.stat_result) -> str | None:
        # Check for a link first: a link has the mode 0777 on Linux, which would lead to the wrong reason.
        if stat.S_ISLNK(status.st_mode):
            return "it is a symbolic link"
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            return "it is neither a folder nor a file"
        if status.st_uid != os.getuid():
            return f"it belongs to user {status.st_uid}, not to you ({os.getuid()})"
        if status.st_mode & _OTHERS:
            return f"other users have access to it (mode {stat.S_IMODE(status.st_mode):04o})"
        return None

    def how_to_make_private(path: Path) -> str | None:
        """Return the command that makes a path private; ``None`` if the path is missing, is a link, or belongs
        to another user."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
            return None
        return f"If no other user needs access: chmod go-rwx {shlex.quote(str(path))}"

    def read_private_file(path: Path, limit: int) -> bytes:
        """Return at most `limit` bytes of a file that only this user can have written. Raise `OSError`.

        The check uses the opened file and not its name, which may now refer to another file.
        """
        # Without O_NONBLOCK, opening a pipe would wait.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            problem = _why_not_private(os.fstat(fd))
            if problem is not None:
                raise PermissionError(f"{path}: {problem}")
            return file.read(limit)

    def write_private_file(path: Path, data: bytes) -> None:
        """Create a file that only this user can read. Raise `FileExistsError`."""
        # O_EXCL also refuses a link, even a dangling one.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
