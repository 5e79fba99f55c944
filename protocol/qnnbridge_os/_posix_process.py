"""Child processes on Linux, and programs that outlive this one (`start_detached`).

Invariants: a child is the leader of a separate session, so that Ctrl+C in the terminal does not reach it, and it
can be killed together with all processes that it starts. It inherits only three descriptors. It is started by a
thread that lives as long as this process, because Linux sends the parent-death signal when the *thread* that
started the child ends. `exec` ends this thread, so hosts end at an `exec` and become zombies of the new program.

Callers pass their orders to the spawner thread and wait. `PosixChild` is thread-safe.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from _queue import Empty
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge_os.fds import OwnedFds, no_fork
from qnnbridge_os.native import Lock, SimpleQueue, popen, sleep, waitpid
from qnnbridge_os.programs import ChildProcess, DetachedBase, start_failed
from qnnbridge_os.shield import BEGIN_S, start_thread
from qnnbridge_protocol.errors import ForkedClient, HostStartFailed
from qnnbridge_protocol.process_names import HOST_NAME

assert sys.platform != "win32"

from qnnbridge_os._posix_streams import enlarge_pipe, poll_fd  # noqa: E402 - type checkers find it empty on Windows

_log = logging.getLogger("qnnbridge.process")

# Exit code of a process whose real exit code is unknown, because a SIGCHLD handler has reaped the process or the
# program ignores SIGCHLD. asyncio uses the same value.
EXIT_UNKNOWN = 255

# First and longest pause of `_wait_by_polling`, which doubles the pause after each poll.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.05
# Time to wait for the end of a child whose caller was interrupted during its start. The child is killed, so it ends
# soon.
_ABANDON_TIMEOUT_S = 2.0
# Interval of the search for dead hosts that this process started before an `exec`. If there are none, the search
# ends.
_REAP_INTERVAL_S = 1.0


def native_machine() -> str:
    """Return the machine's name as the kernel reports it."""
    return os.uname().machine


def out_of_memory_kills() -> int | None:
    """Return how many processes the kernel has killed because memory ran out; ``None`` if the kernel does not count
    them.

    Linux counts them since version 4.13, including kills because of a container's limit. The count shows whether
    the kernel may have sent a SIGKILL.
    """
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    except (OSError, ValueError):
        pass
    return None


# Children of this process that have not been reaped, by process id.
living_children: weakref.WeakValueDictionary[int, PosixChild] = weakref.WeakValueDictionary()


class PosixChild:
    """A running program on POSIX, see `ChildProcess`.

    Only this object reaps the process. Signals are sent only before the process is reaped, because its id may be
    reused afterwards.
    """

    def __init__(self, process: subprocess.Popen[bytes], fds: OwnedFds, stdio: tuple[int, int, int]) -> None:
        self.pid = process.pid
        self.stdin_fd, self.stdout_fd, self.stderr_fd = stdio
        self._process = process
        self._fds = fds
        self._owner = os.getpid()
        # Held for each signal and for reaping, so that no signal is sent to a process id that no longer belongs to
        # the child.
        self._lock = Lock()
        self._exit_code: int | None = None
        # Process id and exit status as returned by `waitpid`; empty until the process is reaped.
        self._collected: list[tuple[int, int]] = []
        living_children[self.pid] = self

    def poll(self) -> int | None:
        self._refuse_fork()
        with self._lock:
            if self._exit_code is None:
                self._exit_code = self._collect()
                if self._exit_code is not None:
                    living_children.pop(self.pid, None)
            return self._exit_code

    def wait(self, timeout_s: float | None) -> int | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        code = self.poll()
        if code is not None:
            return code
        # Open the pidfd under the lock: until the process is reaped, the process id belongs to the child.
        with self._lock:
            watch = None if self._exit_code is not None else _watch(self.pid)
        if watch is None:
            return self._wait_by_polling(deadline)
        try:
            # Poll after each wait, because another thread may have reaped the process.
            while (code := self.poll()) is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                poll_fd(watch, select.POLLIN, left_s)
        finally:
            os.close(watch)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM, group=False)

    def kill(self) -> None:
        self._signal(signal.SIGKILL, group=True)

    def close(self) -> None:
        # In a forked child, `OwnedFds` has already closed the descriptors.
        if self._owner == os.getpid():
            self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
            self._fds.close_all()

    def _collect(self) -> int | None:
        if not self._collected:
            try:
                # With WNOWAIT the process is not reaped, so that its id is not reused.
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                _log.warning(
                    "the exit code of process %d is unknown: other code of this program reaped it", self.pid
                )
                self._process.returncode = EXIT_UNKNOWN
                return EXIT_UNKNOWN
            if ended is None:
                return None
            # Before reaping the host, kill the processes that it left running: until then no other process or group
            # can have the host's id.
            _kill_group(self.pid)
            # Reap and store the status in one C operation, because the system returns the status only once (see
            # `shield`).
            self._collected.extend(itertools.starmap(waitpid, ((self.pid, 0),)))
        code = os.waitstatus_to_exitcode(self._collected[0][1])
        self._process.returncode = code  # otherwise Popen would keep the process in its list of unreaped processes
        return code

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._exit_code is not None:
                return
            if group:
                _kill_group(self.pid)
            else:
                os.kill(self.pid, number)

    def _wait_by_polling(self, deadline: float | None) -> int | None:
        """Poll until the process ends. Used without a pidfd, because a blocking `waitpid` has no timeout."""
        pause_s = _FIRST_WAIT_S
        while (code := self.poll()) is None:
            if deadline is not None:
                pause_s = min(pause_s, deadline - time.monotonic())
                if pause_s <= 0:
                    return None
            sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_WAIT_S)
        return code

    def _refuse_fork(self) -> None:
        if self._owner != os.getpid():
            raise ForkedClient(
                f"Process {self.pid} belongs to process {self._owner}, from which this process was forked.",
                fix="Start a separate host in each process.",
            )


class PosixSpawner:
    """Start programs; see `Spawner`. There is one spawner per process. It does not work in a fork."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = Lock()
        # A C object, so that an exception of a signal handler cannot leave it locked (`shield`).
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._has_thread = False
        self._has_begun = False

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        if self._owner != os.getpid():
            raise ForkedClient(
                f"Only process {self._owner} can start this host. This process is a fork of {self._owner}.",
                fix="Start a separate host in each process.",
            )
        self._start_thread()
        order = _Order(list(argv), dict(env), cwd)
        try:
            self._orders.put(order)
            while not order.ended.acquire(timeout=BEGIN_S):
                self._check_thread()
        except BaseException:  # Ctrl+C, or an exception of a signal handler of the application
            order.abandon()
            raise
        if isinstance(order.error, OSError):
            raise start_failed(argv[0], cwd, order.error, native_machine()) from order.error
        if order.error is not None:
            raise order.error
        assert order.child is not None
        return order.child

    def _start_thread(self) -> None:
        with self._lock:
            if self._has_thread:
                return
            try:
                start_thread("qnnbridge-spawner", self._spawn_for_ever)
            except RuntimeError as error:  # the interpreter is shutting down, or the limit of threads is reached
                raise HostStartFailed(
                    "The thread that starts the host cannot be started.", cause=str(error)
                ) from error
            self._has_thread = True

    def _check_thread(self) -> None:
        """Raise `HostStartFailed` if the thread did not start running: if memory is short, Python reports no
        error."""
        if not self._has_begun:
            self._has_thread = False
            raise HostStartFailed(
                "The thread that starts the host cannot be started.", cause="There is not enough memory for it."
            )

    def _spawn_for_ever(self) -> None:
        self._has_begun = True
        left = True
        while True:
            try:
                # Stop the search when no host from before the `exec` is left. No more can appear, because later
                # hosts are children of this thread.
                left = left and _reap_hosts_before_exec()
                # Do not store the order in a variable, which would keep the child alive until the next order.
                self._orders.get(timeout=_REAP_INTERVAL_S if left else None).carry_out()
            except Empty:
                pass
            except MemoryError:
                left = False  # only the search raises this error: end the search, and continue to process orders


class _Order:
    """Order to start a program. `ended` is a lock that is released when the start has succeeded or failed."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.child: PosixChild | None = None
        self.error: BaseException | None = None
        self.ended = Lock()
        self.ended.acquire()
        self._abandoned = False
        # Acquired by the first thread that ends the child and never released, so that no other thread ends the
        # child.
        self._ending = Lock()

    def carry_out(self) -> None:
        try:
            self.child = _spawn(self.argv, self.env, self.cwd)
        except BaseException as error:  # noqa: BLE001 - passed to the caller; the thread must not end
            self.error = error
        self.ended.release()
        # After an interrupt, this thread or `abandon` ends the child. If both try, `_ending` allows only one.
        if self._abandoned:
            self._end_child()

    def abandon(self) -> None:
        """Record that the caller was interrupted, and end the child if it has started."""
        self._abandoned = True
        self._end_child()

    def _end_child(self) -> None:
        child = self.child
        if child is not None and self._ending.acquire(blocking=False):
            child.kill()
            child.wait(_ABANDON_TIMEOUT_S)
            child.close()


def _reap_hosts_before_exec() -> bool:
    """Reap dead hosts of the program that ran in this process before an `exec`. Return whether some of its hosts
    are alive.

    Such hosts are children of the main thread; hosts of the current program are children of the spawner thread.
    """
    main, alive = os.getpid(), False
    try:
        # The main thread has the same id as the process. The kernel keeps a list of children for each thread.
        with open(f"/proc/self/task/{main}/children", "rb") as file:
            children = file.read().split()
    except OSError:
        return False  # another system, or a kernel that has no such list
    for pid in map(int, children):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The process name may contain spaces and parentheses, so it ends at the last parenthesis.
                name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            state, parent, _, session = rest.split()[:4]
            # A host leads a separate session and has set its process name to this name (`parent`).
            if (name.decode(), int(parent), int(session)) != (HOST_NAME, main, pid):
                continue
            if state == b"Z":
                # Kill the group before reaping, as in `PosixChild._collect`: afterwards the group's id may be
                # reused.
                _kill_group(pid)
                waitpid(pid, os.WNOHANG)
            else:
                alive = True
        except (OSError, ValueError):
            pass  # another thread has reaped the child, or it is not a host
    return alive


def _spawn(argv: list[str], env: dict[str, str], cwd: str | None) -> PosixChild:
    fds = OwnedFds()
    try:
        child_stdin, our_stdin = fds.pipe()
        our_stdout, child_stdout = fds.pipe()
        our_stderr, child_stderr = fds.pipe()
        enlarge_pipe(our_stdin)
        enlarge_pipe(our_stdout)
        # Only our end becomes non-blocking: the two ends of a pipe are separate open files.
        os.set_blocking(our_stdin, False)
        # `Popen` waits for the end of a pipe, which a fork in between would keep open.
        with no_fork:
            process = popen()(
                argv,
                stdin=child_stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                env=env,
                cwd=cwd,
                close_fds=True,
                start_new_session=True,
            )
        # Close the child's end of stdout here. Otherwise the stream would not end when the child dies.
        for fd in (child_stdin, child_stdout, child_stderr):
            fds.close(fd)
        return PosixChild(process, fds, (our_stdin, our_stdout, our_stderr))
    except BaseException:
        fds.close_all()
        raise


def _kill_group(leader: int) -> None:
    try:
        # A child that was started with `start_new_session` leads a process group whose id is its process id.
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # the group contains no process, or (macOS) only zombies


def _watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; ``None`` if the system provides no such
    descriptor."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None  # before Linux 5.3, or forbidden by a sandbox
    return None


_spawner: PosixSpawner | None = None
_spawner_lock = Lock()


def default_spawner() -> PosixSpawner:
    """Return the spawner of this process. A fork gets a separate spawner for the hosts that it starts."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = PosixSpawner()
        return _spawner


def _forget_spawner() -> None:
    global _spawner, _spawner_lock
    # Replace the lock: a thread of the parent may have held it at the fork, and it would stay locked in the child.
    _spawner, _spawner_lock = None, Lock()
    living_children.clear()


os.register_at_fork(after_in_child=_forget_spawner)


_FORK_TIMEOUT_S: Final = 5.0


class Detached(DetachedBase):
    """A detached program; see `DetachedBase`."""

    def close(self) -> None:
        """Close the stderr pipe, and reap the started process, which ends once it has forked the detached
        program."""
        super().close()
        deadline = time.monotonic() + _FORK_TIMEOUT_S  # poll: gevent replaces `time.sleep`, which `wait` uses
        while self._process.poll() is None and time.monotonic() < deadline:
            sleep(_FIRST_WAIT_S)


def start_detached(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Detached:
    """Start a program in a separate session. Raise `OSError`.

    The program forks immediately and continues in the child, so that this process need not reap it.
    """
    fds = OwnedFds()
    ours, theirs = fds.pipe()
    try:
        with no_fork:
            process = popen()(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=theirs,
                env=dict(env),
                cwd=cwd,
                close_fds=True,
                start_new_session=True,
            )
    except BaseException:
        fds.close_all()
        raise
    fds.close(theirs)
    return Detached(process, fds, ours)
