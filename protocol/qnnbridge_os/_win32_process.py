"""Child processes on Windows.

Invariants: a child and all processes that it starts are in one job. The job ends them when its handle is closed.
Windows closes the handle when this process ends for any reason. The child inherits only three pipe handles. It runs
without a window, Ctrl+C in this process's console does not reach it, and it crashes without a dialog.

Thread-safe. Waiting uses the process handle, never a process id. Exit code 259 (STILL_ACTIVE) is treated as an exit
code.
"""

from __future__ import annotations

import _winapi
import contextlib
import logging
import msvcrt
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from qnnbridge_os import _win32_api as api
from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.native import Lock, popen
from qnnbridge_os.programs import ChildProcess, DetachedBase, start_failed
from qnnbridge_protocol.errors import HostStartFailed
from qnnbridge_protocol.process_names import is_frozen

assert sys.platform == "win32"

from qnnbridge_os._win32_streams import BUFFER_BYTES, stop_writing  # noqa: E402 - type checkers find it empty on Linux

_log = logging.getLogger("qnnbridge.process")

# The exit code that other callers of TerminateProcess also set (Popen.kill, taskkill).
KILLED_EXIT_CODE = 1

_CREATE_SUSPENDED = 0x4
# Longest delay until a wait notices Ctrl+C.
_CTRL_C_INTERVAL_S = 0.1


def out_of_memory_kills() -> int | None:
    """Return ``None``: Windows does not kill processes because memory is short."""
    return None


class WindowsChild:
    """A running program on Windows; see `ChildProcess`. Owns the handles of the process and of its job."""

    def __init__(self, pid: int, process: int, job: int | None, fds: OwnedFds, stdio: tuple[int, int, int]) -> None:
        self.pid = pid
        self.stdin_fd, self.stdout_fd, self.stderr_fd = stdio
        self._process: int | None = process
        self._job = job
        self._fds = fds
        self._lock = Lock()
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        return self._wait_ms(0)

    def wait(self, timeout_s: float | None) -> int | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # Wait in short intervals, because Ctrl+C does not interrupt the system call.
            left_s = _CTRL_C_INTERVAL_S if deadline is None else deadline - time.monotonic()
            # Add a millisecond for the truncated fraction, because otherwise the last wait would have a timeout of
            # 0.
            code = self._wait_ms(int(min(max(left_s, 0.0), _CTRL_C_INTERVAL_S) * 1000) + (left_s > 0))
            if code is not None or left_s <= 0:
                return code
            if self._process is None:
                return None  # `close` was called before the process ended

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        with self._lock:
            self._kill()

    def close(self) -> None:
        stdio = (self.stdin_fd, self.stdout_fd, self.stderr_fd)
        self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
        with self._lock:
            if self._process is not None:
                # Read the exit code before the kill, because afterwards it could be KILLED_EXIT_CODE.
                if self._exit_code is None:
                    self._exit_code = _exit_code(self._process, 0)
                self._kill()
                _winapi.CloseHandle(self._process)
                self._process = None
            if self._job is not None:
                _winapi.CloseHandle(self._job)
                self._job = None
        if stdio[0] != -1:
            stop_writing(stdio[0])
            # Cancel reads first: closing a descriptor waits for the thread that reads from it, and this read does
            # not end if a killed host hangs in a driver and keeps its end of the pipe open.
            for fd in stdio:
                with contextlib.suppress(OSError):  # other code of the program has closed the descriptor
                    api.cancel_io(msvcrt.get_osfhandle(fd))
        self._fds.close_all()

    def _wait_ms(self, milliseconds: int) -> int | None:
        with self._lock:
            if self._exit_code is not None or self._process is None:
                return self._exit_code
            # Wait on a separate handle, because another thread may close the child during the wait.
            process = _duplicate(self._process)
        try:
            code = _exit_code(process, milliseconds)
        finally:
            _winapi.CloseHandle(process)
        if code is not None:
            self._exit_code = code
        return code

    def _kill(self) -> None:
        try:
            if self._job is not None:
                api.terminate_job(self._job, KILLED_EXIT_CODE)
            elif self._process is not None and self._exit_code is None:
                _winapi.TerminateProcess(self._process, KILLED_EXIT_CODE)
        except OSError as error:
            # Only log the error: Windows also denies the access to a process that is already ending.
            _log.debug("process %d could not be killed: %s", self.pid, error)

    def __del__(self) -> None:
        self.close()


class WindowsSpawner:
    """Start programs; see `Spawner`."""

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        try:
            # No separate thread is needed: Windows does not end a child with the thread that started it.
            return _spawn(argv, env, cwd)
        except OSError as error:
            raise start_failed(argv[0], cwd, error, api.native_machine()) from error


def _spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> WindowsChild:
    fds = OwnedFds()
    job = _create_job()
    theirs: list[int] = []
    process = thread = None
    try:
        child_stdin, our_stdin = _winapi.CreatePipe(None, BUFFER_BYTES)
        # Record the handle immediately, so that it is closed if the next line fails.
        theirs.append(child_stdin)
        stdin_fd = fds.adopt(api.descriptor_of(our_stdin, os.O_WRONLY))
        stdout_fd, stderr_fd = (_read_pipe(fds, theirs) for _ in range(2))
        with _no_dialogs(), plain_dll_search():
            process, thread, pid = _create_process(argv, env, cwd, theirs)
        if job is not None:
            job = _assign(job, process)
        api.resume_thread(thread)
        child = WindowsChild(pid, process, job, fds, (stdin_fd, stdout_fd, stderr_fd))
        # The `WindowsChild` owns these handles from here on, so `finally` must not close them.
        process = job = None
        return child
    except BaseException:
        if process is not None:
            _winapi.TerminateProcess(process, KILLED_EXIT_CODE)  # otherwise the suspended process would never end
        fds.close_all()
        raise
    finally:
        # Close these handles after a success, too: the child has its own handles of the pipes, and its main thread
        # continues without this handle.
        for handle in (*theirs, thread, process, job):
            if handle is not None:
                _winapi.CloseHandle(handle)


def _read_pipe(fds: OwnedFds, theirs: list[int]) -> int:
    """Create a pipe: return the descriptor of its read end; append the handle of its write end to `theirs`."""
    ours, child = _winapi.CreatePipe(None, BUFFER_BYTES)
    theirs.append(child)
    return fds.adopt(api.descriptor_of(ours, os.O_RDONLY))


def _create_process(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdio: Sequence[int]
) -> tuple[int, int, int]:
    """Return the handles of the process and its first thread, and the process id. The thread is suspended.

    `subprocess.Popen` closes the thread's handle, which is needed here: the child must be in its job before it
    runs, because a virtual environment's python.exe immediately starts the real interpreter.
    """
    # `handle_list` limits the inheritance to these handles. Other handles that are inheritable at this moment are
    # not inherited.
    for handle in stdio:
        os.set_handle_inheritable(handle, True)
    startup = subprocess.STARTUPINFO(
        dwFlags=subprocess.STARTF_USESTDHANDLES,
        hStdInput=stdio[0],
        hStdOutput=stdio[1],
        hStdError=stdio[2],
        lpAttributeList={"handle_list": list(stdio)},
    )
    # CREATE_NO_WINDOW creates a separate console, so Ctrl+C in this process's console does not reach the child.
    flags = subprocess.CREATE_NO_WINDOW | _CREATE_SUSPENDED
    process, thread, pid, _ = _winapi.CreateProcess(
        None,
        subprocess.list2cmdline(argv),
        None,
        None,
        True,
        flags,
        {name.upper(): value for name, value in env.items()},  # "Path" and "PATH" are the same variable
        cwd,
        startup,
    )
    return process, thread, pid


def _create_job() -> int | None:
    try:
        return api.create_job()
    except OSError as error:
        _log.warning("no job object for the host (%s): processes that it starts may outlive it", error)
        return None


def _assign(job: int, process: int) -> int | None:
    try:
        api.assign_to_job(job, process)
    except OSError as error:
        # This process is in a job that does not allow nested jobs.
        _log.warning("the host cannot be put in a job (%s): processes that it starts may outlive it", error)
        _winapi.CloseHandle(job)
        return None
    return job


def _exit_code(process: int, milliseconds: int) -> int | None:
    # Check the handle, not the code: 259 (STILL_ACTIVE) may be the program's own exit code.
    if _winapi.WaitForSingleObject(process, milliseconds) != _winapi.WAIT_OBJECT_0:
        return None
    return _winapi.GetExitCodeProcess(process)


def _duplicate(handle: int) -> int:
    us = _winapi.GetCurrentProcess()
    return _winapi.DuplicateHandle(us, handle, us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)


_error_mode_lock = Lock()
_dll_folder_lock = Lock()


@contextlib.contextmanager
def _no_dialogs() -> Iterator[None]:
    """Disable error dialogs of a child by the error mode, which a child inherits. This includes the dialog for a
    DLL that is missing before the child's first line."""
    # The error mode applies to the whole process, so two simultaneous starts could restore each other's mode.
    with _error_mode_lock:
        before = msvcrt.SetErrorMode(api.NO_DIALOGS)
        # The first call returns the previous mode but clears its flags; the second call sets these flags again.
        msvcrt.SetErrorMode(before | api.NO_DIALOGS)
        try:
            yield
        finally:
            msvcrt.SetErrorMode(before)


@contextlib.contextmanager
def plain_dll_search() -> Iterator[None]:
    """Restore the default search for DLLs. PyInstaller's loader makes Windows search the application's folder
    first, and a child inherits this setting: an ARM64 host would find x64 DLLs."""
    if not is_frozen():
        yield
        return
    # The search folder is a setting of the whole process, like the error mode.
    with _dll_folder_lock:
        before = api.dll_folder()
        api.set_dll_folder("")
        try:
            yield
        finally:
            api.set_dll_folder(before)


_spawner = WindowsSpawner()


def default_spawner() -> WindowsSpawner:
    """Return the spawner of this process."""
    return _spawner


_BREAKAWAY: Final = subprocess.CREATE_BREAKAWAY_FROM_JOB
_DETACHED_FLAGS: Final = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
_ACCESS_DENIED: Final = 5


class Detached(DetachedBase):
    """A detached program; see `DetachedBase`."""

    def close(self) -> None:
        """Close the stderr pipe."""
        super().close()
        if self._process.poll() is None:
            # Otherwise Popen would keep the process, which continues to run, in its list of children to wait for.
            self._process.returncode = 0


def start_detached(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Detached:
    """Start a program without a console, and outside this program's job if that is allowed.

    Raises:
        OSError: the program cannot be started.
        HostStartFailed: the program would end together with this program.
    """
    try:
        return _start_without_job(argv, env, cwd, _DETACHED_FLAGS | _BREAKAWAY)
    except OSError as error:
        # ERROR_ACCESS_DENIED: the job of this program does not allow its processes to leave the job.
        if error.winerror != _ACCESS_DENIED:
            raise
    if api.in_job_that_kills():
        raise _would_die_with_us()
    return _start_without_job(argv, env, cwd, _DETACHED_FLAGS)


def _start_without_job(argv: Sequence[str], env: Mapping[str, str], cwd: str, flags: int) -> Detached:
    with plain_dll_search():
        process = popen()(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            close_fds=True,
            creationflags=flags,
        )
    assert process.stderr is not None
    fds = OwnedFds()
    # `OwnedFds` owns the pipe's end from here on; Popen's file object is closed.
    copy = fds.adopt(os.dup(process.stderr.fileno()))
    process.stderr.close()
    return Detached(process, fds, copy)


def _would_die_with_us() -> HostStartFailed:
    error = HostStartFailed(
        "The daemon cannot be started from here: it would end together with this program.",
        cause="This program is in a Windows job that ends all its processes and does not allow them to leave the "
        "job. Terminals, editors and test runners create such jobs.",
        fix="Start the daemon from another terminal (qnnbridge host start), or let the Task Scheduler do it "
        "(qnnbridge host service).",
    )
    error.retry = "pointless"
    return error
