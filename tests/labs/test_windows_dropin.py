"""Programs written for onnxruntime on Windows x64, under Wine, with a Python that ignores PYTHONPATH."""

from __future__ import annotations

import shutil
from pathlib import Path

from labs import CHECKOUT, HERE, WindowsLab


def test_on_windows_a_program_runs_with_the_drop_in(windows_python: WindowsLab, tmp_path: Path) -> None:
    model = tmp_path / "modèle.onnx"
    shutil.copy(CHECKOUT / "tests" / "models" / "mul_1.onnx", model)
    ran = windows_python.run(HERE / "windows_exec.py", HERE / "windows_dropin.py", model, "--report", "-m")
    report = ran.json()
    assert report == {
        "module": "qnnbridge.ort",
        "version_told": True,
        "main": "__main__",
        "arguments": ["--report", "-m"],
        "threads": [21.0] * 4,
        "tasks": [21.0] * 4,
        "loop": "WindowsProactorEventLoopPolicy",
    }
    assert "Specified provider 'CUDAExecutionProvider' is not in available provider names" in ran.stderr
    assert "CPU, all of 1 node" in ran.stderr
    assert "1 process" in ran.stderr
