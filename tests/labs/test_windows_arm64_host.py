"""A Linux x86_64 application with a host that is a real Windows ARM64 process, under Wine and qemu."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lab_models
import numpy as np
import psutil
import pytest
from foreign_host import QNN, HostWithNpuInName, HostWithoutNpu
from labs import HERE, WindowsArm64Lab
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

# The first start of a host takes ten seconds on a busy machine; the set-up may still run before.
pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + 300.0)

X = np.arange(4, dtype=np.float32)
# The limit that the README promises.
END_TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def host(windows_arm64: WindowsArm64Lab) -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(python=str(windows_arm64.python)) as host:
        host.start()
        yield host


@pytest.fixture(scope="module")
def host_with_fake_npu(
    windows_arm64: WindowsArm64Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[qnnbridge.Host]:
    folder = tmp_path_factory.mktemp("host")
    with qnnbridge.Host(python=str(windows_arm64.python_fake_npu), cwd=str(folder)) as host:
        host.start()
        yield host


def test_the_host_is_a_windows_process_on_arm64(host: qnnbridge.Host) -> None:
    assert (platform.system(), platform.machine()) == ("Linux", "x86_64")
    assert host.info.machine == "ARM64"
    assert host.info.executable.endswith(r"\win\python.exe")
    assert host.info.versions["onnxruntime"]
    assert host.info.versions["onnxruntime_qnn"]


class TestWithoutNpu(HostWithoutNpu):
    pass


class TestWithNpuInName(HostWithNpuInName):
    saver, ir = "QnnSaver.dll", "QnnIr.dll"


def test_an_npu_without_a_driver_is_refused_with_an_explanation(
    host_with_fake_npu: qnnbridge.Host, tmp_path: Path
) -> None:
    model = lab_models.quantized_convolution(tmp_path)
    with pytest.raises((errors.PlacementRefused, errors.ProviderUnavailable)) as caught:
        qnnbridge.InferenceSession(str(model), providers=[QNN], host=host_with_fake_npu)
    assert caught.value.cause
    assert "driver" in caught.value.fix


def test_compiling_for_a_given_chip_needs_the_driver_and_reports_that(
    host_with_fake_npu: qnnbridge.Host, tmp_path: Path
) -> None:
    """The compiler is a separate process, which the Windows host starts with its own interpreter."""
    model, compiled = lab_models.quantized_convolution(tmp_path), tmp_path / "compiled.onnx"
    with pytest.raises(errors.CompileFailed) as caught:
        qnnbridge.compile(str(model), compiled, host=host_with_fake_npu, soc_model=60)
    assert "no NPU driver, no NPU, or no memory [QNN_BACKEND_ERROR_CANNOT_INITIALIZE (4000)]" in caught.value.cause
    assert "nothing to compile" in str(caught.value)
    assert not compiled.exists()


def test_shared_memory_is_not_offered_between_linux_and_windows(host: qnnbridge.Host, tmp_path: Path) -> None:
    model = lab_models.convolution(tmp_path)
    with qnnbridge.InferenceSession(str(model), providers=["CPUExecutionProvider"], host=host) as session:
        results = [session.run(None, lab_models.convolution_inputs())[0] for _ in range(4)]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    assert host.stats.shared_memory == "off: the host does not support shared memory, or runs on another system"
    assert host.stats.shared_calls == 0


def test_text_that_the_windows_host_prints_never_reaches_the_wire(windows_arm64: WindowsArm64Lab) -> None:
    """Print with Python's print, the C runtime, the descriptor, and a program that the host starts."""
    with fake_host(python=str(windows_arm64.python)) as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=["print:hello"]), host=host)
        for _ in range(3):
            assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert host.stats.generation == 1


def hosts_of(lab: WindowsArm64Lab) -> set[int]:
    """Return the Linux process ids of the lab's Python processes."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "qnnbridge_host" in words and words[0] == str(lab.folder / "qemu-aarch64"):
            found.add(process.pid)
    return found


def test_the_host_ends_with_an_application_that_is_killed(windows_arm64: WindowsArm64Lab) -> None:
    others = hosts_of(windows_arm64)
    application = subprocess.Popen(
        [sys.executable, HERE / "holds_a_host.py", windows_arm64.python],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert application.stdout is not None
        assert application.stdout.readline()
        assert hosts_of(windows_arm64) - others
    finally:
        application.kill()
        application.communicate()
    deadline = time.monotonic() + END_TIMEOUT_S
    while (left := hosts_of(windows_arm64) - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
