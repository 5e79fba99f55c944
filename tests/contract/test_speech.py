"""A text-to-speech pipeline with dynamic lengths produces the same speech on the NPU as on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge_host.numerics.judge import snr_db
from tests import needs
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract import tts_models

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
# The short form uses the first and the fourth length: windows for a long text, and a short text.
LENGTHS = (48, 16, 21, 9, 32, 37)
# The signal-to-noise ratio that the whole pipeline must reach, relative to the CPU.
ENOUGH_DB = 40.0
MODELS = ("text_encoder", "denoiser", "vocoder")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("speech")
    for name in MODELS:
        onnx.save(getattr(tts_models, name)(), folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in MODELS}


@pytest.fixture(scope="module")
def sessions(host: qnnbridge.Host, files: dict[str, Path]) -> Iterator[list[qnnbridge.InferenceSession]]:
    encoder, denoiser, vocoder = files.values()
    with (
        qnnbridge.InferenceSession(encoder, None, SOC, host=host, buckets={"text": [16, 48]}) as one,
        qnnbridge.InferenceSession(denoiser, None, SOC, host=host, buckets={"frames": [32, 96]}) as two,
        qnnbridge.InferenceSession(vocoder, None, SOC, host=host, buckets={"frames": [32, 64]}) as three,
    ):
        yield [one, two, three]


@pytest.mark.parametrize("length", needs.some(LENGTHS))
def test_the_waveform_equals_that_of_the_cpu(
    length: int, files: dict[str, Path], sessions: list[qnnbridge.InferenceSession]
) -> None:
    ids = np.random.default_rng(length).integers(0, tts_models.TOKENS, (1, length))
    cpu = [ort.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in files.values()]
    expected = tts_models.speak(*cpu, ids).astype(np.float64)
    found = tts_models.speak(*sessions, ids).astype(np.float64)
    assert found.shape == expected.shape == (1, 1, length * tts_models.FRAMES * tts_models.HOP)
    assert expected.std() > 0.1
    assert snr_db(expected, found) >= ENOUGH_DB


def test_all_stages_of_speech_synthesis_run_on_qnn(sessions: list[qnnbridge.InferenceSession]) -> None:
    assert all(session.placement.cpu_nodes == 0 for session in sessions)
    decided = [one.buckets.decided for one in sessions if one.buckets is not None]
    assert decided == ["pad=0", "pad=0", "chunk='frames'"]
    status = sessions[2].buckets
    assert status is not None
    assert status.chunked
    assert status.padded == 0, "the vocoder has no mask: nothing of it may be padded"
    assert any("edge-padding" in line for line in sessions[2].fixed)


def test_without_the_rewrites_the_first_call_raises_an_error(
    host: qnnbridge.Host, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mel = np.random.default_rng(0).standard_normal((1, tts_models.CHANNELS, 32)).astype(np.float32)
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("frames", 32)
    with qnnbridge.InferenceSession(
        files["vocoder"], options, SOC, host=host, verify="raise", fix=False
    ) as session:
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(qnnbridge.errors.NumbersDiffer, match="without fix=False"),
        ):
            session.run(None, {"mel": mel})


def test_a_model_with_attention_cannot_be_split_into_windows(host: qnnbridge.Host, files: dict[str, Path]) -> None:
    with pytest.raises(qnnbridge.errors.OptionError, match="largest bucket has only 8"):
        qnnbridge.InferenceSession(files["vocoder"], None, SOC, host=host, buckets={"frames": 8}, chunk="frames")
