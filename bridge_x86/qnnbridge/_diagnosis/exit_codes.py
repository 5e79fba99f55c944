"""Exit codes of a host process: the tables in `exit_codes.json`, and `ExitStatus`, which looks up a number in them.

The names come from Microsoft's ``ntstatus.h`` and from POSIX. The usual causes come from crashes that were
reproduced with the QNN libraries, and from public reports of such crashes. `ExitStatus` contains the number exactly
as `subprocess` returns it, and the platform whose rules apply. Immutable; thread-safe.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final, Literal

from qnnbridge._diagnosis.tables import TEXTS, read

# How the process ended. crash: native code crashed. loader: the program could not be started. killed: another
# process ended the program. python: the program ended itself with a number other than 0. normal: the program ended
# as planned. shell: the exit code comes from a shell, not from the program.
Kind = Literal["crash", "loader", "killed", "python", "normal", "shell"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExitCode:
    """Meaning of one exit code or signal.

    Attributes:
        number: the unsigned 32-bit exit code on Windows; the signal number or the exit code on POSIX.
        fault: kind of fault. The value is the same on every system (``access-violation`` means 0xC0000005 and
            SIGSEGV), so that rules do not depend on the platform.
        curable: whether a restart may help.
        blame: whether a model whose call was inside native code may be the cause.
    """

    number: int
    name: str
    fault: str
    kind: Kind
    curable: bool
    blame: bool
    meaning: str
    advice: str


def _rows(rows: list[dict[str, Any]]) -> tuple[ExitCode, ...]:
    return tuple(
        ExitCode(
            number if isinstance(number := row["number"], int) else int(number, 16),
            row["name"],
            row["fault"],
            row["kind"],
            row.get("curable", row["kind"] not in ("loader", "shell")),
            row["kind"] == "crash",
            row["meaning"],
            row["advice"],
        )
        for row in rows
    )


_TABLES: Final = read("exit_codes.json")
WINDOWS: Final = _rows(_TABLES["windows"])
# Numbers of Linux on x64 and ARM64. macOS uses other numbers for SIGBUS, SIGUSR1 and SIGUSR2.
SIGNALS: Final = _rows(_TABLES["signals"])
POSIX: Final = _rows(_TABLES["posix"])

Platform = Literal["win32", "posix"]

UINT32: Final = 0xFFFFFFFF
# Smallest NTSTATUS number with the severity "error".
NTSTATUS_ERROR: Final = 0xC0000000
# A POSIX shell, and a wrapper script that does not use ``exec``, reports signal N as 128 + N.
SHELL_SIGNAL_BASE: Final = 128

_WINDOWS: Final = {row.number: row for row in WINDOWS}
_POSIX: Final = {row.number: row for row in POSIX}
_SIGNALS: Final = {row.number: row for row in SIGNALS}
_BY_NAME: Final = {row.name.upper(): row for row in (*SIGNALS, *WINDOWS) if row.name.isidentifier()}

# Exit codes in Git Bash by NTSTATUS code. Cygwin, on which Git Bash is based, turns these codes into signals and
# all other codes into 127.
_GIT_BASH: Final = {0xC0000005: 139, 0xC000001D: 132, 0xC0000017: 138, 0xC000013A: 130}


@dataclasses.dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended.

    Attributes:
        raw: value of `subprocess.Popen.returncode`: -N for signal N on POSIX, the unsigned 32-bit code on Windows
            (a signed code is accepted, too).
        platform: platform whose rules apply. For a Windows process under Wine with a Linux parent, `platform` is
            "posix" and `raw` contains only the low byte of the code.
    """

    raw: int
    platform: Platform

    @property
    def unsigned(self) -> int:
        return self.raw & UINT32

    @property
    def signed(self) -> int:
        return to_signed(self.raw)

    @property
    def number(self) -> int:
        """Exit code as an unsigned number, as Python reports it."""
        return self.unsigned if self.platform == "win32" else self.raw

    @property
    def hex(self) -> str:
        return f"0x{self.unsigned:08X}"

    @property
    def signal(self) -> int | None:
        """Signal that ended the process, even if a wrapper script reported it as 128 + N."""
        if self.platform == "win32":
            return None
        number = -self.raw if self.raw < 0 else self.raw - SHELL_SIGNAL_BASE
        # Interpret 128 + N as signal N only if the table contains the signal: a program may also exit with code
        # 200.
        return number if number in _SIGNALS or self.raw < 0 else None

    @property
    def code(self) -> ExitCode:
        """Row of the table for this exit code. For a code that is not in the table, a new row."""
        if self.platform == "win32":
            return windows_code(self.unsigned)
        signal = self.signal
        if signal is not None:
            return signal_code(signal)
        return _POSIX.get(self.raw) or _own_number(self.raw)

    @property
    def name(self) -> str:
        return self.code.name

    def describe(self) -> str:
        """Return the code as one phrase: ``3221226505 (0xC0000409, STATUS_STACK_BUFFER_OVERRUN)``, ``-11
        (SIGSEGV)``."""
        # Show large numbers in hexadecimal, too: they are NTSTATUS codes, which documentation lists that way.
        if self.platform == "win32" and self.unsigned >= 0x40000000:
            return f"{self.unsigned} ({self.hex}, {self.name})"
        if self.signal is not None and self.raw > 0:
            return f"{self.raw} (128 + {self.signal}, {self.name})"
        return str(self.number) if self.name == f"exit {self.number}" else f"{self.number} ({self.name})"


def to_signed(number: int) -> int:
    """Convert a 32-bit number to the signed number that cmd and PowerShell show."""
    number &= UINT32
    return number - 0x100000000 if number > 0x7FFFFFFF else number


def git_bash_status(unsigned: int) -> int:
    """Return ``$?`` in Git Bash, MSYS2 or Cygwin after a native Windows program ended with this code."""
    return _GIT_BASH.get(unsigned, 127) if unsigned >= NTSTATUS_ERROR else unsigned & 0xFF


def windows_code(unsigned: int) -> ExitCode:
    row = _WINDOWS.get(unsigned)
    if row is not None:
        return row
    if unsigned < NTSTATUS_ERROR:
        return _own_number(unsigned)
    return ExitCode(
        unsigned,
        f"NTSTATUS 0x{unsigned:08X}",
        "unknown",
        "crash",
        True,
        True,
        "an unknown Windows error status: native code ended the process",
        "Look for the module in the Application event log (event 1000).",
    )


# Messages that Python's faulthandler prints before Windows ends the process, and the exit codes that follow.
_FATAL_EXCEPTIONS = {
    "access violation": 0xC0000005,
    "page error": 0xC0000006,
    "float divide by zero": 0xC000008E,
    "float overflow": 0xC0000091,
    "int divide by zero": 0xC0000094,
    "integer overflow": 0xC0000095,
    "stack overflow": 0xC00000FD,
}
_FATAL_EXCEPTION = re.compile(r"^Windows fatal exception: (?:code 0x([0-9a-fA-F]{8})|([a-z ]+))", re.MULTILINE)


def from_low_byte(raw: int, stderr: str) -> ExitStatus:
    """Return the exit status of a Windows process whose Linux parent received only the low byte, as under Wine.

    Use the last code with this low byte that Python printed on stderr. If Python printed none, and exactly one code
    in the table has this low byte, use that code.
    """
    if raw < 0:
        return ExitStatus(raw, "posix")
    for number, name in reversed(_FATAL_EXCEPTION.findall(stderr)):
        code = int(number, 16) if number else _FATAL_EXCEPTIONS.get(name.strip(), 0)
        if code and code & 0xFF == raw:
            return ExitStatus(code, "win32")
    fits = [code for code in _WINDOWS if code & 0xFF == raw]
    # If `raw` itself is a known exit code, keep it: the process probably returned this small number.
    return ExitStatus(fits[0] if raw not in fits and len(fits) == 1 else raw, "win32")


def signal_code(number: int) -> ExitCode:
    known = _SIGNALS.get(number)
    if known is not None:
        return known
    name, advice = f"signal {number}", TEXTS["find_sender"]
    return ExitCode(number, name, "unknown", "killed", True, False, "an uncommon signal", advice)


def posix_code(number: int) -> ExitCode | None:
    return _POSIX.get(number)


def code_by_name(name: str) -> ExitCode | None:
    """Return a row by its name, such as ``SIGSEGV`` or ``STATUS_HEAP_CORRUPTION``. The prefix ``STATUS_`` is
    optional."""
    name = name.strip().upper()
    return _BY_NAME.get(name) or _BY_NAME.get(f"STATUS_{name}")


def known_names() -> list[str]:
    return sorted(_BY_NAME)


def _own_number(number: int) -> ExitCode:
    return ExitCode(
        number,
        f"exit {number}",
        "own-number",
        "python",
        True,
        False,
        "the program ended with an exit code of its own",
        "Read the last lines of stderr.",
    )
