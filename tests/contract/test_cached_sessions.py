"""Sessions from the cache of compiled models differ from sessions of the models only in the time they take."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge.errors import DeadlineExceeded, OptionError, PlacementRefused
from qnnbridge_host.cache.entry import MODEL
from qnnbridge_host.cache.memo import NegativeEntries
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.settings import cache_dir
from qnnbridge_protocol.values import equal_bits
from tests import needs
from tests.conformance.real_models import QNN, REAL_MODELS, SOC_MODEL, RealModel
from tests.contract.small_models import model, node, tensor
from tests.fakes.fair_clock import FairClock
from tests.fakes.hosts import patched_host

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.filterwarnings("ignore::qnnbridge.CpuFallbackWarning")]

MODELS = Path(__file__).parents[1] / "models"
F = MODELS / "f.onnx"
SOC = [(QNN, {"soc_model": SOC_MODEL})]
TIMEOUT_S = 1.0
GRACE_S = 1.0
BUSY_S = 5.0
# Timeout for a busy machine.
BUSY_TRIES = 5


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


def store() -> Store:
    return Store(cache_dir())


def open_session(host: qnnbridge.Host, path: Any = F, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(path, providers=keywords.pop("providers", SOC), host=host, **keywords)


def shown(session: qnnbridge.InferenceSession) -> dict[str, Any]:
    """Return everything that an application can see of a session, except times and sizes."""
    meta = session.get_modelmeta()
    nodes = [session.get_inputs(), session.get_outputs(), session.get_overridable_initializers()]
    return {
        "nodes": [[(n.name, n.type, n.shape) for n in group] for group in nodes],
        "meta": {name: getattr(meta, name) for name in meta.__slots__},
        "providers": session.get_providers(),
        "options": session.get_provider_options(),
        # The sizes of the compiled model and of the model's files differ.
        "placement": dataclasses.replace(session.placement, npu_bytes=0),
    }


def input_of(session: qnnbridge.InferenceSession) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {node.name: rng.random([int(d or 1) for d in node.shape], np.float32) for node in session.get_inputs()}


@pytest.mark.parametrize("real", needs.some(REAL_MODELS), ids=lambda real: Path(real.file).stem)
def test_a_session_from_the_cache_shows_and_computes_the_same_as_a_compiled_one(
    real: RealModel, host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = real.fixed(tmp_path)
    providers = next(iter(real.modes().values()))
    options: list[Any] = [(name, {"soc_model": SOC_MODEL} if name == QNN else {}) for name in providers]
    without = open_session(host, path, providers=options, cache=False)
    first = open_session(host, path, providers=options, cache=True)
    second = open_session(host, path, providers=options, cache=True)
    on_qnn = without.placement.qnn_nodes > 0
    feeds = real.feeds()["random"]
    expected = without.run(None, feeds)
    assert [s.cache.state for s in (without, first, second)] == [
        "off",
        *(["miss", "hit"] if on_qnn else ["off"] * 2),
    ]
    for session in (first, second):
        assert shown(session) == shown(without)
        assert equal_bits(session.run(None, feeds), expected)


def test_quantization_of_inputs_and_outputs_stays_on_the_same_side_with_and_without_the_cache(
    host: qnnbridge.Host,
) -> None:
    """If the CPU is allowed, QNN leaves the quantization to the CPU, which computes other bits."""
    q = MODELS / "q.onnx"
    without = open_session(host, q, fallback="cpu", cache=False)
    cached = [open_session(host, q, fallback="cpu", cache=True) for _ in range(2)]
    assert without.placement.cpu_nodes == 2
    feeds = input_of(without)
    for session in cached:
        assert shown(session) == shown(without)
        assert equal_bits(session.run(None, feeds), without.run(None, feeds))
    assert cached[1].cache.state == "hit"


def test_the_session_reports_what_the_cache_did(host: qnnbridge.Host) -> None:
    before = host.stats
    missed, hit = open_session(host), open_session(host)
    assert (missed.cache.state, hit.cache.state) == ("miss", "hit")
    assert str(hit.cache).startswith("hit: compiled earlier; the compilation took ")
    assert hit.cache.key == missed.cache.key
    assert hit.cache.compile_seconds == missed.cache.compile_seconds
    off = open_session(host, cache=False)
    assert str(off.cache) == "off: cache=False"
    after = host.stats
    assert (after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses) == (1, 1)
    assert store().hits(str(hit.cache.key)).count == 1


def test_another_process_finds_the_cache_entry(host: qnnbridge.Host, tmp_path: Path) -> None:
    open_session(host)
    with qnnbridge.Host() as other:
        assert open_session(other).cache.state == "hit"


def test_the_same_model_at_another_path_and_as_bytes_uses_the_same_entry(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    first = open_session(host)
    folder = tmp_path / "模型 ü" / "a..b"
    folder.mkdir(parents=True)
    copied = folder / ("n" * 200 + "..v2.onnx")
    shutil.copy(F, copied)
    sessions = [open_session(host, copied), open_session(host, F.read_bytes())]
    assert [s.cache.state for s in sessions] == ["hit", "hit"]
    assert all(equal_bits(s.run(None, input_of(s)), first.run(None, input_of(s))) for s in sessions)


def test_unusual_names_of_models_and_of_the_cache_folder_do_not_matter(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "Zwischenspeicher ü 模型" / "a..b"))
    odd = tmp_path / ("n" * 200 + "..é.onnx")
    shutil.copy(F, odd)
    missed, hit = open_session(host, odd), open_session(host, odd)
    assert (missed.cache.state, hit.cache.state) == ("miss", "hit")
    assert equal_bits(hit.run(None, input_of(hit)), open_session(host, cache=False).run(None, input_of(hit)))


# --- what is in the key ---


def scaled(folder: Path, *, dimension: Any = 4, external: bool = False) -> Path:
    """Return a model that computes y = x * w."""
    path = folder / "scaled.onnx"
    made = model(
        [node("Mul", ["x", "w"], ["y"])],
        [tensor("x", [dimension])],
        [tensor("y", [dimension])],
        {"w": np.full(4, 2, np.float32)},
    )
    onnx.save(made, str(path), save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


X4 = {"x": np.arange(4, dtype=np.float32)}


def rounded(session: qnnbridge.InferenceSession, feeds: Any = None) -> Any:
    """Return the result rounded to what QNN's 16-bit floats can represent."""
    return session.run(None, feeds or X4)[0].round(2).tolist()


def test_given_initializers_are_compiled_into_the_entry(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = scaled(tmp_path, external=True)

    def result(factor: float) -> tuple[str, Any]:
        options = qnnbridge.SessionOptions()
        value = qnnbridge.OrtValue.ortvalue_from_numpy(np.full(4, factor, np.float32))
        options.add_external_initializers(["w"], [value])
        session = open_session(host, path, sess_options=options, cache=True)
        return session.cache.state, rounded(session)

    assert result(3.0) == ("miss", [0.0, 3.0, 6.0, 9.0])
    assert result(5.0) == ("miss", [0.0, 5.0, 10.0, 15.0])
    assert result(3.0) == ("hit", [0.0, 3.0, 6.0, 9.0])


def test_a_model_with_other_external_data_is_compiled_separately(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = scaled(tmp_path, external=True)
    assert rounded(open_session(host, path, cache=True)) == [0.0, 2.0, 4.0, 6.0]
    (tmp_path / "w.bin").write_bytes(np.full(4, 7, np.float32).tobytes())
    changed = open_session(host, path, cache=True)
    assert changed.cache.state == "miss"
    assert rounded(changed) == [0.0, 7.0, 14.0, 21.0]


def test_fixed_dimensions_are_compiled_into_the_entry_and_shown(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = scaled(tmp_path, dimension="N")
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("N", 4)
    sessions = [open_session(host, path, sess_options=options, cache=cache) for cache in (False, True, True)]
    assert [s.cache.state for s in sessions] == ["off", "miss", "hit"]
    assert all(shown(s) == shown(sessions[0]) for s in sessions)
    assert rounded(sessions[2]) == [0.0, 2.0, 4.0, 6.0]


# --- what is not cached ---


def test_small_models_and_cpu_sessions_are_not_cached_unless_requested(host: qnnbridge.Host) -> None:
    small = MODELS / "mul_1.onnx"
    assert "130 bytes" in open_session(host, small).cache.reason
    assert open_session(host, small, cache=True).cache.state == "miss"
    assert "first provider" in open_session(host, providers=["CPUExecutionProvider"], cache=True).cache.reason


def test_a_small_model_that_takes_long_to_compile_is_cached_from_then_on(tmp_path: Path) -> None:
    small = MODELS / "mul_1.onnx"
    with patched_host(tmp_path, "from qnnbridge_host.create import lookup; lookup.SLOW_S = 0.0") as host:
        assert [open_session(host, small).cache.state for _ in range(3)] == ["off", "miss", "hit"]


def test_a_disabled_cache_writes_no_file(host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "0")
    assert "QNNBRIDGE_CACHE" in open_session(host, cache=True).cache.reason
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    assert open_session(host, cache=False).cache.state == "off"
    assert not cache_dir().exists()


def test_an_unknown_value_for_cache_is_refused(host: qnnbridge.Host) -> None:
    with pytest.raises(OptionError, match="cache='yes' is not known"):
        open_session(host, cache="yes")


def must_not_compile(folder: Path) -> tuple[qnnbridge.Host, Path]:
    """Return a host, and the path of a file: compiling for the cache fails while the file exists."""
    flag = folder / "must not compile"
    code = f"""
        import os
        from qnnbridge_host.create import lookup

        real = lookup.build_entry

        def build_entry(*arguments, **keywords):
            assert not os.path.exists({str(flag)!r}), "it is compiled again"
            return real(*arguments, **keywords)

        lookup.build_entry = build_entry
        """
    return patched_host(folder, code), flag


def test_a_refused_model_is_refused_with_the_same_message_and_not_compiled_again(tmp_path: Path) -> None:
    path = scaled(tmp_path, dimension="N")
    host, compiled_again = must_not_compile(tmp_path)

    def refusal(cache: bool) -> str:
        with pytest.raises(PlacementRefused) as caught:
            open_session(host, path, cache=cache)
        return str(caught.value)

    expected = refusal(False)
    assert refusal(True) == expected
    compiled_again.touch()
    assert refusal(True) == expected
    host.close()
    assert [note.kind for note in NegativeEntries(store().root).all()] == ["refused"]


def test_a_model_without_a_node_for_qnn_runs_on_the_cpu_and_is_not_compiled_again(tmp_path: Path) -> None:
    iris = MODELS / "logreg_iris.onnx"
    host, compiled_again = must_not_compile(tmp_path)
    feeds = {"float_input": np.ones((3, 2), np.float32)}
    first = open_session(host, iris, fallback="cpu", cache=True)
    assert first.cache.state == "off"
    compiled_again.touch()
    second = open_session(host, iris, fallback="cpu", cache=True)
    assert second.cache.reason == first.cache.reason
    assert second.placement.qnn_nodes == 0
    assert second.run(None, feeds)[1] == first.run(None, feeds)[1]
    host.close()


def test_a_model_whose_initializers_are_also_inputs_is_not_cached(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = tmp_path / "overridable.onnx"
    made = model([node("Mul", ["x", "w"], ["y"])], [tensor("x", [4]), tensor("w", [4])], [tensor("y", [4])])
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(4, 2, np.float32), "w"))
    onnx.save(made, str(path))
    sessions = [open_session(host, path, cache=True) for _ in range(2)]
    assert all("overridden by inputs" in session.cache.reason for session in sessions)
    assert store().all_keys() == []
    given = {**X4, "w": np.full(4, 3, np.float32)}
    assert rounded(sessions[1], given) == [0.0, 3.0, 6.0, 9.0]


OTHER_OUTPUT = """
    import dataclasses
    from qnnbridge_host.create import lookup

    real = lookup.build_entry

    def build_entry(*arguments, **keywords):
        made = real(*arguments, **keywords)
        (output,) = made.manifest.info.outputs
        info = dataclasses.replace(made.manifest.info, outputs=(dataclasses.replace(output, name="z"),))
        manifest = dataclasses.replace(made.manifest, info=info)
        manifest.write(made.folder)
        return dataclasses.replace(made, manifest=manifest)

    lookup.build_entry = build_entry
"""


def test_a_compiled_model_with_other_inputs_or_outputs_is_not_used(tmp_path: Path) -> None:
    with patched_host(tmp_path, OTHER_OUTPUT) as host:
        session = open_session(host)
        assert (session.cache.state, [n.name for n in session.get_outputs()]) == ("off", ["y"])
        assert "differs from the original" in session.cache.reason
        assert [bad.fault for bad in store().invalid_entries()] == ["differs"]
        session.run(None, input_of(session))


# --- restarts ---


def test_after_a_restart_the_session_is_recreated_from_its_cache_entry(tmp_path: Path) -> None:
    looked_up = tmp_path / "looked up"
    code = f"""
        from qnnbridge_host.cache.store import Store

        real = Store.find

        def find(self, key, **keywords):
            with open({str(looked_up)!r}, "a") as file:
                print(key, file=file)
            return real(self, key, **keywords)

        Store.find = find
        """
    with patched_host(tmp_path, code) as host:
        session = open_session(host)
        feeds = input_of(session)
        expected, looks = session.run(None, feeds), shown(session)
        looked_up.unlink()
        host.restart()
        assert equal_bits(session.run(None, feeds), expected)
        assert (session.generation, shown(session), session.cache.state) == (2, looks, "miss")
        assert looked_up.read_text().split() == [session.cache.key]


@pytest.mark.parametrize("what", ["gone", "damaged"])
def test_after_a_restart_without_a_valid_entry_the_session_is_recreated_from_the_model(what: str) -> None:
    with qnnbridge.Host() as host:
        session = open_session(host)
        feeds = input_of(session)
        expected, looks = session.run(None, feeds), shown(session)
        folder = store().entry_folder(str(session.cache.key))
        if what == "gone":
            shutil.rmtree(folder)
        else:
            (folder / MODEL).write_bytes(b"x")
        host.restart()
        assert equal_bits(session.run(None, feeds), expected)
        assert shown(session) == looks
        assert session.cache.state == "off"
        assert {"gone": "was removed", "damaged": "bytes instead of"}[what] in session.cache.reason
        assert open_session(host).cache.state == "miss"


def test_a_session_that_wrote_its_compiled_model_is_recreated_after_a_restart(tmp_path: Path) -> None:
    """ONNX Runtime refuses to overwrite the compiled model, so such a session was once lost with its host."""
    options = qnnbridge.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "out.onnx"))
    with qnnbridge.Host() as host:
        session = open_session(host, sess_options=options)
        feeds = input_of(session)
        expected, looks = session.run(None, feeds), shown(session)
        written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        host.restart()
        assert equal_bits(session.run(None, feeds), expected)
        assert (session.generation, shown(session), session.cache.state) == (2, looks, "off")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
        assert len(written) == 2


def test_the_entry_of_an_open_session_is_not_evicted(host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE_MAX_BYTES", "1")
    first = open_session(host)
    second = open_session(host, MODELS / "pnet.onnx", sess_options=pnet_sizes())
    assert set(store().all_keys()) == {first.cache.key, second.cache.key}
    first.close()
    third = open_session(host, MODELS / "q.onnx", cache=True)
    assert set(store().all_keys()) == {second.cache.key, third.cache.key}


def pnet_sizes() -> qnnbridge.SessionOptions:
    options = qnnbridge.SessionOptions()
    for name, size in {"N": 1, "M1": 60, "M2": 60}.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def test_a_pickled_session_is_recreated_from_the_cache(host: qnnbridge.Host) -> None:
    session = open_session(host)
    again = pickle.loads(pickle.dumps(session))
    try:
        assert again.cache.state == "hit"
        assert shown(again) == shown(session)
    finally:
        again.close()
        again.host.close()


def test_a_session_with_other_providers_has_another_cache_entry(host: qnnbridge.Host) -> None:
    session = open_session(host)
    states = []
    for name, options in [("CPUExecutionProvider", {}), (QNN, {"soc_model": SOC_MODEL})]:
        session.set_providers([name], [options])
        states.append(session.cache.state)
    assert states == ["off", "hit"]


# --- waiting ---


def test_a_session_that_waits_for_another_compiler_keeps_its_deadline(host: qnnbridge.Host) -> None:
    open_session(host).close()
    (key,) = store().all_keys()
    held = store().try_lock(key)
    assert held is not None
    told = ""
    for _ in range(BUSY_TRIES):  # a busy machine may not have started to wait
        if "another process was compiling" in told:
            break
        clock = FairClock()
        with pytest.raises(DeadlineExceeded) as caught:
            open_session(host, timeout=TIMEOUT_S)
        assert clock.seconds < TIMEOUT_S + GRACE_S + BUSY_S
        assert caught.value.state == "not-started"
        told = str(caught.value)
    assert "another process was compiling" in told
    held.release()
    assert open_session(host, timeout=60).cache.state == "hit"


NO_PATIENCE = """
    from qnnbridge_host.create import lookup

    real = lookup.WaitPolicy
    lookup.WaitPolicy = lambda path, on_wait: real(path, on_wait, stalled_s=0.0)
"""


def test_a_session_does_not_wait_for_a_compiler_without_a_heartbeat(host: qnnbridge.Host, tmp_path: Path) -> None:
    open_session(host).close()
    held = store().try_lock(store().all_keys()[0])
    assert held is not None
    with patched_host(tmp_path, NO_PATIENCE) as impatient:
        session = open_session(impatient)
        assert (session.cache.state, session.placement.cpu_nodes) == ("off", 0)
        assert "its heartbeat has stopped" in session.cache.reason
    held.release()


def test_an_invalid_cache_size_in_the_environment_is_reported_once(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE_MAX_BYTES", f"much {os.getpid()}")
    with pytest.warns(qnnbridge.CacheWarning, match="QNNBRIDGE_CACHE_MAX_BYTES"):
        assert open_session(host).cache.state == "miss"
    with warnings.catch_warnings():
        warnings.simplefilter("error", qnnbridge.CacheWarning)
        assert open_session(host).cache.state == "hit"


def test_element_types_of_the_model_are_kept(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = tmp_path / "cast.onnx"
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.INT32)]
    onnx.save(model(nodes, [tensor("x", [4])], [tensor("y", [4], TensorProto.INT32)]), str(path))
    sessions = [open_session(host, path, cache=cache) for cache in (False, True, True)]
    results = [session.run(None, X4)[0] for session in sessions]
    assert [result.dtype for result in results] == [np.int32] * 3
    assert [shown(s) == shown(sessions[0]) for s in sessions] == [True] * 3
