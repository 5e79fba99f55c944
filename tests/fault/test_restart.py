"""The conditions under which a crashed host is restarted, with real hosts. Unit tests cover the policy itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import needs
from tests.fakes.hosts import FAKE_HOST, fake_host, script
from tests.unit.fake_clock import FakeClock

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.restart_policy import RestartPolicy
from qnnbridge_os.processes import wait_readable

X = np.arange(4, dtype=np.float32)


def test_the_breaker_opens_if_a_host_never_starts_and_closes_if_one_does(tmp_path: Path, no_leaks):
    """Cover row 37 of the fault table in docs/dev/verification.md."""
    clock = FakeClock()
    policy = RestartPolicy(clock=clock, jitter=lambda: 0.0)
    broken = tmp_path / "fixed"
    wrapper = [sys.executable, "-c", WRAPPER, str(broken), FAKE_HOST, "--parent", str(os.getpid())]
    with qnnbridge.Host(_command=wrapper, restart=policy) as host:
        for _ in range(5):
            with pytest.raises(errors.HostStartFailed, match="SIGSEGV"):
                host.start()
        generation = host.stats.generation
        for _ in range(3):
            with pytest.raises(errors.BreakerOpen) as caught:
                host.start()
        assert host.stats.generation == generation, "nothing is started meanwhile"
        assert "died 5 times in a row" in str(caught.value)
        assert "SIGSEGV" in str(caught.value.cause)
        assert caught.value.details["retry_after_s"] <= 60
        clock.now += 61
        with pytest.raises(errors.HostStartFailed):  # half open: one attempt
            host.start()
        with pytest.raises(errors.BreakerOpen):
            host.start()
        clock.now += 121
        broken.touch()
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert policy.state == "closed"


WRAPPER = """
import faulthandler, os, sys
if not os.path.exists(sys.argv[1]):
    faulthandler._sigsegv()
os.execv(sys.executable, [sys.executable, "-I", "-u", *sys.argv[2:]])
"""


def end(pid: int) -> None:
    """Crash the idle host by SIGSEGV. Its owner still has to collect the exit code."""
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSEGV)
    assert wait_readable(watch, 10)
    os.close(watch)


def test_a_crash_every_two_minutes_for_an_hour_never_stops_the_restarts(no_leaks):
    """Cover row 38 of the fault table in docs/dev/verification.md."""
    clock, crashes = FakeClock(), needs.length(12, 30)
    with fake_host(restart=RestartPolicy(clock=clock, jitter=lambda: 0.0)) as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        for _ in range(crashes):
            clock.now += 120
            end(host.supervisor.running.pid)
            assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.crashes == crashes
        with pytest.raises(errors.HostCrashed):
            qnnbridge.InferenceSession(script(on_run=["segv"]), host=host, retry=0).run(None, {"x": X})


def test_a_failure_that_a_restart_cannot_fix_is_tried_once(tmp_path: Path, no_leaks):
    with qnnbridge.Host(_command=[sys.executable, "-c", "import a_package_that_is_not_installed"]) as host:
        with pytest.raises(errors.HostStartFailed) as first:
            host.start()
        generation = host.stats.generation
        with pytest.raises(errors.HostStartFailed):
            host.start()
        assert host.stats.generation == generation
        assert "a_package_that_is_not_installed" in str(first.value)
    with qnnbridge.Host(_command=[str(tmp_path / "no such python")]) as host:
        for _ in range(2):
            with pytest.raises(errors.HostNotFound):
                host.start()


def test_a_planned_restart_loses_no_call_of_many_threads(no_leaks):
    from concurrent.futures import ThreadPoolExecutor

    with fake_host() as host, ThreadPoolExecutor(6) as pool:
        sessions = [qnnbridge.InferenceSession(script(scale=n + 2), host=host, retry=0) for n in range(3)]

        def work(number: int) -> None:
            for _ in range(60):
                session = sessions[number % 3]
                assert np.array_equal(session.run(None, {"x": X})[0], X * np.float32(number % 3 + 2))

        workers = [pool.submit(work, number) for number in range(6)]
        for _ in range(5):
            host.restart()
        for worker in workers:
            worker.result(60)
        assert host.stats.crashes == 0
        assert host.stats.retried_calls == 0
