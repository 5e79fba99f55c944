"""Real models: every output through the bridge equals that of the same session made directly, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge_protocol.values import equal_bits
from tests import needs
from tests.conformance import direct_session
from tests.conformance.real_models import FOLDER, QNN, REAL_MODELS, SOC_MODEL, RealModel

pytestmark = [pytest.mark.simulator, pytest.mark.filterwarnings("ignore::qnnbridge.CpuFallbackWarning")]

DIRECT_TIMEOUT_S = 100


@dataclasses.dataclass
class Tally:
    models: set[str] = dataclasses.field(default_factory=set)
    feeds: set[str] = dataclasses.field(default_factory=set)
    runs: dict[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        runs = ", ".join(f"{number} on {mode}" for mode, number in self.runs.items())
        return f"{len(self.models)} models x {len(self.feeds)} inputs compared bit for bit: runs {runs}"


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    tally = Tally()
    yield tally
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{tally}")


def run_directly(model: RealModel, path: Path, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The flattened outputs by mode and feed, from a process that knows nothing of the bridge."""
    for name, feeds in model.feeds().items():
        np.savez(folder / f"{name}.npz", **feeds)
    outputs = folder / "direct"
    outputs.mkdir()
    job = {
        "model": str(path),
        "modes": model.modes(),
        "soc_model": SOC_MODEL,
        "feeds": [str(folder / f"{name}.npz") for name in model.feeds()],
        "outputs": str(outputs),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", direct_session.__file__, str(folder / "job.json")],
        capture_output=True,
        text=True,
        timeout=DIRECT_TIMEOUT_S,
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = {}
    for mode in model.modes():
        for name in model.feeds():
            with np.load(outputs / f"{mode}.{name}.npz") as arrays:
                results[mode, name] = dict(arrays)
    return results


@pytest.mark.parametrize("model", needs.some(REAL_MODELS), ids=lambda model: Path(model.file).stem)
def test_outputs_equal_those_of_one_process_bit_for_bit(
    model: RealModel, host: qnnbridge.Host, tally: Tally, tmp_path: Path
) -> None:
    path = model.fixed(tmp_path)
    direct = run_directly(model, path, tmp_path)
    for mode, providers in model.modes().items():
        options = [{"soc_model": SOC_MODEL} if name == QNN else {} for name in providers]
        with qnnbridge.InferenceSession(path, None, providers, options, host=host) as session:
            if mode == "qnn":
                assert session.placement.cpu_nodes == 0
                assert session.placement.qnn_nodes > 0
            for name, feeds in model.feeds().items():
                bridged = direct_session.flatten(session.run(None, feeds))
                expected = direct[mode, name]
                assert list(bridged) == list(expected)
                for place, array in bridged.items():
                    assert equal_bits(array, expected[place]), f"{mode}, {name}: {place} differs"
                tally.models.add(model.file)
                tally.feeds.add(name)
                tally.runs[mode] = tally.runs.get(mode, 0) + 1


def test_every_model_of_the_folder_is_compared() -> None:
    assert {path.name for path in FOLDER.glob("*.onnx")} == {model.file for model in REAL_MODELS}
