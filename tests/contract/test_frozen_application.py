"""Applications as PyInstaller freezes them, in one folder and in one file, with a host outside of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import needs
from tests.contract.small_models import doubling

# Freezing takes 40 s of one core, and more on a busy machine.
pytestmark = [pytest.mark.process, pytest.mark.timeout(400), needs.a_host_python, needs.linux, needs.long_form]
needs.package("PyInstaller")

EXAMPLES = Path(__file__).parents[2] / "examples"
GRACE_S = 5.0

PROGRAM = """
import importlib.util
import multiprocessing
import sys
import time

PACKAGES = ("IPython", "onnx", "onnxruntime", "pytest", "soxr", "tokenizers", "qnnbridge.speech", "qnnbridge_host")

def double(number):
    import numpy as np
    import qnnbridge.dropin
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
    session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.full((1, 4), number, np.float32)})[0].tolist()

def main():
    mode = sys.argv.pop(1)
    if mode == "classify":
        import classify_app
        classify_app.main()
    elif mode == "shipped":
        import shipped_app
        shipped_app.main()
    elif mode == "dropin":
        print(double(1))
    elif mode == "processes":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(double(1), pool.map(double, [2]))
    elif mode == "cached":
        import qnnbridge
        import shipped_app
        host = qnnbridge.Host(python=shipped_app.HOST_PYTHON)
        print(qnnbridge.InferenceSession(shipped_app.MODEL, host=host, cache=True).cache.state)
    elif mode == "packages":
        print([name for name in PACKAGES if importlib.util.find_spec(name)])
    else:
        import numpy as np
        import qnnbridge
        session = qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
        print(session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist(), flush=True)
        if mode == "wait":
            print(session.host.info.pid, flush=True)
            time.sleep(100)

if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
"""

# As `pyinstaller app.py` and `pyinstaller --onefile app.py` do, with one analysis for both. The excluded packages
# belong to the test's environment, and not to the application.
SPEC = f"""
found = Analysis(
    ["app.py"],
    pathex=[{str(EXAMPLES)!r}],
    datas=[("model.onnx", ".")],
    excludes=["ml_dtypes", "onnxruntime", "yaml"],
)
pure = PYZ(found.pure)
EXE(pure, found.scripts, found.binaries, found.datas, name="one")
COLLECT(EXE(pure, found.scripts, exclude_binaries=True, name="app"), found.binaries, found.datas, name="app")
"""


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "app.py").write_text(PROGRAM)
    (folder / "app.spec").write_text(SPEC)
    (folder / "model.onnx").write_bytes(doubling())
    command = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "app.spec"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr
    assert not (folder / "dist" / "app" / "_internal" / "qnnbridge_host").exists()
    return folder


@pytest.fixture(params=["app/app", "one"], ids=["onedir", "onefile"])
def program(request: pytest.FixtureRequest, application: Path) -> Path:
    return application / "dist" / str(request.param)


def variables_of(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QNNBRIDGE_HOST"))}
    return {**kept, **variables}


def run(
    application: Path, mode: str, variables: Mapping[str, str], *options: str, program: str = "app/app"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(application / "dist" / program), mode, "model.onnx", *options],
        cwd=application,
        env=variables_of(variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def host_beside(program: Path) -> Iterator[Path]:
    """Return a Python in the folder `host` next to the program."""
    python = program.parent / "host" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield python
    python.unlink()
    python.parent.rmdir()
    python.parent.parent.rmdir()


def run_elsewhere(program: Path, folder: Path, mode: str) -> subprocess.CompletedProcess[str]:
    """Run the application in a new folder without models and settings."""
    settings = {"QNNBRIDGE_CONFIG": "", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TMPDIR": str(folder)}
    settings |= {"QNNBRIDGE_CACHE": "1", "QNNBRIDGE_CACHE_DIR": str(folder / "cache")}
    command = [str(program), mode]
    return subprocess.run(
        command, cwd=folder, env=variables_of(settings), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.simulator
@pytest.mark.usefixtures("host_beside")
def test_the_frozen_program_of_the_documentation_runs_its_model_on_the_host_in_its_folder(
    program: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    done = run_elsewhere(program, tmp_path, "shipped")
    assert done.returncode == 0, done.stderr
    values = re.findall(r"\d+\.\d*", done.stdout.splitlines()[0])
    assert [float(one) for one in values] == pytest.approx(4 * [2.0], rel=1e-5)
    assert "<InferenceSession model.onnx: 1 of 1 node on QNN (simulator)" in done.stdout
    assert [one for one in os.listdir(tmp_path) if one.startswith("_MEI")] == []


@pytest.mark.simulator
@pytest.mark.usefixtures("host_beside")
def test_the_cache_recognises_a_model_whose_path_changes_with_each_start(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    first, second = (run_elsewhere(program, tmp_path, "cached") for _ in range(2))
    assert (first.stdout, second.stdout) == ("miss\n", "hit\n"), first.stderr + second.stderr


def test_the_frozen_program_of_the_documentation_reports_the_missing_host(program: Path, tmp_path: Path) -> None:
    done = run_elsewhere(program, tmp_path, "shipped")
    assert done.returncode != 0
    place = program.parent / "host" / "bin" / "python3"
    assert (
        f"HostNotFound: '{place}' was given as the host's interpreter, but that file does not exist." in done.stderr
    )
    assert "The application has to be shipped with a host" in done.stderr
    assert "qnnbridge setup" not in done.stderr
    assert [one for one in os.listdir(tmp_path) if one.startswith("_MEI")] == []


def test_packages_that_no_application_needs_are_not_frozen(application: Path, tmp_path: Path) -> None:
    done = run_elsewhere(application / "dist" / "app" / "app", tmp_path, "packages")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_frozen_program_leaves_no_process_and_no_file(
    program: Path, application: Path, how: signal.Signals, tmp_path: Path
) -> None:
    settings = {**BY_VARIABLE, "TMPDIR": str(tmp_path)}
    command: list[Any] = [program, "wait", "model.onnx"]
    with subprocess.Popen(
        command,
        cwd=application,
        env=variables_of(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launched:
        assert launched.stdout is not None
        assert json.loads(launched.stdout.readline()) == [[2.0, 2.0, 2.0, 2.0]]
        host = int(launched.stdout.readline())
        # With one file, the started process is the launcher, and its child is the program.
        pid = psutil.Process(host).ppid()
        assert (pid == launched.pid) == (program.name == "app")
        names = [one.partition("=")[0] for one in Path(f"/proc/{host}/environ").read_text().split("\0")]
        assert [one for one in names if one.startswith(("_PYI", "_MEI", "LD_LIBRARY_PATH"))] == []
        os.kill(pid, how)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and (running(pid) or running(host) or launched.poll() is None):
            time.sleep(0.05)
        assert not running(host)
        assert launched.poll() is not None
    assert [one for one in os.listdir(tmp_path) if one.startswith("_MEI")] == []


@pytest.fixture
def configuration(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(f"[host]\npython = '{sys.executable}'\n")
    return {"QNNBRIDGE_CONFIG": str(file)}


BY_VARIABLE = {"QNNBRIDGE_HOST_PYTHON": sys.executable}


def test_a_frozen_program_finds_its_host_by_the_environment_variable(application: Path) -> None:
    done = run(application, "classify", BY_VARIABLE, "--cpu")
    assert done.returncode == 0, done.stderr
    assert "placement: 0 nodes on QNN, 1 nodes on the CPU" in done.stdout


def test_a_frozen_program_finds_its_host_by_the_configuration_file(
    application: Path, configuration: dict[str, str]
) -> None:
    done = run(application, "classify", configuration, "--cpu")
    assert done.returncode == 0, done.stderr
    assert "placement: 0 nodes on QNN, 1 nodes on the CPU" in done.stdout


def test_without_a_host_the_error_tells_the_author_of_the_program_what_to_do(
    application: Path, tmp_path: Path
) -> None:
    variables = {"QNNBRIDGE_CONFIG": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = run(application, "classify", variables, "--cpu")
    assert done.returncode != 0
    assert "this application is frozen" in done.stderr
    assert "The application has to be shipped with a host" in done.stderr
    assert "pip install" not in done.stderr
    assert "qnnbridge setup" not in done.stderr


def test_the_drop_in_works_in_a_frozen_program(application: Path, configuration: dict[str, str]) -> None:
    done = run(application, "dropin", configuration)
    assert (done.returncode, done.stdout) == (0, "[[2.0, 2.0, 2.0, 2.0]]\n"), done.stderr


@pytest.mark.parametrize("program", ["app/app", "one"])
def test_the_drop_in_works_in_child_processes_of_a_frozen_program(
    application: Path, configuration: dict[str, str], program: str
) -> None:
    done = run(application, "processes", configuration, program=program)
    expected = "[[2.0, 2.0, 2.0, 2.0]] [[[4.0, 4.0, 4.0, 4.0]]]\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.fixture
def daemon_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = str(tmp_path / "run")
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", folder)
    yield folder
    stop = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "host", "stop"], capture_output=True, timeout=60
    )
    assert stop.returncode == 0


def test_a_frozen_program_starts_the_daemon_with_the_python_of_the_host(
    application: Path, configuration: dict[str, str], daemon_folder: str
) -> None:
    for _ in range(2):  # the second start finds it
        done = run(application, "plain", {**configuration, "QNNBRIDGE_HOST": "daemon"})
        assert (done.returncode, done.stdout) == (0, "[[2.0, 2.0, 2.0, 2.0]]\n"), done.stderr


def test_a_daemon_without_a_host_raises_the_same_error_in_a_frozen_program(
    application: Path, tmp_path: Path
) -> None:
    variables = {"QNNBRIDGE_HOST": "daemon", "QNNBRIDGE_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    done = run(application, "plain", {**variables, "QNNBRIDGE_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode != 0
    assert "The application has to be shipped with a host" in done.stderr
    assert "pip install" not in done.stderr
