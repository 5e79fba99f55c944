"""If the NPU's memory is too small, a daemon unloads the least recently used models and reloads them later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_daemon.shared_sessions import RELEASE_WAIT_S
from tests.daemon.brokers import Lab, until
from tests.fakes.hosts import fake_host, script

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(fake_host(), BrokerSettings(keep_unused_s=0.0, slots=4))
    yield made
    made.close()


def loaded(lab: Lab) -> dict[str, bool]:
    return {model["label"]: model["loaded"] for model in lab.broker.status()["models"]}


def sessions(lab: Lab, folder: Path, room: int, count: int) -> list[qnnbridge.InferenceSession]:
    made = []
    for number in range(count):
        path = folder / f"m{number}"
        path.write_bytes(script(room=room, scale=number + 2))
        made.append(qnnbridge.InferenceSession(path, host=lab.client()))
        time.sleep(0.02)
    return made


def test_the_least_recently_used_model_is_unloaded_for_memory_and_reloaded_on_use(lab: Lab, tmp_path: Path) -> None:
    first, second = sessions(lab, tmp_path, 2, 2)
    first.run(None, {"x": X})
    (third,) = sessions_from(lab, tmp_path, 2)
    assert loaded(lab) == {"m0": True, "m1": False, "m2": True}
    assert lab.broker.status()["totals"]["unloads"] == 1
    time.sleep(0.02)
    assert np.array_equal(second.run(None, {"x": X})[0], X * 3), "made again when it is used"
    assert loaded(lab) == {"m0": False, "m1": True, "m2": True}
    for session, scale in ((first, 2), (second, 3), (third, 4)):
        assert np.array_equal(session.run(None, {"x": X})[0], X * scale)
    sizes = {model["label"]: model["npu_bytes"] for model in lab.broker.status()["models"]}
    assert sorted(size > 0 for size in sizes.values()) == [False, True, True], "only what is loaded takes room"


def sessions_from(lab: Lab, folder: Path, number: int) -> list[qnnbridge.InferenceSession]:
    path = folder / f"m{number}"
    path.write_bytes(script(room=2, scale=number + 2))
    return [qnnbridge.InferenceSession(path, host=lab.client())]


def test_an_active_model_is_never_unloaded_and_the_error_lists_the_loaded_models(lab: Lab, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    path = tmp_path / "running"
    path.write_bytes(script(room=1, on_run=[f"note:{begun}", f"wait:{go}"]))
    session = qnnbridge.InferenceSession(path, host=lab.client())
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(session.run(None, {"x": X})[0]))
    thread.start()
    try:
        end = time.monotonic() + 20
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.01)
        other = tmp_path / "other"
        other.write_bytes(script(room=1, scale=5))
        with pytest.raises(errors.Fail) as caught:
            qnnbridge.InferenceSession(other, host=lab.client())
        assert "on the NPU: running, " in str(caught.value)
        assert "clients: 1" in str(caught.value)
    finally:
        go.touch()
        thread.join(20)
    assert np.array_equal(results[0], X * 2)
    with qnnbridge.InferenceSession(other, host=lab.client()) as later:
        assert np.array_equal(later.run(None, {"x": X})[0], X * 5), "there is room now: what ran is idle"


def test_a_model_that_is_reloaded_after_a_restart_of_the_npu_host_unloads_another_one(
    lab: Lab, tmp_path: Path
) -> None:
    first, second = sessions(lab, tmp_path, 1, 2)
    assert loaded(lab) == {"m0": False, "m1": True}
    lab.npu_host.restart()
    assert loaded(lab) == {"m0": False, "m1": False}, "nothing is in the new host"
    for _ in range(2):
        assert np.array_equal(first.run(None, {"x": X})[0], X * 2)
        assert np.array_equal(second.run(None, {"x": X})[0], X * 3), "its replay makes room first"
    assert loaded(lab) == {"m0": False, "m1": True}


def test_a_call_does_not_wait_until_the_host_has_released_the_unloaded_session(lab: Lab, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    path = tmp_path / "slow"
    path.write_bytes(script(room=1, on_close=[f"note:{begun}", f"wait:{go}"]))
    slow = qnnbridge.InferenceSession(path, host=lab.client())
    other = tmp_path / "other"
    other.write_bytes(script(room=1, scale=5))
    made: list[qnnbridge.InferenceSession] = []
    thread = threading.Thread(target=lambda: made.append(qnnbridge.InferenceSession(other, host=lab.client())))
    thread.start()
    try:
        until(begun.exists)
        assert np.array_equal(slow.run(None, {"x": X}, timeout=RELEASE_WAIT_S / 2)[0], X * 2)
        assert not go.exists()
    finally:
        go.touch()
        thread.join(20)
    assert np.array_equal(made[0].run(None, {"x": X})[0], X * 5)
