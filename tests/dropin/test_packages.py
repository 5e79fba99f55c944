"""Popular packages that use onnxruntime, unmodified: on Python 3.10 without onnxruntime, and beside onnxruntime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    assert _result(ran.stdout) == beside_onnxruntime(name, tmp_path)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["file_kinds", "nsfw"])
def test_a_package_taken_to_the_npu_says_where_it_ran_and_stays_near(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    application = demand("packages/application/bin/python", "setup_packages.sh")
    ran = exec_program(
        *("--provider", "qnn", "--report", _program(name)),
        cwd=tmp_path,
        python=str(application),
        QNNBRIDGE_HOST_PYTHON=sys.executable,
    )
    assert ran.returncode == 0, ran.stderr
    assert "qnnbridge report" in ran.stderr
    assert _near(_result(ran.stdout), beside_onnxruntime(name, tmp_path)), ran.stdout


def beside_onnxruntime(name: str, folder: Path) -> Any:
    """The same program with onnxruntime in its own process."""
    packages = demand("packages/beside-onnxruntime", "setup_packages.sh")
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
    """Numbers within 0.02 (scores are between 0 and 1; the NPU computes in fp16), everything else equal."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 0.02
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    return bool(one == other)
