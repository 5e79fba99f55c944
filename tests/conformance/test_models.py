"""Real models: every output through the bridge equals that of the same session made directly, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
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
MODELS = needs.some(REAL_MODELS)


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


Outputs = dict[tuple[str, str], dict[str, Any]]


def written_job(model: RealModel, path: Path, folder: Path) -> Path:
    """Write the job for `direct_session.py`."""
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
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    return job_file


@pytest.fixture(scope="module")
def direct(
    private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Outputs]]:
    """Return, by file, the model with fixed dimensions and its flattened outputs by mode and feed.

    The outputs come from a process that does not use the bridge.
    """
    folders = {model.file: tmp_path_factory.mktemp("direct") for model in MODELS}
    fixed = {model.file: model.fixed(folders[model.file]) for model in MODELS}
    jobs = [written_job(model, fixed[model.file], folders[model.file]) for model in MODELS]
    done = subprocess.run(
        [sys.executable, "-I", direct_session.__file__, *map(str, jobs)],
        capture_output=True,
        text=True,
        timeout=DIRECT_TIMEOUT_S,
        env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = {}
    for model in MODELS:
        outputs: Outputs = {}
        for mode, name in itertools.product(model.modes(), model.feeds()):
            with np.load(folders[model.file] / "direct" / f"{mode}.{name}.npz") as arrays:
                outputs[mode, name] = dict(arrays)
        results[model.file] = fixed[model.file], outputs
    return results


@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model.file).stem)
def test_outputs_equal_those_of_a_single_process_bit_for_bit(
    model: RealModel, host: qnnbridge.Host, tally: Tally, direct: dict[str, tuple[Path, Outputs]]
) -> None:
    path, outputs = direct[model.file]
    for mode, providers in model.modes().items():
        options = [{"soc_model": SOC_MODEL} if name == QNN else {} for name in providers]
        with qnnbridge.InferenceSession(path, None, providers, options, host=host) as session:
            if mode == "qnn":
                assert session.placement.cpu_nodes == 0
                assert session.placement.qnn_nodes > 0
            for name, feeds in model.feeds().items():
                bridged = direct_session.flatten(session.run(None, feeds))
                expected = outputs[mode, name]
                assert list(bridged) == list(expected)
                for place, array in bridged.items():
                    assert equal_bits(array, expected[place]), f"{mode}, {name}: {place} differs"
                tally.models.add(model.file)
                tally.feeds.add(name)
                tally.runs[mode] = tally.runs.get(mode, 0) + 1


def test_every_model_in_the_folder_is_compared() -> None:
    assert {path.name for path in FOLDER.glob("*.onnx")} == {model.file for model in REAL_MODELS}
