"""Work that a client cancels: compilers end, reading of models stops, and entries that crashed a host are not used
again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.daemon.brokers import lab, until
from tests.fault.test_cache_faults import (
    COMPILE_HOST,
    SOC,
    believe,
    compiled_quantized,
    deadly,
    faults,
    open_quantized,
    overwrite,
    result,
    right_quantized,
    store,
)

import qnnbridge
from qnnbridge import errors
from qnnbridge._supervision import supervisor
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_host.cache.entry import MODEL

__all__ = ["compiled_quantized", "right_quantized"]
pytest.importorskip("onnxruntime_qnn")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
F = MODELS / "f.onnx"
# Timeout of the client; a compiler that is not ended hangs forever.
PATIENCE_S = 6.0
# Shorter than the time that the host gives calls after a GOODBYE.
SOON_S = 6.0
TERABYTE = 2**40


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


def standing_host(once: Path | None = None) -> qnnbridge.Host:
    """Return a host whose compiler hangs in native code."""
    words = [str(COMPILE_HOST), "--step=stop", *([f"--once={once}"] if once is not None else [])]
    command = [sys.executable, "-I", "-u", "-X", "utf8", *words, "--parent", str(os.getpid())]
    return qnnbridge.Host(_command=command)


def stopped_workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if _is_stopped(p)]


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def gone_soon(worker: psutil.Process) -> bool:
    _, alive = psutil.wait_procs([worker], timeout=SOON_S)
    return not alive


def opened(host: qnnbridge.Host, timeout: float | None = None) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(F, providers=SOC, host=host, cache=True, timeout=timeout)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, caught


def test_the_end_of_a_host_ends_its_compiler_immediately() -> None:
    host = standing_host()
    thread, caught = in_thread(lambda: opened(host))
    until(lambda: bool(stopped_workers()))
    (worker,) = stopped_workers()
    begun = time.monotonic()
    host.close()
    assert gone_soon(worker)
    # The host has answered, and does not have to be killed after its timeout for that.
    assert time.monotonic() - begun < SOON_S
    thread.join()
    assert [type(error) for error in caught] == [errors.Closed]


def test_a_creation_that_a_planned_restart_cancels_is_repeated_in_the_next_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETIRE_TIMEOUT_S", 0.2)
    with standing_host(once=tmp_path / "once") as host, ThreadPoolExecutor(1) as pool:
        made = pool.submit(opened, host)
        until(lambda: bool(stopped_workers()))
        host.restart()
        session = made.result(60)
        assert (session.cache.state, host.stats.crashes) == ("miss", 0)
        session.close()


def test_a_client_of_the_daemon_that_disconnects_ends_the_compiler() -> None:
    with lab(standing_host(), BrokerSettings(keep_unused_s=0.0)) as made:
        thread, caught = in_thread(lambda: opened(made.client(), timeout=PATIENCE_S))
        until(lambda: bool(stopped_workers()))
        (worker,) = stopped_workers()
        thread.join()
        assert [type(error) for error in caught] == [errors.DeadlineExceeded]
        assert gone_soon(worker)


def test_a_compiler_continues_as_long_as_one_client_of_the_daemon_waits_for_it() -> None:
    with lab(standing_host(), BrokerSettings(keep_unused_s=0.0)) as made:
        hosts = [made.client(), made.client()]
        waiting = [in_thread(lambda host=host: opened(host)) for host in hosts]  # type: ignore[misc]
        until(lambda: bool(stopped_workers()))
        (worker,) = stopped_workers()
        models = made.broker.sessions._by_key
        until(lambda: sum(len(model._wanted_by) for model in models.values()) == 2)
        hosts[0].close()
        time.sleep(0.3)
        assert worker.is_running()
        hosts[1].close()
        assert gone_soon(worker)
        for thread, caught in waiting:
            thread.join()
            assert [type(error) for error in caught] == [errors.Closed]


def test_a_model_of_a_terabyte_is_not_read_after_its_client_stopped_waiting(tmp_path: Path) -> None:
    weights = onnx.TensorProto(
        name="w", data_type=onnx.TensorProto.FLOAT, dims=[4], data_location=onnx.TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value="w.bin")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "huge.onnx")
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(TERABYTE)  # a sparse file: it uses no space, and takes half an hour to read
    with qnnbridge.Host() as host:
        host.start()
        with pytest.raises(errors.DeadlineExceeded):
            qnnbridge.InferenceSession(tmp_path / "huge.onnx", host=host, timeout=1.0)
        process = psutil.Process(host.info.pid)
        time.sleep(0.3)
        before = sum(process.cpu_times()[:2])
        time.sleep(1.0)
        assert sum(process.cpu_times()[:2]) - before < 0.5, "it reads on"
        assert host.stats.crashes == 0


def test_a_crash_during_the_compilation_after_a_bad_entry_is_not_blamed_on_the_entry(
    compiled_quantized: Path, tmp_path: Path
) -> None:
    deadly(compiled_quantized, 0, 0)
    (key,) = store().all_keys()
    folder = store().entry_folder(key)
    overwrite(folder / MODEL, 0, b"no model")
    believe(folder)
    with standing_host(once=tmp_path / "once") as host:
        thread, caught = in_thread(lambda: open_quantized(host, retry=0))
        until(lambda: bool(stopped_workers()))
        os.kill(host.info.pid, signal.SIGSEGV)
        thread.join()
        assert [type(error) for error in caught] == [errors.HostCrashed]
        assert caught[0].details["suspects"] == []  # type: ignore[attr-defined]
        assert "while creating" not in str(caught[0])
    assert faults() == ["unloadable"]


def test_an_entry_that_crashed_a_program_without_retries_is_invalidated_by_the_next_program(
    compiled_quantized: Path, right_quantized: bytes
) -> None:
    deadly(compiled_quantized, 36906, 0x04)  # it crashes the host when it is run
    with qnnbridge.Host() as host:
        session = open_quantized(host, retry=0)
        assert session.cache.state == "hit"
        with pytest.raises(errors.HostCrashed):
            result(session)
    # Another program: only the files of the state remain.
    with qnnbridge.Host() as host:
        session = open_quantized(host, retry=0)
        assert (session.cache.state, faults(), result(session)) == ("miss", ["crashed"], right_quantized)
        assert host.stats.crashes == 0
        assert host.quarantine is not None
        assert host.quarantine.accounts() == []


@pytest.mark.parametrize(("limit", "spared"), [(4096, True), (None, False)])
def test_a_host_that_cannot_write_complete_files_writes_no_bytecode(limit: int | None, spared: bool) -> None:
    import resource

    def prepare() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code = "import sys; from qnnbridge_host import stdio_guard; stdio_guard.spare_bytecode(); print(sys.dont_write_bytecode)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, check=True, preexec_fn=prepare, text=True
    )
    assert done.stdout.strip() == str(spared)
