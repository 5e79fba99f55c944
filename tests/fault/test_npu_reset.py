"""The NPU resets while the process continues to run (fault table, row 33): a fault of the session, not of the
process."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("error", ["ort.DeviceReset", "ort.EngineError"])
def test_a_run_that_meets_a_reset_is_repeated_in_the_same_process(error, tmp_path):
    with fake_host() as host:
        model = script(on_run=[f"raise:{error}"], once=str(tmp_path / "reset"))
        session = qnnbridge.InferenceSession(model, host=host)
        pid = host.info.pid
        (result,) = session.run(None, {"x": X})
        assert np.array_equal(result, X * 2)
        assert (host.info.pid, host.stats.generation, session.generation) == (pid, 1, 1)


def test_a_reset_during_the_creation_is_survived_too(tmp_path):
    with fake_host() as host:
        model = script(on_create=["raise:ort.DeviceReset"], once=str(tmp_path / "reset"))
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert host.stats.generation == 1


def test_the_other_sessions_are_recreated_too(tmp_path):
    """A reset unloads all sessions; each is recreated by its next call."""
    with fake_host() as host:
        made = tmp_path / "made"
        other = qnnbridge.InferenceSession(script(scale=3, on_create=[f"note:{made}"]), host=host)
        reset = script(on_run=["raise:ort.DeviceReset"], once=str(tmp_path / "reset"))
        qnnbridge.InferenceSession(reset, host=host).run(None, {"x": X})
        assert made.read_text() == "."
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert made.read_text() == ".."
        other.run(None, {"x": X})
        assert made.read_text() == ".."


def test_an_npu_that_keeps_resetting_gets_a_new_process_and_then_its_model_is_quarantined(no_leaks):
    with fake_host() as host:
        healthy = qnnbridge.InferenceSession(script(scale=3), host=host)
        session = qnnbridge.InferenceSession(script(on_run=["raise:ort.DeviceReset"]), host=host)
        with pytest.raises(errors.DeviceReset) as caught:
            session.run(None, {"x": X})
        assert "has reset the NPU" in str(caught.value)
        assert host.stats.crashes == 2, "one host for the call, one for its repetition"
        with pytest.raises(errors.ModelQuarantined):
            session.run(None, {"x": X})
        assert np.array_equal(healthy.run(None, {"x": X})[0], X * 3)


def test_qnn_code_1011_starts_a_new_process_immediately(tmp_path):
    with fake_host() as host:
        text = f"QNN graph execute error. Error: X, Code: {(3 << 24 << 16) | 1011}"
        model = script(on_run=[f"raise:ort.EPFail={text}"], once=str(tmp_path / "reset"))
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert host.stats.generation == 2


def test_a_concurrent_call_survives_the_loss_of_the_npu_by_another_call(tmp_path):
    """Both hosts end while the call is inside of native code, and its `retry` of 1 is for its own crashes."""
    text = f"QNN graph execute error. Error: X, Code: {(3 << 24 << 16) | 1011}"
    inside, done = tmp_path / "inside", tmp_path / "done"
    with fake_host() as host, ThreadPoolExecutor(1) as pool:
        losing = qnnbridge.InferenceSession(script(on_run=["sleep:0.3", f"raise:ort.EPFail={text}"]), host=host)
        beside = qnnbridge.InferenceSession(
            script(scale=3, npu=False, on_run=[f"note:{inside}", f"wait:{done}"]), host=host
        )
        call = pool.submit(beside.run, None, {"x": X})
        try:
            while not inside.exists():
                time.sleep(0.002)
            with pytest.raises(errors.EPFail):
                losing.run(None, {"x": X})
        finally:
            done.touch()
        assert np.array_equal(call.result(60)[0], X * 3)
        assert host.stats.crashes == 2
        with pytest.raises(errors.ModelQuarantined):
            losing.run(None, {"x": X})


def test_an_ordinary_failure_of_the_provider_is_reported_without_further_effects():
    """Cover row 34 of the fault table: no rebuild on the CPU, and no retry."""
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(on_run=["raise:ort.EPFail"]), host=host)
        with pytest.raises(errors.EPFail):
            session.run(None, {"x": X})
        assert host.stats.generation == 1
        assert host.stats.retried_calls == 0


def test_a_model_that_changed_on_disk_is_not_loaded_instead_of_the_old_one(tmp_path):
    with fake_host() as host:
        path = tmp_path / "model.onnx"
        path.write_bytes(script(on_run=["raise:ort.DeviceReset"], once=str(tmp_path / "reset")))
        session = qnnbridge.InferenceSession(path, host=host)
        path.write_bytes(script(scale=7))
        with pytest.raises(errors.ModelChanged):
            session.run(None, {"x": X})


def test_other_contents_of_the_same_size_and_date_are_another_model(tmp_path):
    with fake_host() as host:
        path = tmp_path / "model.onnx"
        made = {"on_run": ["raise:ort.DeviceReset"], "once": str(tmp_path / "reset")}
        path.write_bytes(script(scale=2, **made))
        session = qnnbridge.InferenceSession(path, host=host)
        before = path.stat()
        path.write_bytes(script(scale=7, **made))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        with pytest.raises(errors.ModelChanged):
            session.run(None, {"x": X})


def test_a_session_is_recreated_from_a_file_whose_timestamp_alone_changed(tmp_path):
    with fake_host() as host:
        path = tmp_path / "model.onnx"
        path.write_bytes(script(on_run=["raise:ort.DeviceReset"], once=str(tmp_path / "reset")))
        session = qnnbridge.InferenceSession(path, host=host)
        os.link(path, tmp_path / "beside.onnx")
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
