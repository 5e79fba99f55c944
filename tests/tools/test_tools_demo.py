"""`qnnbridge demo` and `--version` with a real host."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import venv
from pathlib import Path

import pytest
from tests.fakes.commands import in_a_process, qnnbridge

from qnnbridge_protocol import __version__

pytestmark = pytest.mark.simulator


@pytest.fixture(scope="module", autouse=True)
def _needs_qnn() -> None:
    pytest.importorskip("onnxruntime_qnn")


def test_the_demo_is_computed_by_qnn_and_every_answer_is_right() -> None:
    result = qnnbridge("demo", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["ok"] is True
    assert (told["right"], told["total"]) == (6, 6)
    assert all(line["agree"] and line["right"] for line in told["lines"])
    assert [line["qnn"]["upside_down"] for line in told["lines"]] == [line["upside_down"] for line in told["lines"]]
    assert 0 < told["largest_difference"] < 0.01, "0 would mean that the CPU answered twice"
    assert told["placement"]["qnn_nodes"] > 0
    assert told["placement"]["cpu_nodes"] == 0
    assert told["placement"]["simulator"] is True
    assert told["placement"]["soc_model"] == "60"
    assert told["host"]["pid"] != os.getpid()
    assert told["times"]["host_startup_seconds"] > 0
    assert told["times"]["qnn"]["load_seconds"] > 0


@pytest.fixture(scope="module")
def python_without_qnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has onnxruntime but not onnxruntime-qnn."""
    if sys.platform == "win32":
        pytest.skip("builds a site-packages folder of links, which need a privilege on Windows")
    folder = tmp_path_factory.mktemp("without-qnn")
    venv.create(folder, with_pip=False)
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in ("onnxruntime", "numpy", "msgpack", "psutil", "platformdirs", "flatbuffers", "google"):
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        package = Path((spec.submodule_search_locations or [str(spec.origin)])[0])
        (site / package.name).symlink_to(package)
        for libraries in package.parent.glob(f"{name}.libs"):
            (site / libraries.name).symlink_to(libraries)
        for told in package.parent.glob(f"{name}-*.dist-info"):
            (site / told.name).symlink_to(told)
    for name in ("qnnbridge_host", "qnnbridge_os", "qnnbridge_protocol"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (site / name).symlink_to(Path(spec.origin).parent)
    return folder / "bin" / "python"


def test_without_qnn_the_demo_uses_the_cpu_and_names_what_to_install(python_without_qnn: Path) -> None:
    # An encoding that lacks half blocks and "ü": the demo must not need more than ASCII.
    result = in_a_process(
        "demo", "--host-python", str(python_without_qnn), PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert result.returncode == 1
    assert re.search(r"^Departures +- +upright, \d+\.\d % sure +- +yes$", result.stdout, re.M), result.stderr
    assert re.search(r"^THIS SIDE UP +- +upside down, ", result.stdout, re.M)
    assert "6 of 6 right, computed by the CPU provider only." in result.stdout
    assert "QNN could not be used: " in result.stdout
    assert "Fix: " in result.stdout
    assert re.search(r"host start-up +\d", result.stdout)
    assert result.stdout.isascii()


def test_without_qnn_the_json_has_the_reason(python_without_qnn: Path) -> None:
    result = qnnbridge("demo", "--json", "--host-python", str(python_without_qnn))
    assert result.returncode == 1
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert told["placement"] is None
    assert told["qnn_error"]["code"] == "model.ProviderUnavailable"
    assert told["lines"][0]["cpu"] is not None
    assert told["lines"][0]["qnn"] is None


def test_without_any_host_the_demo_fails_with_the_fix() -> None:
    result = qnnbridge("demo", "--host-python", "/no/such/python")
    assert result.returncode == 2, "it is what was typed that is wrong"
    assert "'/no/such/python' was given as the host's interpreter, but that file does not exist" in result.stderr
    assert "Fix:" in result.stderr
    assert "Traceback" not in result.stderr
    assert "right" not in result.stdout


def test_version_reports_both_sides() -> None:
    result = qnnbridge("--version")
    assert result.returncode == 0, result.stderr
    application, host = result.stdout.split("Host\n")
    assert application.startswith(f"qnnbridge {__version__}\n")
    assert "Python " in application
    assert sys.executable in application
    assert re.search(r"onnxruntime \d.*onnxruntime-qnn \d.*QNN SDK \S*\d", host), host


def test_version_works_without_a_host() -> None:
    result = qnnbridge("--version", QNNBRIDGE_HOST_PYTHON="/no/such/python")
    assert result.returncode == 0, result.stderr
    assert f"qnnbridge {__version__}" in result.stdout
    assert "none" in result.stdout.split("Host\n")[1]
    assert result.stderr == ""
