"""`qnnbridge versions`: verdicts, limits of the table, and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.fakes.commands import qnnbridge

from qnnbridge_host.model.releases import load_releases
from qnnbridge_tools.setup_host.this_machine import host_python
from qnnbridge_tools.versions.view import label_of

X_ELITE = ("--platform", "win_arm64", "--chip", "X Elite", "--system-sdk", "2.40", "--python", "3.13")


def versions(*arguments: str) -> tuple[int, str]:
    result = qnnbridge("versions", *arguments)
    return result.returncode, result.output


def document(*arguments: str) -> dict[str, Any]:
    exit_code, told = versions(*arguments, "--json")
    assert exit_code == 0, told
    read: dict[str, Any] = json.loads(told)
    return read


def table_lines(told: str) -> list[str]:
    lines = told.splitlines()
    start = next(index for index, line in enumerate(lines) if "version" in line and "QNN SDK" in line)
    return lines[start + 1 : lines.index("", start)]


def test_the_best_release_comes_first_and_every_refusal_has_its_reason() -> None:
    exit_code, told = versions(*X_ELITE)
    assert exit_code == 0
    lines = table_lines(told)
    assert lines[0].split() == ["best", "1.23.2", "2.37.1", "68", "73", "3.11-3.13", "itself"]
    refused = {line.split()[1]: line for line in lines if line.startswith("no ")}
    newer = {version for version, line in refused.items() if line.endswith("QNN too new")}
    assert {"2.7.0", "2.0.0", "1.24.1"} <= newer
    assert {version for version, line in refused.items() if line.endswith("no wheel")} == refused.keys() - newer
    assert "QNN too new: bundles a QNN that is newer than the 2.40 of the NPU driver." in told
    assert "no wheel: has no wheel for Python 3.13." in told
    assert "Best here: onnxruntime-qnn 1.23.2" in told
    before = told.partition("The table was read")[0]
    assert before.splitlines()[-1] == "Install it: qnnbridge setup --version 1.23.2"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        X_ELITE,
        (
            "--platform",
            "linux_aarch64",
            "--system-sdk",
            "2.47",
            "--chip",
            "V81",
            "--python",
            "3.11",
            "--ort",
            "1.28",
        ),
        ("--platform", "win_amd64", "--python", "3.8"),
        ("--platform", "win_arm64", "--chip", "8cx Gen 3", "--system-sdk", "2.27"),
        ("--platform", "win32"),
    ],
)
def test_the_table_fits_into_80_columns_and_explains_each_of_its_terms(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    exit_code, told = versions(*arguments)
    assert exit_code == 0
    assert [line for line in told.splitlines() if len(line) > 80] == []
    judged = document(*arguments)["releases"]
    if not judged:
        return
    lines = {line.split()[1]: line for line in table_lines(told)}
    for release in judged:
        deciding = [reason for reason in release["reasons"] if reason["severity"] != "note"]
        if not deciding or "dev" in release["version"]:
            continue
        word = label_of(deciding[0]["code"])
        assert lines[release["version"]].endswith(word)
        assert f"\n{word}: " in told


def test_every_possible_reason_has_its_own_text() -> None:
    codes = {
        reason["code"]
        for platform in ("win_arm64", "win_amd64", "linux_x86_64", "linux_aarch64")
        for more in (
            ["--ort", "1.23.2", "--chip", "V68", "--system-sdk", "2.22"],
            ["--ort", "1.31.1", "--chip", "V81"],
            ["--ort", "1.40.0", "--chip", "V81"],
        )
        for release in document("--platform", platform, "--python", "3.12", *more)["releases"]
        for reason in release["reasons"]
    }
    assert len(codes) > 8
    words = {code: label_of(code) for code in codes}
    assert len(set(words.values())) == len(words)
    assert max(map(len, words.values())) <= 15


def test_a_development_build_is_mentioned_in_the_text_and_listed_in_the_document() -> None:
    _, told = versions(*X_ELITE)
    assert not any("dev" in line for line in table_lines(told))
    assert "Not listed: development builds (1.20.2.dev20250213004)" in told
    assert "1.20.2.dev20250213004" in {release["version"] for release in document(*X_ELITE)["releases"]}


def test_the_document_has_all_data_of_the_table_for_the_platform() -> None:
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


def test_the_list_can_be_limited_to_working_releases() -> None:
    told = document(*X_ELITE, "--working")
    assert {release["verdict"] for release in told["releases"]} == {"works", "doubtful"}


def test_if_nothing_fits_the_required_change_is_named() -> None:
    exit_code, told = versions("--platform", "win_arm64", "--system-sdk", "2.40", "--python", "3.14")
    assert exit_code == 0
    assert "No release of onnxruntime-qnn works here." in told
    assert "onnxruntime-qnn 1.23.2 would, with Python 3.11 to 3.13." in told.replace("\n", " ")
    _, told = versions("--platform", "win_arm64", "--system-sdk", "2.40", "--chip", "V81", "--python", "3.12")
    assert "would, with an NPU driver of QNN 2.51.0." in told.replace("\n", " ")
    _, told = versions("--platform", "win32")
    assert "Use an ARM64 Python for the host." in told


def test_a_given_onnxruntime_version_is_considered() -> None:
    told = document("--platform", "linux_x86_64", "--python", "3.12", "--ort", "1.31.1")
    verdicts = {release["version"]: release["verdict"] for release in told["releases"]}
    assert verdicts["2.3.0"] == "refused"
    assert verdicts["2.4.0"] == "works"


def test_an_onnxruntime_newer_than_the_table_gets_no_definite_verdict() -> None:
    arguments = ("--platform", "win_arm64", "--python", "3.13", "--chip", "V73", "--ort")
    told = document(*arguments, "1.40.0")
    assert {one["version"]: one["verdict"] for one in told["releases"]}["2.7.0"] == "doubtful"
    assert (told["best"], told["newest_onnxruntime_tried"]) == ("2.7.0", "1.32.0")
    _, text = versions(*arguments, "1.40.0")
    words = " ".join(text.split())
    assert "It was not tested with onnxruntime 1.40.0" in words
    assert "onnxruntime was tried up to 1.32.0. Newer releases are unknown here" in words
    assert {one["verdict"] for one in document(*arguments, "1.32.0", "--working")["releases"]} == {"works"}


def test_without_options_the_result_is_for_this_computer() -> None:
    told = document()
    assert told["machine"]["python"] == "{}.{}".format(*sys.version_info[:2])
    assert told["best"] is not None
    best = told["releases"][0]
    assert "cp{}{}".format(*sys.version_info[:2]) in best["python"]


def test_an_application_on_an_older_python_is_judged_for_a_newer_host() -> None:
    """The host runs on another Python."""
    assert host_python((3, 10)) is None
    assert host_python((3, 11)) == (3, 11)
    assert host_python(None) is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--platform", "amiga"], "amiga"),
        (["--chip", "Core i7"], "Core i7"),
        (["--platform", "win_arm64", "--chip", "V99"], "V99"),
        (["--python", "two"], "two"),
        (["--system-sdk", "new"], "new"),
        (["--ort", "any"], "any"),
    ],
)
def test_an_unknown_value_is_bad_input_with_an_example(arguments: list[str], word: str) -> None:
    exit_code, told = versions(*arguments)
    assert exit_code == 2
    assert f"'{word}'" in told
    assert "Fix:" in told


def test_an_option_without_an_effect_on_the_platform_is_reported() -> None:
    note = "--chip and --system-sdk have no effect here: this kind of computer has no Qualcomm NPU."
    arguments = ("--platform", "linux_x86_64", "--chip", "V73", "--system-sdk", "2.40")
    exit_code, told = versions(*arguments)
    assert exit_code == 0
    assert note in told.replace("\n", " ")
    assert document(*arguments)["notes"] == [note]
    assert "nothing here" not in versions(*X_ELITE)[1]
    assert document(*X_ELITE)["notes"] == []
    assert document("--platform", "linux_x86_64")["notes"] == []


def test_versions_works_without_numpy_and_onnxruntime() -> None:
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
