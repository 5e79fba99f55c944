"""Context binaries without an ONNX file on Windows x64, under Wine, with the QNN simulator of the Windows package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from labs import WindowsLab

pytestmark = pytest.mark.simulator

HERE = Path(__file__).parent
RELEASES = HERE.parent / "models" / "compiled" / "releases"


def test_on_windows_a_context_binary_is_read_wrapped_and_run(windows_python: WindowsLab, tmp_path: Path) -> None:
    for name in ("2.7.0.onnx", "2.7.0_qnn.bin"):
        shutil.copy(RELEASES / name, tmp_path / name)
    report = windows_python.run(HERE / "windows_wrap.py", tmp_path).json()
    assert len(report["graphs"]) == 1
    assert report["layout"] == "BinaryInfo V3, GraphInfo V3, Tensor V1"
    assert report["copied"] is False
    assert report["alike"] is True, report
    assert (tmp_path / "made_ctx.qnnbridge.json").exists()
