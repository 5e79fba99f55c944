"""Application and host both on Windows x64, under Wine, with the QNN simulator of the Windows package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab_models
import numpy as np
import pytest
from labs import HERE, WindowsLab, run_program

Feeds = dict[str, "np.ndarray[Any, Any]"]


@pytest.fixture
def on_linux(tmp_path: Path) -> Callable[[Path, Feeds], Feeds]:
    """Run the same application on this machine, with the simulator of the Linux package."""
    pytest.importorskip("onnxruntime_qnn")

    def run(model: Path, feeds: Feeds) -> Feeds:
        np.savez(tmp_path / "linux_in.npz", **feeds)
        out = tmp_path / "linux_out.npz"
        program = run_program(Path(sys.executable), HERE / "application.py", model, tmp_path / "linux_in.npz", out)
        assert program.json()["placement"]["simulator"] is True
        with np.load(out) as results:
            return dict(results)

    return run


@pytest.fixture
def on_windows(windows_python: WindowsLab, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Feeds]]:
    def run(model: Path, feeds: Feeds, *arguments: str) -> tuple[dict[str, Any], Feeds]:
        np.savez(tmp_path / "windows_in.npz", **feeds)
        out = tmp_path / "windows_out.npz"
        report = windows_python.run(
            HERE / "application.py", model, tmp_path / "windows_in.npz", out, *arguments
        ).json()
        with np.load(out) as results:
            return report, dict(results)

    return run


@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["float", "quantized"])
def test_windows_and_linux_simulators_agree_bit_for_bit(
    kind: str,
    on_windows: Callable[..., tuple[dict[str, Any], Feeds]],
    on_linux: Callable[[Path, Feeds], Feeds],
    tmp_path: Path,
) -> None:
    if kind == "float":
        model, feeds = lab_models.text_direction(tmp_path), lab_models.text_direction_inputs()[0]
    else:
        model, feeds = lab_models.quantized_convolution(tmp_path), lab_models.quantized_convolution_inputs()

    report, windows = on_windows(model, feeds)

    assert report["system"] == "Windows"
    assert report["modules"] == []  # the application's process has not loaded onnxruntime or onnx
    assert report["placement"]["simulator"] is True
    assert report["placement"]["qnn_nodes"] > 0
    assert report["placement"]["cpu_nodes"] == 0
    linux = on_linux(model, feeds)
    assert windows.keys() == linux.keys()
    for name, array in windows.items():
        assert array.dtype == linux[name].dtype
        assert array.tobytes() == linux[name].tobytes(), name


@pytest.mark.parametrize("provider", ["QNNExecutionProvider", "CPUExecutionProvider"])
def test_a_model_at_a_non_ascii_path_runs_on_windows(
    provider: str, on_windows: Callable[..., tuple[dict[str, Any], Feeds]], tmp_path: Path
) -> None:
    folder = tmp_path / "Größe 模型"
    folder.mkdir()
    model = lab_models.convolution(folder)
    report, results = on_windows(model, lab_models.convolution_inputs(), "--provider", provider)
    assert report["providers"][0] == provider
    assert results["y"].any()


def test_a_missing_model_raises_the_same_typed_error_on_windows(windows_python: WindowsLab, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **lab_models.quantized_convolution_inputs())
    done = windows_python.run(
        HERE / "application.py", tmp_path / "absent.onnx", tmp_path / "in.npz", tmp_path / "out.npz"
    )
    assert done.returncode == 1
    assert "NoSuchFile" in done.stderr
    assert "absent.onnx" in done.stderr


def test_a_host_that_crashes_in_native_code_is_explained_on_windows(
    windows_python: WindowsLab, tmp_path: Path
) -> None:
    model = lab_models.nothing_to_compute(tmp_path)
    np.savez(tmp_path / "in.npz", x=np.zeros((0, 4), np.float32))
    done = windows_python.run(HERE / "application.py", model, tmp_path / "in.npz", tmp_path / "out.npz")
    assert done.returncode == 1
    assert "HostCrashed" in done.stderr
    assert "0xC0000094" in done.stderr
    assert "dimension of size 0" in done.stderr
    reports = list(Path(os.environ["QNNBRIDGE_STATE_DIR"]).glob("crashes/*.json"))
    assert reports, "no crash report"


def test_the_host_ends_with_an_application_that_is_terminated(windows_python: WindowsLab) -> None:
    report = windows_python.run(HERE / "watch_host_end.py").json()
    assert report["host_ended"], report
