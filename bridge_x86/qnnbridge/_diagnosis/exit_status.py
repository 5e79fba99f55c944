"""An exit status as the raw number it is, with everything that is known of that number.

`ExitStatus` is what a supervisor keeps of a dead process: the number exactly as `subprocess` gave it, and the
system whose rules it follows. Pure look-ups in `exit_codes_data`; no state, safe from any thread.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from qnnbridge._diagnosis.exit_codes_data import POSIX, SIGNALS, WINDOWS, ExitCode

Platform = Literal["win32", "posix"]

UINT32: Final = 0xFFFFFFFF
# The first number of NTSTATUS's severity "error".
NTSTATUS_ERROR: Final = 0xC0000000
# A POSIX shell, and any wrapper script that does not ``exec``, reports signal N as 128 + N.
SHELL_SIGNAL_BASE: Final = 128

_WINDOWS: Final = {row.number: row for row in WINDOWS}
_POSIX: Final = {row.number: row for row in POSIX}
_SIGNALS: Final = {row.number: row for row in SIGNALS}
_BY_NAME: Final = {row.name.upper(): row for row in (*SIGNALS, *WINDOWS) if row.name.isidentifier()}

# The NTSTATUS codes that Cygwin (and so MSYS2 and Git Bash) turns into a signal; all others become 127.
_GIT_BASH: Final = {0xC0000005: 139, 0xC000001D: 132, 0xC0000017: 138, 0xC000013A: 130}


@dataclasses.dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended.

    raw: the number as `subprocess.Popen.returncode` gives it: -N for signal N on POSIX, the unsigned 32-bit
        code on Windows (a signed one is understood too). platform: whose rules apply; a Windows process under
        Wine that a Linux parent waits for is "posix", and its number is the low byte only.
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
        """The number that Python shows for it."""
        return self.unsigned if self.platform == "win32" else self.raw

    @property
    def hex(self) -> str:
        return f"0x{self.unsigned:08X}"

    @property
    def signal(self) -> int | None:
        """The signal that ended it, also when a wrapper reported it as 128 + N."""
        if self.platform == "win32":
            return None
        number = -self.raw if self.raw < 0 else self.raw - SHELL_SIGNAL_BASE
        return number if number in _SIGNALS or self.raw < 0 else None

    @property
    def code(self) -> ExitCode:
        """The row of the table; a code that the table lacks gets a row that says so."""
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
        """The code in one phrase: ``3221226505 (0xC0000409, STATUS_STACK_BUFFER_OVERRUN)``, ``-11 (SIGSEGV)``."""
        if self.platform == "win32" and self.unsigned >= 0x40000000:
            return f"{self.unsigned} ({self.hex}, {self.name})"
        if self.signal is not None and self.raw > 0:
            return f"{self.raw} (128 + {self.signal}, {self.name})"
        return str(self.number) if self.name == f"exit {self.number}" else f"{self.number} ({self.name})"


def to_signed(number: int) -> int:
    """A 32-bit number as cmd and PowerShell show it."""
    number &= UINT32
    return number - 0x100000000 if number > 0x7FFFFFFF else number


def git_bash_status(unsigned: int) -> int:
    """What ``$?`` is in Git Bash, MSYS2 or Cygwin after a native Windows program ended with this code."""
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
        "a Windows error status that this table does not name: native code ended the process",
        "Look at the Application event log (event 1000): it names the module.",
    )


def signal_code(number: int) -> ExitCode:
    return _SIGNALS.get(number) or ExitCode(
        number, f"signal {number}", "unknown", "killed", True, False, "an uncommon signal", "Find out who sent it."
    )


def posix_code(number: int) -> ExitCode | None:
    return _POSIX.get(number)


def code_by_name(name: str) -> ExitCode | None:
    """A row by its name: ``SIGSEGV``, ``STATUS_HEAP_CORRUPTION``, also without the ``STATUS_``."""
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
        "the program ended itself with a number of its own",
        "Read the end of stderr.",
    )
