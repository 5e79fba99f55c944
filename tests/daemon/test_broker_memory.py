"""Tensors in shared memory: passed on to the NPU host without a copy, and released with their client."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from qnnbridge_daemon.accounts import BrokerSettings
from tests.daemon.brokers import GRACE_S, Lab, in_threads, until
from tests.fakes.hosts import fake_host, script

MIB = 1 << 20
LARGE = np.arange(8 * MIB // 4, dtype=np.float32)
SMALL = np.arange(5, dtype=np.float32)


def mapped_by_the_npu_host(lab: Lab) -> int:
    """Return the bytes of shared memory, if the system reports them."""
    process = lab.npu_host.supervisor.running
    assert process is not None
    total = 0
    for line in mappings_of(process.real_pid):
        if "memfd:qnnbridge" in line:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            total += end - begin
    return total


def mappings_of(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps")
    return maps.read_text().splitlines() if sys.platform == "linux" else []


def shared_mappings() -> int:
    """Return the shared mappings of this process."""
    return sum("memfd:qnnbridge" in line for line in mappings_of(os.getpid()))


def test_large_tensors_are_not_copied_into_memory_of_the_daemon(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=lab.client())
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": LARGE})[0], LARGE * 3)
    assert session.host.stats.shared_calls >= 2
    assert lab.npu_host.stats.shared_calls >= 2
    shared = lab.broker.status()["clients"][0]["shared_bytes"]
    assert shared >= 2 * LARGE.nbytes
    assert lab.npu_host.stats.shared_bytes < LARGE.nbytes


def test_every_way_to_pass_and_receive_arrays_gives_the_same_results(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=lab.client())
    for x in (SMALL, LARGE, SMALL + 1):
        expected = x * 3
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": x})[0], expected)
            assert np.array_equal(session.run(None, {"x": x}, borrow=True)[0], expected)
        given, taken = session.empty_input("x", x.shape), session.empty_output("y", x.shape)
        given[:] = x
        for _ in range(3):
            session.run(None, {"x": given}, out=[taken])
            assert np.array_equal(taken, expected)
            taken[:] = 0


def test_borrowed_results_do_not_change(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(scale=3), host=lab.client())
    kept = [session.run(None, {"x": SMALL + number}, borrow=True)[0] for number in range(12)]
    assert all(np.array_equal(result, (SMALL + number) * 3) for number, result in enumerate(kept))


def test_many_clients_with_many_models_never_see_the_tensors_of_other_clients(lab: Lab) -> None:
    def work(number: int) -> bool:
        host = lab.client()
        sessions = [qnnbridge.InferenceSession(script(scale=scale), host=host) for scale in (2, 3, 5)]
        rng = np.random.default_rng(number)
        for turn in range(20):
            x = rng.standard_normal(100 * (1 + turn % 3)).astype(np.float32)
            for scale, session in zip((2, 3, 5), sessions, strict=True):
                if not np.array_equal(session.run(None, {"x": x})[0], x * np.float32(scale)):
                    return False
        return True

    assert all(in_threads(*[lambda n=number: work(n) for number in range(4)]))


def test_memory_of_a_disconnected_client_is_unmapped_everywhere(lab: Lab) -> None:
    keeper = qnnbridge.InferenceSession(script(scale=3), host=lab.client())
    for _ in range(3):
        keeper.run(None, {"x": SMALL})
    before = mapped_by_the_npu_host(lab)
    for _ in range(3):
        host = lab.client()
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        for _ in range(3):
            session.run(None, {"x": LARGE})
        process = host.supervisor.running
        assert process is not None
        process.kill("as if the application had died")
        until(lambda: len(lab.broker.clients) == 1)
        keeper.run(None, {"x": SMALL})

    def is_gone() -> bool:
        keeper.run(None, {"x": SMALL})
        return mapped_by_the_npu_host(lab) < before + LARGE.nbytes

    until(is_gone)


def test_memory_for_a_crashed_host_is_unmapped_everywhere() -> None:
    made = Lab(fake_host(), BrokerSettings(idle_unload_s=0.1))
    gc.disable()  # an idle process collects no garbage, either
    try:
        sessions = [qnnbridge.InferenceSession(script(scale=scale), host=made.client()) for scale in (2, 3)]

        def call() -> None:
            for session in sessions:
                for _ in range(3):
                    session.run(None, {"x": SMALL})

        call()
        before = shared_mappings()
        for _ in range(5):
            process = made.npu_host.supervisor.running
            assert process is not None
            os.kill(process.real_pid, signal.SIGKILL)
            call()
        # The last crash, whose error is stored, may still hold its three mappings: without the fix, five crashes
        # held fifteen.
        until(lambda: shared_mappings() <= before + 6)
    finally:
        gc.enable()
        made.close()


def test_a_new_host_maps_the_memory_of_all_clients(lab: Lab) -> None:
    sessions = [qnnbridge.InferenceSession(script(scale=3), host=lab.client()) for _ in range(2)]
    for _ in range(2):
        for session in sessions:
            for _ in range(3):
                assert np.array_equal(session.run(None, {"x": LARGE})[0], LARGE * 3)
        process = lab.npu_host.supervisor.running
        assert process is not None
        os.kill(process.real_pid, signal.SIGKILL)
    assert lab.npu_host.stats.shared_bytes < LARGE.nbytes


def test_memory_that_the_client_could_shrink_is_refused(lab: Lab) -> None:
    """Reading memory that the client has shrunk would end the daemon."""
    host = lab.client()
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        status = os.fstat(fd)
        where = {"pid": os.getpid(), "fd": fd, "device": status.st_dev, "inode": status.st_ino}
        header = {"op": "slab.attach", "slab": 4000, "size": 4096, "host_writes": True, "where": where}
        with pytest.raises(errors.InvalidArgument, match="sealed"):
            host.call(header, timeout=GRACE_S)
    finally:
        os.close(fd)
    assert lab.broker.clients[0].account.shared_bytes == 0
