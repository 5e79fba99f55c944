"""Check processes and pipes on Windows and print a JSON object; run by the Windows Python.

Each function checks one fact and returns it; `test_windows_processes.py` contains the expected values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import msvcrt
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from windows_facts import FACTS, ROOTS, TIMEOUT_S, ended, fact, read_all, refusal, report, say, start

import psutil  # isort: skip
from qnnbridge._launch import find_host, process_machine
from qnnbridge._launch.stderr import StderrCollector
from qnnbridge.errors import BridgeError
from qnnbridge_os._win32_daemon_endpoint import Streams
from qnnbridge_os.processes import (
    ChannelStreams,
    default_spawner,
    is_writing,
    native_machine,
    wait_readable,
    write_some,
)
from qnnbridge_os.programs import executable_machine, registered_pythons

# --- start and end -------------------------------------------------------------------------------------------


@fact
def echo() -> Any:
    child = start("print(sys.stdin.buffer.readline().decode().strip() * 2)")
    say(child, b"abc\n")
    answer, code = read_all(child.stdout_fd).decode().strip(), child.wait(TIMEOUT_S)
    child.close()
    child.close()
    return [answer, code]


@fact
def libraries_of_a_frozen_application() -> Any:
    """PyInstaller's loader sets the DLL folder; a host must not have it."""
    from qnnbridge_os import _win32_api as api
    from qnnbridge_os._win32_process import plain_dll_search

    api.set_dll_folder("C:\\app")
    sys.frozen = True  # type: ignore[attr-defined]
    try:
        with plain_dll_search():
            within = api.dll_folder()
        child = start(
            "import ctypes; b = ctypes.create_unicode_buffer(300); "
            "ctypes.windll.kernel32.GetDllDirectoryW(300, b); print(b.value, end='')"
        )
        inherited = read_all(child.stdout_fd).decode()
        child.wait(TIMEOUT_S)
        child.close()
        return [within, inherited, api.dll_folder()]
    finally:
        del sys.frozen  # type: ignore[attr-defined]
        api.set_dll_folder("")


@fact
def exit_codes() -> Any:
    ways = {
        "access violation": "import faulthandler; faulthandler._read_null()",
        "fast fail": "import ctypes; ctypes.WinDLL('ntdll').RtlExitUserProcess(0xC0000409 - (1 << 32))",
        "still active": "os._exit(259)",
        "exception": "raise ValueError",
        "fine": "",
    }
    codes = {}
    for name, code in ways.items():
        child = start(code)
        codes[name] = [child.wait(TIMEOUT_S), child.poll()]
        child.close()
    return codes


@fact
def killed() -> Any:
    child = start("sys.stdin.read()")
    running = child.poll()
    timed_out = child.wait(0.05)
    child.kill()
    return [running, timed_out, child.wait(TIMEOUT_S), child.close()]


GRANDCHILD = (
    "import subprocess\n"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdin=subprocess.DEVNULL)\n"
    "print(p.pid)\n"
    "sys.stdin.read()\n"
)


@fact
def kill_ends_grandchildren() -> Any:
    child = start(GRANDCHILD)
    wait_readable(child.stdout_fd, TIMEOUT_S)
    grandchild = int(os.read(child.stdout_fd, 100))
    child.kill()
    gone = [ended(child.pid), ended(grandchild)]
    child.close()
    return gone


@fact
def close_ends_a_running_child() -> Any:
    child = start(GRANDCHILD)
    wait_readable(child.stdout_fd, TIMEOUT_S)
    grandchild = int(os.read(child.stdout_fd, 100))
    child.close()
    return [ended(child.pid), ended(grandchild)]


@fact
def application_killed() -> Any:
    """The job of a killed application ends its child, although the child watches nothing."""
    code = (
        "from qnnbridge_os.processes import default_spawner\n"
        "child = default_spawner().spawn([sys.executable, '-c', 'import time; time.sleep(60)'], os.environ, None)\n"
        "print(child.pid)\n"
        "sys.stdin.read()\n"
    )
    application = subprocess.Popen(
        [sys.executable, "-c", f"import sys, os\nsys.path[:0] = {ROOTS!r}\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert application.stdout is not None
    child = int(application.stdout.readline())
    alive = psutil.pid_exists(child)
    application.kill()
    application.wait()
    gone = ended(child)
    application.communicate()
    return [alive, gone]


@fact
def start_errors() -> Any:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.exe")
        text.write_text("not a program")
        for name, program, cwd in (
            ("missing", str(Path(folder, "nothing.exe")), None),
            ("not a program", str(text), None),
            ("no folder", sys.executable, str(Path(folder, "nothing"))),
        ):
            error = refusal(lambda: default_spawner().spawn([program], dict(os.environ), cwd))  # noqa: B023
            found[name] = [type(error).__name__, error.cause, error.evidence]
    return found


@fact
def inherits_three_handles_only() -> Any:
    """Open an inheritable file while the child starts; the child tries to use its handle's number."""
    with tempfile.TemporaryFile() as file:
        handle = msvcrt.get_osfhandle(file.fileno())
        os.set_handle_inheritable(handle, True)
        code = (
            "import _winapi\ntry: print(_winapi.GetFileType(int(sys.argv[1])))\nexcept OSError as e: print('none')"
        )
        child = start(code, str(handle))
        answer = read_all(child.stdout_fd).decode().strip()
        child.close()
    return answer


@fact
def error_mode_of_the_application() -> Any:
    """The setting is changed only during a start. (Wine does not pass it on to the child, but Windows does.)"""
    before = msvcrt.GetErrorMode()
    start("").close()
    return msvcrt.GetErrorMode() == before


@fact
def environment_names_in_any_case() -> Any:
    argv = [sys.executable, "-c", "import os; print(os.environ['QNNBRIDGE_T'], os.environ['PATH'] != '')"]
    child = default_spawner().spawn(argv, {**os.environ, "QNNBRIDGE_T": "1", "qnnbridge_t": "2"}, None)
    answer = read_all(child.stdout_fd).decode().split()
    child.close()
    return answer


# --- pipes ---------------------------------------------------------------------------------------------------


@fact
def waiting_for_output() -> Any:
    child = start("sys.stdin.readline(); print('x'); sys.stdout.flush(); sys.stdin.readline()")
    before = wait_readable(child.stdout_fd, 0.05)
    say(child, b"\n")
    after = wait_readable(child.stdout_fd, TIMEOUT_S)
    os.read(child.stdout_fd, 100)
    child.kill()
    at_end = wait_readable(child.stdout_fd, TIMEOUT_S)
    child.close()
    return [before, after, at_end]


@fact
def writing_to_a_child_that_does_not_read() -> Any:
    """Check that exactly the data written before the timeout arrive."""
    child = start(
        "import hashlib\n"
        "sys.stderr.readable()\n"
        "import msvcrt, time\n"
        "print('up'); sys.stdout.flush()\n"
        "import _winapi\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "data = b''\n"
        "while len(data) < int(open(sys.argv[1]).read()): data += os.read(0, 65536)\n"
        "print(len(data), hashlib.sha256(data).hexdigest())\n",
        flag := str(Path(tempfile.gettempdir(), f"flag-{os.getpid()}")),
    )
    wait_readable(child.stdout_fd, TIMEOUT_S)
    os.read(child.stdout_fd, 100)
    block = os.urandom(1 << 20)
    sent = bytearray()
    timed_out = False
    while not timed_out and len(sent) < 16 << 20:
        piece = memoryview(block)[len(sent) % 4096 :]
        try:
            sent += piece[: write_some(child.stdin_fd, [piece[:1000], piece[1000:]], 0.3)]
        except TimeoutError:
            timed_out = True
    busy = is_writing(child.stdin_fd)
    Path(flag + ".new").write_text(str(len(sent)))
    os.replace(flag + ".new", flag)
    length, digest = read_all(child.stdout_fd).decode().split()
    until = time.monotonic() + TIMEOUT_S
    while is_writing(child.stdin_fd) and time.monotonic() < until:
        time.sleep(0.01)
    busy_then = is_writing(child.stdin_fd)
    child.close()
    os.remove(flag)
    whole = [int(length) == len(sent), digest == hashlib.sha256(sent).hexdigest()]
    return [timed_out, *whole, busy, busy_then]


@fact
def closing_a_child_whose_descriptors_others_have_closed() -> Any:
    child = start("sys.stdin.read()")
    for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
        os.close(fd)
    child.close()
    return ended(child.pid)


@fact
def writing_to_an_ended_child() -> Any:
    child = start("")
    child.wait(TIMEOUT_S)
    try:
        for _ in range(8):
            write_some(child.stdin_fd, [memoryview(bytes(1 << 20))], 1.0)
    except BrokenPipeError as error:
        return type(error).__name__
    finally:
        child.close()
    return "no error"


@fact
def closing_during_a_blocked_read_and_write() -> Any:
    child = start("import time; time.sleep(60)")

    def read() -> None:
        try:
            os.read(child.stdout_fd, 1)
        except OSError:
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for _ in range(8):
            write_some(child.stdin_fd, [memoryview(bytes(1 << 20))], 0.2)
    except TimeoutError:
        pass
    begin = time.monotonic()
    child.close()
    quick = time.monotonic() - begin < 5
    reader.join(TIMEOUT_S)
    writers = [t for t in threading.enumerate() if t.name == "qnnbridge-pipe-writer"]
    for thread in writers:
        thread.join(TIMEOUT_S)
    return [quick, reader.is_alive(), any(thread.is_alive() for thread in writers)]


@fact
def collected_stderr() -> Any:
    child = start(
        "os.write(2, b'@qnnbridge begin 5\\r\\n')\n"
        "os.write(2, 'wide \\u00e4\\r\\n'.encode('utf-16-le'))\n"
        "os.write(2, b'@qnnbridge end 5\\r\\n')\n"
        "import faulthandler; faulthandler._read_null()\n"
    )
    collector = StderrCollector(child.stderr_fd)
    section = collector.section(5, TIMEOUT_S).decode("utf-16-le")
    child.wait(TIMEOUT_S)
    child.close()
    drained = collector.drain(TIMEOUT_S)
    collector.close()
    return [section, drained, "access violation" in collector.head().decode(errors="replace")]


@fact
def handles_are_closed_after_use() -> Any:
    def once() -> None:
        child = start("")
        collector = StderrCollector(child.stderr_fd)
        say(child, b"x" * 10)
        child.wait(TIMEOUT_S)
        collector.drain(TIMEOUT_S)
        child.close()
        collector.close()

    once()
    before = psutil.Process().num_handles()
    for _ in range(3):
        once()
    return psutil.Process().num_handles() - before


@fact
def handles_without_a_descriptor_are_closed() -> Any:
    """The C runtime has one free descriptor, but two are needed."""
    kept: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.dup(1))
    os.close(kept.pop())
    process = psutil.Process()
    said: list[str] = []
    before = process.num_handles()
    for make in (Streams, ChannelStreams, lambda: start("")):
        try:
            make()
        except (OSError, BridgeError) as error:
            said.append(type(error).__name__)
    left = process.num_handles() - before
    for fd in kept:
        os.close(fd)
    return [said, left]


# --- the host process ----------------------------------------------------------------------------------------

GUARDED = """
from qnnbridge_host import stdio_guard
in_fd, out_fd = stdio_guard.claim()
assert stdio_guard.claim() == (in_fd, out_fd)
import ctypes, subprocess
from ctypes import wintypes
print("a print")
ctypes.CDLL("ucrtbase").puts(b"a puts")
ctypes.CDLL("ucrtbase").fflush(None)
subprocess.run([sys.executable, "-c", "print('a child')"], stdin=subprocess.DEVNULL)
kernel32 = ctypes.WinDLL("kernel32")
kernel32.GetStdHandle.restype = wintypes.HANDLE
kernel32.WriteFile.argtypes = (
    wintypes.HANDLE, ctypes.c_char_p, wintypes.DWORD, ctypes.POINTER(wintypes.DWORD), ctypes.c_void_p
)
kernel32.WriteFile(kernel32.GetStdHandle(-11 & 0xFFFFFFFF), b"a handle\\n", 9, ctypes.byref(wintypes.DWORD()), None)
assert sys.stdin.read() == ""
os.write(out_fd, b"\\x89\\n\\r\\n" + os.read(in_fd, 100))
"""


@fact
def guarded_streams() -> Any:
    child = start(GUARDED)
    collector = StderrCollector(child.stderr_fd)
    say(child, b"\x1a\r\n")
    wire = read_all(child.stdout_fd)
    code = child.wait(TIMEOUT_S)
    collector.drain(TIMEOUT_S)
    child.close()
    said = collector.head().decode(errors="replace")
    return [wire.hex(), code, [word for word in ("print", "puts", "child", "handle") if f"a {word}" in said]]


@fact
def parent_watch() -> Any:
    """Start a process outside of any job that watches another process which is not its parent."""
    watched = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    child = start(
        "from qnnbridge_host.start import watch_parent\n"
        "from qnnbridge_os.parent import error_dialogs_off\n"
        "import os, time\n"
        "error_dialogs_off()\n"
        "print(watch_parent(int(sys.argv[1]), lambda: os._exit(77)), flush=True)\n"
        "time.sleep(60)\n",
        str(watched.pid),
    )
    means = ""
    if wait_readable(child.stdout_fd, TIMEOUT_S):
        means = os.read(child.stdout_fd, 100).decode().strip()
    alive = child.poll() is None
    watched.kill()
    watched.communicate()
    code = child.wait(TIMEOUT_S)
    child.close()
    late = start(
        "from qnnbridge_host.start import watch_parent\nwatch_parent(int(sys.argv[1]), lambda: os._exit(78))",
        str(watched.pid),
    )
    too_late = late.wait(TIMEOUT_S)
    late.close()
    return [means, alive, code, too_late]


# --- machine types and the registry --------------------------------------------------------------------------


@fact
def machines() -> Any:
    return [native_machine(), process_machine(), executable_machine(sys.executable)]


@fact
def registry() -> Any:
    import winreg

    path = r"Software\Python\QnnbridgeTest"
    try:
        with winreg.CreateKey(winreg.HKEY_CURRENT_USER, path + r"\3.13-arm64") as key:
            winreg.SetValueEx(key, "SysVersion", 0, winreg.REG_SZ, "3.13")
            with winreg.CreateKey(key, "InstallPath") as install:
                winreg.SetValueEx(install, "", 0, winreg.REG_SZ, "C:\\Python313-arm64\\")
        return [
            [p.launcher_tag, list(p.version), p.executable]
            for p in registered_pythons()
            if p.company == "QnnbridgeTest"
        ]
    finally:
        for name in (r"\3.13-arm64\InstallPath", r"\3.13-arm64", ""):
            winreg.DeleteKey(winreg.HKEY_CURRENT_USER, path + name)


@fact
def wrong_interpreters() -> Any:
    refused = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "python.bat")
        script.write_text("@echo off")
        stub = Path(folder, "WindowsApps", "python.exe")
        stub.parent.mkdir()
        stub.touch()
        for name, path in (("script", script), ("store", stub), ("folder", Path(folder))):
            refused[name] = refusal(lambda: find_host(path)).message  # noqa: B023
    return refused


if __name__ == "__main__":
    # Every fact in one process: starting Python costs most of the time.
    print(json.dumps({name: report(name) for name in sys.argv[1:] or FACTS}))
