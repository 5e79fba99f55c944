"""Only the protocol writes to the host's standard output, checked in real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

FLAGS = ["-I", "-u", "-X", "utf8"]


def run(code: str, data: bytes = b"", *, flags: list[str] | None = None) -> subprocess.CompletedProcess[bytes]:
    program = "from qnnbridge_host import stdio_guard\nin_fd, out_fd = stdio_guard.claim()\nimport os, sys\n" + code
    return subprocess.run(
        [sys.executable, *(FLAGS if flags is None else flags), "-c", program],
        input=data,
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('a print')", b"a print"),
        ("sys.__stdout__.write('the old object\\n')", b"the old object"),
        ("os.write(1, b'descriptor one')", b"descriptor one"),
        ("import ctypes; libc = ctypes.CDLL(None); libc.puts(b'native'); libc.fflush(None)", b"native"),
        ("import subprocess; subprocess.run(['echo', 'a child'])", b"a child"),
        ("os.system('echo a shell')", b"a shell"),
    ],
)
def test_printed_text_goes_to_stderr(code: str, said: bytes) -> None:
    ran = run(code + "\nos.write(out_fd, b'wire')")
    assert ran.stdout == b"wire"
    assert said in ran.stderr
    assert ran.returncode == 0


@pytest.mark.process
def test_text_in_a_buffer_does_not_reach_the_wire_at_exit() -> None:
    ran = run("sys.__stdout__.write('late')", flags=["-I"])
    assert ran.stdout == b""
    assert ran.stderr == b"late"


@pytest.mark.process
def test_only_the_protocol_reads_stdin() -> None:
    code = (
        "import subprocess\n"
        "assert sys.stdin.read() == '' and os.read(0, 10) == b''\n"
        "assert subprocess.run(['cat'], capture_output=True).stdout == b''\n"
        "os.write(out_fd, os.read(in_fd, 100))"
    )
    ran = run(code, b"\x89\r\n\x1a\n")
    assert ran.stdout == b"\x89\r\n\x1a\n", ran.stderr.decode()


@pytest.mark.process
def test_the_private_descriptors_are_high_and_not_inherited() -> None:
    code = (
        "import subprocess\n"
        "assert min(in_fd, out_fd) > 2 and not os.get_inheritable(in_fd) and not os.get_inheritable(out_fd)\n"
        "assert stdio_guard.claim() == (in_fd, out_fd)\n"
        "subprocess.run(['sh', '-c', 'ls -l /proc/self/fd >&2'], close_fds=False)\n"
        "os.write(out_fd, str(os.fstat(out_fd).st_ino).encode())"
    )
    ran = run(code)
    assert ran.returncode == 0, ran.stderr.decode()
    assert f"pipe:[{ran.stdout.decode()}]" not in ran.stderr.decode()


@pytest.mark.process
def test_a_host_without_stderr_works() -> None:
    code = (
        "from qnnbridge_host import stdio_guard\nimport os\n"
        "_, out_fd = stdio_guard.claim()\nprint('x')\nos.write(out_fd, b'wire')"
    )
    ran = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -I -c "{code}" 2>&-'],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, b"wire")


@pytest.mark.process
def test_a_host_without_stdin_reports_that_and_does_not_serve() -> None:
    code = "from qnnbridge_host import stdio_guard; stdio_guard.claim()"
    ran = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -I -c "{code}" <&-'], capture_output=True, check=False
    )
    assert ran.returncode != 0
    assert b"Bad file descriptor" in ran.stderr


@pytest.mark.process
def test_the_guard_imports_nothing_that_could_print() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom qnnbridge_host import stdio_guard\nstdio_guard.claim()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, check=True, stdin=subprocess.DEVNULL
    )
    assert ran.stderr.decode().strip() == "['qnnbridge_host', 'qnnbridge_host.stdio_guard']"
