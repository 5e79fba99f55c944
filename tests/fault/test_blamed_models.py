"""A model that crashes the host is found and quarantined; models that ran at the same time are not affected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import FAKE_HOST, fake_host, script

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision.blame import NativeCall, Quarantine

X = np.arange(4, dtype=np.float32)
WAIT_S = 60.0
# The promise of the README about quarantined models.
REFUSAL_S = 0.01


@pytest.fixture
def host() -> Iterator[qnnbridge.Host]:
    with fake_host() as host:
        yield host


@pytest.mark.parametrize("how", ["segv", "abort"])
@pytest.mark.parametrize("when", ["on_create", "on_run"])
def test_a_model_is_quarantined_after_its_second_crash_and_refused_without_a_host(
    host: qnnbridge.Host, how: str, when: str, capsys: pytest.CaptureFixture[str]
):
    """Cover row 35 of the fault table in docs/dev/verification.md."""
    poison = script(**{when: [how]})
    healthy = qnnbridge.InferenceSession(script(scale=3), host=host)

    def use() -> None:
        qnnbridge.InferenceSession(poison, host=host).run(None, {"x": X})

    with pytest.raises(errors.HostCrashed):
        use()
    assert host.stats.crashes == 2, "the call and its repetition"
    times = []
    for _ in range(20):
        generation, running = host.stats.generation, host.stats.running
        begin = time.perf_counter()
        with pytest.raises(errors.ModelQuarantined) as caught:
            use()
        times.append(time.perf_counter() - begin)
        assert (host.stats.generation, host.stats.running) == (generation, running), "no host is started for it"
    with capsys.disabled():
        print(f"\nrefused in {sorted(times)[10] * 1000:.2f} ms (median), {max(times) * 1000:.2f} ms (worst)")
    assert sorted(times)[10] < REFUSAL_S, times
    assert "crashed the host 2 times" in str(caught.value)
    assert Path(caught.value.details["report"]).is_file()
    assert np.array_equal(healthy.run(None, {"x": X})[0], X * 3)


def test_a_quarantine_applies_to_the_next_application_but_not_to_other_versions(host: qnnbridge.Host):
    poison = script(on_run=["segv"])
    with pytest.raises(errors.HostCrashed):
        qnnbridge.InferenceSession(poison, host=host).run(None, {"x": X})
    program = (
        "import sys, qnnbridge\n"
        "from tests.fakes.hosts import fake_host\n"
        f"try: qnnbridge.InferenceSession({poison!r}, host=fake_host())\n"
        "except qnnbridge.errors.ModelQuarantined as error: print(error)\n"
    )
    root = Path(FAKE_HOST).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60)
    assert "is in quarantine" in ran.stdout, ran.stderr
    quarantine = Quarantine()
    (account,) = quarantine.accounts()
    quarantine.versions = "onnxruntime 99"
    quarantine.check(account.fingerprint, account.options_hash)


def test_a_model_is_tried_again_when_its_quarantine_is_cleared(host: qnnbridge.Host, tmp_path: Path):
    """`qnnbridge quarantine clear` does the same from another process."""
    cured = tmp_path / "cured"
    model = script(scale=3, on_run=["segv"], once=str(cured))
    session = qnnbridge.InferenceSession(model, host=host)
    for _ in range(2):
        cured.unlink(missing_ok=True)
        with pytest.raises(errors.HostCrashed):
            session.run(None, {"x": X}, retry=0)
    with pytest.raises(errors.ModelQuarantined):
        session.run(None, {"x": X})
    assert Quarantine().clear() == 1
    until = time.monotonic() + WAIT_S
    while True:  # the file is checked once a second
        try:
            (result,) = session.run(None, {"x": X})
            break
        except errors.ModelQuarantined:
            assert time.monotonic() < until
    assert np.array_equal(result, X * 3)


def test_another_file_of_the_same_size_and_date_is_another_model(host: qnnbridge.Host, tmp_path: Path):
    path, other = tmp_path / "model", tmp_path / "other"
    poison = script(on_run=["segv"])
    path.write_bytes(poison)
    with pytest.raises(errors.HostCrashed):
        qnnbridge.InferenceSession(path, host=host).run(None, {"x": X})
    with pytest.raises(errors.ModelQuarantined):
        qnnbridge.InferenceSession(path, host=host)
    before = path.stat()
    other.write_bytes(script(scale=3).ljust(len(poison)))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    (result,) = qnnbridge.InferenceSession(path, host=host).run(None, {"x": X})
    assert np.array_equal(result, X * 3)


def test_a_quarantine_does_not_apply_to_other_options(host: qnnbridge.Host):
    poison = script(on_create=["segv"])
    with pytest.raises(errors.HostCrashed):
        qnnbridge.InferenceSession(poison, host=host)
    with pytest.raises(errors.ModelQuarantined):
        qnnbridge.InferenceSession(poison, host=host)
    options = qnnbridge.SessionOptions()
    options.intra_op_num_threads = 1
    with pytest.raises(errors.HostCrashed):
        qnnbridge.InferenceSession(poison, sess_options=options, host=host, retry=0)


def test_a_model_that_crashes_on_qnn_runs_on_the_cpu_if_fallback_is_allowed(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
):
    """The call that crashes the second host gets its result; placement, log and report show the fallback."""
    poison = script(scale=3, on_npu_run=["segv"])
    session = qnnbridge.InferenceSession(poison, host=host, fallback="cpu")
    assert session.placement.qnn_nodes == 1
    with caplog.at_level("WARNING", "qnnbridge.session"):
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert (session.placement.qnn_nodes, session.placement.cpu_nodes) == (0, 1)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "is in quarantine" in (session.placement.cause or "")
    assert [
        r.message for r in caplog.records if "runs on the CPU from now on, as fallback='cpu' allows" in r.message
    ]
    assert (host.stats.cpu_fallbacks, host.stats.crashes, host.stats.generation) == (1, 2, 3)
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    # A new session of the model does not try QNN again.
    with pytest.warns(qnnbridge.CpuFallbackWarning, match="is in quarantine"):
        later = qnnbridge.InferenceSession(poison, host=host, fallback="cpu")
    assert np.array_equal(later.run(None, {"x": X})[0], X * 3)
    assert later.placement.qnn_nodes == 0
    assert (host.stats.cpu_fallbacks, host.stats.crashes) == (2, 2)


def test_without_retries_a_crash_raises_an_error_and_the_next_call_uses_the_cpu(host: qnnbridge.Host):
    session = qnnbridge.InferenceSession(script(scale=3, on_npu_run=["segv"]), host=host, fallback="cpu", retry=0)
    for _ in range(2):
        with pytest.raises(errors.HostCrashed):
            session.run(None, {"x": X})
    assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
    assert host.stats.cpu_fallbacks == 1


def test_a_model_that_also_crashes_on_the_cpu_is_quarantined(host: qnnbridge.Host):
    session = qnnbridge.InferenceSession(script(on_run=["segv"]), host=host, fallback="cpu")
    with pytest.raises(errors.HostCrashed):
        session.run(None, {"x": X})
    assert host.stats.cpu_fallbacks == 1
    with pytest.raises((errors.HostCrashed, errors.ModelQuarantined)):
        session.run(None, {"x": X})
    with pytest.raises(errors.ModelQuarantined):
        session.run(None, {"x": X})
    assert host.stats.crashes == 4, "two on QNN, two on the CPU"


def quarantined() -> set[str]:
    return {account.fingerprint for account in Quarantine().accounts()}


def fingerprint(session: qnnbridge.InferenceSession) -> str:
    return session._remote.recipe.fingerprint


def test_of_several_running_models_only_the_crashing_one_is_blamed(host: qnnbridge.Host):
    """Cover row 36 of the fault table: CPU sessions run concurrently. All calls of the healthy models get their
    result.
    """
    innocents = [
        qnnbridge.InferenceSession(script(scale=n + 3, npu=False, on_run=["sleep:0.02"]), host=host, retry=8)
        for n in range(3)
    ]
    poison = qnnbridge.InferenceSession(script(npu=False, on_run=["sleep:0.01", "segv"]), host=host, retry=0)
    died: list[BaseException] = []

    def kill() -> None:
        while not died or not isinstance(died[-1], errors.ModelQuarantined):
            assert len(died) < 20
            try:
                poison.run(None, {"x": X})
            except errors.BridgeError as error:
                died.append(error)

    def work(number: int) -> int:
        right = 0
        while not killer.done():
            (result,) = innocents[number].run(None, {"x": X})
            assert np.array_equal(result, X * np.float32(number + 3))
            right += 1
        return right

    with ThreadPoolExecutor(4) as pool:
        killer: Future[Any] = pool.submit(kill)
        workers = [pool.submit(work, number) for number in range(3)]
        killer.result(WAIT_S)
        assert all(worker.result(WAIT_S) > 0 for worker in workers)
    assert quarantined() == {fingerprint(poison)}
    assert host.stats.crashes <= 6, "found in a few deaths"


def test_a_suspect_runs_alone_until_it_is_cleared(host: qnnbridge.Host, tmp_path: Path):
    """Cover row 36 of the fault table: after a crash with two suspects, no other call runs while one of them runs."""
    meets = [tmp_path / "a", tmp_path / "b"]
    poison = script(npu=False, on_run=[f"note:{meets[0]}", f"wait:{meets[1]}", "segv"], once=str(tmp_path / "once"))
    # This call is in native code when the host crashes, whenever that happens.
    healthy = script(scale=3, npu=False, on_run=[f"note:{meets[1]}", "sleep:60"], once=str(tmp_path / "met"))
    first = qnnbridge.InferenceSession(poison, host=host)
    second = qnnbridge.InferenceSession(healthy, host=host)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(session.run, None, {"x": X}) for session in (first, second)]
        assert np.array_equal(calls[0].result(WAIT_S)[0], X * 2)
        assert np.array_equal(calls[1].result(WAIT_S)[0], X * 3)
    blame = host._isolation._blame
    assert host.stats.crashes == 1
    assert not blame.active, "one good reply alone is enough for a first suspicion"
    assert quarantined() == set()
    assert all(not account.points for account in Quarantine()._read().values())
    details = host.supervisor.counters.last_crash.details
    assert {suspect["fingerprint"] for suspect in details["suspects"]} == {fingerprint(first), fingerprint(second)}


def test_a_queued_call_is_not_a_suspect(host: qnnbridge.Host):
    """The NPU runs one call at a time: the others have not started."""
    innocents = [qnnbridge.InferenceSession(script(scale=n + 3), host=host, retry=4) for n in range(3)]
    poison = qnnbridge.InferenceSession(script(on_run=["sleep:0.1", "segv"]), host=host)
    with ThreadPoolExecutor(4) as pool:
        kills = pool.submit(poison.run, None, {"x": X})
        calls = [pool.submit(session.run, None, {"x": X}) for session in innocents]
        for number, call in enumerate(calls):
            assert np.array_equal(call.result(WAIT_S)[0], X * np.float32(number + 3))
        assert isinstance(kills.exception(WAIT_S), errors.HostCrashed)
    assert quarantined() == {fingerprint(poison)}
    assert {a.fingerprint for a in Quarantine()._read().values()} == {fingerprint(poison)}


def test_a_model_is_tried_again_after_an_update_of_the_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The provider's version is unknown at HELLO: the host has to find it first."""
    monkeypatch.setenv("QNNBRIDGE_ENGINE", "windowsml")
    poison = script(on_create=["segv"])

    def opened_with(version: str, *more: str) -> type[Exception]:
        with fake_host(f"--qnn=windowsml:{version}", *more) as host, pytest.raises(errors.BridgeError) as caught:
            qnnbridge.InferenceSession(poison, host=host)
        report = caught.value.details.get("report")
        if isinstance(caught.value, errors.HostCrashed):
            assert "microsoft/WindowsML#22" in str(caught.value)
            assert "pip uninstall -y onnxruntime-windowsml" in str(caught.value)
            assert (
                json.loads(Path(str(report)).with_suffix(".json").read_text())["versions"]["ep_version"] == version
            )
        return type(caught.value)

    assert opened_with("1.8.21.0") is errors.HostCrashed
    assert "ep_version 1.8.21.0" in Quarantine().accounts()[0].versions
    # Another application waits until the provider's version is known.
    assert opened_with("1.8.21.0", "--import=sleep:0.3") is errors.ModelQuarantined
    assert opened_with("1.8.22.0", "--import=sleep:0.3") is errors.HostCrashed
    assert len(Quarantine().accounts()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGALRM")
def test_a_signal_handler_may_call_a_session_while_its_thread_runs_a_suspect(host: qnnbridge.Host):
    import signal

    suspect = qnnbridge.InferenceSession(script(scale=2, on_run=["sleep:1"]), host=host)
    other = qnnbridge.InferenceSession(script(scale=3), host=host)
    calls = [NativeCall(of, "0", "running") for of in (fingerprint(suspect), "f" * 64)]
    host.blame.on_death(None, calls, "hung")
    assert host.blame.must_run_alone(fingerprint(suspect))
    results: list[Any] = []
    before = signal.signal(
        signal.SIGALRM, lambda *_: results.append(other.run(None, {"x": X}, timeout=WAIT_S)[0].tolist())
    )
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        results.append(suspect.run(None, {"x": X}, timeout=WAIT_S)[0].tolist())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert results == [(X * 3).tolist(), (X * 2).tolist()]
