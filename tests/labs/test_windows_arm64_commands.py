"""Commands on Windows ARM64, where QNN has no NPU: `demo`, `exec`, and a short run of the fault lab."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from labs import CHECKOUT, HERE, Program, WindowsArm64Lab

pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + 400.0)

MODEL = CHECKOUT / "tests" / "models" / "mul_1.onnx"
MODULE = HERE / "windows_module.py"
TIMEOUT_S = 240.0


def run(lab: WindowsArm64Lab, module: str, *arguments: str | Path) -> Program:
    return lab.run(MODULE, module, *arguments, timeout_s=TIMEOUT_S)


def test_demo_is_right_on_the_cpu_and_explains_why_it_is_not_on_the_npu(windows_arm64: WindowsArm64Lab) -> None:
    ran = run(windows_arm64, "qnnbridge_tools", "demo")
    assert ran.returncode == 1
    assert "6 of 6 right, computed by the CPU provider only." in ran.stdout
    assert "QNN could not be used: QNN lists no device on this machine." in ran.stdout
    assert "Fix: Install the NPU driver" in ran.stdout
    assert "ARM64, " in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_a_program_for_onnxruntime_runs_under_exec(windows_arm64: WindowsArm64Lab, tmp_path: Path) -> None:
    model = tmp_path / "modèle.onnx"
    shutil.copy(MODEL, model)
    ran = run(
        windows_arm64, "qnnbridge_tools", "exec", "--report", HERE / "windows_dropin.py", model, "--report", "-m"
    )
    report = ran.json()
    assert (report["module"], report["arguments"]) == ("qnnbridge.ort", ["--report", "-m"])
    assert (report["threads"], report["tasks"]) == ([21.0] * 4, [21.0] * 4)
    assert "CPU, all of 1 node" in ran.stderr


def test_calls_survive_kills_of_the_host(windows_arm64: WindowsArm64Lab) -> None:
    ran = run(windows_arm64, "lab.faultlab", "--calls", "120", "--kills", "2", "--threads", "4", "--seed", "7")
    assert ran.returncode == 0, ran.stdout
    told = re.search(r"(\d+) calls, (\d+) kills", ran.stdout)
    assert told
    assert int(told[1]) >= 120
    assert told[2] == "2"
    for line in ("wrong results: 0", "errors that reached a caller: 0", "leaks: none"):
        assert line in ran.stdout
