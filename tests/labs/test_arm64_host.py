"""An x86_64 application with a real ARM64 host, emulated by qemu."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import lab_models
import pytest
from foreign_host import CPU, QNN, HostWithNpuInName, HostWithoutNpu
from labs import HERE, run_program

import qnnbridge
from qnnbridge import errors


@pytest.fixture(scope="module")
def host(arm64_python: str) -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(python=arm64_python) as host:
        host.start()
        yield host


@pytest.fixture(scope="module")
def host_with_fake_npu(
    arm64_python_fake_npu: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(python=arm64_python_fake_npu, cwd=str(tmp_path_factory.mktemp("host"))) as host:
        host.start()
        yield host


def test_the_host_is_a_machine_of_another_type(host: qnnbridge.Host) -> None:
    assert platform.machine() == "x86_64"
    assert host.info.machine in ("aarch64", "ARM64")
    assert host.info.pid != os.getpid()
    assert host.info.versions["onnxruntime"]
    assert host.info.versions["onnxruntime_qnn"]


class TestWithoutNpu(HostWithoutNpu):
    pass


class TestWithNpuInName(HostWithNpuInName):
    saver, ir = "libQnnSaver.so", "libQnnIr.so"


def test_an_npu_that_does_not_start_is_refused_with_the_cause_from_the_log(
    host_with_fake_npu: qnnbridge.Host, tmp_path: Path
) -> None:
    """ONNX Runtime itself creates this session, lists QNN as its provider and runs it on the CPU."""
    model = lab_models.quantized_convolution(tmp_path)
    with pytest.raises((errors.PlacementRefused, errors.ProviderUnavailable)) as caught:
        qnnbridge.InferenceSession(str(model), providers=[QNN], host=host_with_fake_npu)
    assert "QNN_BACKEND_ERROR_CANNOT_INITIALIZE" in str(caught.value)


def test_a_host_that_crashes_while_it_imports_onnxruntime_is_explained(
    arm64_python_broken: str, tmp_path: Path
) -> None:
    model = lab_models.quantized_convolution(tmp_path)
    with (
        pytest.raises((errors.HostStartFailed, errors.HostCrashed)) as caught,
        qnnbridge.Host(python=arm64_python_broken) as host,
    ):
        qnnbridge.InferenceSession(str(model), providers=CPU, host=host)
    assert "SIGSEGV" in str(caught.value)
    assert "import" in str(caught.value)
    details = caught.value.details
    assert details["exit"]["number"] == -signal.SIGSEGV
    assert details["phase"] == "importing"
    # The stack is that of the crashed thread, not of the first one that faulthandler lists.
    assert any("onnxruntime" in line for line in details["python_stack"]), details["python_stack"]


def test_the_emulated_host_ends_with_an_application_that_is_killed(arm64_python: str) -> None:
    report = run_program(Path(sys.executable), HERE / "watch_host_end.py", arm64_python).json()
    assert report["host_ended"], report
