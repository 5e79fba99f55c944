"""Faults on the wire between real processes: text and random bytes among the frames, incomplete frames, full
pipes."""

from __future__ import annotations

import array
import fcntl
import os
import shlex
import sys
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.fakes.hosts import FAKE_HOST, dying_host, fake_host, script
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.host_process import DRAIN_TIMEOUT_S
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.frames import WIRE_VERSION, Frame, Kind, write_frame
from qnnbridge_protocol.limits import Limits

X = np.arange(4, dtype=np.float32)
LARGE = np.arange(1 << 20, dtype=np.float32)
WAIT_S = 60.0
MIB = 1 << 20


def wait_until(condition) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        threading.Event().wait(0.002)


# --- text before HELLO -----------------------------------------------------------------------------------


def host_after(count: int, **options) -> qnnbridge.Host:
    """Return a host whose process prints `count` bytes before the first line of the host runs, as a site hook may."""
    command = [sys.executable, "-I", "-u", "-X", "utf8", FAKE_HOST, "--parent", str(os.getpid())]
    text = f"head -c {count} /dev/zero | tr '\\0' x"
    return qnnbridge.Host(_command=["/bin/sh", "-c", f"{text}; exec {shlex.join(command)}"], **options)


@pytest.mark.parametrize("count", [10, 63 * 1024])
def test_text_before_hello_is_skipped_and_logged(count: int, no_leaks, caplog: pytest.LogCaptureFixture):
    """Cover row 13 of the fault table in docs/dev/verification.md."""
    with caplog.at_level("WARNING", "qnnbridge.supervisor"), host_after(count) as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.supervisor.running.channel.preamble == b"x" * count
        assert "printed text before its HELLO" in caplog.text


def test_more_text_than_a_host_may_print_is_a_failed_handshake_that_shows_it(no_leaks):
    """Cover row 13 of the fault table in docs/dev/verification.md."""
    with host_after(65 * 1024) as host:
        with pytest.raises((errors.HandshakeFailed, errors.HostStartFailed)) as caught:
            host.start()
        assert "xxxx" in str(caught.value)
        assert caught.value.details["report"]


# --- invalid answers to HELLO -------------------------------------------------------------------------------


def bytes_of(frame: Frame) -> bytes:
    return b"".join(bytes(chunk) for chunk in write_frame(frame, Limits()))


HELLO = Hello().to_wire()
# Higher wire version than ours, kind, header, class of the error.
ANSWERS = {
    "of another wire": (7, Kind.HELLO_OK, HELLO, errors.VersionMismatch),
    "of another wire, with other fields": (7, Kind.HELLO_OK, {"qnnbridge": "9.9.9"}, errors.VersionMismatch),
    "with other operations": (0, Kind.HELLO_OK, {**HELLO, "api": [90, 91]}, errors.VersionMismatch),
    "a refusal without a reason": (0, Kind.HELLO_ERR, {}, errors.HandshakeFailed),
    "a refusal whose reason is a number": (0, Kind.HELLO_ERR, {"error": 5}, errors.HandshakeFailed),
    "a refusal with a foreign error": (0, Kind.HELLO_ERR, {"error": {"code": "data.Fail"}}, errors.HandshakeFailed),
    "no HELLO": (0, Kind.PHASE, {"phase": "ready"}, errors.HostStartFailed),
    "empty": (0, Kind.HELLO_OK, {}, errors.HostStartFailed),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_bad_answer_to_hello_is_reported_immediately(
    what: str, monkeypatch: pytest.MonkeyPatch, no_leaks
) -> None:
    """The wrapped process continues to run; the error does not wait for it."""
    newer_by, kind, header, expected = ANSWERS[what]
    monkeypatch.setattr("qnnbridge_protocol.frames.WIRE_VERSION", WIRE_VERSION + newer_by)
    answer = bytes_of(Frame(kind, 0, header)).hex()
    monkeypatch.undo()
    code = f"import os, time; os.write(1, bytes.fromhex('{answer}')); time.sleep(600)"
    with qnnbridge.Host(_command=[sys.executable, "-c", code], start_timeout=500.0) as host:
        begin = time.monotonic()
        with pytest.raises(expected) as caught:
            host.start()
        assert type(caught.value) is expected
        assert time.monotonic() - begin < DRAIN_TIMEOUT_S, "its GOODBYE was waited for"


# --- garbage after HELLO ---------------------------------------------------------------------------------


NONSENSE = {
    "text": b"qnn: Starting stage: Graph Optimizations\n",
    "zeros": bytes(300),
    "a reply to nothing": bytes_of(Frame(Kind.REPLY, 7_000_000, {})),
    "a second HELLO": bytes_of(Frame(Kind.HELLO_OK, 0, {})),
    "a damaged frame": bytes_of(Frame(Kind.REPLY, 1, {}))[:-1] + b"\xff",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_garbage_on_the_wire_ends_the_host_and_the_call_is_repeated(what: str, tmp_path: Path, no_leaks):
    """Cover rows 15, 16 and 22 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        model = script(scale=3, on_run=[f"wire:{NONSENSE[what].hex()}"], once=str(tmp_path / "once"))
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert (host.stats.generation, host.stats.retried_calls) == (2, 1)


def test_garbage_is_reported_with_its_first_bytes(no_leaks):
    """Cover row 15 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        model = script(on_run=[f"wire:{NONSENSE['text'].hex()}"])
        session = qnnbridge.InferenceSession(model, host=host, retry=0)
        with pytest.raises(errors.BridgeError) as caught:
            session.run(None, {"x": X})
        assert isinstance(caught.value, (errors.ProtocolDesync, errors.HostCrashed))
        assert "Starting stage: Graph Optimizations" in str(caught.value)
        assert caught.value.details["report"]
        healthy = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(healthy.run(None, {"x": X})[0], X * 3)


# --- incomplete frames -----------------------------------------------------------------------------------


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time out after half a second of silence within a message instead of a minute."""
    monkeypatch.setattr("qnnbridge._transport.channel.SILENCE_INTERVAL_S", 0.05)
    monkeypatch.setattr("qnnbridge._transport.channel.STALL_TIMEOUT_S", 0.5)


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("step", ["host:REPLY+:prefix:silence", "host:REPLY+:body:silence"])
def test_half_an_answer_followed_by_silence_is_a_hang_and_the_call_is_repeated(step: str, tmp_path: Path, no_leaks):
    """Cover row 18 of the fault table; `test_replay` covers the case in which the stream ends after the half."""
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))
    with dying_host(step, tmp_path / "once") as host:
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": LARGE})[0], LARGE * 3)
        assert (host.stats.generation, host.stats.retried_calls) == (2, 1)


@pytest.mark.usefixtures("short_silence")
def test_half_an_answer_followed_by_silence_is_reported_as_a_hang(tmp_path: Path, no_leaks):
    """Cover row 18 of the fault table in docs/dev/verification.md."""
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))
    with dying_host("host:REPLY+:body:silence", tmp_path / "once") as host:
        session = qnnbridge.InferenceSession(model, host=host)
        with pytest.raises(errors.HostHung, match="stopped in the middle of a message"):
            session.run(None, {"x": LARGE}, retry=0)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


@pytest.mark.usefixtures("short_silence")
def test_a_host_that_reads_only_half_a_request_is_a_hang(no_leaks):
    """Cover row 18 of the fault table in the other direction."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        stop(host.info.pid)
        with pytest.raises(errors.HostHung, match=r"did not \w+ any data|is stopped"):
            session.run(None, {"x": LARGE}, retry=0)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)


# --- full pipes ------------------------------------------------------------------------------------------


def unread_bytes(fd: int) -> int:
    """Return the number of bytes that the other side of a pipe has not read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def test_a_call_can_be_cancelled_while_the_host_waits_for_a_reader(tmp_path: Path, no_leaks):
    """Cover row 23 of the fault table: the host has 128 MiB to send, without a reader. Its memory is bounded, and
    it still reads requests.
    """
    large = np.ones(32 * MIB, np.float32)
    ran = tmp_path / "ran"
    with fake_host() as host, ThreadPoolExecutor(3) as pool:
        sends = qnnbridge.InferenceSession(script(scale=3), host=host)
        queued = qnnbridge.InferenceSession(script(on_run=[f"note:{ran}"]), host=host)
        process = host.supervisor.running
        channel = process.channel
        before = psutil.Process(process.real_pid).memory_info().rss
        with channel._lead:  # nobody reads
            first = pool.submit(sends.run, None, {"x": large})
            wait_until(lambda: host.stats.calls_in_flight == 1 and unread_bytes(channel._read_fd))
            second = pool.submit(queued.run, None, {"x": X})
            wait_until(lambda: host.stats.calls_in_flight == 2)
            number = max(channel.requests._open)
            withdrawn = pool.submit(channel.cancel, number, time.monotonic() + WAIT_S)
            wait_until(lambda: host.stats.calls_in_flight == 3)
            with channel._send_lock:  # it is written by then
                pass
            wait_until(lambda: not channel._writer.pending and not unread_bytes(channel._write_fd))
            used = psutil.Process(process.real_pid).memory_info().rss - before
        channel.requests.wake_next()
        assert np.array_equal(first.result(WAIT_S)[0], large * 3), "it goes on where it was"
        assert withdrawn.result(WAIT_S) == "not-started"
        with pytest.raises(errors.Cancelled):
            second.result(WAIT_S)
        assert not ran.exists(), "the model never ran"
        assert used < 2 * large.nbytes + 64 * MIB, "the input, the result and nothing else"
        assert host.stats.generation == 1


def test_both_sides_write_large_bodies_at_the_same_time_without_waiting_for_each_other(no_leaks):
    """Cover row 24 of the fault table: each side is in the middle of a message of 32 MiB, of which the pipe holds
    one.
    """
    large = np.ones(8 * MIB, np.float32)
    with fake_host() as host, ThreadPoolExecutor(2) as pool:
        session = qnnbridge.InferenceSession(script(scale=3, npu=False), host=host)
        channel = host.supervisor.running.channel
        with channel._lead:  # nobody reads: the host is blocked in its answer
            first = pool.submit(session.run, None, {"x": large})
            wait_until(lambda: unread_bytes(channel._read_fd) >= 65536)
            # The host still reads: a second message of that size reaches it.
            second = pool.submit(session.run, None, {"x": large * 2})
            wait_until(lambda: host.stats.calls_in_flight == 2)
            wait_until(lambda: not channel._writer.pending and not unread_bytes(channel._write_fd))
            assert not first.done()
        channel.requests.wake_next()
        assert first.result(WAIT_S)[0][-1] == 3
        assert second.result(WAIT_S)[0][-1] == 6
        assert host.stats.generation == 1
