"""Crashes of the host that a call did not cause do not use up the call's `retry`."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision import host_process
from qnnbridge._supervision.blame import NativeCall, Quarantine

X = np.arange(6, dtype=np.float32)
KILLS = 5


def label_of(model: bytes) -> str:
    return f"<{len(model)} bytes, sha256 {hashlib.sha256(model).hexdigest()[:12]}>"


def kill_when_inside(host: qnnbridge.Host, note: Path, times: int) -> threading.Thread:
    """Kill the host with SIGKILL each time that a run has appended a dot to the note."""

    def work() -> None:
        for number in range(1, times + 1):
            while not note.exists() or note.stat().st_size < number:
                time.sleep(0.002)
            os.kill(host.info.pid, signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_call_survives_any_number_of_kills_from_outside(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=[f"note:{note}", "sleep:0.05"]), host=host)
        killer = kill_when_inside(host, note, KILLS)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        killer.join()
        assert (host.stats.crashes, host.stats.retried_calls) == (KILLS, KILLS)


def test_a_creation_survives_any_number_of_kills_from_outside(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with fake_host() as host:
        host.start()
        killer = kill_when_inside(host, note, KILLS)
        model = script(scale=3, on_create=[f"note:{note}", "sleep:0.05"])
        session = qnnbridge.InferenceSession(model, host=host)
        killer.join()
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert session.generation == KILLS + 1


def test_a_waiting_call_survives_crashes_of_other_models(tmp_path: Path) -> None:
    """Two models crash the host twice each, until they are quarantined; the third one waits in the queue."""
    with fake_host() as host:
        gate = tmp_path / "gate"
        killers = [
            qnnbridge.InferenceSession(
                script(scale=n, on_run=[f"wait:{gate}", "sleep:0.1", "segv"]), host=host, retry=1
            )
            for n in range(2)
        ]
        healthy = qnnbridge.InferenceSession(script(scale=3), host=host)
        told: list[BaseException] = []

        def kill(session: qnnbridge.InferenceSession) -> None:
            try:
                session.run(None, {"x": X})
            except errors.BridgeError as error:
                told.append(error)

        threads = [threading.Thread(target=kill, args=(session,)) for session in killers]
        for thread in threads:
            thread.start()
        while host.stats.calls_in_flight < 2:
            time.sleep(0.002)
        threading.Timer(0.1, gate.touch).start()
        assert np.array_equal(healthy.run(None, {"x": X})[0], X * 3)
        for thread in threads:
            thread.join()
        assert [type(error) for error in told] == [errors.HostCrashed] * 2
        for session in killers:
            with pytest.raises(errors.ModelQuarantined):
                session.run(None, {"x": X})


def test_crashing_models_do_not_prevent_the_next_model_from_running() -> None:
    """Open the models of a folder, of which the first three crash two hosts each before any call succeeds."""
    with fake_host() as host:
        for number in range(3):
            with pytest.raises(errors.HostCrashed):
                qnnbridge.InferenceSession(script(scale=number, on_create=["segv"]), host=host)
        assert host.stats.crashes == 6
        good = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert np.array_equal(good.run(None, {"x": X})[0], X * 3)


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_healthy_models_survive_crashing_models_in_the_same_host(seed: int) -> None:
    """Sessions are created and run concurrently; one or two models crash until they are quarantined."""
    dice = random.Random(seed)

    def nap() -> str:
        return f"sleep:{dice.random() * 0.05}"

    def model(**what: Any) -> bytes:
        return script(npu=dice.random() < 0.4, **what)

    good = {n: model(scale=n, on_create=[nap()], on_run=[nap()]) for n in range(3, 3 + dice.randint(2, 5))}
    bad = [model(scale=-n, **{dice.choice(["on_create", "on_run"]): [nap(), "segv"]}) for n in range(2)]
    end = time.monotonic() + 60
    with fake_host() as host, ThreadPoolExecutor(8) as pool:

        def kill(poison: bytes) -> None:
            while time.monotonic() < end:
                try:
                    qnnbridge.InferenceSession(poison, host=host).run(None, {"x": X})
                except errors.ModelQuarantined:
                    return
                except errors.HostCrashed:
                    pass
            raise AssertionError("it was never found")

        def work(scale: int) -> None:
            while not all(killer.done() for killer in killers):
                session = qnnbridge.InferenceSession(good[scale], host=host)
                for _ in range(5):
                    assert np.array_equal(session.run(None, {"x": X})[0], X * np.float32(scale))

        killers = [pool.submit(kill, poison) for poison in bad]
        for future in [*(pool.submit(work, scale) for scale in good), *killers]:
            future.result(90)
    assert {account.model for account in Quarantine().accounts()} == {label_of(poison) for poison in bad}


def test_a_session_with_a_suspected_cache_entry_is_created_alone() -> None:
    entry, alone = "e" * 64, list[bool]()
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        beside = NativeCall("f" * 64, "", "running")
        host.blame.on_death(None, [NativeCall(entry, "", "creating", entry=True), beside], "hung")
        session._remote.suspect.name(entry, "model.onnx", entry=True)
        session._remote._while_busy = lambda: alone.extend(host._isolation._inside.values())
        host.restart()
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert alone == [True]


def test_the_deadline_ends_the_retries() -> None:
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["sleep:0.05", "signal:9"]), host=host)
        begin = time.monotonic()
        with pytest.raises((errors.HostCrashed, errors.DeadlineExceeded)):
            session.run(None, {"x": X}, timeout=1.5)
        assert time.monotonic() - begin < 2.5
        assert host.stats.crashes > 1


def test_a_call_without_a_deadline_is_not_retried_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "REPEAT_WINDOW_S", 1.0)
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["signal:9"]), host=host, retry=0)
        with pytest.raises(errors.HostCrashed, match="SIGKILL"):
            session.run(None, {"x": X}, retry=1)
        assert host.stats.crashes > 2


def test_a_host_killed_during_its_start_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "REPEAT_WINDOW_S", 1.0)
    with fake_host("--first=signal:9") as host:
        with pytest.raises(errors.HostStartFailed, match="SIGKILL"):
            qnnbridge.InferenceSession(script(), host=host)
        assert host.stats.generation > 2


def test_without_retries_a_kill_raises_an_error_immediately() -> None:
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["signal:9"]), host=host, retry=0)
        with pytest.raises(errors.HostCrashed, match="SIGKILL"):
            session.run(None, {"x": X})
        assert host.stats.retried_calls == 0
