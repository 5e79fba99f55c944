"""Pass handles between processes and print the outcome as a JSON object; run by the Windows Python.

Each function checks one fact and returns it; `test_windows_handles.py` contains the expected values. The host is
the real host process with the scripted engine.
"""

from __future__ import annotations

import _winapi
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.daemon.brokers import lab, until
from tests.fakes.hosts import fake_host, script
from windows_facts import FACTS, TIMEOUT_S, fact, report

from qnnbridge._fastpath.channel_pool import ChannelPool
from qnnbridge._transport.channel import CallTimedOut
from qnnbridge_daemon import client_sessions
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_os._win32_daemon_endpoint import KeptMemory
from qnnbridge_os._win32_streams import ChannelStreams, SharedMemory, give_handle, reclaim
from qnnbridge_os.sharing import map_memory
from qnnbridge_protocol.errors import InvalidArgument, ProtocolDesync

import qnnbridge  # isort: skip
import numpy as np  # isort: skip
import psutil  # isort: skip

Array = np.ndarray[Any, np.dtype[np.float32]]

PROCESS_DUP_HANDLE = 0x40
X = np.arange(4, dtype=np.float32)
OURS = b"memory of this test"


def brought_here(handle: int, pid: int) -> int | None:
    """Duplicate a handle of a process into this one, to be closed; return ``None`` if the process lacks the handle.

    The number of a closed handle may already belong to another object.
    """
    process = _winapi.OpenProcess(PROCESS_DUP_HANDLE, False, pid)
    try:
        us = _winapi.GetCurrentProcess()
        return _winapi.DuplicateHandle(process, handle, us, 0, False, _winapi.DUPLICATE_SAME_ACCESS)
    except OSError:
        return None
    finally:
        _winapi.CloseHandle(process)


def is_memory(handle: int, pid: int, content: bytes) -> bool:
    """Return whether the process has the handle, and it is memory that begins with these bytes."""
    ours = brought_here(handle, pid)
    if ours is None:
        return False
    try:
        return bytes(map_memory({"handle": ours}, 65536, write=False)[: len(content)]) == content
    except OSError:  # another object
        return False


def nobody_has_other_ends(streams: ChannelStreams) -> bool:
    """Return whether only this process keeps the other ends of the pipes open."""
    streams.opened()
    try:
        os.write(streams.write_fd, b"x")
        return False
    except OSError:
        pass
    try:
        return bool(streams.poll(0)) and not os.read(streams.read_fd, 1)
    except OSError:
        return True
    finally:
        streams.close()


class Given:
    """Return the ends of a channel that were passed to a host."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._streams = ChannelStreams()
        read, write = self._streams.share_handles(pid)
        self.read, self.write = dict(read), dict(write)
        self.were_open = []
        for share_handle in (read, write):
            ours = brought_here(share_handle["handle"], pid)
            self.were_open.append(ours is not None)
            if ours is not None:
                _winapi.CloseHandle(ours)

    def nobody_has_them(self) -> bool:
        return nobody_has_other_ends(self._streams)


def channels_of(host: qnnbridge.Host) -> ChannelPool:
    """Return the channel ends of a running host."""
    session = qnnbridge.InferenceSession(script(scale=3), host=host)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    process = host.supervisor.running
    assert process is not None
    assert process.pool is not None
    assert len(process.pool) == 1
    return process.pool


def phases_of(pool: ChannelPool) -> int:
    assert pool._phases is not None
    return pool._phases.number


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (InvalidArgument, ProtocolDesync, CallTimedOut) as error:
        return type(error).__name__
    return "none"


@fact
def refused_channel() -> Any:
    told = {}
    with fake_host() as host:
        pool = channels_of(host)
        channel, pid = pool._connection, pool._connection.peer.pid
        ways: dict[str, dict[str, Any]] = {
            "no such memory": {"phases": 4_000_000},
            "no proper number": {"channel": 0},
            "one end only": {"write": {}},
            "no end at all": {"write": {"handle": "x"}},
        }
        for name, wrong in ways.items():
            given = Given(pid)
            header = {"op": "channel.open", "channel": 1000, "slot": 1, "phases": phases_of(pool)}
            if "write" in wrong:  # a handle that is not in the message has no owner: it is reclaimed
                taken = {"handle": given.write["handle"]}
                reclaim(taken, pid)
            said = refusal(
                lambda header={**header, "read": given.read, "write": given.write, **wrong}: channel.call(header)  # type: ignore[misc]
            )
            told[name] = [given.were_open, said, given.nobody_has_them()]
        for number in range(2000, 2000 + 64):  # the maximum number
            given = Given(pid)
            header = {"op": "channel.open", "channel": number, "slot": 1, "phases": phases_of(pool)}
            said = refusal(
                lambda header={**header, "read": given.read, "write": given.write}: channel.call(header)  # type: ignore[misc]
            )
            if said != "none":
                told["too many"] = [given.were_open, said, given.nobody_has_them()]
                break
            kept.append(given)
    return told


kept: list[Given] = []


@fact
def refused_memory() -> Any:
    told = {}
    with fake_host() as host:
        pool = channels_of(host)
        channel, pid = pool._connection, pool._connection.peer.pid
        memory = SharedMemory(65536, writable=True)
        memory.take_view()[: len(OURS)] = OURS
        for name, number, size in (
            ("taken", 900, 65536),
            ("known", 900, 65536),
            ("no size", 901, 0),
            ("too large", 902, 1 << 30),
        ):
            where = memory.share_handle(pid)
            handle = where["handle"]
            before = is_memory(handle, pid, OURS)
            header = {"op": "slab.attach", "slab": number, "size": size, "host_writes": False, "where": where}
            said = refusal(lambda header=header: channel.call(header))  # type: ignore[misc]
            told[name] = [before, said, is_memory(handle, pid, OURS)]
        memory.close()
    return told


@fact
def handles_that_were_not_sent_are_reclaimed() -> Any:
    with fake_host() as host:
        pool = channels_of(host)
        given = Given(pool._connection.peer.pid)
        header = {"op": "channel.open", "channel": 1000, "slot": 1, "phases": phases_of(pool)}
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with pool._connection._send_lock:
                taken.set()
                done.wait(TIMEOUT_S)

        other = threading.Thread(target=hold)
        other.start()
        taken.wait(TIMEOUT_S)
        said = refusal(
            lambda: pool._give(header, {"read": given.read, "write": given.write}, time.monotonic() + 0.05)
        )
        done.set()
        other.join()
        return [given.were_open, said, given.nobody_has_them()]


@fact
def first_handle_is_reclaimed_if_the_second_cannot_be_passed() -> Any:
    """If the second handle cannot be passed, the first one is taken back."""
    from qnnbridge_os import _win32_streams as sharing

    given: list[int] = []

    def give(handle: int, pid: int) -> int:
        if given:
            raise OSError("no more handles")
        given.append(give_handle(handle, pid))
        return given[0]

    sharing.give_handle = give
    streams = ChannelStreams()
    try:
        streams.share_handles(os.getpid())
        return "given"
    except OSError:
        return nobody_has_other_ends(streams)
    finally:
        sharing.give_handle = give_handle
        streams.close()


class Counted(KeptMemory):
    """Counter of the client memory that the daemon has mapped."""

    made = closed = 0

    def __init__(self, where: dict[str, Any]) -> None:
        super().__init__(where)
        Counted.made += 1

    def close(self) -> None:
        super().close()
        Counted.closed += 1


def calls(session: qnnbridge.InferenceSession, given: Array, taken: Array) -> bool:
    """Return whether all results are right, for both ways to pass and receive arrays."""
    large = np.arange(given.size, dtype=np.float32)
    right = True
    for number in range(4):
        given[:] = large + number
        session.run(None, {"x": given}, out=[taken])
        right &= np.array_equal(taken, given * 3)
        right &= np.array_equal(session.run(None, {"x": large})[0], large * 3)
    return right


@fact
def memory_of_a_client_is_mapped_by_the_npu_host() -> Any:
    """Run client and daemon in this process: the NPU host maps the client's memory, and none of the daemon's."""
    client_sessions.KeptMemory = Counted
    told: dict[str, Any] = {}
    shape = (1 << 20,)
    with lab(fake_host(), BrokerSettings(keep_unused_s=0.0)) as made:
        session = qnnbridge.InferenceSession(script(scale=3), host=made.client())
        given, taken = session.empty_input("x", shape), session.empty_output("y", shape)
        told["results"] = calls(session, given, taken)
        process = made.npu_host.supervisor.running
        assert process is not None
        psutil.Process(process.real_pid).kill()
        told["results of the next host"] = calls(session, given, taken)
        stats = made.npu_host.stats
        told["by channels"] = [session.host.stats.shared_calls >= 8, stats.shared_calls >= 8, stats.generation]
        told["memory of the daemon"] = stats.shared_bytes >= given.nbytes
        del given, taken
        told["kept"] = Counted.made > 3
    session.host.close()
    gc.collect()
    until(lambda: Counted.closed == Counted.made)
    return told


if __name__ == "__main__":
    started = time.monotonic()
    results = {name: report(name) for name in FACTS}
    assert time.monotonic() - started < 6 * TIMEOUT_S
    print(json.dumps(results))
