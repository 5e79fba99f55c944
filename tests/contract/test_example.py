"""The example of the README runs as it stands there, and tells in words what is wrong."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.small_models import MODELS

pytestmark = pytest.mark.simulator

EXAMPLE = Path(__file__).parents[2] / "examples" / "classify_app.py"
TIMEOUT_S = 100


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


def test_the_example_ends_with_the_error_in_words() -> None:
    done = run(MODELS / "pnet.onnx")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("PlacementRefused: No node of pnet.onnx")
    assert "Traceback" not in done.stderr


def test_the_example_needs_numpy_and_qnnbridge_only_and_python_3_10() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 10))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imports == {"argparse", "sys", "numpy", "qnnbridge"}
    assert len(source.splitlines()) <= 60
