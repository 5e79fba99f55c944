"""A folder that would load native code or write files: refused, unless the caller allows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import NativeCodeRefused, OptionError
from tests.genai.conftest import Folders, prompt

pytestmark = [pytest.mark.process, pytest.mark.simulator]


@pytest.fixture
def hostile(folders: Folders, tmp_path: Path) -> Path:
    """A folder whose config writes a profile to `tmp_path / "profile..."`."""
    folder = tmp_path / "model"
    shutil.copytree(folders("dynamic"), folder)
    change(folder, enable_profiling=str(tmp_path / "profile"))
    return folder


def change(folder: Path, **options: Any) -> None:
    path = folder / "genai_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["model"]["decoder"].setdefault("session_options", {}).update(options)
    path.write_text(json.dumps(config), "utf-8")


def profiles(folder: Path) -> list[Path]:
    return list(folder.parent.glob("profile*"))


def test_a_folder_with_native_options_is_refused_and_nothing_is_written(
    hostile: Path, host: qnnbridge.Host
) -> None:
    with pytest.raises(NativeCodeRefused) as refused:
        genai.Model(hostile, host=host)
    assert "enable_profiling" in str(refused.value)
    assert str(hostile.parent / "profile") in str(refused.value)
    assert isinstance(refused.value, RuntimeError)
    with pytest.raises(NativeCodeRefused):
        genai.Model(hostile, host=host, allow_native=["custom_ops_library"])
    assert not profiles(hostile)


@pytest.mark.parametrize("of_config", [False, True])
def test_the_folder_is_loaded_with_permission(of_config: bool, hostile: Path, host: qnnbridge.Host) -> None:
    allowed = ["enable_profiling"]
    model = (
        genai.Model(genai.Config(str(hostile), allow_native=allowed), host=host)
        if of_config
        else genai.Model(hostile, host=host, allow_native=allowed)
    )
    assert list(genai.generate(model, prompt(5), max_tokens=3)) is not None
    # A loaded model is not shared with an application that did not permit it.
    with pytest.raises(NativeCodeRefused):
        genai.Model(hostile, host=host)
    model.close()
    assert profiles(hostile)


def test_a_native_library_of_the_folder_is_not_loaded(
    folders: Folders, host: qnnbridge.Host, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders("dynamic"), folder)
    (folder / "ops.so").write_bytes(b"no library")
    change(folder, custom_ops_library="ops.so")
    with pytest.raises(NativeCodeRefused, match=r"ops\.so"):
        genai.Model(folder, host=host)
    # With permission ONNX Runtime tries it.
    with pytest.raises(qnnbridge.errors.BridgeError) as failed:
        genai.Model(folder, host=host, allow_native=["custom_ops_library"])
    assert not isinstance(failed.value, NativeCodeRefused)
    assert host.stats.crashes == 0


def test_options_set_by_the_caller_need_no_permission(
    folders: Folders, host: qnnbridge.Host, tmp_path: Path
) -> None:
    config = genai.Config(str(folders("dynamic")))
    options = {"session_options": {"enable_profiling": str(tmp_path / "profile")}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    genai.Model(config, host=host).close()


@pytest.mark.parametrize("wrong", ["custom_ops_library", [5]])
def test_a_permission_is_a_list_of_names(wrong: Any, folders: Folders, host: qnnbridge.Host) -> None:
    with pytest.raises(OptionError, match="allow_native"):
        genai.Model(folders("dynamic"), host=host, allow_native=wrong)


def test_chat_refuses_the_folder_and_accepts_a_permission(hostile: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    command = [sys.executable, "-m", "qnnbridge_tools", "chat", str(hostile)]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], input="", capture_output=True, text=True, encoding="utf-8", timeout=120, check=False
        )

    refused = run()
    assert refused.returncode == 2
    assert "--allow-native enable_profiling" in refused.stderr
    assert run("--allow-native", "enable_profiling").returncode == 0
