"""The example of the README runs unchanged, and explains errors."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.small_models import MODELS

pytestmark = pytest.mark.simulator

EXAMPLE = Path(__file__).parents[2] / "examples" / "classify_app.py"
TIMEOUT_S = 100
# Frequency and width of each formant, in Hz.
FORMANTS = ((400, 120), (2000, 250), (2600, 300))


@pytest.fixture(scope="module")
def speech_detection() -> Any:
    spec = importlib.util.spec_from_file_location("speech_detection", EXAMPLE.with_name("speech_detection.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def _needs_qnn() -> None:
    pytest.importorskip("onnxruntime_qnn")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ,
        timeout=TIMEOUT_S,
    )


def test_the_example_prints_placement_and_strongest_outputs() -> None:
    done = run(MODELS / "q.onnx", "--host-python", sys.executable)
    assert done.returncode == 0, done.stderr
    host, placement, output = done.stdout.splitlines()
    assert host.startswith("host: Python 3.")
    assert placement == "placement: 39 nodes on QNN, 0 nodes on the CPU"
    assert output.startswith("y: [")
    values = [float(part.split()[-1]) for part in output.removeprefix("y: ").split(", ")]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)


def test_the_example_runs_on_the_cpu_too() -> None:
    done = run(MODELS / "silero_vad_openvino_16k.onnx", "--cpu")
    assert done.returncode == 0, done.stderr
    assert "placement: 0 nodes on QNN" in done.stdout
    assert "stateN: [" in done.stdout


def test_the_example_exits_with_the_message_of_the_error() -> None:
    done = run(MODELS / "pnet.onnx")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("PlacementRefused: No node of pnet.onnx")
    assert "Traceback" not in done.stderr


def test_the_speech_example_finds_the_same_word_as_the_model_on_the_cpu(
    speech_detection: Any, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = MODELS / "silero_vad_openvino_16k.onnx"
    samples = voice(4 * speech_detection.RATE)
    with wave.open(str(tmp_path / "talk.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(speech_detection.RATE)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    done = subprocess.run(
        [sys.executable, speech_detection.__file__, str(model), str(tmp_path / "talk.wav")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    placed, *rows = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ nodes on QNN, 0 on the CPU", placed)
    read = speech_detection.read_samples(str(tmp_path / "talk.wav"))
    expected = list(speech_detection.probabilities(onnxruntime.InferenceSession(model), read))
    found = {round(float(row.split()[0]) * 16000 / 512): float(row.split()[2]) for row in rows}
    # Close to the threshold, half floats may give another decision.
    certain = {number for number, one in enumerate(expected) if one > 0.6}
    assert certain
    assert certain <= found.keys()
    assert all(expected[number] > 0.4 for number in found)
    assert max(abs(found[number] - expected[number]) for number in found) < 0.1


def voice(count: int) -> Any:
    """Return three vowels with pauses between them, at 16 kHz: harmonics with formants, which the detector accepts
    as speech.
    """
    time = np.arange(9600) / 16000
    sound = 0.002 * np.random.default_rng(0).standard_normal(count)
    for start, pitch in zip(range(1600, count - len(time), 16000), (120, 180, 210), strict=False):
        turns = 2 * np.pi * pitch * time * (1 + 0.02 * np.sin(25 * time))
        vowel = sum(
            np.sin(turns * n) * (0.02 + sum(np.exp(-(((n * pitch - f) / w) ** 2)) for f, w in FORMANTS))
            for n in range(1, 30)
        )
        sound[start : start + len(time)] += 0.3 * vowel / np.abs(vowel).max() * np.hanning(len(time))
    return sound


def test_the_example_needs_only_numpy_and_qnnbridge_and_python_3_10() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 10))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imports == {"argparse", "sys", "numpy", "qnnbridge"}
    assert len(source.splitlines()) <= 60
