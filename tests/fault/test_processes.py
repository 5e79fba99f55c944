"""Child processes and their pipes: behaviour of the kernel, checked with real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.descriptors import no_more_than

from qnnbridge_os import _posix_process, processes
from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.processes import ChildProcess, default_spawner, enlarge_pipe, wait_readable, write_some
from qnnbridge_protocol.errors import ForkedClient, HostNotFound, HostStartFailed

TIMEOUT_S = 20.0

Start = Callable[..., ChildProcess]


@pytest.fixture
def start(no_leaks: object) -> Iterator[Start]:
    """Return a function that starts child processes, and end them after the test."""
    children: list[ChildProcess] = []

    def start(*argv: str, cwd: str | None = None) -> ChildProcess:
        child = default_spawner().spawn(argv, dict(os.environ), cwd)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(TIMEOUT_S)
        child.close()


@pytest.fixture
def python(start: Start) -> Start:
    return lambda code, *arguments: start(sys.executable, "-I", "-S", "-u", "-c", code, *arguments)


def read_line(child: ChildProcess) -> str:
    """Read the child's output up to the end of a line or of the output."""
    text = b""
    while not text.endswith(b"\n"):
        assert wait_readable(child.stdout_fd, TIMEOUT_S), "the child says nothing"
        data = os.read(child.stdout_fd, 65536)
        if not data:
            break
        text += data
    return text.decode().strip()


def at_end(child: ChildProcess) -> bool:
    return wait_readable(child.stdout_fd, TIMEOUT_S) and os.read(child.stdout_fd, 10) == b""


def say(child: ChildProcess, text: bytes) -> None:
    assert write_some(child.stdin_fd, [memoryview(text)], TIMEOUT_S) == len(text)


def gone(pid: int) -> bool:
    """Return whether a process that is not a child has ended. Its exit code is unavailable, but its pidfd is
    readable then.
    """
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return wait_readable(watch, TIMEOUT_S)
    finally:
        os.close(watch)


# --- exit codes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("raise ValueError", 1),
        ("import os; os._exit(127)", 127),
        ("import os; os._exit(259)", 259 & 0xFF),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import faulthandler; faulthandler._sigsegv()", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", -signal.SIGILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_exit_code_is_the_raw_one(python: Start, code: str, expected: int) -> None:
    child = python(code)
    assert child.wait(TIMEOUT_S) == expected
    assert child.poll() == expected
    assert child.wait(0) == expected


def test_waiting_ends_with_the_timeout_or_with_the_process(python: Start) -> None:
    child = python("input()")
    assert child.poll() is None
    assert child.wait(0.05) is None
    codes: list[int | None] = []
    waiters = [threading.Thread(target=lambda: codes.append(child.wait(None))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    child.kill()
    for waiter in waiters:
        waiter.join(TIMEOUT_S)
    assert codes == [-9] * 4


def test_waiting_works_without_pidfd(python: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    child = python("input()")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", missing)
        assert child.wait(0.02) is None
        child.kill()
        assert child.wait(TIMEOUT_S) == -9


def test_an_exit_code_that_other_code_collected_is_unknown(python: Start) -> None:
    child = python("input()")
    child.terminate()
    os.waitpid(child.pid, 0)
    assert child.poll() == 255
    child.kill()  # the pid may belong to another process by now, so this must do nothing


def test_terminate_can_be_ignored_and_kill_cannot(python: Start) -> None:
    child = python(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: print('asked'))\nprint('up')\n"
        "while True: sys.stdin.readline()"
    )
    assert read_line(child) == "up"
    child.terminate()
    say(child, b"\n")
    assert read_line(child) == "asked"
    child.kill()
    assert child.wait(TIMEOUT_S) == -9


def test_a_stopped_child_can_be_killed(python: Start) -> None:
    child = python("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert child.poll() is None
    child.kill()
    assert child.wait(TIMEOUT_S) == -9


# --- process group -----------------------------------------------------------------------------------------------

FAMILY = (
    "import subprocess, sys\n"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdin=-3, stdout=-3, stderr=-3)\n"
    "print(p.pid)\n"
    "input()\n"
)


def test_kill_also_ends_processes_that_the_child_started(python: Start) -> None:
    child = python(FAMILY)
    grandchild = int(read_line(child))
    child.kill()
    assert child.wait(TIMEOUT_S) == -9
    assert gone(grandchild)


def test_processes_of_a_dead_child_end_when_its_exit_is_noticed(python: Start) -> None:
    child = python(FAMILY + "import os; os._exit(3)")
    grandchild = int(read_line(child))
    say(child, b"\n")
    assert child.wait(TIMEOUT_S) == 3
    assert gone(grandchild)


def test_signals_of_the_terminal_do_not_reach_the_child(python: Start) -> None:
    child = python("import os; print(os.getsid(0), os.getpgid(0))")
    assert read_line(child) == f"{child.pid} {child.pid}"
    assert os.getsid(0) != child.pid


# --- environment of the child ------------------------------------------------------------------------------------


def test_the_child_inherits_three_descriptors_and_nothing_else(python: Start) -> None:
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        child = python("import os; print([n for n in range(256) if os.path.lexists(f'/proc/self/fd/{n}')])")
        assert read_line(child) == "[0, 1, 2]"


def test_the_child_gets_the_given_environment_and_folder(start: Start, tmp_path: Path) -> None:
    child = start("/bin/sh", "-c", "pwd; echo $0 x", cwd=str(tmp_path))
    assert read_line(child).split()[0] == str(tmp_path)
    alone = default_spawner().spawn(["/usr/bin/env"], {"ONLY": "this"}, None)
    assert read_line(alone) == "ONLY=this"
    assert alone.wait(TIMEOUT_S) == 0
    alone.close()


def test_the_pipes_are_large(python: Start) -> None:
    import fcntl

    child = python("input()")
    sizes = [fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) for fd in (child.stdin_fd, child.stdout_fd)]
    assert sizes == [1 << 20, 1 << 20]


def test_a_pipe_that_cannot_be_enlarged_is_used_unchanged() -> None:
    fds = OwnedFds()
    with open(os.devnull) as file:
        enlarge_pipe(file.fileno())
    fds.close_all()


# --- programs that cannot be started -----------------------------------------------------------------------------


def test_a_program_that_cannot_be_started_is_an_error_with_the_reason(start: Start, tmp_path: Path) -> None:
    headers = Path(__file__).parents[1] / "unit" / "data" / "executables"

    def file(name: str, content: bytes, mode: int = 0o755) -> str:
        path = tmp_path / name
        path.write_bytes(content)
        path.chmod(mode)
        return str(path)

    for program, cwd, cause in (
        (str(tmp_path / "gone"), None, "no such file"),
        (file("plain", b"text", 0o644), None, "may not execute the file"),
        (file("text", b"text"), None, "neither a known header nor an interpreter line"),
        (file("windows", (headers / "x64_python.exe").read_bytes()), None, "program for x64, but this computer is"),
        (file("arm", b"\x7fELF\x02\x01\x01" + b"\xff" * 11 + b"\xb7\x00" + bytes(44)), None, "program for aarch64"),
        (file("script", b"#!/no/such/python -I\n"), None, "first line requires /no/such/python -I"),
        (sys.executable, str(tmp_path / "nowhere"), "working folder"),
        (str(tmp_path), None, "may not execute the file"),
    ):
        with pytest.raises(HostNotFound) as caught:
            start(program, cwd=cwd)
        assert cause in str(caught.value.cause)
        assert program in caught.value.message
        assert caught.value.evidence[0].startswith("errno ")
        assert caught.value.fix
        assert caught.value.retry == "pointless"


def test_a_shortage_of_resources_is_a_temporary_error(start: Start) -> None:
    start("true")  # the first start creates the thread that starts processes, which needs descriptors
    with no_more_than(2), pytest.raises(HostStartFailed) as caught:
        start("true")
    assert type(caught.value) is HostStartFailed
    assert "too many files open" in str(caught.value.cause)
    assert caught.value.retry == "safe"


# --- threads -----------------------------------------------------------------------------------------------------

ARMED = (
    "import ctypes, signal\nctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\nprint('armed')\nprint(input())\n"
)


def test_the_child_survives_the_thread_that_started_it(python: Start) -> None:
    """The parent-death signal is sent when the thread that started the process ends, not the process."""
    children: list[ChildProcess] = []

    def ask() -> None:
        child = python(ARMED)
        if read_line(child) == "armed":
            children.append(child)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(TIMEOUT_S)
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass  # `join` returns a moment before the kernel's thread has ended
    (child,) = children
    say(child, b"alive\n")
    assert read_line(child) == "alive"
    assert child.wait(TIMEOUT_S) == 0


def test_many_threads_start_children_at_the_same_time(python: Start) -> None:
    answers: list[str] = []

    def work(number: int) -> None:
        child = python("import sys; print(sys.argv[1])", str(number))
        answers.append(read_line(child))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(answers) == [str(number) for number in range(8)]


def test_an_interrupted_caller_leaves_no_child(tmp_path: Path) -> None:
    """Ctrl+C arrives while a child is being started: the thread that started it ends it."""
    mark = tmp_path / "pid"
    program = f"""
import os, signal, subprocess, sys, threading
from qnnbridge_os.processes import default_spawner
from qnnbridge_os import _posix_process
started = []
real = _posix_process._spawn
def slow(*order):
    os.kill(os.getpid(), signal.SIGINT)
    interrupted.wait(20)
    child = real(*order)
    open({str(mark)!r}, "w").write(str(child.pid))
    return child
interrupted = threading.Event()
_posix_process._spawn = slow
try:
    default_spawner().spawn(["sleep", "60"], dict(os.environ), None)
except KeyboardInterrupt:
    interrupted.set()
_posix_process._spawn = real
default_spawner().spawn(["true"], dict(os.environ), None).wait(20)
print(open({str(mark)!r}).read())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert gone(int(ran.stdout))


# --- no memory ---------------------------------------------------------------------------------------------------


def test_a_thread_without_memory_for_collecting_children_still_starts_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory() -> bool:
        raise MemoryError

    monkeypatch.setattr(_posix_process, "_reap_hosts_before_exec", no_memory)
    spawner = _posix_process.PosixSpawner()
    for _ in range(2):
        child = spawner.spawn(["true"], dict(os.environ), None)
        assert child.wait(TIMEOUT_S) == 0
        child.close()


def test_a_reader_thread_that_cannot_start_is_a_typed_error_and_the_next_call_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without memory Python ends a new thread before its first line, without an error in the caller."""
    spawner = _posix_process.PosixSpawner()
    monkeypatch.setattr(_posix_process, "BEGIN_S", 0.2)
    with monkeypatch.context() as without_memory:
        without_memory.setattr(_posix_process, "start_thread", lambda name, work: None)
        with pytest.raises(HostStartFailed, match="The thread that starts the host"):
            spawner.spawn(["true"], dict(os.environ), None)
    child = spawner.spawn(["true"], dict(os.environ), None)
    assert child.wait(TIMEOUT_S) == 0
    child.close()


# --- fork --------------------------------------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process; its exit code is 0 if `work` returned True."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() is True else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_keeps_no_copy_of_the_pipes(python: Start) -> None:
    """Otherwise the host would not see its application end, nor the application its host."""
    child = python("import sys; print('up'); sys.stdin.read(); print('end of input')")
    assert read_line(child) == "up"
    inodes = {os.fstat(fd).st_ino for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd)}
    release_r, release_w = os.pipe()
    report_r, report_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            copies = 0
            for fd in map(int, os.listdir("/proc/self/fd")):
                try:
                    copies += os.fstat(fd).st_ino in inodes
                except OSError:
                    pass  # the descriptor that lists the folder
            os.write(report_w, str(copies).encode())
            os.close(release_w)
            os.read(release_r, 1)
        finally:
            os._exit(0)
    assert os.read(report_r, 10) == b"0"
    child.close()  # as when the application crashes: the fork runs and holds no pipe
    assert child.wait(TIMEOUT_S) is not None
    for fd in (release_r, release_w, report_r, report_w):
        os.close(fd)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_cannot_end_the_child_of_its_parent(python: Start) -> None:
    child = python("print(input())")
    spawner = default_spawner()

    def misuse() -> bool:
        child.kill()
        child.terminate()
        child.close()
        for forbidden in (child.poll, lambda: child.wait(1), lambda: spawner.spawn(["true"], {}, None)):
            with pytest.raises(ForkedClient):
                forbidden()
        return True

    assert fork(misuse) == 0
    say(child, b"alive\n")
    assert read_line(child) == "alive"


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_may_start_its_own_children(python: Start) -> None:
    python("")  # the fork does not have the parent's spawner thread

    def work() -> bool:
        child = default_spawner().spawn(["/bin/echo", "mine"], {}, None)
        return read_line(child) == "mine" and child.wait(TIMEOUT_S) == 0

    assert fork(work) == 0


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forking_while_children_are_started_leaks_nothing_and_blocks_no_thread(python: Start) -> None:
    """A pipe that a fork copied at an unlucky moment would stay open: the end of the output would not be seen."""
    stop = threading.Event()
    forks: list[int] = []

    def fork_on() -> None:
        while not stop.is_set():
            release_r, release_w = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(release_w)
                os.read(release_r, 1)
                os._exit(0)
            os.close(release_r)
            forks.append(release_w)
            pids.append(pid)
            stop.wait(0.02)

    pids: list[int] = []
    forker = threading.Thread(target=fork_on)
    forker.start()
    try:
        started = 0
        while started < 10 or len(pids) < 4:  # some forks happen during the starts, however quick those are
            child = python("")
            assert at_end(child)
            child.wait(TIMEOUT_S)
            child.close()
            started += 1
    finally:
        stop.set()
        forker.join(TIMEOUT_S)
        for release in forks:
            os.close(release)
        for pid in pids:
            os.waitpid(pid, 0)


# --- closing -----------------------------------------------------------------------------------------------------


def test_close_releases_the_descriptors_and_does_not_end_the_child(python: Start) -> None:
    child = python("import sys, time\nsys.stdin.read()\ntime.sleep(60)")
    stdin_fd = child.stdin_fd
    child.close()
    child.close()
    assert (child.stdin_fd, child.stdout_fd, child.stderr_fd) == (-1, -1, -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(stdin_fd)
    with pytest.raises(OSError, match="closed"):
        wait_readable(child.stdout_fd, None)
    assert child.poll() is None
    child.kill()
    assert child.wait(TIMEOUT_S) == -9


# --- waiting and writing -----------------------------------------------------------------------------------------


def test_a_stream_is_readable_with_data_and_at_its_end_and_not_in_silence(python: Start) -> None:
    child = python("print(input())")
    assert not wait_readable(child.stdout_fd, 0)
    assert not wait_readable(child.stdout_fd, 0.02)
    say(child, b"x\n")
    assert wait_readable(child.stdout_fd, TIMEOUT_S)
    assert read_line(child) == "x"
    assert wait_readable(child.stdout_fd, None), "end of file"
    assert os.read(child.stdout_fd, 10) == b""


def test_a_write_to_a_child_that_does_not_read_ends_with_the_timeout_and_counts_the_written_bytes(
    python: Start,
) -> None:
    """Exactly the data written before the timeout arrive, although chunks may be cut anywhere."""
    child = python(
        "import os, signal, hashlib, sys\n"
        "print('up')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "data = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))\n"
        "print(hashlib.sha256(data).hexdigest())"
    )
    assert read_line(child) == "up"
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    total = 8 << 20
    block = bytearray(os.urandom(total))
    chunks = [memoryview(b"%d\n" % total), memoryview(b""), memoryview(block)[:1000], memoryview(block)[1000:]]
    position = len(chunks[0])
    taken = write_some(child.stdin_fd, chunks, TIMEOUT_S)
    assert 0 < taken < total
    begin = time.monotonic()
    with contextlib.suppress(TimeoutError):
        while taken < total:
            taken += write_some(child.stdin_fd, [memoryview(block)[taken - position :]], 0.05)
    assert taken < total
    assert time.monotonic() - begin < TIMEOUT_S
    with pytest.raises(TimeoutError):
        write_some(child.stdin_fd, [memoryview(block)[taken - position :]], 0)
    os.kill(child.pid, signal.SIGCONT)
    while taken - position < total:
        taken += write_some(child.stdin_fd, [memoryview(block)[taken - position :]], TIMEOUT_S)
    import hashlib

    assert read_line(child) == hashlib.sha256(block).hexdigest()


def test_thousands_of_chunks_are_written_in_several_calls(python: Start) -> None:
    child = python("import sys; print(len(sys.stdin.buffer.read(5000)))")
    chunks = [memoryview(b"x")] * 5000
    written = 0
    while written < 5000:
        count = write_some(child.stdin_fd, chunks[written:], TIMEOUT_S)
        assert count > 0
        written += count
    assert read_line(child) == "5000"


def test_writing_nothing_is_not_an_error(python: Start) -> None:
    child = python("input()")
    assert write_some(child.stdin_fd, [], 0) == 0
    assert write_some(child.stdin_fd, [memoryview(b"")], 0) == 0


def test_writing_to_a_dead_child_is_a_broken_pipe(python: Start) -> None:
    child = python("")
    child.wait(TIMEOUT_S)
    with pytest.raises(BrokenPipeError):
        write_some(child.stdin_fd, [memoryview(b"x")], TIMEOUT_S)


def test_writing_to_a_dead_child_does_not_kill_a_command_line_tool_with_default_sigpipe() -> None:
    """Tools set SIGPIPE back to its default, which kills the process, so that `tool | head` ends quietly."""
    program = (
        "import os, signal\n"
        "from qnnbridge_os.processes import default_spawner, write_some\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "child = default_spawner().spawn(['true'], dict(os.environ), None)\n"
        "child.wait(20)\n"
        "for _ in range(2):\n"
        "    try: write_some(child.stdin_fd, [memoryview(b'x')], 1)\n"
        "    except BrokenPipeError: print('broken')\n"
        "child.close()\n"
        "assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "os.kill(os.getpid(), signal.SIGPIPE)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-u", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "broken\nbroken\n"
    assert ran.returncode == -signal.SIGPIPE, "for anything else the tool's own choice still holds"


def test_every_name_in_all_exists() -> None:
    assert all(hasattr(processes, name) for name in processes.__all__)
