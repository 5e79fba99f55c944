"""Crashes of an emulated ARM64 host reach the x86_64 application with their exit codes, and are explained."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

X = np.arange(4, dtype=np.float32)

DEATHS = {
    "segv": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "illegal_instruction": signal.SIGILL,
    f"signal:{int(signal.SIGKILL)}": signal.SIGKILL,
}


def death(arm64_python: str, action: str, when: str, folder: Path) -> pytest.ExceptionInfo[errors.HostCrashed]:
    model = folder / "deadly.onnx"
    model.write_bytes(script(**{when: [action]}))
    with fake_host(python=arm64_python) as host:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        assert host.info.machine in ("aarch64", "ARM64")
        with pytest.raises(errors.HostCrashed) as caught:
            qnnbridge.InferenceSession(model, host=host, retry=0).run(None, {"x": X}, retry=0)
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
    return caught


@pytest.mark.parametrize("when", ["on_create", "on_run"])
@pytest.mark.parametrize("action", DEATHS)
def test_a_crash_is_noticed_and_explained_and_the_next_model_works(
    arm64_python: str, action: str, when: str, tmp_path: Path
) -> None:
    number = DEATHS[action]
    caught = death(arm64_python, action, when, tmp_path)
    if caught.value.details["exit"]["number"] == -signal.SIGSEGV != -number:
        # The emulator itself crashed once in hundreds of runs, while it ended the threads of the emulated process.
        caught = death(arm64_python, action, when, tmp_path)
    text = str(caught.value)
    assert ("creating a session of deadly.onnx" if when == "on_create" else "running deadly.onnx") in text
    assert number.name in text
    assert caught.value.cause
    assert caught.value.details["exit"]["number"] == -number
    if action == "abort":
        assert "stoul" in text
    if action == "illegal_instruction":
        assert ", on which aarch64 is emulated." in caught.value.cause


def test_a_crash_at_import_is_explained(arm64_python: str) -> None:
    with fake_host("--import=segv", python=arm64_python) as host:
        with pytest.raises((errors.HostCrashed, errors.HostStartFailed)) as caught:
            qnnbridge.InferenceSession(script(), host=host, retry=0)
        assert "while importing ONNX Runtime" in str(caught.value)
        assert "SIGSEGV" in str(caught.value)


def test_a_call_is_repeated_in_the_next_emulated_host(arm64_python: str, tmp_path: Path) -> None:
    with fake_host(python=arm64_python) as host:
        session = qnnbridge.InferenceSession(
            script(scale=3, on_run=["segv"], once=str(tmp_path / "once")), host=host
        )
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert session.generation == 2
