"""An application on Python 3.10 without onnxruntime, hosts on every Python that onnxruntime-qnn supports."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import lab_models
import numpy as np
import pytest
from labs import HERE, run_program

pytestmark = pytest.mark.simulator


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, np.ndarray]:
    """Return the results with the interpreter of the tests as host."""
    folder = tmp_path_factory.mktemp("expected")
    np.savez(folder / "in.npz", **lab_models.quantized_convolution_inputs())
    model = lab_models.quantized_convolution(folder)
    run_program(Path(sys.executable), HERE / "application.py", model, folder / "in.npz", folder / "out.npz").json()
    with np.load(folder / "out.npz") as results:
        return dict(results)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_an_application_on_python_3_10_gets_the_same_result_from_a_host_on(
    version: str,
    python310: Path,
    host_pythons: Mapping[str, str],
    expected: Mapping[str, np.ndarray],
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "in.npz", **lab_models.quantized_convolution_inputs())
    model = lab_models.quantized_convolution(tmp_path)
    report = run_program(
        python310,
        HERE / "application.py",
        model,
        tmp_path / "in.npz",
        tmp_path / "out.npz",
        "--host",
        host_pythons[version],
    ).json()

    assert report["python"].startswith("3.10.")
    assert report["has_onnxruntime"] is False
    assert report["host"]["python"].startswith(version + ".")
    assert report["placement"]["qnn_nodes"] > 0
    assert report["placement"]["cpu_nodes"] == 0
    with np.load(tmp_path / "out.npz") as results:
        assert results["y"].tobytes() == expected["y"].tobytes()


def test_without_onnxruntime_and_without_a_host_interpreter_the_error_names_what_to_install(
    python310: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **lab_models.quantized_convolution_inputs())
    model = lab_models.quantized_convolution(tmp_path)
    done = run_program(python310, HERE / "application.py", model, tmp_path / "in.npz", tmp_path / "out.npz")

    assert done.returncode == 1
    assert "HostNotFound" in done.stderr
    assert "qnnbridge setup" in done.stderr
