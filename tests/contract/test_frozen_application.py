"""The README's application as PyInstaller freezes it, with a host outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import needs
from tests.contract.small_models import doubling

# Freezing takes 13 s of a core, and a busy machine has less.
pytestmark = [pytest.mark.process, pytest.mark.timeout(300), needs.a_host_python, needs.linux, needs.long_form]

EXAMPLES = Path(__file__).parents[2] / "examples"

PROGRAM = """
import sys
mode = sys.argv.pop(1)
if mode == "classify":
    import classify_app
    classify_app.main()
else:
    import numpy as np
    if mode == "dropin":
        import qnnbridge.dropin
        import onnxruntime as ort
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
    else:
        import qnnbridge as ort
    session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    print(session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist())
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "app.py").write_text(PROGRAM)
    (folder / "model.onnx").write_bytes(doubling())
    command = [sys.executable, "-m", "PyInstaller", "--onedir", "--log-level", "ERROR", "--paths", str(EXAMPLES)]
    for package in ("onnx", "ml_dtypes", "PIL", "yaml"):  # of the test's environment, not of the application
        command += ["--exclude-module", package]
    done = subprocess.run(
        [*command, "app.py"], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "dist" / "app" / "_internal" / "qnnbridge_host").exists()
    return folder


def run(
    application: Path, mode: str, variables: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QNNBRIDGE_HOST"))}
    return subprocess.run(
        [str(application / "dist" / "app" / "app"), mode, "model.onnx", *options],
        cwd=application,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def configuration(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(f"[host]\npython = '{sys.executable}'\n")
    return {"QNNBRIDGE_CONFIG": str(file)}


BY_VARIABLE = {"QNNBRIDGE_HOST_PYTHON": sys.executable}


def test_its_host_is_named_by_the_variable(application: Path) -> None:
    done = run(application, "classify", BY_VARIABLE, "--cpu")
    assert done.returncode == 0, done.stderr
    assert "placement: 0 nodes on QNN, 1 nodes on the CPU" in done.stdout


def test_its_host_is_named_by_the_configuration_file(application: Path, configuration: dict[str, str]) -> None:
    done = run(application, "classify", configuration, "--cpu")
    assert done.returncode == 0, done.stderr
    assert "placement: 0 nodes on QNN, 1 nodes on the CPU" in done.stdout


def test_without_a_host_it_says_what_the_shipper_must_do(application: Path, tmp_path: Path) -> None:
    variables = {"QNNBRIDGE_CONFIG": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = run(application, "classify", variables, "--cpu")
    assert done.returncode != 0
    assert "this application is frozen" in done.stderr
    assert "The application has to be shipped with a host" in done.stderr
    assert "pip install" not in done.stderr
    assert "qnnbridge setup" not in done.stderr


def test_the_drop_in(application: Path, configuration: dict[str, str]) -> None:
    done = run(application, "dropin", configuration)
    assert (done.returncode, done.stdout) == (0, "[[2.0, 2.0, 2.0, 2.0]]\n"), done.stderr


@pytest.fixture
def daemon_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = str(tmp_path / "run")
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", folder)
    yield folder
    stop = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "host", "stop"], capture_output=True, timeout=60
    )
    assert stop.returncode == 0


def test_the_daemon_is_started_with_the_hosts_python(
    application: Path, configuration: dict[str, str], daemon_folder: str
) -> None:
    for _ in range(2):  # the second one finds it
        done = run(application, "plain", {**configuration, "QNNBRIDGE_HOST": "daemon"})
        assert (done.returncode, done.stdout) == (0, "[[2.0, 2.0, 2.0, 2.0]]\n"), done.stderr


def test_a_daemon_without_a_host_is_the_same_error(application: Path, tmp_path: Path) -> None:
    variables = {"QNNBRIDGE_HOST": "daemon", "QNNBRIDGE_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    done = run(application, "plain", {**variables, "QNNBRIDGE_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode != 0
    assert "The application has to be shipped with a host" in done.stderr
    assert "pip install" not in done.stderr
