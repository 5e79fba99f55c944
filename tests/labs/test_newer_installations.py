"""Releases that the tables lack: the installed packages with later version numbers in a new environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import SITE, doctor, environment, python_of
from lab_models import convolution, convolution_inputs
from tests.genai.conftest import Folders, folders, prompt
from tests.genai.plain_loop import PlainLoop

import qnnbridge
from qnnbridge import genai

__all__ = ["folders"]

pytestmark = [pytest.mark.process, pytest.mark.simulator]

QNN, GENAI = "2.8.0", "0.19.0"
NEWER = "newer than this table"
SOC: list[Any] = [("QNNExecutionProvider", {"soc_model": "60"})]


def renamed(target: Path, module: str, version: str) -> Path:
    """Create a folder with the installed distribution of a module under another version."""
    target.mkdir()
    for entry in SITE.glob(f"{module}*"):
        if entry.name.endswith(".dist-info"):
            old = entry.name.removeprefix(f"{module}-").removesuffix(".dist-info")
        elif entry.name != module:
            (target / entry.name).symlink_to(entry)
    made = target / f"{module}-{version}.dist-info"
    shutil.copytree(SITE / f"{module}-{old}.dist-info", made)
    metadata = made / "METADATA"
    metadata.write_text(metadata.read_text("utf-8").replace(f"Version: {old}", f"Version: {version}", 1), "utf-8")
    package = target / module
    package.mkdir()
    for entry in (SITE / module).iterdir():
        text = entry.read_text("utf-8") if entry.suffix == ".py" else ""
        if f"'{old}'" in text:
            (package / entry.name).write_text(text.replace(f"'{old}'", f"'{version}'"), "utf-8")
        else:
            (package / entry.name).symlink_to(entry)
    # Changed files have another hash.
    lines = (made / "RECORD").read_text("utf-8").replace(f"{module}-{old}.dist", f"{module}-{version}.dist")
    kept = [line for line in lines.splitlines() if "METADATA," not in line and ".py," not in line]
    (made / "RECORD").write_text("\n".join(kept) + "\n", "utf-8")
    return target


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("newer")
    replaced = {
        "onnxruntime_qnn": renamed(root / "qnn", "onnxruntime_qnn", QNN),
        "onnxruntime_genai": renamed(root / "genai", "onnxruntime_genai", GENAI),
    }
    return python_of(environment(root / "env", replaced))


@pytest.fixture
def host(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[qnnbridge.Host]:
    monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    with qnnbridge.Host(python=python) as host:
        host.start()
        yield host


def test_doctor_names_the_newer_packages_and_reports_no_finding(python: str) -> None:
    report = doctor(python=python)
    assert [one["code"] for one in report["findings"]] == []
    said = {one["check"]: one["text"] for one in report["healthy"]}
    assert f"onnxruntime-qnn {QNN} ({NEWER})" in said["packages"]
    assert f"onnxruntime-genai {GENAI} ({NEWER}" in said["text generation"]


def test_versions_names_the_newer_packages(python: str) -> None:
    command = [python, "-m", "qnnbridge_tools", "versions", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    installed = {one["name"]: (one["version"], one["standing"]) for one in json.loads(told)["installed"]}
    assert installed["onnxruntime-qnn"] == (QNN, "newer")
    assert installed["onnxruntime-genai"] == (GENAI, "newer")
    assert installed["onnxruntime"][1] == "listed"
    text = subprocess.run(command[:-1], capture_output=True, text=True, timeout=100, check=True).stdout
    assert f"Installed here: onnxruntime-qnn {QNN}, {NEWER}" in " ".join(text.split())


def test_a_session_runs_with_one_log_message_and_separate_cache_entries(
    host: qnnbridge.Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert host.info.versions["onnxruntime_qnn"] == QNN
    model, feeds = convolution(tmp_path), convolution_inputs()
    results = []
    with qnnbridge.Host() as known:
        for one, expected in ((known, "miss"), (host, "miss"), (known, "hit"), (host, "hit")):
            session = qnnbridge.InferenceSession(model, host=one, providers=SOC, cache=True)
            assert str(session.cache).startswith(expected), "an entry of another release is never used"
            assert session.placement.cpu_nodes == 0
            results.append(session.run(None, feeds)[0])
            session.close()
    assert all(np.array_equal(results[0], one) for one in results)
    assert caplog.text.count(f"onnxruntime-qnn {QNN} is {NEWER}") == 1


def test_a_compiled_model_is_judged_by_its_qnn_version(python: str, tmp_path: Path) -> None:
    """The SDK version in a context binary decides, not the version of the package, and the SDK is the same."""
    model, compiled = convolution(tmp_path), tmp_path / "compiled.onnx"
    arguments = ["compile", str(model), "-o", str(compiled), "--soc-model", "60"]
    subprocess.run([sys.executable, "-m", "qnnbridge_tools", *arguments], timeout=200, check=True)
    command = [python, "-m", "qnnbridge_tools", "inspect", str(compiled)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    lines: list[Any] = [line.split() for line in told.splitlines()]
    assert ["verdict", "ok"] in lines
    assert f"onnxruntime-qnn {QNN}" in told


def test_generation_is_tried_first_and_gives_the_right_tokens(host: qnnbridge.Host, folders: Folders) -> None:
    for kind in ("dynamic", "window-qnn"):
        model = genai.Model(folders(kind), host=host)
        assert model.info.notes[0].startswith(f"onnxruntime-genai {GENAI} is {NEWER}")
        one = genai.Generator(model, genai.GeneratorParams(model))
        one.append_tokens(prompt(9))
        made = []
        for _ in range(8):
            one.generate_next_token()
            made.append(int(one.get_next_tokens()[0]))
        assert made == PlainLoop(folders(kind)).generate(prompt(9), 8)
    assert host.stats.crashes == 0
