"""Programs that close all open files, including the bridge's: their own files stay intact, and calls continue in a
new host."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import needs
from tests.contract.small_models import doubling

pytestmark = [pytest.mark.process, needs.a_host_python, needs.linux]

BEGIN = """
import os, sys
import numpy as np
import qnnbridge
session = qnnbridge.InferenceSession("model.onnx", providers=["CPUExecutionProvider"], timeout=30)
feeds = {"x": np.ones((1, 4), np.float32)}
def run():
    assert session.run(None, feeds, timeout=30)[0].tolist() == [[2, 2, 2, 2]]
"""


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "model.onnx").write_bytes(doubling())
    program = BEGIN + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=90, cwd=folder, check=False
    )


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("reused", [False, True])
def test_no_file_of_the_program_is_written_or_closed(tmp_path: Path, calls: int, reused: bool) -> None:
    """calls: one call over the connection, or several over the fast path."""
    done = run(
        tmp_path,
        f"""
        for _ in range({calls}):
            run()
        os.closerange(3, 256)
        files = [os.open(f"file{{n}}", os.O_RDWR | os.O_CREAT) for n in range(100 if {reused} else 0)]
        for _ in range(4):
            run()
        stats = session.host.stats
        session.host.close()
        assert all(os.fstat(fd).st_size == 0 for fd in files)
        print(stats.generation, stats.crashes, len(files))
        """,
    )
    assert (done.returncode, done.stdout) == (0, f"2 1 {100 if reused else 0}\n"), done.stderr
    assert "this program has closed the connection's descriptors" in done.stderr


@pytest.mark.parametrize("message", ["session.host.ping()", 'session.run(["y"], feeds, timeout=30)'])
def test_no_message_on_a_channel_is_written_to_a_file_of_the_program(tmp_path: Path, message: str) -> None:
    """message: a ping, or the second call with these names, which requests a plan."""
    done = run(
        tmp_path,
        f"""
        for _ in range(4):
            run()
        session.run(["y"], feeds, timeout=30)
        os.closerange(3, 256)
        files = [os.open(f"file{{n}}", os.O_RDWR | os.O_CREAT) for n in range(100)]
        try:
            {message}
        except qnnbridge.BridgeError as error:
            print(type(error).__name__, file=sys.stderr)
        run()
        session.host.close()
        assert all(os.fstat(fd).st_size == 0 for fd in files)
        print("whole")
        """,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_streams_of_the_program_lose_no_byte(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        for _ in range(4):
            run()
        os.closerange(3, 256)
        pipes = [os.pipe() for _ in range(60)]
        for _, write in pipes:
            os.write(write, b"mine")
        for _ in range(4):
            run()
        assert all(os.read(read, 100) == b"mine" for read, _ in pipes)
        print("whole")
        """,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_memory_of_the_program_is_not_shared_with_the_host(tmp_path: Path) -> None:
    """Use an array that the host has not mapped yet, and whose descriptor number already belongs to another file."""
    done = run(
        tmp_path,
        """
        array = session.empty_input("x")
        array[...] = 1
        for _ in range(4):
            run()
        os.closerange(3, 256)
        files = [os.open(f"file{n}", os.O_RDWR | os.O_CREAT) for n in range(100)]
        for fd in files:
            os.write(fd, bytes(1 << 20))
        for _ in range(4):
            assert session.run(None, {"x": array}, timeout=30)[0].tolist() == [[2, 2, 2, 2]]
        assert all(not any(os.pread(fd, 1 << 20, 0)) for fd in files)
        print("whole")
        """,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_deadline_holds_when_descriptors_are_closed(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import time
        run()
        os.closerange(3, 256)
        began = time.monotonic()
        try:
            session.run(None, feeds, timeout=0.03)  # no host starts so quickly
        except qnnbridge.BridgeError as error:
            print(type(error).__name__, time.monotonic() - began < 5)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n"), done.stdout
