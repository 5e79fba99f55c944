"""`Host`: its attributes, its start and end, and what happens to its sessions."""

from __future__ import annotations

import gc
import os
import pickle
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

import qnnbridge
from qnnbridge import errors
from tests.conformance.real_models import REAL_MODELS
from tests.contract.small_models import CPU, MODELS, QNN, identity, model, node, tensor
from tests.fakes.later import until

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

X = np.arange(6, dtype=np.float32).reshape(3, 2)
END_TIMEOUT_S = 10


def sessions_in(host: qnnbridge.Host) -> int:
    """Return the number of sessions that the host reports."""
    return int(host.call({"op": "host.stats"}).header["sessions"])


def has_ended(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(END_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# --- information -----------------------------------------------------------------------------------------


def test_info_reports_the_process_and_all_versions(host: qnnbridge.Host) -> None:
    import onnxruntime

    info = host.info
    assert psutil.Process(info.pid).ppid() == os.getpid()
    assert info.python == platform.python_version()
    assert info.qnnbridge == qnnbridge.__version__
    assert info.versions["onnxruntime"] == onnxruntime.__version__
    assert info.versions["onnxruntime_qnn"]
    assert info.versions["qnn_sdk"]
    assert {QNN, CPU} <= set(info.providers)
    assert info.simulator is True
    assert info.devices[0]["ep_name"] == QNN
    assert (info.generation, host.stats.generation) == (1, 1)
    assert info.startup_seconds > 0


def test_a_ping_is_answered(host: qnnbridge.Host) -> None:
    assert 0 < host.ping() < 5


def test_stats_do_not_start_the_host() -> None:
    with qnnbridge.Host() as host:
        assert not host.stats.running
        assert host.stats.generation == 0
        assert host.stats.last_crash is None


# --- start and end ---------------------------------------------------------------------------------------


def test_closing_a_host_ends_its_process_and_closing_it_twice_does_nothing() -> None:
    with qnnbridge.Host() as host:
        pid = host.info.pid
        assert host.stats.running
    assert has_ended(pid)
    host.close()
    assert not host.stats.running
    with pytest.raises(errors.Closed):
        host.ping()


def test_two_hosts_can_run_at_the_same_time() -> None:
    with qnnbridge.Host() as one, qnnbridge.Host() as two:
        sessions = [qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host) for host in (one, two)]
        first, second = (session.run(None, {"X": X})[0] for session in sessions)
        assert first.tobytes() == second.tobytes()
        assert one.info.pid != two.info.pid
        one.close()
        assert sessions[1].run(None, {"X": X})[0].tobytes() == second.tobytes()


def test_sessions_without_a_host_argument_share_one_host() -> None:
    sessions = [qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU]) for _ in range(2)]
    assert sessions[0].host is sessions[1].host is qnnbridge.default_host()
    pid = sessions[0].host.info.pid
    qnnbridge.default_host().close()
    assert has_ended(pid)
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU]) as session:
        assert session.run(None, {"X": X})[0].shape == (3, 2)


def test_many_threads_that_need_the_first_host_start_it_once() -> None:
    with qnnbridge.Host() as host, ThreadPoolExecutor(8) as pool:

        def make(_: int) -> Any:
            session = qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU], host=host)
            return session.run(None, {"X": X})[0].shape

        assert set(pool.map(make, range(8))) == {(3, 2)}
        assert host.stats.generation == 1


def test_a_planned_restart_loses_no_session() -> None:
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host)
        before = session.run(None, {"X": X})[0]
        old = host.info.pid
        host.restart()
        assert session.run(None, {"X": X})[0].tobytes() == before.tobytes()
        assert has_ended(old)
        assert (session.generation, host.stats.crashes, host.stats.planned_restarts) == (2, 0, 1)


def test_the_host_has_the_given_environment_and_working_folder(tmp_path: Path) -> None:
    environment = {"QNNBRIDGE_ALLOW_UNKNOWN_OPTIONS": "1", "EXAMPLE": "äöü"}
    with qnnbridge.Host(env=environment, cwd=tmp_path) as host:
        process = psutil.Process(host.info.pid)
        assert process.environ()["EXAMPLE"] == "äöü"
        assert Path(process.cwd()) == tmp_path.resolve()
        # The variable exists for this purpose: an unknown option is passed through.
        options = [{"an_option_of_the_future": "1"}]
        with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", provider_options=options, host=host) as session:
            assert session.placement.qnn_nodes == 1


def test_a_message_over_the_limits_is_refused_in_both_directions() -> None:
    """Use small limits for the request and for the reply."""
    with qnnbridge.Host(limits=qnnbridge.Limits(max_body=100_000)) as host:
        model = identity(shape=(None, None))
        with qnnbridge.InferenceSession(model, providers=[CPU], host=host) as session:
            with pytest.raises(errors.TooLarge):
                session.run(None, {"x": np.zeros((1000, 1000), np.float32)})
            assert session.run(None, {"x": np.zeros((100, 100), np.float32)})[0].shape == (100, 100)
        with qnnbridge.InferenceSession(tile(), providers=[CPU], host=host) as session:
            with pytest.raises(errors.TooLarge):
                session.run(None, {"x": np.zeros(1000, np.float32), "n": np.array([1000])})
            assert session.run(None, {"x": np.zeros(10, np.float32), "n": np.array([3])})[0].shape == (30,)
        assert host.stats.generation == 1


def tile() -> bytes:
    """Return a model with a small input and an output of any size."""
    made = model(
        [node("Tile", ["x", "n"], ["y"])],
        [tensor("x", [None]), tensor("n", [1], onnx.TensorProto.INT64)],
        [tensor("y", [None])],
    )
    return bytes(made.SerializeToString())


# --- sessions of a host ----------------------------------------------------------------------------------


def test_closed_sessions_are_released_in_the_host(host: qnnbridge.Host) -> None:
    before = sessions_in(host)
    session = qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host)
    assert sessions_in(host) == before + 1
    session.close()
    session.close()
    assert sessions_in(host) == before


def test_dropped_sessions_are_released_with_the_next_call(host: qnnbridge.Host) -> None:
    before = sessions_in(host)
    for _ in range(5):
        qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU], host=host)
    gc.collect()
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU], host=host) as session:
        session.run(None, {"X": X})
        # A background thread releases dropped sessions, possibly one call later.
        until(lambda: sessions_in(host) == before + 1)


def test_a_session_whose_creation_took_too_long_is_not_kept_in_the_host(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    slow = next(model for model in REAL_MODELS if model.file.startswith("ch_ppocr"))
    path = slow.fixed(tmp_path)
    before = sessions_in(host)
    with pytest.raises(errors.DeadlineExceeded) as caught:
        qnnbridge.InferenceSession(path, host=host, timeout=0.02)
    assert path.name in str(caught.value)
    # Creations run one after another, so the abandoned one has ended by now.
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host):
        until(lambda: sessions_in(host) == before + 1)


def test_a_refused_session_is_not_kept_in_the_host(host: qnnbridge.Host) -> None:
    before = sessions_in(host)
    with pytest.raises(errors.PlacementRefused):
        qnnbridge.InferenceSession(MODELS / "pnet.onnx", host=host)
    assert sessions_in(host) == before


def test_a_pickled_session_is_recreated_where_it_is_unpickled(host: qnnbridge.Host) -> None:
    options = qnnbridge.SessionOptions()
    options.graph_optimization_level = qnnbridge.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", options, host=host) as session:
        copy = pickle.loads(pickle.dumps(session))
        told = copy.get_session_options()
        assert told.graph_optimization_level == options.graph_optimization_level
        assert told.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert copy.host is qnnbridge.default_host()
        assert copy.run(None, {"X": X})[0].tobytes() == session.run(None, {"X": X})[0].tobytes()
        copy.close()
