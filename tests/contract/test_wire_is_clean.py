"""Text that is printed in the host is written to the host's stderr and never to the wire."""

from __future__ import annotations

import os
import shlex
import sys

import numpy as np
import psutil
import pytest

import qnnbridge
from tests import needs
from tests.contract.small_models import MODELS
from tests.fakes.hosts import FAKE_HOST, fake_host, script

X = np.arange(4, dtype=np.float32)


def stderr_of(host: qnnbridge.Host) -> str:
    """End the host; return all that it wrote to stderr."""
    process = host.supervisor.running
    assert process is not None
    host.close()
    return (process.stderr.head() + process.stderr.tail()).decode("utf-8", "replace")


def assert_printed(text: str, word: str) -> None:
    """Check that `word` was printed in all ways to write to descriptor 1: Python, C, the system call, a child
    process.
    """
    lines = text.splitlines()
    for line in (word, f"native {word}", f"raw {word}", f"child {word}"):
        assert line in lines


@pytest.mark.parametrize("moment", ["first", "import", "on_create", "on_run"])
def test_printed_text_never_reaches_the_wire(moment: str) -> None:
    before_hello = moment in ("first", "import")
    arguments = [f"--{moment}=print:something"] if before_hello else []
    what = {} if before_hello else {moment: ["print:something"]}
    with fake_host(*arguments) as host:
        with qnnbridge.InferenceSession(script(**what), host=host) as session:
            for _ in range(3):
                assert session.run(None, {"x": X})[0].tolist() == (X * 2).tolist()
        process = host.supervisor.running
        assert process is not None
        assert process.channel.preamble == b""
        assert host.stats.crashes == 0
        assert_printed(stderr_of(host), "something")


def test_a_flood_of_text_blocks_neither_side() -> None:
    """Four megabytes fill every pipe: the host continues only if the reader never pauses."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["stderr:4000000"]), host=host)
        for _ in range(3):
            assert session.run(None, {"x": X}, timeout=60)[0].tolist() == (X * 2).tolist()


def test_text_before_the_handshake_is_skipped_and_kept() -> None:
    """A site hook may print such text before the host's first line runs."""
    host_command = [sys.executable, "-I", "-u", "-X", "utf8", FAKE_HOST, "--parent", str(os.getpid())]
    command = ["/bin/sh", "-c", f"printf 'hello from a hook\\n'; exec {shlex.join(host_command)}"]
    with qnnbridge.Host(_command=command) as host:
        session = qnnbridge.InferenceSession(script(), host=host)
        assert session.run(None, {"x": X})[0].tolist() == (X * 2).tolist()
        process = host.supervisor.running
        assert process is not None
        assert process.channel.preamble == b"hello from a hook\n"


@pytest.mark.simulator
def test_the_banner_of_the_native_library_is_found_in_stderr() -> None:
    """libQnnHtp prints its banner to descriptor 1 when the first session is created."""
    pytest.importorskip("onnxruntime_qnn")
    x = np.ones((3, 2), np.float32)
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host)
        assert session.placement.qnn_nodes == 1
        assert session.run(None, {"X": x})[0].shape == (3, 2)
        assert "LIBNATIVE" in stderr_of(host)


@pytest.mark.simulator
@needs.linux
def test_the_real_host_keeps_descriptors_0_and_1_from_all_other_code() -> None:
    pytest.importorskip("onnxruntime_qnn")
    with qnnbridge.Host() as host:
        pid = host.info.pid
        links = {number: os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)}
        assert links[0] == os.devnull
        assert links[1] == links[2]
        assert psutil.Process(pid).is_running()
