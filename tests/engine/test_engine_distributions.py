"""Installed packages are detected by file names alone, for the layouts of real wheels."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qnnbridge_host.engine import providers
from qnnbridge_host.machine import installed, installed_versions
from qnnbridge_host.model.optimizers import EXACT_ENTRIES
from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
RECORDS = Path(__file__).parent / "wheel_records"
BUILTIN = [
    "1.20.0-win_amd64",
    "1.20.0-win_arm64",
    "1.22.2-win_amd64",
    "1.23.2-win_amd64",
    "1.23.2-win_arm64",
    "1.24.1-win_amd64",
    "1.24.1-win_arm64",
]
PLUGIN = ["2.7.0-win_amd64", "2.7.0-win_arm64"]
QNN_SDK = {"2.7.0": "2.51.0"}


def lay_out(site: Path, wheel: str) -> Path:
    """Create a folder with the files of a wheel. All files are empty except the one that is read."""
    version = wheel.partition("-")[0]
    with open(RECORDS / f"{wheel}.txt", newline="") as file:
        for name, _hash, _size in csv.reader(file):
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if path.name == "build_and_package_info.py":
                # The real text, with the line ends of the Windows builds.
                lines = ["package_name = 'onnxruntime-qnn'", f"__version__ = '{version}'"]
                if version in QNN_SDK:
                    lines.append(f"qnn_version = '{QNN_SDK[version]}'")
                path.write_bytes("".join(line + "\r\n" for line in lines).encode())
    return site


def plain_onnxruntime(site: Path, version: str = "1.31.1") -> None:
    """Create the layout of plain onnxruntime's wheel."""
    (site / f"onnxruntime-{version}.dist-info").mkdir(parents=True)
    capi = site / "onnxruntime" / "capi"
    capi.mkdir(parents=True, exist_ok=True)
    (site / "onnxruntime" / "__init__.py").touch()
    (capi / "build_and_package_info.py").write_text(f"package_name = 'onnxruntime'\n__version__ = '{version}'\n")


@pytest.mark.parametrize("wheel", BUILTIN)
def test_a_1x_wheel_is_recognised_and_has_its_backend_in_the_folder_of_onnx_runtime(
    tmp_path: Path, wheel: str
) -> None:
    found = installed([str(lay_out(tmp_path, wheel))])
    version = wheel.partition("-")[0]
    assert (found.generation, found.onnxruntime_qnn, found.onnxruntime) == ("builtin", version, version)
    assert found.problem is None
    adapter = providers.load_builtin([QNN, CPU], found)
    choice = providers.choose(SessionSpec("model.onnx"), [QNN, CPU], adapter, records=False)
    assert choice.qnn is not None
    assert choice.qnn["backend_path"] == str(tmp_path / "onnxruntime" / "capi" / "QnnHtp.dll")
    assert choice.entries == {"session.disable_cpu_ep_fallback": "1", **EXACT_ENTRIES}
    assert choice.target is not None
    # QNN is the only provider in the classic argument: the CPU would contradict the strict session.
    assert list(adapter.attach(None, choice.qnn, choice.target.backend)) == [(QNN, choice.qnn)]


@pytest.mark.parametrize("wheel", BUILTIN)
def test_only_the_1x_wheel_without_stubs_is_a_simulator(tmp_path: Path, wheel: str) -> None:
    adapter = providers.load_builtin([QNN, CPU], installed([str(lay_out(tmp_path, wheel))]))
    choice = providers.choose(SessionSpec("model.onnx"), [QNN, CPU], adapter, records=False)
    assert adapter.simulator is (wheel == "1.22.2-win_amd64")
    assert choice.qnn is not None
    # With an NPU the driver detects the chip; the simulator needs an option.
    assert choice.qnn.get("soc_model") == ("60" if adapter.simulator else None)


def test_a_1x_wheel_refuses_newer_options(tmp_path: Path) -> None:
    adapter = providers.load_builtin([QNN, CPU], installed([str(lay_out(tmp_path, "1.23.2-win_arm64"))]))
    spec = SessionSpec("model.onnx", (ProviderSpec(QNN, {"skip_backend_op_validation": "1"}),))
    with pytest.raises(ValueError, match=r"1\.23\.2"):
        providers.choose(spec, [QNN, CPU], adapter, records=False)


@pytest.mark.parametrize("wheel", PLUGIN)
def test_a_2x_wheel_is_a_plugin_of_plain_onnx_runtime(tmp_path: Path, wheel: str) -> None:
    lay_out(tmp_path, wheel)
    plain_onnxruntime(tmp_path)
    found = installed([str(tmp_path)])
    assert (found.generation, found.onnxruntime, found.onnxruntime_qnn) == ("plugin", "1.31.1", "2.7.0")
    assert found.qnn_sdk == "2.51.0"
    assert found.problem is None
    assert installed_versions([str(tmp_path)]) == {
        "onnxruntime": "1.31.1",
        "onnxruntime_qnn": "2.7.0",
        "qnn_sdk": "2.51.0",
    }


def test_a_2x_wheel_without_onnx_runtime_is_an_explained_problem(tmp_path: Path) -> None:
    found = installed([str(lay_out(tmp_path, "2.7.0-win_arm64"))])
    assert found.generation is None
    assert "onnxruntime is not installed" in (found.problem or "")


def test_a_1x_wheel_that_plain_onnx_runtime_has_overwritten_is_an_explained_problem(tmp_path: Path) -> None:
    lay_out(tmp_path, "1.24.1-win_arm64")
    plain_onnxruntime(tmp_path)
    found = installed([str(tmp_path)])
    assert found.generation is None
    assert found.onnxruntime == "1.31.1"
    assert "has replaced the QNN build" in (found.problem or "")
    adapter = providers.load_builtin([CPU], found)
    with pytest.raises(ProviderUnavailable) as caught:
        adapter.require()
    assert "Uninstall" in (caught.value.fix or "")


def test_without_installed_packages_there_is_no_problem_and_no_version(tmp_path: Path) -> None:
    found = installed([str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "a.zip")])
    assert (found.generation, found.onnxruntime, found.problem) == (None, None, None)
    assert installed_versions([str(tmp_path)]) == {}


def test_the_first_folder_on_the_path_is_used(tmp_path: Path) -> None:
    plain_onnxruntime(tmp_path / "a", "1.31.1")
    plain_onnxruntime(tmp_path / "b", "1.24.4")
    assert installed([str(tmp_path / "a"), str(tmp_path / "b")]).onnxruntime == "1.31.1"


def test_packages_related_to_onnx_runtime_are_not_mistaken_for_it(tmp_path: Path) -> None:
    for name in (
        "onnxruntime_genai-0.9.0",
        "onnxruntime_extensions-0.14.0",
        "onnx-1.23.2",
        "numpy_financial-1.0.0",
    ):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert installed([str(tmp_path)]).distributions == {}


def test_the_search_takes_a_few_milliseconds_even_among_a_thousand_packages(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"package_{number}-1.0.dist-info").mkdir()
    best = min(_seconds(tmp_path) for _ in range(5))
    assert best < 0.05  # measured: 2 ms


def _seconds(folder: Path) -> float:
    started = time.perf_counter()
    installed([str(folder)])
    return time.perf_counter() - started


def test_importing_the_engine_imports_neither_numpy_nor_onnx_runtime() -> None:
    code = (
        "import sys, qnnbridge_host.engine, qnnbridge_host.machine as d; d.installed_versions();"
        "print(sorted({'numpy', 'onnxruntime', 'onnxruntime_qnn', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
