"""Popular packages that use onnxruntime, unmodified: on Python 3.10 without onnxruntime, and beside onnxruntime."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from tests.dropin.running import TIMEOUT_S, exec_program
from tests.labs.labs import demand

PROGRAMS = sorted(path.stem for path in (Path(__file__).parent / "programs").glob("*.py"))

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_gives_the_same_without_onnxruntime(name: str, tmp_path: Path) -> None:
    application = demand("packages/application/bin/python", "setup_packages.sh")
    ran = exec_program(
        "--report", _program(name), cwd=tmp_path, python=str(application), QNNBRIDGE_HOST_PYTHON=sys.executable
    )
    assert ran.returncode == 0, ran.stderr
    assert "CPU, all" in ran.stderr
    assert _result(ran.stdout) == beside_onnxruntime(name)


ON_THE_NPU = {
    "captcha": {"common_det.onnx": "QNN, all of 277 nodes", "common_old.onnx": "QNN 119 nodes, CPU 150"},
    "detector": {"320n.onnx": "QNN 27 nodes, CPU 289"},
    "file_kinds": {"model.onnx": "CPU, all of 94 nodes"},
    "nsfw": {"open-nsfw.onnx": "CPU, all of 125 nodes"},
    "ocr": {"ch_PP-OCRv4_rec_infer.onnx": "QNN 2 nodes, CPU 406"},
}
"""Models, and where they run if somebody wants the NPU. Most have inputs of any size, which QNN cannot take."""


@pytest.mark.simulator
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_taken_to_the_npu_says_where_it_ran_and_why_and_stays_near(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    application = demand("packages/application/bin/python", "setup_packages.sh")
    ran = exec_program(
        *("--provider", "qnn", "--report", _program(name)),
        cwd=tmp_path,
        python=str(application),
        QNNBRIDGE_HOST_PYTHON=sys.executable,
    )
    assert ran.returncode == 0, ran.stderr
    report = ran.stderr.partition("qnnbridge report")[2].splitlines()
    for model, where in ON_THE_NPU[name].items():
        assert any(line.split()[:1] == [model] and where in line for line in report), ran.stderr
        assert "CPU" not in where or any(line.startswith(f"  {model}: ") for line in report), ran.stderr
    assert _near(_result(ran.stdout), beside_onnxruntime(name)), ran.stdout


@functools.cache
def beside_onnxruntime(name: str) -> Any:
    """The same program with onnxruntime in its own process."""
    packages = demand("packages/beside-onnxruntime", "setup_packages.sh")
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, _program(name)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert ran.returncode == 0, ran.stderr
    return _result(ran.stdout)


def _program(name: str) -> str:
    return str(Path(__file__).parent / "programs" / f"{name}.py")


def _result(stdout: str) -> Any:
    return json.loads(stdout.splitlines()[-1])


def _near(one: Any, other: Any) -> bool:
    """Scores within 0.02 (the NPU computes in fp16), pixels within 2, everything else equal."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 0.02
    if type(one) is int and type(other) is int:
        return abs(one - other) <= 2
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    return bool(one == other)
