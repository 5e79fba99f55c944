"""Faults of the NPU's memory, injected by the scripted engine: weights cannot be mapped, or memory is exhausted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors
from qnnbridge_host.engine.ort_errors import details_of, translate

X = np.arange(4, dtype=np.float32)
UNMAPPED = "disable_file_mapped_weights"
TEXTS = [
    "[ONNXRuntimeError] : 1 : FAIL : contextCreateFromBinary failed. Error: memory allocation, Code: 1002",
    "[ONNXRuntimeError] : 1 : FAIL : Failed to create context from binary. Error code: 8003",
    "[ONNXRuntimeError] : 1 : FAIL : rpcmem_alloc() failed to allocate and returned nullptr.",
]
QNN = "QNNExecutionProvider"


def tries(file: Path) -> int:
    return len(file.read_text("utf-8")) if file.exists() else 0


@pytest.mark.parametrize("text", TEXTS)
def test_weights_that_cannot_be_mapped_are_loaded_without_mapping(text: str, tmp_path: Path) -> None:
    noted = tmp_path / "tries"
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(unmappable=text, note_tries=str(noted)), host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 2)
        assert f"{UNMAPPED}=1" in session.placement.npu_memory
        assert session.placement.npu_bytes > 0
        assert tries(noted) == 2
        assert host.stats.generation == 1


def test_the_next_host_remembers_the_setting_that_worked_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)
    noted, folder = tmp_path / "tries", os.environ["QNNBRIDGE_CACHE_DIR"]
    model = script(unmappable=TEXTS[0], note_tries=str(noted))
    for known in (False, True, True):
        before = tries(noted)
        with fake_host() as host:
            session = qnnbridge.InferenceSession(model, host=host)
            assert f"{UNMAPPED}=1" in session.placement.npu_memory
            # More than one if another fault ends a host in between, for example a computer without memory.
            hosts = host.stats.generation
        made = tries(noted) - before
        assert made == hosts if known else made >= 2, (made, hosts, list(Path(folder).rglob("*")))
    other = script(note_tries=str(tmp_path / "others"))
    with fake_host() as host:
        assert not qnnbridge.InferenceSession(other, host=host).placement.npu_memory, "of this model only"


def test_a_setting_of_the_application_is_not_changed(tmp_path: Path) -> None:
    noted = tmp_path / "tries"
    model = script(unmappable=TEXTS[0], note_tries=str(noted))
    with fake_host() as host:
        with pytest.raises(errors.Fail):
            qnnbridge.InferenceSession(model, providers=[(QNN, {UNMAPPED: "0"})], host=host)
        assert tries(noted) == 1
        session = qnnbridge.InferenceSession(model, providers=[(QNN, {UNMAPPED: "1"})], host=host)
        assert not session.placement.npu_memory


def test_if_memory_is_insufficient_the_error_has_both_attempts_and_the_loaded_models(tmp_path: Path) -> None:
    noted = tmp_path / "tries"
    with fake_host() as host:
        first = qnnbridge.InferenceSession(script(room=1), host=host)
        with pytest.raises(errors.Fail) as caught:
            qnnbridge.InferenceSession(script(room=1, scale=3, note_tries=str(noted)), host=host)
        text = str(caught.value)
        assert f"With {UNMAPPED}=1" in text
        assert "sessions on the NPU in this host: 1" in text
        assert tries(noted) == 2
        assert np.array_equal(first.run(None, {"x": X})[0], X * 2), "the session that is there goes on"
        first.close()


@pytest.mark.parametrize("text", TEXTS)
def test_errors_about_npu_memory_are_recognised(text: str) -> None:
    assert details_of(errors.Fail, text)["npu_memory"] is True
    told = translate(RuntimeError(text))
    assert "memory is full" in (told.cause or "")
    assert "qnnbridge top" in (told.fix or "")


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 1 : FAIL : Failed to finalize QNN graph. Error: memory allocation, Code: 1002",
        "[ONNXRuntimeError] : 1 : FAIL : contextCreateFromBinary failed. Error: version, Code: 5005",
    ],
)
def test_the_same_code_in_another_context_is_another_fault(text: str) -> None:
    """1002 at the end of compiling means an operator; 5005 means a context of another chip or version."""
    assert "npu_memory" not in details_of(errors.Fail, text)
