"""A text model with sequence buckets on QNN accepts any length, computes the CPU's results, and compiles nothing in
calls."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge._session.remote_session import RemoteSession
from tests.contract.small_models import CPU, QNN
from tests.contract.text_encoder import Size, text, text_encoder
from tests.needs import length

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

SOC = [(QNN, {"soc_model": "60"})]
SIZE = Size(layers=2, hidden=32, heads=2, intermediate=64, positions=64)
BUCKETS = {"seq": [8, 16, 32, 64], "batch": 1}
PAD = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
RUNS = length(40, 200)
# Absolute tolerance for normalized activations of about 1 to 4 computed in 16-bit floats; the largest observed is
# 0.01.
FP16_TOLERANCE = 0.02
COSINE = 0.9999


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "encoder.onnx"
    onnx.save(text_encoder(SIZE), path)
    return path


@pytest.fixture(scope="module")
def cpu(encoder: Path, host: qnnbridge.Host) -> Iterator[qnnbridge.InferenceSession]:
    """Return the same model with free dimensions."""
    with qnnbridge.InferenceSession(encoder, providers=[CPU], host=host) as session:
        yield session


def assert_close(results: list[Any], expected: list[Any]) -> None:
    assert [result.shape for result in results] == [other.shape for other in expected]
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        assert np.abs(result - other).max() < FP16_TOLERANCE
        lengths = np.linalg.norm(result) * np.linalg.norm(other)
        assert float((result * other).sum() / lengths) > COSINE


@pytest.fixture
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


@pytest.mark.timeout(900)  # the simulator takes 0.05 to 0.5 s for a run, on a busy machine
@pytest.mark.usefixtures("cache_on")
def test_two_hundred_texts_of_random_length_run_without_a_compilation(
    encoder: Path, cpu: qnnbridge.InferenceSession, host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(200)
    with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=BUCKETS, pad=PAD) as session:
        status = session.warm(workers=2)
        assert [variant.made for variant in status.variants] == [True] * 4
        assert all(v.placement is not None and v.placement.cpu_nodes == 0 for v in status.variants)
        assert [v.cache.state for v in status.variants if v.cache is not None] == ["miss"] * 4
        before = host.stats

        def compile_now(*_: Any, **__: Any) -> Any:
            raise AssertionError("a session was made at a call")

        monkeypatch.setattr(RemoteSession, "open", compile_now)
        # Most texts are short, and some have the maximum length.
        lengths = [1, 16, 17, 64, *np.clip(rng.geometric(0.08, RUNS - 4), 1, 64)]
        for length in lengths:
            feeds = text(rng, int(length))
            assert_close(session.run(None, feeds), cpu.run(None, feeds))
        after = session.buckets
        assert after is not None
        assert (after.calls, after.split, after.on_cpu) == (RUNS, 0, 0)
        assert after.padded == sum(length not in (8, 16, 32, 64) for length in lengths)
        assert sum(variant.runs for variant in after.variants) == RUNS
        assert not any(variant.made_at_call for variant in after.variants)
        assert (host.stats.cache_misses, host.stats.generation) == (before.cache_misses, before.generation)


@pytest.mark.usefixtures("cache_on")
def test_the_next_session_finds_all_its_variants_in_the_cache(encoder: Path, host: qnnbridge.Host) -> None:
    buckets = {"seq": [8, 16], "batch": 1}
    for expected in ("miss", "hit"):
        with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=buckets, pad=PAD) as session:
            status = session.warm()
            assert [v.cache.state for v in status.variants if v.cache is not None] == [expected] * 2


@pytest.mark.usefixtures("cache_on")
def test_two_processes_that_warm_the_same_model_compile_each_variant_once(encoder: Path) -> None:
    script = f"""
import json, qnnbridge
with qnnbridge.InferenceSession({str(encoder)!r}, providers={SOC!r}, buckets={{"seq": [8, 16], "batch": 1}}, pad=0) as s:
    print(json.dumps([v.cache.state for v in s.warm(workers=2).variants]))
    s.host.close()
"""
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in both]
    states = [state for output in outputs for state in json.loads(output.splitlines()[-1])]
    assert sorted(states) == ["hit", "hit", "miss", "miss"]


def test_without_warm_a_variant_is_compiled_by_the_first_call_that_needs_it(
    encoder: Path, cpu: qnnbridge.InferenceSession, host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "qnnbridge.buckets")
    rng = np.random.default_rng(3)
    with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=BUCKETS, pad=PAD) as session:
        made = [variant.made for variant in session.buckets.variants]
        assert made == [True, False, False, False]  # the smallest bucket, so that an error is obvious
        for feeds in (text(rng, 10), text(rng, 15)):
            assert_close(session.run(None, feeds), cpu.run(None, feeds))
        second = session.buckets.variants[1]
        assert (second.made, second.made_at_call, second.runs) == (True, True, 2)
        assert caplog.text.count("creating the variant for seq=16, batch=1 at its first call") == 1


def test_batches_are_run_row_by_row_and_joined(
    encoder: Path, cpu: qnnbridge.InferenceSession, host: qnnbridge.Host
) -> None:
    rng = np.random.default_rng(4)
    with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=BUCKETS, pad=PAD) as session:
        feeds = text(rng, 7, batch=3)
        feeds["attention_mask"][1, 5:] = 0
        assert_close(session.run(None, feeds), cpu.run(None, feeds))
        assert session.buckets.split == 1
        assert session.buckets.variants[0].runs == 3


def test_padding_does_not_change_the_outputs_of_a_masked_encoder(encoder: Path, host: qnnbridge.Host) -> None:
    rng = np.random.default_rng(5)
    with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=BUCKETS, pad=PAD) as session:
        report = session.verify_padding([text(rng, 5), text(rng, 31)])
        assert report.ok, str(report)
        unmasked = {**PAD, "attention_mask": 1}
    with qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets=BUCKETS, pad=unmasked) as session:
        report = session.verify_padding(text(rng, 5))
        assert not report
        assert "'last_hidden_state', seq=5, batch=1 padded to seq=8, batch=1" in str(report)
        assert "Pad 'attention_mask' with the value that marks padding" in str(report)


def test_a_dimension_that_would_stay_free_is_refused_before_anything_is_compiled(
    encoder: Path, host: qnnbridge.Host
) -> None:
    with pytest.raises(qnnbridge.errors.OptionError, match="would still have free dimensions: 'batch'") as caught:
        qnnbridge.InferenceSession(encoder, providers=SOC, host=host, buckets={"seq": [16]}, pad=0)
    assert "buckets={'batch': 1, ...}" in str(caught.value.fix)
