"""`qnnbridge versions`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from qnnbridge.releases.table import load_releases
from qnnbridge_tools.cli import app

X_ELITE = ("--platform", "win_arm64", "--chip", "X Elite", "--system-sdk", "2.40", "--python", "3.13")


def versions(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["versions", *arguments])
    return result.exit_code, result.output


def document(*arguments: str) -> dict[str, Any]:
    exit_code, told = versions(*arguments, "--json")
    assert exit_code == 0, told
    read: dict[str, Any] = json.loads(told)
    return read


def test_the_best_one_comes_first_and_every_refusal_has_its_reason() -> None:
    exit_code, told = versions(*X_ELITE)
    assert exit_code == 0
    lines = told.splitlines()
    start = next(index for index, line in enumerate(lines) if "version" in line and "QNN SDK" in line)
    assert lines[start + 1].split()[:3] == ["best", "1.23.2", "2.37.1"]
    refused = [line for line in lines if line.startswith("no ")]
    assert len(refused) > 10
    assert all("newer than the 2.40" in line or "no wheel for Python 3.13" in line for line in refused)
    assert "Best here: onnxruntime-qnn 1.23.2" in told
    assert "qnnbridge setup-host --version 1.23.2" in told


def test_the_document_has_all_that_the_table_knows_of_the_platform() -> None:
    told = document(*X_ELITE)
    assert told["schema"] == 1
    assert told["best"] == "1.23.2"
    assert told["machine"]["hexagon"] == 73
    wanted = {release.version for release in load_releases() if release.platform == "win_arm64"}
    assert {release["version"] for release in told["releases"]} == wanted
    first = told["releases"][0]
    assert first["verdict"] == "works"
    assert first["qnn_sdk"].startswith("2.37.1.")
    assert first["stubs"] == [68, 73]
    assert all(release["reasons"] for release in told["releases"] if release["verdict"] == "refused")


def test_only_what_works_can_be_asked_for() -> None:
    told = document(*X_ELITE, "--working")
    assert {release["verdict"] for release in told["releases"]} == {"works", "doubtful"}


def test_if_nothing_fits_it_says_what_would_have_to_be_different() -> None:
    exit_code, told = versions("--platform", "win_arm64", "--system-sdk", "2.40", "--python", "3.14")
    assert exit_code == 0
    assert "No release of onnxruntime-qnn works here." in told
    assert "onnxruntime-qnn 1.23.2 would, with Python 3.11 to 3.13." in told
    _, told = versions("--platform", "win_arm64", "--system-sdk", "2.40", "--chip", "V81", "--python", "3.12")
    assert "would, with an NPU driver of QNN 2.51.0." in told
    _, told = versions("--platform", "win32")
    assert "Use an ARM64 Python for the host." in told


def test_an_onnxruntime_that_is_wanted_counts() -> None:
    told = document("--platform", "linux_x86_64", "--python", "3.12", "--ort", "1.31.1")
    verdicts = {release["version"]: release["verdict"] for release in told["releases"]}
    assert verdicts["2.3.0"] == "refused"
    assert verdicts["2.4.0"] == "works"


def test_without_options_it_is_about_this_computer() -> None:
    told = document()
    assert told["machine"]["python"] == "{}.{}".format(*sys.version_info[:2])
    assert told["best"] is not None
    best = told["releases"][0]
    assert "cp{}{}".format(*sys.version_info[:2]) in best["python"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--platform", "amiga"], "amiga"),
        (["--chip", "Core i7"], "Core i7"),
        (["--python", "two"], "two"),
        (["--system-sdk", "new"], "new"),
        (["--ort", "any"], "any"),
    ],
)
def test_what_is_not_understood_is_bad_input_with_an_example(arguments: list[str], word: str) -> None:
    exit_code, told = versions(*arguments)
    assert exit_code == 2
    assert f"'{word}'" in told
    assert "Fix:" in told


def test_it_works_without_numpy_and_onnxruntime() -> None:
    code = (
        "import sys\n"
        "for name in ('numpy', 'onnxruntime', 'onnxruntime_qnn', 'onnx', 'msgpack', 'psutil', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from qnnbridge_tools.cli import main\n"
        f"sys.argv = ['qnnbridge', 'versions', '--json', *{X_ELITE!r}]\n"
        "sys.exit(main())\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["best"] == "1.23.2"
