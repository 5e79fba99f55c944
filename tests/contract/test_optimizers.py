"""Harmful optimizers of ONNX Runtime are disabled in the reference and in the session.

QNN computes the graph after the optimizers of level 1. A comparison with a CPU that uses the same optimizers would
not show their faults, and faults of higher levels on the CPU would be attributed to QNN.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import qnnbridge
from qnnbridge.errors import InvalidArgument, NumbersDiffer
from qnnbridge_host.engine import cpu
from qnnbridge_tools.sessions import SessionSettings, opened
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract import optimizer_models as models
from tests.contract.optimizer_models import HarmedModel

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
CPU = ["CPUExecutionProvider"]
PENDING_S = 60.0


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY", raising=False)


def off(session: qnnbridge.InferenceSession, harmed: HarmedModel) -> float:
    """Return the largest difference from the right outputs, relative to their largest value."""
    (found,) = session.run(None, harmed.feeds)
    return float(np.abs(found - harmed.right).max() / np.abs(harmed.right).max())


def verdict(session: qnnbridge.InferenceSession) -> qnnbridge.NumbersReport:
    deadline = time.monotonic() + PENDING_S
    while session.verified.state == "pending" and time.monotonic() < deadline:
        time.sleep(0.05)
    return session.verified


@pytest.mark.parametrize("made", [models.int8_behind_a_reshape, models.int32_behind_a_reshape, models.requantised])
@pytest.mark.parametrize("cache", [True, False])
def test_the_first_session_of_a_quantised_model_is_right(
    made: Any, cache: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harmed: HarmedModel = made()
    # The second session is in another host: the choice is stored, or found again.
    for _ in range(2):
        caplog.clear()
        with (
            caplog.at_level("INFO", "qnnbridge"),
            qnnbridge.Host() as another,
            qnnbridge.InferenceSession(
                harmed.data, providers=SOC, host=another, cache=cache, fallback="cpu", verify="raise"
            ) as session,
        ):
            assert off(session, harmed) < 0.01
            assert session.verified.state == "agrees"
        assert any(f"optimizer {harmed.optimizer} changes" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "made", [models.weights_in_8_bits, models.normalised_without_keepdims, models.signed_weights]
)
def test_a_difference_that_optimizers_cause_on_the_cpu_alone_is_not_attributed_to_qnn(
    made: Any, host: qnnbridge.Host, tmp_path: Path
) -> None:
    harmed: HarmedModel = made()
    with qnnbridge.InferenceSession(
        harmed.data, providers=SOC, host=host, verify="raise", fallback=harmed.fallback
    ) as session:
        assert off(session, harmed) < 0.01
        assert session.verified.state == "agrees"
        assert session.verify(harmed.feeds).state == "agrees"
        assert session.verify().state == "agrees"
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    result = qnnbridge.compile(
        tmp_path / "m.onnx",
        tmp_path / "c.onnx",
        soc_model=SOC_MODEL,
        inputs=harmed.feeds,
        host=host,
        fallback=harmed.fallback,
    )
    assert [one.level for one in result.validation.differences] == ["ok"]


def test_quantised_products_of_each_reference_do_not_saturate(host: qnnbridge.Host, tmp_path: Path) -> None:
    made = models.signed_weights()
    model = tmp_path / "m.onnx"
    model.write_bytes(made.data)
    for given in (model, made.data):
        np.testing.assert_allclose(cpu.open_session(given, "m").run(None, made.feeds)[0], made.right, rtol=1e-5)
    levels: tuple[Literal["off", "basic"], ...] = ("off", "basic")
    for level in levels:
        with opened(host, model, CPU[0], SessionSettings({}, {}, None), level=level) as session:
            (found,) = session.answer(made.feeds).values or ()
            np.testing.assert_allclose(found, made.right, rtol=1e-5)


def test_a_float_model_is_right_from_the_second_session_on(host: qnnbridge.Host) -> None:
    harmed = models.integers_divided()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with qnnbridge.InferenceSession(harmed.data, providers=SOC, host=host) as session:
            assert off(session, harmed) > 0.1
            report = verdict(session)
    assert report.state == "differs"
    assert report.cause.startswith("ONNX Runtime's optimizer DivMulFusion changes")
    assert "QNN correctly computes the graph that ONNX Runtime has changed" in report.cause
    with qnnbridge.InferenceSession(harmed.data, providers=SOC, host=host, verify="raise") as session:
        assert off(session, harmed) < 0.01
        assert session.verified.state == "agrees"
        # The key of its verdict differs from that of the first session.
        assert session.verify(harmed.feeds).state == "agrees"


def test_a_session_that_raises_on_a_difference_reports_the_optimizer(host: qnnbridge.Host) -> None:
    harmed = models.integers_divided(2.5)
    with (
        qnnbridge.InferenceSession(harmed.data, providers=SOC, host=host, verify="raise") as session,
        pytest.raises(NumbersDiffer) as raised,
    ):
        session.run(None, harmed.feeds)
    assert "DivMulFusion" in str(raised.value.cause)
    assert str(raised.value.fix).startswith("Create the session again")
    with qnnbridge.InferenceSession(harmed.data, providers=SOC, host=host, verify="raise") as session:
        assert off(session, harmed) < 0.01


@pytest.mark.parametrize("providers", [SOC, CPU])
@pytest.mark.parametrize(
    "made", [lambda: models.broken("Dropout"), lambda: models.broken("Cast"), models.broken_int32]
)
def test_a_valid_model_that_the_optimizers_break_is_loaded_without_them(
    made: Any, providers: Any, host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    harmed: HarmedModel = made()
    caplog.clear()
    with (
        caplog.at_level("INFO", "qnnbridge"),
        qnnbridge.InferenceSession(harmed.data, providers=providers, host=host, fallback="cpu") as session,
    ):
        assert off(session, harmed) < 0.01
    assert any(f"ONNX Runtime's optimizer {harmed.optimizer}" in record.message for record in caplog.records)


def test_a_model_that_is_invalid_without_optimizers_keeps_its_error(host: qnnbridge.Host) -> None:
    harmed = models.broken("Dropout")
    data = harmed.data.replace(b"mid", b"mi_", 1)  # the output of the Dropout only
    with pytest.raises((InvalidArgument, qnnbridge.errors.OrtError)):
        qnnbridge.InferenceSession(data, providers=CPU, host=host)


def test_compiling_disables_optimizers_that_change_results(host: qnnbridge.Host, tmp_path: Path) -> None:
    for harmed in (models.broken("Cast"), models.int8_behind_a_reshape()):
        (tmp_path / "m.onnx").write_bytes(harmed.data)
        result = qnnbridge.compile(
            tmp_path / "m.onnx", tmp_path / "c.onnx", soc_model=SOC_MODEL, host=host, overwrite=True
        )
        assert any(harmed.optimizer in warning for warning in result.warnings)
        with qnnbridge.InferenceSession(tmp_path / "c.onnx", providers=SOC, host=host) as session:
            assert off(session, harmed) < 0.01
