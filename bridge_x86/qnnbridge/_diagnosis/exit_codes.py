"""Exit codes of a host process: the tables, and `ExitStatus`, which looks up an exit code.

Names are those of Microsoft's ``ntstatus.h`` and of POSIX. The usual meanings come from deaths that were reproduced
with the QNN libraries, and from public reports about them. `ExitStatus` contains the number exactly as `subprocess`
returns it, and the platform whose rules apply. Immutable; thread-safe.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final, Literal

# crash: native code crashed. loader: the program could not be started. killed: another process ended the program.
# python: the program ended itself with a number other than 0. normal: the program ended as planned. shell: the exit
# code is that of a shell, not of the program.
Kind = Literal["crash", "loader", "killed", "python", "normal", "shell"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExitCode:
    """Meaning of one exit code or signal.

    Attributes:
        number: the unsigned 32-bit exit code on Windows; the number of a signal or the exit code on POSIX.
        fault: kind of fault. The word is the same on every system (``access-violation`` is 0xC0000005 and SIGSEGV),
            so rules do not depend on the platform.
        curable: whether a restart may help.
        blame: whether a model that was inside native code may be the cause.
    """

    number: int
    name: str
    fault: str
    kind: Kind
    curable: bool
    blame: bool
    meaning: str
    advice: str


def _crash(number: int, name: str, fault: str, meaning: str, advice: str) -> ExitCode:
    return ExitCode(number, name, fault, "crash", True, True, meaning, advice)


def _loader(number: int, name: str, fault: str, meaning: str, advice: str) -> ExitCode:
    return ExitCode(number, name, fault, "loader", False, False, meaning, advice)


def _killed(number: int, name: str, fault: str, meaning: str, advice: str) -> ExitCode:
    return ExitCode(number, name, fault, "killed", True, False, meaning, advice)


_MODEL = "Keep this model away from the host, rebuild its context binary, update the QNN execution provider."
_ONE_SET = (
    "Use one set of QNN libraries: remove QNN SDK folders from PATH, ADSP_LIBRARY_PATH and backend_path, "
    "reinstall onnxruntime-qnn."
)
ONE_MACHINE = (
    "Give the host an interpreter and packages of one machine type: `qnnbridge setup` makes such a host. By hand: "
    'python -c "import sysconfig; print(sysconfig.get_platform())" prints the type of an interpreter; install all '
    "packages with that interpreter's own pip."
)
_INSTRUCTION = (
    "Use a newer emulator or operating system, or another version of the library in the crash report. "
    + ONE_MACHINE
)
_MEMORY = "Keep fewer sessions, use context binaries instead of compiling, enlarge the page file."
_FLOAT = "a floating-point trap that a library enabled"
_NO_CRASH = "Nothing: this is not a crash."

# The formatter would use more lines per row.
# fmt: off
WINDOWS: Final[tuple[ExitCode, ...]] = (
    ExitCode(0, "exit 0", "ok", "normal", True, False,
        "ended as planned or on request (a closed job object can also result in 0)",
        "Nothing, if the host was being closed. Otherwise look for sys.exit() in the code that it ran."),
    ExitCode(1, "exit 1", "python-error", "python", True, False,
        "a Python exception ended the program, or TerminateProcess(…, 1): Popen.kill, taskkill /F, Task "
        "Manager",
        "Read the end of stderr: a traceback shows the exception; no text means that the process was ended from "
        "outside."),
    ExitCode(2, "exit 2", "usage", "python", False, False,
        "Python did not understand its command line or could not open the program",
        "Check the path of the host's interpreter; `qnnbridge --version` shows which one is used, and why it does "
        "not start."),
    _crash(3, "abort()", "abort",
        "the C runtime's abort(): an uncaught C++ exception or a failed check in a native library",
        "The last line on stderr often contains the exception. Treat it as 0xC0000409."),
    _loader(101, "venv launcher: cannot start", "launcher",
        "the python.exe of a virtual environment could not start the base interpreter",
        "The base Python was moved or removed: make the virtual environment again."),
    _loader(103, "venv launcher: no Python", "launcher",
        "the python.exe of a virtual environment did not find the base interpreter",
        "The base Python was moved or removed: make the virtual environment again."),
    _loader(106, "venv launcher: no pyvenv.cfg", "launcher",
        "the python.exe of a virtual environment did not find its pyvenv.cfg",
        "Give the python.exe inside the virtual environment itself, or make the environment again."),
    ExitCode(120, "exit 120", "python-error", "python", True, False,
        "Python could not flush stdout or stderr while it shut down",
        "The reader of its output was gone first; nothing to do if the host was being closed."),
    ExitCode(259, "STILL_ACTIVE", "still-active", "python", True, False,
        "the process ended with exit(259), or another program asked for the code of a process that still "
        "runs",
        "Wait on the process handle; never take 259 for alive."),
    ExitCode(9009, "cmd: command not found", "not-found", "shell", False, False,
        "cmd.exe did not find the program",
        "Check the path of the host's "
        "interpreter; `qnnbridge --version` shows which one is used."),
    _loader(0x4000000E, "STATUS_IMAGE_MACHINE_TYPE_MISMATCH", "wrong-architecture",
        "a library is for another machine type", ONE_MACHINE),
    _loader(0x40000023, "STATUS_IMAGE_MACHINE_TYPE_MISMATCH_EXE", "wrong-architecture",
        "the program is for another machine type", ONE_MACHINE),
    _crash(0x40000015, "STATUS_FATAL_APP_EXIT", "abort",
        "the C runtime ended the process (runtime error box of a debug build)",
        "Look for a debug build of a library."),
    _killed(0x40010004, "DBG_TERMINATE_PROCESS", "terminate",
        "a debugger or the end of the Windows session ended the process",
        "Nothing: this is not a fault of the host."),
    _killed(0x40010005, "DBG_CONTROL_C", "interrupt", "Ctrl+C in the console", _NO_CRASH),
    _killed(0x40010008, "DBG_CONTROL_BREAK", "interrupt", "Ctrl+Break in the console", _NO_CRASH),
    _crash(0x80000001, "STATUS_GUARD_PAGE_VIOLATION", "stack-overflow",
        "a guard page was touched: a stack at its end, or a damaged pointer", _MODEL),
    _crash(0x80000002, "STATUS_DATATYPE_MISALIGNMENT", "bus", "a misaligned access in native code", _MODEL),
    _crash(0x80000003, "STATUS_BREAKPOINT", "breakpoint", "an assertion of a debug build",
        "Use release builds of the libraries."),
    _crash(0x80000004, "STATUS_SINGLE_STEP", "breakpoint", "a debugger's single-step flag was still set",
        "Close the debugger."),
    _loader(0x80000100, "EXCEPTION_WINE_STUB", "symbol-missing",
        "Wine: a function that Wine does not have was called (real Windows: 0xC0000139)",
        "Use a newer Wine, or older packages."),
    _crash(0xC0000005, "STATUS_ACCESS_VIOLATION", "access-violation",
        "native code touched memory it does not own: a damaged or foreign context binary, an operator bug "
        "(STFT with a computed step), a session used after its provider was unregistered, the driver", _MODEL),
    _crash(0xC0000006, "STATUS_IN_PAGE_ERROR", "in-page",
        "a memory-mapped file could not be read: it vanished, or lies on a bad disk or a network share (QNN "
        "maps context binaries on Windows)",
        "Keep models and the cache on a local disk; set the provider option disable_file_mapped_weights=1."),
    _crash(0xC0000008, "STATUS_INVALID_HANDLE", "invalid-handle", "a handle was used after it had been closed",
        _ONE_SET),
    _crash(0xC000000D, "STATUS_INVALID_PARAMETER", "invalid-handle", "a system call was given a bad argument",
        _MODEL),
    _crash(0xC0000017, "STATUS_NO_MEMORY", "no-memory", "the system had no free memory", _MEMORY),
    _crash(0xC000001D, "STATUS_ILLEGAL_INSTRUCTION", "illegal-instruction",
        "an instruction that the processor, or the emulator that runs it (Wine, x64 on an older Windows on Arm), "
        "does not have; or a library for another machine, or a jump into data", _INSTRUCTION),
    _loader(0xC0000022, "STATUS_ACCESS_DENIED", "blocked", "Windows refused access to a file of the program",
        "Check the rights on the interpreter's folder and the antivirus log."),
    _crash(0xC0000025, "STATUS_NONCONTINUABLE_EXCEPTION", "cpp-exception",
        "code continued after an exception that does not allow that", _MODEL),
    _crash(0xC0000026, "STATUS_INVALID_DISPOSITION", "cpp-exception",
        "an exception handler returned an invalid value (damaged stack)", _MODEL),
    _crash(0xC0000028, "STATUS_BAD_STACK", "stack-overflow",
        "the stack was damaged while an exception was handled", _MODEL),
    _loader(0xC000007B, "STATUS_INVALID_IMAGE_FORMAT", "wrong-architecture",
        "a library next to the program is for another machine type (x64 for ARM64), or is damaged", ONE_MACHINE),
    _crash(0xC000008C, "STATUS_ARRAY_BOUNDS_EXCEEDED", "access-violation", "an array index out of range",
        _MODEL),
    _crash(0xC000008D, "STATUS_FLOAT_DENORMAL_OPERAND", "float", _FLOAT, _MODEL),
    _crash(0xC000008E, "STATUS_FLOAT_DIVIDE_BY_ZERO", "float", _FLOAT, _MODEL),
    _crash(0xC000008F, "STATUS_FLOAT_INEXACT_RESULT", "float", _FLOAT, _MODEL),
    _crash(0xC0000090, "STATUS_FLOAT_INVALID_OPERATION", "float", _FLOAT, _MODEL),
    _crash(0xC0000091, "STATUS_FLOAT_OVERFLOW", "float", _FLOAT, _MODEL),
    _crash(0xC0000092, "STATUS_FLOAT_STACK_CHECK", "float", _FLOAT, _MODEL),
    _crash(0xC0000093, "STATUS_FLOAT_UNDERFLOW", "float", _FLOAT, _MODEL),
    _crash(0xC0000094, "STATUS_INTEGER_DIVIDE_BY_ZERO", "divide-by-zero",
        "an integer was divided by zero: nearly always a tensor with a dimension of size 0",
        "Find the dimension of size 0 in the model and give it a size, or cut that part out of the model."),
    # x86 has one exception for a division by zero and for a quotient that is too large; POSIX has one signal.
    _crash(0xC0000095, "STATUS_INTEGER_OVERFLOW", "divide-by-zero", "an integer division overflowed", _MODEL),
    _crash(0xC0000096, "STATUS_PRIVILEGED_INSTRUCTION", "access-violation", "execution jumped into data",
        _MODEL),
    _crash(0xC000009A, "STATUS_INSUFFICIENT_RESOURCES", "no-memory",
        "the system ran out of a resource (pool, handles, driver memory)", _MEMORY),
    _crash(0xC00000FD, "STATUS_STACK_OVERFLOW", "stack-overflow",
        "the stack was used up: a very deep graph or an endless recursion in a parser",
        "Simplify the model; give the host's threads a bigger stack."),
    _crash(0xC000012D, "STATUS_COMMITMENT_LIMIT", "no-memory",
        "the page file was full while weights were mapped", _MEMORY),
    _loader(0xC0000135, "STATUS_DLL_NOT_FOUND", "library-missing",
        "a DLL that the program itself needs is missing, before Python starts: python3xx.dll or the Visual "
        "C++ runtime",
        "Install the Visual C++ redistributable for the interpreter's machine (ARM64 for the host), or "
        "repair the Python installation."),
    _loader(0xC0000138, "STATUS_ORDINAL_NOT_FOUND", "symbol-missing",
        "a DLL of another version was found first", _ONE_SET),
    _loader(0xC0000139, "STATUS_ENTRYPOINT_NOT_FOUND", "symbol-missing",
        "a DLL lacks a function: two versions are mixed, or an old copy from System32 was found first",
        _ONE_SET),
    _killed(0xC000013A, "STATUS_CONTROL_C_EXIT", "interrupt", "Ctrl+C, or the console window was closed",
        _NO_CRASH),
    _loader(0xC0000142, "STATUS_DLL_INIT_FAILED", "library-init",
        "a DLL refused to start: no desktop (a service), the desktop heap is full, or its own start-up "
        "failed", "Start it from an interactive session; sign out and in again; reboot after a driver update."),
    _crash(0xC0000144, "STATUS_UNHANDLED_EXCEPTION", "cpp-exception", "an exception without a handler",
        _MODEL),
    _loader(0xC0000145, "STATUS_APP_INIT_FAILURE", "library-init", "the program could not be set up",
        "Repair the Python installation."),
    _crash(0xC000014B, "STATUS_PIPE_BROKEN", "pipe", "the other end of a pipe was gone",
        "Nothing, if the application had ended."),
    _crash(0xC0000194, "STATUS_POSSIBLE_DEADLOCK", "invalid-handle", "waiting for a lock took too long", _MODEL),
    _killed(0xC000026B, "STATUS_DLL_INIT_FAILED_LOGOFF", "terminate",
        "started while Windows was shutting down or signing out", "Nothing."),
    _crash(0xC0000374, "STATUS_HEAP_CORRUPTION", "heap-corruption",
        "the heap was damaged: a double free, or memory freed by another allocator (two sets of QNN or C "
        "runtime libraries)", _ONE_SET),
    _crash(0xC0000409, "STATUS_STACK_BUFFER_OVERRUN", "abort",
        "fail-fast: despite its name this is how abort() ends. The usual death of ONNX Runtime and QNN: an "
        "uncaught C++ exception, for instance an invalid number in an option, or a context binary of another "
        "model",
        "Read the last lines on stderr; check provider and run options; rebuild the context binary."),
    _crash(0xC0000417, "STATUS_INVALID_CRUNTIME_PARAMETER", "abort", "the C runtime was given a bad argument",
        _MODEL),
    _crash(0xC000041D, "STATUS_FATAL_USER_CALLBACK_EXCEPTION", "cpp-exception", "an exception left a callback",
        _MODEL),
    _crash(0xC0000420, "STATUS_ASSERTION_FAILURE", "abort", "an assertion in native code failed", _MODEL),
    _loader(0xC0000428, "STATUS_INVALID_IMAGE_HASH", "blocked",
        "a library's signature is missing or broken, or a policy forbids it",
        "Reinstall the wheel; check Smart App Control and WDAC policies."),
    _crash(0xC0000602, "STATUS_FAIL_FAST_EXCEPTION", "abort",
        "a library ended the process on purpose (fail-fast)",
        "Read the last lines on stderr and the Application event log (event 1000)."),
    _crash(0xC0000604, "STATUS_DYNAMIC_CODE_BLOCKED", "blocked", "a policy forbids code made at run time",
        "Remove the exploit-protection rule for the interpreter."),
    _loader(0xC06D007E, "delay-load: module not found", "library-missing",
        "a delay-loaded DLL is missing. No QNN wheel delay-loads anything: another extension in the process "
        "does", "Look for a foreign DLL in the host's environment."),
    _loader(0xC06D007F, "delay-load: procedure not found", "symbol-missing",
        "a delay-loaded DLL lacks a function. No QNN wheel delay-loads anything: another extension in the "
        "process does", "Look for a foreign DLL in the host's environment."),
    _loader(0xC0E90002, "STATUS_SYSTEM_INTEGRITY_POLICY_VIOLATION", "blocked",
        "Smart App Control or a WDAC policy blocked the program",
        "Allow the interpreter and the wheel's libraries in the policy."),
    _killed(0xCFFFFFFF, "ended as not responding", "terminate", "Windows ended a program that did not respond",
        "Look for a hang before it."),
    _crash(0xE0434352, ".NET exception", "cpp-exception", "an unhandled .NET exception",
        "Some .NET component is in the process: find out which."),
    _crash(0xE06D7363, "C++ exception", "cpp-exception", "a C++ exception crossed a C boundary",
        "Read the last line on stderr: it contains the exception."),
    _killed(0xFFFFFFFF, "exit -1", "terminate",
        "the program ended with -1, or TerminateProcess(…, -1) by a .NET tool", "Find out which program ended it."),
)
# fmt: on

_SIGNAL_NOTE = "Find out which program sent it."

# fmt: off
# Numbers of Linux on x64 and ARM64; macOS has others for SIGBUS, SIGUSR1 and SIGUSR2.
SIGNALS: Final[tuple[ExitCode, ...]] = (
    _killed(1, "SIGHUP", "terminate", "the terminal was closed", _NO_CRASH),
    _killed(2, "SIGINT", "interrupt", "Ctrl+C", _NO_CRASH),
    _killed(3, "SIGQUIT", "interrupt", "Ctrl+\\ in the terminal", _NO_CRASH),
    _crash(4, "SIGILL", "illegal-instruction",
        "an instruction that the processor, or the emulator that runs it (qemu), does not have; or a library for "
        "another machine, or a jump into data", _INSTRUCTION),
    _crash(5, "SIGTRAP", "breakpoint", "a breakpoint or a compiler's trap instruction", _MODEL),
    _crash(6, "SIGABRT", "abort",
        "abort(): an uncaught C++ exception, the allocator's own check (double free), a thread alive at exit",
        "Read the line `terminate called after throwing …` on stderr: it contains the exception."),
    _crash(7, "SIGBUS", "bus",
        "a memory-mapped file is shorter than it should be: a truncated library or context binary, or a "
        "full disk", "Reinstall the wheel; rebuild the context binary; check free space."),
    _crash(8, "SIGFPE", "divide-by-zero",
        "an integer was divided by zero: nearly always a tensor with a dimension of size 0",
        "Find the dimension of size 0 in the model and give it a size, or cut that part out of the model."),
    _killed(9, "SIGKILL", "kill", "killed from outside, or by the kernel's out-of-memory killer",
        "Look for the out-of-memory killer in the kernel log, and for other programs that may have killed it."),
    _killed(10, "SIGUSR1", "terminate", "a user-defined signal without a handler", _SIGNAL_NOTE),
    _crash(11, "SIGSEGV", "access-violation",
        "native code touched memory it does not own: a damaged or foreign context binary, an operator bug "
        "(STFT with a computed step), a session used after its provider was unregistered, the driver", _MODEL),
    _killed(12, "SIGUSR2", "terminate", "a user-defined signal without a handler", _SIGNAL_NOTE),
    _killed(13, "SIGPIPE", "pipe", "the reader of the output was gone",
        "Nothing, if the application had ended."),
    _killed(14, "SIGALRM", "terminate", "a timer without a handler", _SIGNAL_NOTE),
    _killed(15, "SIGTERM", "terminate", "another process requested the end", _NO_CRASH),
    _killed(24, "SIGXCPU", "terminate", "the limit of processor time was reached",
        "Raise the limit (ulimit -t)."),
    _killed(25, "SIGXFSZ", "terminate", "the limit of file size was reached", "Raise the limit (ulimit -f)."),
    _crash(31, "SIGSYS", "blocked", "a sandbox forbids a system call",
        "Relax the sandbox (seccomp) of the host."),
)
# fmt: on

# fmt: off
POSIX: Final[tuple[ExitCode, ...]] = (
    ExitCode(0, "exit 0", "ok", "normal", True, False, "ended as planned or on request",
        "Nothing, if the host was being closed. Otherwise look for sys.exit() in the code that it ran."),
    ExitCode(1, "exit 1", "python-error", "python", True, False, "a Python exception ended the program",
        "Read the traceback at the end of stderr."),
    ExitCode(2, "exit 2", "usage", "python", False, False,
        "Python did not understand its command line or could not open the program",
        "Check the path of the host's interpreter; `qnnbridge --version` shows which one is used, and why it does "
        "not start."),
    ExitCode(120, "exit 120", "python-error", "python", True, False,
        "Python could not flush stdout or stderr while it shut down",
        "The reader of its output was gone first; nothing to do if the host was being closed."),
    _loader(126, "not executable", "wrong-architecture",
        "the file was found but cannot be executed: no permission, or a program for another machine", ONE_MACHINE),
    _loader(127, "command or library not found", "not-found",
        "a shell did not find the command, or the loader did not find a library that the program itself "
        "needs", "Check the interpreter's path; run it by hand: the loader names the missing library."),
)
# fmt: on


Platform = Literal["win32", "posix"]

UINT32: Final = 0xFFFFFFFF
# First number with the severity "error" of NTSTATUS.
NTSTATUS_ERROR: Final = 0xC0000000
# A POSIX shell, and any wrapper script that does not ``exec``, reports signal N as 128 + N.
SHELL_SIGNAL_BASE: Final = 128

_WINDOWS: Final = {row.number: row for row in WINDOWS}
_POSIX: Final = {row.number: row for row in POSIX}
_SIGNALS: Final = {row.number: row for row in SIGNALS}
_BY_NAME: Final = {row.name.upper(): row for row in (*SIGNALS, *WINDOWS) if row.name.isidentifier()}

# Exit codes in Git Bash by NTSTATUS code: Cygwin, on which Git Bash is based, turns these codes into signals and
# all others into 127.
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
        """Exit code as Python shows it."""
        return self.unsigned if self.platform == "win32" else self.raw

    @property
    def hex(self) -> str:
        return f"0x{self.unsigned:08X}"

    @property
    def signal(self) -> int | None:
        """Signal that ended the process, also if a wrapper reported it as 128 + N."""
        if self.platform == "win32":
            return None
        number = -self.raw if self.raw < 0 else self.raw - SHELL_SIGNAL_BASE
        # 128 + N is a signal only if the table contains it: a program may exit with 200.
        return number if number in _SIGNALS or self.raw < 0 else None

    @property
    def code(self) -> ExitCode:
        """Row of the table. For a code that the tables do not contain, a row that says so."""
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
        # A number of this size is an NTSTATUS, which documentation lists in hexadecimal.
        if self.platform == "win32" and self.unsigned >= 0x40000000:
            return f"{self.unsigned} ({self.hex}, {self.name})"
        if self.signal is not None and self.raw > 0:
            return f"{self.raw} (128 + {self.signal}, {self.name})"
        return str(self.number) if self.name == f"exit {self.number}" else f"{self.number} ({self.name})"


def to_signed(number: int) -> int:
    """Return a 32-bit number as cmd and PowerShell show it."""
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
    return _crash(
        unsigned,
        f"NTSTATUS 0x{unsigned:08X}",
        "unknown",
        "a Windows error status that is not in this table: native code ended the process",
        "Look for the module in the Application event log (event 1000).",
    )


# Codes by the texts that Python's faulthandler prints before Windows ends the process.
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

    The code is the last code with this low byte that Python printed on stderr, or else the only such code in the
    table.
    """
    if raw < 0:
        return ExitStatus(raw, "posix")
    for number, name in reversed(_FATAL_EXCEPTION.findall(stderr)):
        code = int(number, 16) if number else _FATAL_EXCEPTIONS.get(name.strip(), 0)
        if code and code & 0xFF == raw:
            return ExitStatus(code, "win32")
    fits = [code for code in _WINDOWS if code & 0xFF == raw]
    # If the low byte is itself a known code, it is taken as the code.
    return ExitStatus(fits[0] if raw not in fits and len(fits) == 1 else raw, "win32")


def signal_code(number: int) -> ExitCode:
    return _SIGNALS.get(number) or _killed(
        number, f"signal {number}", "unknown", "an uncommon signal", _SIGNAL_NOTE
    )


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
        "the program ended itself with this number",
        "Read the end of stderr.",
    )
