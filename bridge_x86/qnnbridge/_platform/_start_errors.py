"""Turns the operating system's refusal to start a program into an error that says what to do."""

from __future__ import annotations

import errno
import os

from qnnbridge._platform._executable import executable_machine
from qnnbridge_protocol.errors import HostNotFound, HostStartFailed

# Win32 error numbers (`OSError.winerror`); a restart does not cure any of them.
_WIN_NOT_FOUND = (2, 3)
_WIN_ACCESS_DENIED = 5
_WIN_BAD_FORMAT = (193, 216)
_WIN_BLOCKED = {
    225: "an antivirus program holds the file for harmful",
    740: "the program asks for administrator rights",
    1260: "a policy of the administrator forbids the program",
    4551: "Windows' application control policy forbids the program",
}
_WIN_ALIAS_BROKEN = (1920, 4392)

_OUT_OF = {
    errno.EAGAIN: "the limit of processes is reached",
    errno.ENOMEM: "there is not enough memory",
    errno.EMFILE: "this process has too many files open",
    errno.ENFILE: "the computer has too many files open",
}
_WIN_OUT_OF = {
    8: "there is not enough memory",
    14: "there is not enough memory",
    1450: "Windows is out of system resources",
    1455: "the page file is too small",
}


def start_failed(program: str, cwd: str | None, error: OSError, computer: str) -> HostStartFailed:
    """The error to raise when `program` could not be started on a computer of machine type `computer`."""
    number: int | None = getattr(error, "winerror", None)
    windows = number is not None
    evidence = [f"WinError {number}: {error.strerror}" if windows else f"errno {error.errno}: {error.strerror}"]
    details = {"program": program, "errno": error.errno, "winerror": number}

    def final(cause: str, fix: str) -> HostNotFound:
        return HostNotFound(_message(program), cause=cause, fix=fix, evidence=evidence, details=details)

    if cwd is not None and not os.path.isdir(cwd):
        return final(f"Its working folder {cwd} does not exist.", "Name a folder that exists.")
    if number in _WIN_NOT_FOUND or (not windows and error.errno in (errno.ENOENT, errno.ENOTDIR)):
        if os.path.exists(program):
            return final(_missing_interpreter(program), "Reinstall it for this computer.")
        return final("There is no such file.", "Name the interpreter's full path.")
    if number in _WIN_BAD_FORMAT or (not windows and error.errno == errno.ENOEXEC):
        return final(_wrong_machine(program, computer), f"Use an interpreter that is built for {computer}.")
    if number in _WIN_ALIAS_BROKEN:
        return final(
            "It is an alias of the Microsoft Store without a program behind it.",
            "Install Python from python.org and name its python.exe.",
        )
    if number in _WIN_BLOCKED:
        return final(f"Windows says: {_WIN_BLOCKED[number]}.", "Allow the program, or use another interpreter.")
    if number == _WIN_ACCESS_DENIED or (not windows and error.errno in (errno.EACCES, errno.EPERM)):
        return final(
            "It is not executable for this user, or it lies on a disk that is mounted without that right.",
            "Name the interpreter itself (not a folder or a text file) and check its permissions.",
        )
    if windows:
        shortage = _WIN_OUT_OF.get(number) if number is not None else None
    else:
        shortage = _OUT_OF.get(error.errno or 0)
    return HostStartFailed(
        _message(program),
        cause=f"At the moment {shortage}." if shortage else error.strerror or str(error),
        fix="Close programs and sessions that are not needed, then try again." if shortage else None,
        evidence=evidence,
        details=details,
    )


def _message(program: str) -> str:
    return f"The host interpreter {program} could not be started."


def _wrong_machine(program: str, computer: str) -> str:
    try:
        machine = executable_machine(program)
    except OSError:
        machine = None
    if machine is None:
        return "The file is not a program: it has neither a known header nor an interpreter line."
    if machine == computer:
        return f"The file is a {machine} program and this computer is {computer}: the file is damaged."
    return f"The file is a program for {machine}, this computer is {computer}."


def _missing_interpreter(program: str) -> str:
    """The file is there and "no such file" is the answer: the system means the program that has to run it."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        first = b""
    if first.startswith(b"#!"):
        runner = first[2:].strip().decode(errors="replace")
        return f"The file is a script and its first line asks for {runner}, which does not exist."
    machine = executable_machine(program) if first else None
    return f"The file exists ({machine or 'not a program'}), the loader that it asks for does not."
