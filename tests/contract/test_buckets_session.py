"""A session with buckets supports everything that other sessions do. On the CPU provider, because variants are
chosen in the same way."""

from __future__ import annotations

import pickle
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge._session.remote_session import RemoteSession
from qnnbridge.errors import Closed, DeadlineExceeded, InvalidArgument, NoSuchFile, OptionError
from tests.contract.small_models import CPU, QNN, counting_loop, model, node, tensor
from tests.fakes.later import taken_by_another, until

pytestmark = pytest.mark.filterwarnings("error::qnnbridge.CpuFallbackWarning")

BUCKETS = {"seq": [4, 8, 16]}


def shifted() -> onnx.ModelProto:
    """Return a model that zero padding does not change: y = x + scale, with the length of x, and the sum of x."""
    return model(
        [
            node("Add", ["x", "scale"], ["y"]),
            node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        [tensor("x", ["batch", "seq"]), tensor("scale", [1])],
        [tensor("y", ["batch", "seq"]), tensor("total", ["batch"])],
        {"axes": np.array([1], np.int64)},
    )


MODEL = shifted().SerializeToString()
SCALE = np.array([2], np.float32)


def feeds_of(length: int, batch: int = 1) -> dict[str, Any]:
    x = np.arange(1, batch * length + 1, dtype=np.float32).reshape(batch, length)
    return {"x": x, "scale": SCALE}


def check(results: list[Any], feeds: dict[str, Any]) -> None:
    y, total = results
    assert np.array_equal(y, feeds["x"] + SCALE)
    assert np.array_equal(total, feeds["x"].sum(1))


@pytest.fixture
def session(host: qnnbridge.Host) -> Iterator[qnnbridge.InferenceSession]:
    with open_session(host) as session:
        yield session


def open_session(host: qnnbridge.Host, given: Any = MODEL, **keywords: Any) -> qnnbridge.InferenceSession:
    keywords = {"buckets": BUCKETS, "pad": 0, "providers": [CPU], **keywords}
    return qnnbridge.InferenceSession(given, host=host, **keywords)


def test_the_model_is_shown_with_its_original_dimensions(session: qnnbridge.InferenceSession) -> None:
    assert [(n.name, n.type, n.shape) for n in session.get_inputs()] == [
        ("x", "tensor(float)", ["batch", "seq"]),
        ("scale", "tensor(float)", [1]),
    ]
    assert [(n.name, n.shape) for n in session.get_outputs()] == [("y", ["batch", "seq"]), ("total", ["batch"])]
    assert session.get_overridable_initializers() == []
    assert session.get_modelmeta().graph_name == "graph"
    assert session.get_providers() == [CPU]
    assert isinstance(session, qnnbridge.InferenceSession)


@pytest.mark.parametrize("length", [0, 1, 4, 5, 8, 16])
def test_every_length_up_to_the_largest_bucket_has_outputs_of_that_length(
    session: qnnbridge.InferenceSession, length: int
) -> None:
    feeds = feeds_of(length)
    check(session.run(None, feeds), feeds)
    assert session.run(["total"], feeds)[0].tolist() == [feeds["x"].sum()]


def test_every_way_to_run_works_with_buckets(session: qnnbridge.InferenceSession) -> None:
    feeds = feeds_of(5)
    check(session.run([], feeds), feeds)
    check([value.numpy() for value in session.run_with_ort_values(None, ort_values(feeds))], feeds)
    check(session.run_values(None, feeds), feeds)

    told: list[Any] = []
    done = threading.Event()

    def callback(results: list[Any], data: Any, error: str) -> None:
        told.append((results, data, error))
        done.set()

    session.run_async(None, feeds, callback, "mine")
    assert done.wait(60)
    ((results, data, error),) = told
    assert (data, error) == ("mine", "")
    check(results, feeds)


def ort_values(feeds: dict[str, Any]) -> dict[str, qnnbridge.OrtValue]:
    return {name: qnnbridge.OrtValue.ortvalue_from_numpy(value) for name, value in feeds.items()}


def test_io_binding_reads_and_writes_memory_of_the_unpadded_size(session: qnnbridge.InferenceSession) -> None:
    feeds = feeds_of(5)
    mine = qnnbridge.OrtValue.ortvalue_from_numpy(np.zeros((1, 5), np.float32))
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_ortvalue_output("y", mine)
    binding.bind_output("total")
    session.run_with_iobinding(binding)
    check([mine.numpy(), binding.copy_outputs_to_cpu()[1]], feeds)

    padded = qnnbridge.OrtValue.ortvalue_from_numpy(np.zeros((1, 8), np.float32))
    binding.bind_ortvalue_output("y", padded)
    with pytest.raises(RuntimeError, match=r"shape \{1,8\} but the computed output shape for this run is \{1,5\}"):
        session.run_with_iobinding(binding)


def test_wrong_feeds_are_refused_as_without_buckets(session: qnnbridge.InferenceSession) -> None:
    feeds = feeds_of(5)
    with pytest.raises(ValueError, match="are missing from input feed"):
        session.run(None, {"x": feeds["x"]})
    with pytest.raises(InvalidArgument, match="Unexpected input data type"):
        session.run(None, {**feeds, "x": feeds["x"].astype(np.float64)})
    with pytest.raises(InvalidArgument, match="Invalid rank"):
        session.run(None, {**feeds, "x": feeds["x"][0]})
    with pytest.raises(InvalidArgument, match="Invalid output name"):
        session.run(["z"], feeds)


def test_a_call_that_is_too_large_is_refused_and_the_error_names_the_largest_bucket(
    session: qnnbridge.InferenceSession,
) -> None:
    with pytest.raises(InvalidArgument, match="'seq' is 17, the largest bucket for it is 16") as caught:
        session.run(None, feeds_of(17))
    assert "overflow='cpu'" in str(caught.value.fix)
    check(session.run(None, feeds_of(16)), feeds_of(16))


def test_a_call_that_is_too_large_runs_on_the_cpu_if_that_is_allowed_and_the_status_shows_it(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    with open_session(host, overflow="cpu") as session:
        before = host.stats.cpu_fallbacks
        with pytest.warns(qnnbridge.CpuFallbackWarning, match="seq=17 does not fit into any bucket") as told:
            check(session.run(None, feeds_of(17)), feeds_of(17))
        assert told[0].filename == __file__
        check(session.run(None, feeds_of(99)), feeds_of(99))  # reported once
        assert session.buckets.on_cpu == 2
        assert "2 calls that fit into no bucket ran on the CPU" in str(session.placement.cause)
        assert host.stats.cpu_fallbacks == before + 1
        assert "runs on the CPU, as overflow='cpu' allows" in caplog.text


def test_a_call_with_contradictory_sizes_warns_at_the_line_of_the_application(
    host: qnnbridge.Host,
) -> None:
    shown = model(
        [node("Add", ["x", "scale"], ["y"])],
        [tensor("x", ["seq"]), tensor("scale", ["seq"])],
        [tensor("y", ["seq"])],
    )
    with open_session(host, shown.SerializeToString(), overflow="cpu") as session:
        with pytest.warns(qnnbridge.CpuFallbackWarning, match="is 3 in input 'x'") as warned:
            (y,) = session.run(None, {"x": np.ones(3, np.float32), "scale": SCALE})
        assert warned[0].filename == __file__
        assert np.array_equal(y, np.full(3, 3, np.float32))


def test_several_dimensions_have_a_variant_for_each_combination_that_is_created_on_first_use(
    host: qnnbridge.Host,
) -> None:
    with open_session(host, buckets={"seq": [4, 8], "batch": [1, 3]}) as session:
        for length, batch in [(3, 1), (5, 2), (8, 3), (4, 1)]:
            check(session.run(None, feeds_of(length, batch)), feeds_of(length, batch))
        status = session.buckets
        assert [dict(v.sizes) for v in status.variants if v.made] == [
            {"seq": 4, "batch": 1},
            {"seq": 8, "batch": 3},
        ]
        assert [v.runs for v in status.variants] == [2, 0, 0, 2]
        assert "seq=4, batch=3: not created yet" in str(status)


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 4, 5, 9])
def test_a_batch_is_run_in_parts_of_a_fixed_size(host: qnnbridge.Host, batch: int) -> None:
    with open_session(host, buckets={"seq": [8], "batch": 4}) as session:
        check(session.run(None, feeds_of(5, batch)), feeds_of(5, batch))
        assert session.buckets.variants[0].runs == max(1, -(-batch // 4))


def test_the_parts_of_a_batch_use_the_smallest_buckets_that_fit(host: qnnbridge.Host) -> None:
    with open_session(host, buckets={"seq": [8], "batch": [1, 2, 4]}, split="batch") as session:
        check(session.run(None, feeds_of(5, 9)), feeds_of(5, 9))
        assert [v.runs for v in session.buckets.variants] == [1, 0, 2]
        assert session.buckets.split == 1


def test_a_dimension_that_is_not_called_batch_is_never_split_automatically(host: qnnbridge.Host) -> None:
    with open_session(host, buckets={"seq": 8}) as session:
        with pytest.raises(InvalidArgument, match="the largest bucket for it is 8") as caught:
            session.run(None, feeds_of(9))
        assert "split='seq'" in str(caught.value.fix)


def test_a_sequence_can_be_run_in_parts_if_its_outputs_allow_that(host: qnnbridge.Host) -> None:
    with open_session(host, split="seq") as session:
        feeds = feeds_of(37)
        assert np.array_equal(session.run(["y"], feeds)[0], feeds["x"] + SCALE)
        with pytest.raises(InvalidArgument, match="output 'total' cannot be joined from parts"):
            session.run(None, feeds)


def centred() -> bytes:
    """y = x minus its mean over the batch: a row alone gives 0."""
    nodes = [node("ReduceMean", ["x"], ["mean"], axes=[0]), node("Sub", ["x", "mean"], ["y"])]
    rows = [tensor(name, ["batch", 8]) for name in "xy"]
    return bytes(model(nodes, rows[:1], rows[1:], opset=13).SerializeToString())


def test_a_batch_whose_rows_depend_on_each_other_is_not_divided(host: qnnbridge.Host) -> None:
    x = np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)
    with open_session(host, centred(), pad=None, buckets={"batch": 3}) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x - x.mean(0), atol=1e-6)
        for rows in (2, 6):
            with pytest.raises(InvalidArgument, match="accepts only 3"):
                session.run(None, {"x": np.resize(x, (rows, 8))})
    with pytest.raises(OptionError) as caught:
        open_session(host, centred(), pad=None, buckets={"batch": [2, 4]})
    assert "a row of 'batch' gives different results alone and with other rows" in caught.value.evidence[0]


def test_a_split_that_the_application_asks_for_is_done_with_a_warning(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    with open_session(host, centred(), pad=None, buckets={"batch": 3}, split="batch") as session:
        assert session.run(None, {"x": np.ones((6, 8), np.float32)})[0].shape == (6, 8)
        assert session.buckets.split == 1
    assert any("a row of 'batch' gives different results alone" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize("fix", [None, False, True])
@pytest.mark.parametrize("names", [(None, None), ("?", "?")])
def test_axes_without_a_dimension_name_are_addressed_by_input_and_axis(
    host: qnnbridge.Host, names: tuple[str | None, str | None], fix: bool | None
) -> None:
    nameless = shifted()
    for dim, name in zip(nameless.graph.input[0].type.tensor_type.shape.dim, names, strict=True):
        dim.ClearField("dim_param") if name is None else setattr(dim, "dim_param", name)
    for output in nameless.graph.output:
        output.type.tensor_type.ClearField("shape")
    buckets = {"x:0": 1, "x:1": [4, 8]}
    given = nameless.SerializeToString()
    with open_session(host, given, providers=[QNN], buckets=buckets, fix=fix) as session:
        assert [node.shape for node in session.get_inputs()] == [[*names], [1]]
        for length in (3, 4, 7, 8):
            feeds = feeds_of(length)
            y, total = session.run(None, feeds)
            assert np.allclose(y, feeds["x"] + SCALE, rtol=1e-3)
            assert np.allclose(total, feeds["x"].sum(1), rtol=1e-3)
        made = [one for one in session.buckets.variants if one.made]
        assert [one.sizes for one in made] == [{"x:0": 1, "x:1": 4}, {"x:0": 1, "x:1": 8}]
        assert all(one.placement.qnn_nodes and not one.placement.cpu_nodes for one in made)
        with pytest.raises(InvalidArgument, match="the largest bucket for it is 1"):
            session.run(None, feeds_of(3, batch=2))
    with pytest.raises(OptionError, match="would still have free dimensions") as caught:
        open_session(host, given, providers=[QNN], buckets={"x:0": 1}, fix=fix)
    assert names[1] or "buckets={'x:1': 1, ...}" in str(caught.value.fix)


def test_inputs_that_disagree_about_a_dimension_are_refused(host: qnnbridge.Host) -> None:
    made = model(
        [node("Mul", ["a", "b"], ["y"])], [tensor("a", ["n"]), tensor("b", ["n"])], [tensor("y", ["n"])]
    ).SerializeToString()
    with open_session(host, made, buckets={"n": [4]}) as session:
        with pytest.raises(InvalidArgument, match="'n' is 3 in input 'a'"):
            session.run(None, {"a": np.ones(3, np.float32), "b": np.ones(1, np.float32)})


# --- warm ---


def test_warm_creates_all_variants_and_reports_progress(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(host) as session:
        told: list[Any] = []
        status = session.warm(on_progress=lambda *now: told.append(now))
        assert told == [(0, 3, {"seq": 4}), (1, 3, {"seq": 8}), (2, 3, {"seq": 16}), (3, 3, {"seq": 16})]
        assert all(variant.made and not variant.made_at_call for variant in status.variants)
        monkeypatch.setattr(RemoteSession, "open", None)  # a call that created a variant would fail the test
        for length in range(17):
            check(session.run(None, feeds_of(length)), feeds_of(length))
        session.warm()


def test_warm_creates_only_the_requested_variants(host: qnnbridge.Host) -> None:
    with open_session(host) as session:
        session.warm([{"seq": 16}])
        assert [variant.made for variant in session.buckets.variants] == [True, False, True]
        with pytest.raises(OptionError, match="17 is not a bucket of 'seq'"):
            session.warm([{"seq": 17}])
        with pytest.raises(OptionError, match="workers=0"):
            session.warm(workers=0)


def test_warm_also_prepares_the_cpu_for_calls_that_are_too_large(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(host, overflow="cpu") as session:
        session.warm(workers=3)
        monkeypatch.setattr(RemoteSession, "open", None)
        with pytest.warns(qnnbridge.CpuFallbackWarning):
            check(session.run(None, feeds_of(20)), feeds_of(20))


def test_many_threads_create_each_variant_once(host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = RemoteSession.open

    def counted(self: RemoteSession, *arguments: Any) -> Any:
        opened.append(dict(self.recipe.spec.free_dimensions_by_name))
        return real(self, *arguments)

    monkeypatch.setattr(RemoteSession, "open", counted)
    with open_session(host) as session:
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                session.warm(workers=2)
                for length in np.random.default_rng(seed).integers(0, 17, 10):
                    check(session.run(None, feeds_of(int(length))), feeds_of(int(length)))
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert sorted(one["seq"] for one in opened) == [4, 8, 16]
        assert session.buckets.calls == 60


def test_a_deadline_applies_to_the_whole_call(host: qnnbridge.Host) -> None:
    with open_session(host) as session:
        variant = list(session._runner._variants)[1]
        with taken_by_another(variant.lock):
            with pytest.raises(
                DeadlineExceeded, match="another thread was creating the variant for seq=8"
            ) as caught:
                session.run(None, feeds_of(5), timeout=0.05)
            assert caught.value.state == "not-started"
            check(session.run(None, feeds_of(3), timeout=60), feeds_of(3))
        for bad in (-1, "soon"):
            with pytest.raises(OptionError):
                session.run(None, feeds_of(3), timeout=bad)  # type: ignore[arg-type]


def test_a_run_past_its_deadline_is_reported(host: qnnbridge.Host) -> None:
    made = onnx.load_from_string(counting_loop())
    made.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "k"
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "k"
    with open_session(host, made.SerializeToString(), buckets={"k": [1, 2]}) as session:
        long = {"n": np.array(2**40), "x": np.zeros(1, np.float32)}
        with pytest.raises(DeadlineExceeded):
            session.run(None, long, timeout=0.5)


# --- state ---


def test_a_session_with_buckets_survives_a_crash_of_its_host(host: qnnbridge.Host) -> None:
    with qnnbridge.Host() as own, open_session(own) as session:
        check(session.run(None, feeds_of(5)), feeds_of(5))
        own.restart()
        for length in (3, 7, 12):
            check(session.run(None, feeds_of(length)), feeds_of(length))
        assert session.generation == 2


def test_a_killed_host_costs_a_call_nothing_but_time(host: qnnbridge.Host) -> None:
    with qnnbridge.Host() as own, open_session(own, retry=3) as session:
        session.warm()
        for length in (3, 7, 12):
            psutil.Process(own.info.pid).kill()
            check(session.run(None, feeds_of(length)), feeds_of(length))
        assert own.stats.crashes == 3


def test_a_pickled_session_is_recreated_with_its_buckets(session: qnnbridge.InferenceSession) -> None:
    again = pickle.loads(pickle.dumps(session))
    try:
        assert type(again) is qnnbridge.InferenceSession
        assert again.buckets is not None
        check(again.run(None, feeds_of(7)), feeds_of(7))
        with pytest.raises(InvalidArgument, match="largest bucket"):
            again.run(None, feeds_of(17))
        assert [(n.name, n.shape) for n in again.get_inputs()] == [(n.name, n.shape) for n in session.get_inputs()]
    finally:
        again.close()
        again.host.close()


def test_a_closed_session_with_buckets_refuses_calls(host: qnnbridge.Host) -> None:
    session = open_session(host)
    session.warm()
    session.close()
    session.close()
    for length in (3, 7):
        with pytest.raises(Closed):
            session.run(None, feeds_of(length))
    with pytest.raises(Closed):
        session.warm()


def test_a_dropped_session_with_buckets_releases_all_its_variants(host: qnnbridge.Host) -> None:
    session = open_session(host)
    session.warm()
    released: list[Any] = []
    real = host.release_later
    host.release_later = lambda *which: (released.append(which), real(*which))[1]  # type: ignore[method-assign]
    try:
        del session
        until(lambda: len(released) >= 3)
        assert len(set(released)) == len(released) == 3
    finally:
        host.release_later = real  # type: ignore[method-assign]


def test_setting_other_providers_recreates_all_variants(session: qnnbridge.InferenceSession) -> None:
    session.warm()
    session.set_providers([CPU])
    assert [variant.made for variant in session.buckets.variants] == [True, False, False]
    check(session.run(None, feeds_of(9)), feeds_of(9))


def test_a_subclass_keeps_its_overridden_methods(host: qnnbridge.Host) -> None:
    class Counted(qnnbridge.InferenceSession):
        calls = 0

        def run(self, *arguments: Any, **keywords: Any) -> list[Any]:
            self.calls += 1
            return super().run(*arguments, **keywords)

    with Counted(MODEL, host=host, providers=[CPU], buckets=BUCKETS, pad=0) as session:
        assert isinstance(session, Counted)
        check(session.run(None, feeds_of(5)), feeds_of(5))
        assert session.calls == 1
        assert session.buckets is not None
    with Counted(MODEL, host=host, providers=[CPU]) as plain:
        assert type(plain) is Counted
        assert plain.buckets is None


def test_a_session_without_buckets_refuses_arguments_for_buckets(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, host=host, providers=[CPU]) as session:
        assert session.buckets is None
        with pytest.raises(OptionError, match="requires buckets="):
            session.warm()
        with pytest.raises(OptionError, match="requires buckets="):
            session.verify_padding({})
    with pytest.raises(OptionError, match="pad= requires buckets="):
        qnnbridge.InferenceSession(MODEL, host=host, providers=[CPU], pad=0)


def test_wrong_bucket_arguments_are_refused_before_a_session_is_created(host: qnnbridge.Host) -> None:
    made = host.call({"op": "host.stats"}).header["sessions"]
    with pytest.raises(OptionError, match=r"no input of .* has a dimension 'sec'"):
        open_session(host, buckets={"sec": [4]})
    with pytest.raises(OptionError, match="cut: the model has no output 'z'"):
        open_session(host, cut={"z": ["seq"]})
    with pytest.raises(NoSuchFile):
        open_session(host, "nowhere.onnx")
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("seq", 3)
    with pytest.raises(OptionError, match="session options fix it to 3"):
        open_session(host, sess_options=options)
    assert host.call({"op": "host.stats"}).header["sessions"] == made


@pytest.mark.parametrize("option", ["ep.context_enable", "optimized_model_filepath"])
def test_options_that_make_all_variants_write_the_same_file_are_refused(
    option: str, host: qnnbridge.Host, tmp_path: Path
) -> None:
    options = qnnbridge.SessionOptions()
    if option == "ep.context_enable":
        options.add_session_config_entry(option, "1")
    else:
        options.optimized_model_filepath = str(tmp_path / "o.onnx")
    with pytest.raises(OptionError, match=f"{re.escape(option)} cannot be combined with buckets"):
        open_session(host, sess_options=options)


def test_calls_that_are_too_large_may_use_the_cpu_even_if_the_options_forbid_it_to_qnn(
    host: qnnbridge.Host,
) -> None:
    options = qnnbridge.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [(QNN, {"soc_model": "60"})]
    keywords = {"sess_options": options, "providers": providers, "overflow": "cpu"}
    with open_session(host, buckets={"batch": 1, "seq": [4]}, **keywords) as session:
        assert session.placement.cpu_nodes == 0
        with pytest.warns(qnnbridge.CpuFallbackWarning, match="does not fit into any bucket"):
            check(session.run(None, feeds_of(9)), feeds_of(9))


def test_dimensions_that_the_options_fix_are_shown_as_fixed(host: qnnbridge.Host) -> None:
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    with open_session(host, sess_options=options) as session:
        assert session.get_inputs()[0].shape == [2, "seq"]
        check(session.run(None, feeds_of(5, 2)), feeds_of(5, 2))
        with pytest.raises(InvalidArgument, match="index: 0 Got: 1 Expected: 2"):
            session.run(None, feeds_of(5, 1))


def test_a_variant_that_fails_is_named_and_created_again_by_the_next_call(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RemoteSession.open

    def fails(self: RemoteSession, *arguments: Any) -> Any:
        raise qnnbridge.errors.PlacementRefused("not on QNN")

    with open_session(host) as session:
        monkeypatch.setattr(RemoteSession, "open", fails)
        for call in (lambda: session.run(None, feeds_of(5)), lambda: session.warm(workers=2)):
            with pytest.raises(qnnbridge.errors.PlacementRefused) as caught:
                call()
            assert any("The variant for seq=" in line for line in caught.value.evidence)
        monkeypatch.setattr(RemoteSession, "open", real)
        check(session.run(None, feeds_of(5)), feeds_of(5))


def test_strings_and_booleans_can_be_padded(host: qnnbridge.Host) -> None:
    made = model(
        [node("Identity", ["t"], ["u"]), node("Not", ["b"], ["c"])],
        [tensor("t", ["n"], TensorProto.STRING), tensor("b", ["n"], TensorProto.BOOL)],
        [tensor("u", ["n"], TensorProto.STRING), tensor("c", ["n"], TensorProto.BOOL)],
    ).SerializeToString()
    with open_session(host, made, buckets={"n": [4]}, pad={"t": "", "b": False}) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            texts, truths = session.run(None, {"t": np.array(["a", "é"], object), "b": np.array([True, False])})
        assert texts.tolist() == ["a", "é"]
        assert truths.tolist() == [False, True]
