"""Sessions whose results differ from the CPU's warn once, and good sessions never warn.

The wrong model is an edge padding, which QNN 2.7 computes wrong at the border. The models are tiny, so each
comparison costs the start of one process.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import qnnbridge
from qnnbridge.errors import NumbersDiffer, OptionError
from qnnbridge_host.cache.memo import Verdicts
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.settings import cache_dir
from tests.comparisons import settled
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.small_models import model, node, tensor

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
X = np.random.default_rng(5).standard_normal((1, 8, 20)).astype(np.float32)
PENDING_S = 60.0


def edge_padding() -> bytes:
    made = model(
        [node("Pad", ["x", "p"], ["y"], mode="edge")],
        [tensor("x", [1, 8, 20])],
        [tensor("y", [1, 8, 26])],
        {"p": np.asarray([0, 0, 3, 0, 0, 3], np.int64)},
    )
    return bytes(made.SerializeToString())


def unary(op: str) -> bytes:
    made = model([node(op, ["x"], ["y"])], [tensor("x", [1, 8, 20])], [tensor("y", [1, 8, 20])])
    return bytes(made.SerializeToString())


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")


def open_session(host: qnnbridge.Host, data: Any, **keywords: Any) -> qnnbridge.InferenceSession:
    # The models are computed wrong deliberately: a rewrite would leave nothing to compare.
    return qnnbridge.InferenceSession(data, providers=SOC, host=host, fix=False, **keywords)


def workers(host: qnnbridge.Host) -> list[psutil.Process]:
    return psutil.Process(host.info.pid).children(recursive=True)


def test_wrong_numbers_warn_after_the_call_and_only_once_per_model(host: qnnbridge.Host) -> None:
    def first_session() -> tuple[Any, Any, qnnbridge.NumbersReport]:
        with open_session(host, edge_padding()) as session:
            assert session.verified.state == "pending"
            (first,) = session.run(None, {"x": X})
            report = settled(session)
            (second,) = session.run(None, {"x": X})
            return first, second, report

    def second_session() -> None:
        with open_session(host, edge_padding()) as again:
            before = workers(host)
            again.run(None, {"x": X})
            assert settled(again).kept
            assert before == workers(host)

    with pytest.warns(qnnbridge.NumbersWarning, match=r"different results on QNN.*SNR") as told:
        first, second, report = first_session()
    assert len(told) == 1
    assert first.shape == second.shape == (1, 8, 26)
    assert (report.state, report.kept, bool(report)) == ("differs", False, False)
    assert report.worst is not None
    assert (report.worst.output, report.inputs) == ("y", "the inputs of a call")
    assert report.snr_db is not None
    assert report.snr_db < 20
    assert report.max_abs > 0.5
    assert "QNN is known to compute one operator of the model wrong: Pad" in report.cause
    with pytest.warns(qnnbridge.NumbersWarning):
        second_session()


def test_a_session_can_raise_before_the_result_is_returned(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), verify="raise", cache=True) as session:
        with pytest.raises(NumbersDiffer, match="Output y: SNR") as told:
            session.run(None, {"x": X})
        assert told.value.details["numbers"]["state"] == "differs"
        assert told.value.fix is not None
        assert "qnnbridge verify" in told.value.fix
    with pytest.raises(NumbersDiffer):  # already known at the creation
        open_session(host, edge_padding(), verify=True, cache=True)
    with open_session(host, edge_padding(), verify=False, cache=True) as session:
        session.run(None, {"x": X})
        assert session.verified.state == "off"


def test_right_numbers_are_recorded_in_the_cache_entry_and_reported_at_the_next_creation(
    host: qnnbridge.Host,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_session(host, unary("Sigmoid"), cache=True) as session:
            session.run(None, {"x": X})
            report = settled(session)
            assert report.state == "agrees"
            assert (report.snr_db or 0) > 50
        with open_session(host, unary("Sigmoid"), cache=True) as session:
            assert (session.verified.state, session.verified.kept) == ("agrees", True)
    assert len(Verdicts(Store(cache_dir()).root).keys()) == 1


@pytest.mark.parametrize("how", ["async", "values", "binding", "out", "subset"])
def test_every_way_to_run_is_compared(host: qnnbridge.Host, how: str) -> None:
    with open_session(host, unary("Sigmoid"), verify="raise") as session:
        if how == "async":
            done: list[Any] = []
            session.run_async(None, {"x": X}, lambda *answer: done.append(answer), None)
            until = time.monotonic() + PENDING_S
            while not done:
                assert time.monotonic() < until
                time.sleep(0.02)
            assert not done[0][2]
        elif how == "values":
            session.run_with_ort_values(None, {"x": qnnbridge.OrtValue.ortvalue_from_numpy(X)})
        elif how == "binding":
            binding = session.io_binding()
            binding.bind_cpu_input("x", X)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
        elif how == "out":
            session.run(None, {"x": X}, out=[session.empty_output("y")])
        else:
            session.run(["y"], {"x": X})
        assert session.verified.state == "agrees"


def test_inputs_with_nan_on_the_cpu_are_inconclusive_and_the_next_ones_are_compared(
    host: qnnbridge.Host,
) -> None:
    with open_session(host, unary("Log"), verify="raise") as session:
        session.run(None, {"x": np.full_like(X, -1.0)})
        assert session.verified.state == "unknown"
        assert "NaN" in session.verified.reason
    with open_session(host, unary("Log"), verify="raise") as session:
        session.run(None, {"x": np.abs(X) + 1})
        assert session.verified.state == "agrees"


@pytest.mark.filterwarnings("ignore::qnnbridge.CpuFallbackWarning")
@pytest.mark.parametrize("op", ["RandomNormalLike", "Dropout"])
def test_random_results_are_not_reported_as_a_difference(host: qnnbridge.Host, op: str) -> None:
    inputs = ["s"] if op == "RandomNormalLike" else ["s", "ratio", "training"]
    made = model(
        [node("Sigmoid", ["x"], ["s"]), node(op, inputs, ["y"])],
        [tensor("x", [1, 8, 20])],
        [tensor("y", [1, 8, 20]), tensor("s", [1, 8, 20])],
        {"ratio": np.float32(0.5), "training": np.asarray(True)},
    )
    with open_session(host, made.SerializeToString(), fallback="cpu", verify="raise") as session:
        assert session.placement.qnn_nodes
        session.run(None, {"x": X})
        assert session.verified.state == "unknown"
        assert "random" in session.verified.reason or "a different result in each run" in session.verified.reason


def test_the_application_may_change_its_arrays_immediately_after_the_call(host: qnnbridge.Host) -> None:
    with open_session(host, unary("Sigmoid")) as session:
        x = X.copy()
        (y,) = session.run(None, {"x": x})
        x[:], y[:] = 7.0, -7.0
        assert settled(session).state == "agrees"


def test_verify_compares_given_and_generated_inputs_on_request(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), verify=False) as session:
        report = session.verify({"x": X})
        assert (report.state, report.inputs) == ("differs", "the inputs given")
        assert "SNR" in str(report)
        assert session.verify().inputs == "made-up inputs"
        assert session.verified.inputs == "made-up inputs"


def test_a_session_on_the_cpu_has_nothing_to_verify(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(unary("Sigmoid"), providers=["CPUExecutionProvider"], host=host) as session:
        session.run(None, {"x": X})
        assert session.verified.state == "off"
        assert "QNN" in session.verified.reason


def test_a_crash_of_the_cpu_run_does_not_fail_the_call(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the worker as soon as it exists."""
    crashes = host.stats.crashes
    with open_session(host, unary("Sigmoid")) as session:
        there = workers(host)
        session.run(None, {"x": X})
        until = time.monotonic() + PENDING_S
        while session.verified.state == "pending" and time.monotonic() < until:
            for process in workers(host):
                if process not in there:
                    with contextlib.suppress(psutil.NoSuchProcess):  # the worker had already ended
                        process.kill()
            time.sleep(0.005)
        assert session.verified.state == "unknown"
        session.run(None, {"x": X})
    assert host.stats.crashes == crashes


def test_a_host_that_is_closed_during_a_comparison_ends_immediately(tmp_path: Path) -> None:
    with qnnbridge.Host() as host:
        session = open_session(host, unary("Sigmoid"))
        session.run(None, {"x": X})
        begun = time.monotonic()
    assert time.monotonic() - begun < 5.0
    assert settled(session).state in ("unknown", "agrees")


def test_a_call_that_is_too_large_is_not_copied_for_the_comparison(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qnnbridge._session.numbers_check.MAX_BYTES", 16)
    with open_session(host, unary("Sigmoid")) as session:
        session.run(None, {"x": X})
        assert "MiB" in session.verified.reason
        assert session.verify({"x": X}).state == "agrees"


@pytest.mark.parametrize("word", ["loud", 3.5, []])
def test_an_unknown_mode_of_verify_is_refused(word: Any) -> None:
    with pytest.raises(OptionError, match="verify="):
        qnnbridge.InferenceSession(unary("Sigmoid"), verify=word)


def test_the_environment_variable_sets_the_default_mode(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "off")
    with open_session(host, edge_padding()) as session:
        session.run(None, {"x": X})
        assert session.verified.state == "off"
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "perhaps")
    with pytest.raises(OptionError, match="QNNBRIDGE_VERIFY"):
        open_session(host, unary("Sigmoid"))


def test_each_variant_of_a_session_with_buckets_is_compared_in_warm_too(host: qnnbridge.Host) -> None:
    made = model(
        [node("Pad", ["x", "p"], ["y"], mode="edge")],
        [tensor("x", [1, 8, "n"])],
        [tensor("y", [1, 8, "m"])],
        {"p": np.asarray([0, 0, 3, 0, 0, 3], np.int64)},
    )
    keywords = {"buckets": {"n": [16, 20]}, "pad": "edge", "cut": {"y": [None, None, "n + 6"]}, "verify": "warn"}

    def warmed() -> None:
        with open_session(host, made.SerializeToString(), **keywords) as session:
            assert session.verified.state == "pending"
            status = session.warm()
            reports = [variant.verified for variant in status.variants]
            assert [(one.state, one.inputs) for one in reports if one is not None] == [
                ("differs", "made-up inputs")
            ] * 2
            assert session.verified.state == "differs"
            assert "numbers: differs" in str(status)
            assert session.verify({"x": X[..., :18]}).inputs == "the inputs given"

    with pytest.warns(qnnbridge.NumbersWarning) as told:
        warmed()
    assert len(told) == 2


def test_padded_values_that_are_cut_away_are_not_compared(host: qnnbridge.Host) -> None:
    # Half floats cannot represent 1e-9: for the zeros of the padding QNN computes -inf, the CPU -20.7.
    made = model(
        [node("Add", ["x", "e"], ["a"]), node("Log", ["a"], ["y"])],
        [tensor("x", [1, 8, "n"])],
        [tensor("y", [1, 8, "n"])],
        {"e": np.float32(1e-9)},
    )
    loud = np.abs(X) + 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error", qnnbridge.NumbersWarning)
        with open_session(host, made.SerializeToString(), buckets={"n": [32]}, pad=0, cache=False) as session:
            assert session.run(None, {"x": loud})[0].shape == loud.shape
            assert settled(session).state == "agrees"
            report = session.verify({"x": loud})
            assert report.state == "agrees"
            assert report.outputs[0].values == loud.size
            whole = np.zeros((1, 8, 32), np.float32)
            whole[..., :20] = loud
            assert session.verify({"x": whole}).state == "differs"
