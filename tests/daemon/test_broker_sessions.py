"""Sessions that clients of one daemon share: which clients get the same session, and its state after it was
unloaded."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import load_model, save_model

import qnnbridge
from qnnbridge import errors
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec
from tests.contract.small_models import model, node, tensor
from tests.daemon.brokers import Lab, in_threads, until
from tests.fakes.hosts import script

MODELS = Path(__file__).parents[1] / "models"
CPU = ["CPUExecutionProvider"]
X = np.arange(6, dtype=np.float32).reshape(3, 2)
V = np.arange(4, dtype=np.float32)
MUL_1 = X * np.arange(1, 7, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def real() -> Iterator[Lab]:
    """A broker in front of a host with the real engine."""
    made = Lab(qnnbridge.Host(sys.executable), BrokerSettings(keep_unused_s=0.0))
    yield made
    made.close()


@pytest.fixture
def client(real: Lab) -> Iterator[qnnbridge.Host]:
    with real.client() as host:
        yield host
    until(lambda: not real.broker.clients)


def host_sessions(lab: Lab) -> int:
    return int(lab.npu_host.call({"op": "host.stats"}).header["sessions"])


def mul(host: qnnbridge.Host, path: Path = MODELS / "mul_1.onnx", **options: Any) -> qnnbridge.InferenceSession:
    options.setdefault("providers", CPU)
    return qnnbridge.InferenceSession(path, host=host, **options)


def scaled_model(folder: Path, factor: float) -> Path:
    """Write a model that computes y = x * factor."""
    weights = {"w": np.full(2, factor, np.float32)}
    made = model([node("Mul", ["x", "w"], ["y"])], [tensor("x", [2])], [tensor("y", [2])], weights)
    folder.mkdir()
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def externalize(path: Path) -> Path:
    save_model(load_model(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_two_applications_with_the_same_model_have_one_session(real: Lab, client: qnnbridge.Host) -> None:
    with real.client() as other, mul(client) as one, mul(other) as two:
        assert host_sessions(real) == 1
        (model,) = real.broker.status()["models"]
        assert (model["label"], model["clients"], model["sessions"]) == ("mul_1.onnx", 2, 2)
        assert model["runs_on"] == "CPU"
        for _ in range(3):
            results = in_threads(*[lambda s=s: s.run(None, {"X": X})[0] for s in (one, two)])
            assert all(np.array_equal(result, MUL_1) for result in results)
    until(lambda: not host_sessions(real))


def test_results_equal_those_of_a_private_host_bit_for_bit(real: Lab, client: qnnbridge.Host) -> None:
    rng = np.random.default_rng(7)
    with qnnbridge.Host(sys.executable) as private:
        for path in sorted(MODELS.glob("*net.onnx")):
            with mul(private, path) as alone, mul(client, path) as shared:
                feed = {
                    node.name: rng.standard_normal(
                        [dim if isinstance(dim, int) else 48 if at else 1 for at, dim in enumerate(node.shape)]
                    ).astype(np.float32)
                    for node in alone.get_inputs()
                }
                expected = alone.run(None, feed)
                for _ in range(3):
                    for one, two in zip(expected, shared.run(None, feed), strict=True):
                        assert np.array_equal(one, two)


def test_a_session_with_another_option_is_separate(real: Lab, client: qnnbridge.Host) -> None:
    options = qnnbridge.SessionOptions()
    options.graph_optimization_level = qnnbridge.GraphOptimizationLevel.ORT_DISABLE_ALL
    with mul(client), mul(client, sess_options=options), mul(client):
        assert host_sessions(real) == 2


def test_the_same_model_as_bytes_and_at_another_path_uses_the_same_session(
    real: Lab, client: qnnbridge.Host, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.onnx"
    shutil.copy(MODELS / "mul_1.onnx", copy)
    data = copy.read_bytes()
    with mul(client), mul(client, copy), qnnbridge.InferenceSession(data, host=client, providers=CPU):
        assert host_sessions(real) == 1


def test_a_changed_model_uses_a_separate_session(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(script(scale=2))
    host = lab.client()
    old = qnnbridge.InferenceSession(path, host=host)
    path.write_bytes(script(scale=3))
    new = qnnbridge.InferenceSession(path, host=host)
    x = np.ones(2, np.float32)
    for _ in range(2):
        assert old.run(None, {"x": x})[0].tolist() == [2, 2]
        assert new.run(None, {"x": x})[0].tolist() == [3, 3]


@pytest.mark.parametrize("what", ["model", "weights"])
@pytest.mark.parametrize("in_place", [True, False], ids=["written to", "replaced"])
def test_another_model_of_the_same_size_and_date_uses_a_separate_session(
    what: str, in_place: bool, real: Lab, client: qnnbridge.Host, tmp_path: Path
) -> None:
    """`rsync -t`, installers and `git` with restored dates write such files. The test uses recent and older files."""
    path, other = (scaled_model(tmp_path / name, factor) for name, factor in (("one", 2.0), ("two", 3.0)))
    if what == "weights":
        path, other = (externalize(one) for one in (path, other))
    file, new = (one if what == "model" else one.with_name("w.bin") for one in (path, other))
    rested = time.time_ns() - 10**10
    os.utime(file, ns=(rested, rested))
    x = np.ones(2, np.float32)
    with mul(client, path) as old:
        assert old.run(None, {"x": x})[0].tolist() == [2, 2]
        assert new.stat().st_size == file.stat().st_size
        if in_place:
            file.write_bytes(new.read_bytes())
        else:
            os.replace(new, file)
        os.utime(file, ns=(rested, rested))
        with mul(client, path) as session:
            assert session.run(None, {"x": x})[0].tolist() == [3, 3]
            if what == "model" or not in_place:  # ONNX Runtime maps the weights file
                assert old.run(None, {"x": x})[0].tolist() == [2, 2]
            assert host_sessions(real) == 2


def test_opening_a_session_of_another_client_creates_nothing_in_the_host(real: Lab, client: qnnbridge.Host) -> None:
    """The host is asked only for the identity of the model."""
    with mul(client), real.client() as other:
        other.start()
        before = real.npu_host.supervisor.running
        assert before is not None
        number = before.channel._connection._last_id
        with mul(other) as session:
            assert before.channel._connection._last_id == number + 1
            assert host_sessions(real) == 1
            assert session.get_inputs()[0].name == "X"
        assert real.broker.status()["totals"]["sessions_shared"] >= 1


def test_an_idle_model_is_unloaded_and_reloaded_with_the_same_results(real: Lab, client: qnnbridge.Host) -> None:
    with mul(client) as session:
        before = [session.run(None, {"X": X})[0] for _ in range(2)]
        assert real.broker.sessions.unload_idle(0.0) == 1
        until(lambda: not host_sessions(real))
        assert [model["loaded"] for model in real.broker.status()["models"]] == [False]
        after = [session.run(None, {"X": X})[0] for _ in range(3)]
        assert all(np.array_equal(before[0], result) for result in (*before, *after))
        assert host_sessions(real) == 1
        assert real.broker.status()["totals"]["reloads"] >= 1


def test_a_model_that_changed_while_it_was_unloaded_raises_an_error(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(script(scale=2))
    session = qnnbridge.InferenceSession(path, host=lab.client())
    lab.broker.sessions.unload_idle(0.0)
    path.write_bytes(script(scale=3))
    with pytest.raises(errors.ModelChanged):
        session.run(None, {"x": V})


def test_idle_models_are_unloaded_automatically(tmp_path: Path) -> None:
    from tests.fakes.hosts import fake_host

    made = Lab(fake_host(), BrokerSettings(idle_unload_s=0.05))
    try:
        session = qnnbridge.InferenceSession(script(), host=made.client())
        until(lambda: not made.broker.sessions.models()[0].loaded)
        assert session.run(None, {"x": V})[0].tolist() == (V * 2).tolist()
    finally:
        made.close()


def test_an_unused_session_is_kept_for_the_next_run_of_the_program() -> None:
    from tests.fakes.hosts import fake_host

    made = Lab(fake_host(), BrokerSettings(keep_unused_s=3600, keep_unused=2))
    try:
        for scale in (1, 2, 3, 1):
            with made.client() as host:
                qnnbridge.InferenceSession(script(scale=scale), host=host)
            until(lambda: not made.broker.clients)
        assert host_sessions(made) == 2
        totals = made.broker.status()["totals"]
        assert totals["sessions_created"] == 4, "the first was the one used longest ago"
        with made.client() as host:
            qnnbridge.InferenceSession(script(scale=3), host=host)
        assert made.broker.sessions.created == 4
    finally:
        made.close()


def test_everything_of_a_disconnected_client_is_released(lab: Lab) -> None:
    for _ in range(2):
        host = lab.client()
        sessions = [qnnbridge.InferenceSession(script(scale=scale), host=host) for scale in (1, 2, 3)]
        for session in sessions:
            for _ in range(3):
                session.run(None, {"x": V})
        assert host_sessions(lab) == 3
        process = host.supervisor.running
        assert process is not None
        process.kill("as if the application had died")
        until(lambda: not lab.broker.clients and not host_sessions(lab))
        assert not lab.broker.sessions.models()


def test_closing_a_session_twice_or_before_it_was_created_is_not_an_error(lab: Lab) -> None:
    host = lab.client()
    session = qnnbridge.InferenceSession(script(), host=host)
    number = session._remote.session_id
    for _ in range(2):
        host.call({"op": "session.close", "session": number})
    with pytest.raises(errors.Closed):
        session._remote.assignment()


def test_a_session_with_dynamic_options_is_not_shared(lab: Lab) -> None:
    one, two = (qnnbridge.InferenceSession(script(), host=lab.client()) for _ in range(2))
    assert host_sessions(lab) == 1
    one.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    assert host_sessions(lab) == 2
    for session in (one, two):
        assert session.run(None, {"x": V})[0].tolist() == (V * 2).tolist()


def test_a_session_whose_dynamic_options_are_refused_is_closed(lab: Lab) -> None:
    host, spec = lab.client(), SessionSpec(None, (ProviderSpec("QNNExecutionProvider"),))
    header = {"op": "session.create", "spec": spec.to_wire(), "dynamic": {"a": "b"}, "retry": 0}
    with pytest.raises(errors.Fail):
        host.call(header, None, (script(on_dynamic=["raise:ort.Fail"]),))
    assert host_sessions(lab) == 0


def test_a_session_with_profiling_is_not_shared(real: Lab, client: qnnbridge.Host, tmp_path: Path) -> None:
    options = qnnbridge.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    with mul(client, sess_options=options) as one, mul(client, sess_options=options):
        assert host_sessions(real) == 2
        one.run(None, {"X": X})
        assert Path(one.end_profiling()).exists()


def test_several_clients_that_request_the_same_session_create_it_once(lab: Lab, tmp_path: Path) -> None:
    note = tmp_path / "created"
    model = script(on_create=[f"note:{note}", "sleep:0.2"])
    hosts = [lab.client() for _ in range(4)]
    sessions = in_threads(*[lambda h=host: qnnbridge.InferenceSession(model, host=h) for host in hosts])
    assert note.read_text() == "."
    assert all(s.run(None, {"x": V})[0].tolist() == (V * 2).tolist() for s in sessions)


def test_a_failed_creation_fails_all_waiting_clients_and_the_next_request_tries_again(
    lab: Lab, tmp_path: Path
) -> None:
    note = tmp_path / "created"
    once = tmp_path / "once"
    model = script(on_create=[f"note:{note}", "sleep:0.3", "raise:ort.Fail=not this time"], once=str(once))
    hosts = [lab.client() for _ in range(3)]
    for host in hosts:
        host.start()

    def create(host: qnnbridge.Host) -> Any:
        try:
            return qnnbridge.InferenceSession(model, host=host)
        except errors.Fail as error:
            return error

    results = in_threads(*[lambda h=host: create(h) for host in hosts])
    assert any(isinstance(result, errors.Fail) for result in results)
    assert qnnbridge.InferenceSession(model, host=hosts[0]).run(None, {"x": V})[0].tolist() == (V * 2).tolist()


def test_a_client_creates_the_session_itself_if_the_creation_of_another_client_timed_out(
    lab: Lab, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    model = script(on_create=[f"wait:{go}"])
    hasty, patient = lab.client(), lab.client()
    patient.start()
    hasty.start()
    lab.broker.host.start()  # the second value is for the attempt, and not for the start of the NPU host

    def first() -> None:
        with pytest.raises(errors.DeadlineExceeded):
            qnnbridge.InferenceSession(model, host=hasty, timeout=1.0)
        go.touch()

    def second() -> Any:
        until(lambda: bool(lab.broker.sessions._by_key))
        return qnnbridge.InferenceSession(model, host=patient).run(None, {"x": V})[0].tolist()

    assert in_threads(first, second)[1] == (V * 2).tolist()


def test_the_status_of_the_cache_comes_with_the_session(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(), host=lab.client(), cache=False)
    assert (session.cache.state, session.cache.reason) == ("off", "cache=False")


def test_external_data_of_a_model_given_as_bytes_is_found_from_the_folder_of_the_application(
    real: Lab, client: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.arange(2, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    data = (tmp_path / "m.onnx").read_bytes()
    with qnnbridge.InferenceSession(data, host=client, providers=CPU) as session:
        assert session.run(None, {"x": np.full(2, 3, np.float32)})[0].tolist() == [0, 3]


def test_opening_a_shared_session_takes_almost_no_time(real: Lab, client: qnnbridge.Host) -> None:
    with mul(client), real.client() as other:
        other.start()
        times: list[float] = []
        while not times or (min(times) >= 0.05 and len(times) < 20):
            begin = time.perf_counter()
            mul(other).close()
            times.append(time.perf_counter() - begin)
        assert min(times) < 0.05
