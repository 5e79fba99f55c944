"""Compile many models for many chips: in this process, and on a Dask cluster of two workers on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qnnbridge
from qnnbridge.errors import Closed, CompileFailed, OptionError
from qnnbridge_host.create.publish import CompilerInput, is_finished
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.installing import install_command
from qnnbridge_tools.compile import matrix
from qnnbridge_tools.compile.matrix import Cell, CellOutcome, CompileGroup, plan, run_here, run_on
from tests.fakes.hosts import patched_host

MODELS = Path(__file__).parent.parent / "models"
MUL, SIGMOID, IRIS = (MODELS / f"{name}.onnx" for name in ("mul_1", "sigmoid", "logreg_iris"))


def states(outcomes: list[CellOutcome]) -> list[tuple[str, str | None, str]]:
    return [(outcome.model, outcome.soc_model, outcome.state) for outcome in outcomes]


# --- jobs ------------------------------------------------------------------------------------------------


def test_every_model_is_compiled_for_every_chip_into_a_separate_file(tmp_path: Path) -> None:
    cells = plan([MUL, SIGMOID], [60, "SC8480XP"], tmp_path)
    assert [cell.place.model for cell in cells] == [
        "mul_1_soc60_ctx.onnx",
        "mul_1_socSC8480XP_ctx.onnx",
        "sigmoid_soc60_ctx.onnx",
        "sigmoid_socSC8480XP_ctx.onnx",
    ]
    assert [cell.job.recipe.spec.providers[0].options for cell in cells][:2] == [
        {"soc_model": "60"},
        {"soc_model": "SC8480XP"},
    ]


def test_with_one_chip_the_file_name_does_not_contain_its_name(tmp_path: Path) -> None:
    assert [cell.place.model for cell in plan([MUL], [60], tmp_path)] == ["mul_1_ctx.onnx"]
    assert [cell.place.model for cell in plan([MUL], ["60", 60], tmp_path)] == ["mul_1_ctx.onnx"]


def test_models_with_the_same_name_cannot_be_written_to_one_folder(tmp_path: Path) -> None:
    other = tmp_path / "mul_1.onnx"
    other.write_bytes(SIGMOID.read_bytes())
    with pytest.raises(OptionError, match="The results of two models"):
        plan([MUL, other], [], tmp_path / "out")
    assert len(plan([MUL, other])) == 2, "beside each is another folder"


def test_several_results_cannot_be_written_to_one_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is one file"):
        plan([MUL, SIGMOID], [], tmp_path / "m.onnx")


def finished(cell: Cell, versions: Any) -> str | None:
    source = ModelSource.open(str(cell.job.recipe.spec.model_path))
    return is_finished(CompilerInput(source, cell.job.recipe.spec, embed=cell.job.embed), cell.place, versions)


# --- in this process -------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_a_failed_job_does_not_stop_the_others_and_a_second_call_repeats_only_that_job(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    seen: list[str] = []
    cells = plan([MUL, IRIS], [60], tmp_path)
    options: dict[str, Any] = {"jobs": 2, "validate": False}
    first = run_here(cells, on_outcome=lambda outcome: seen.append(outcome.model), **options)
    assert states(first) == [("mul_1.onnx", "60", "done"), ("logreg_iris.onnx", "60", "failed")]
    assert isinstance(first[1].error, CompileFailed)
    assert sorted(seen) == ["logreg_iris.onnx", "mul_1.onnx"]
    assert first[0].result is not None

    again = run_here(plan([MUL], [60], tmp_path), **options)
    assert states(again) == [("mul_1.onnx", "60", "skipped")]
    assert "same model with the same options and versions" in str(again[0].reason)

    other = run_here(plan([MUL], [60], tmp_path, embed=True), **options)
    assert states(other) == [("mul_1.onnx", "60", "failed")], "other options: it is in the way, not the same"

    versions = first[0].result.versions
    assert finished(cells[0], versions) is not None
    assert finished(cells[0], {**versions, "onnxruntime_qnn": "9.9"}) is None
    blob = Path(str(first[0].result.blob))
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    assert finished(cells[0], versions) is None, "a damaged one is not finished"


def test_an_interrupted_matrix_ends_its_hosts(tmp_path: Path) -> None:
    """An interrupt like Ctrl+C ends the running hosts, and no thread can start another one."""
    began, out = tmp_path / "began", tmp_path / "out"
    code = f"""
        import time
        from qnnbridge_host.engine import compile as compiling

        def compile_model(engine, spec, model, initializers, on_phase):
            on_phase("compiling")
            open({str(began)!r}, "w").close()
            time.sleep(600)

        compiling.compile_model = compile_model
        """
    group = CompileGroup()
    (cell,) = plan([MUL], [], out)
    errors: list[BaseException] = []

    def work() -> None:
        for _ in range(2):
            try:
                group.perform(cell.job, host=patched_host(tmp_path, code))
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60
    while not began.exists():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    group.end()
    thread.join(30)
    assert [type(error) for error in errors] == [Closed, Closed]
    assert not out.exists(), "nothing is left behind"


# --- on a cluster ----------------------------------------------------------------------------------------


def scheduler_address(path: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address in the scheduler's file. Dask creates the file first and fills it later."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return str(json.loads(path.read_text())["address"])
        assert process.poll() is None, "the scheduler ended"
        assert time.monotonic() < deadline, "the scheduler did not start"
        threading.Event().wait(0.02)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Start a scheduler and two workers on loopback as separate processes, as a user does."""
    distributed = pytest.importorskip("distributed")
    told = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(told), "--no-dashboard"]
    python = [sys.executable, "-m"]
    quiet: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*python, "distributed.cli.dask_scheduler", *common, "--host", "127.0.0.1", "--port", "0"]
    processes = [subprocess.Popen(command, **quiet)]
    try:
        address = scheduler_address(told, processes[0])
        worker = [*python, "distributed.cli.dask_worker", *common, "--no-nanny", "--nthreads", "1"]
        local = ["--host", "127.0.0.1", "--local-directory", str(tmp_path / "dask")]
        processes += [subprocess.Popen([*worker, *local], **quiet) for _ in range(2)]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address
    finally:
        for process in reversed(processes):
            process.kill()
        for process in processes:
            process.wait(30)


@pytest.mark.simulator
def test_two_workers_run_the_same_jobs_and_the_files_are_returned(tmp_path: Path, scheduler: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    out = tmp_path / "out"
    with matrix.executor_of(scheduler) as executor:
        outcomes = run_on(executor, plan([MUL, IRIS], [60], out))
    assert states(outcomes) == [("mul_1.onnx", "60", "done"), ("logreg_iris.onnx", "60", "failed")]
    assert "logreg_iris.onnx" in str(outcomes[1].error), "the model keeps its name on the way"
    assert outcomes[0].result is not None
    assert outcomes[0].result.validation.skipped is None, "validated where it was compiled"

    command = [sys.executable, "-m", "qnnbridge_tools", "compile", str(MUL), str(SIGMOID), "--soc-model", "60"]
    arguments = ["--scheduler", scheduler, "-o", str(out), "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["outcomes"]
    assert [(one["model"], one["state"]) for one in told] == [("mul_1.onnx", "skipped"), ("sigmoid.onnx", "done")]
    assert told[1]["result"]["validation"]["skipped"] is None
    assert sorted(os.listdir(out)) == [
        *("mul_1_ctx.onnx", "mul_1_ctx.qnnbridge.json", "mul_1_ctx_qnn.bin"),
        *("sigmoid_ctx.onnx", "sigmoid_ctx.qnnbridge.json", "sigmoid_ctx_qnn.bin"),
    ]
    with qnnbridge.InferenceSession(str(out / "mul_1_ctx.onnx"), provider_options=[{"soc_model": "60"}]) as session:
        assert session.placement.qnn_nodes == 1


def test_without_the_extra_the_error_names_the_package_to_install() -> None:
    script = (
        "import sys; sys.modules['distributed'] = None\n"
        "from qnnbridge_tools.compile.matrix import executor_of\n"
        "executor_of('tcp://127.0.0.1:1').__enter__()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert install_command("cluster", python=sys.executable) in done.stderr


def test_an_unreachable_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(matrix, "CONNECT_TIMEOUT_S", 0.5)
    with (
        pytest.raises(CompileFailed, match=r"no Dask scheduler at tcp://127\.0\.0\.1:1\b"),
        matrix.executor_of("tcp://127.0.0.1:1"),
    ):
        pass


@pytest.mark.parametrize("port", ["65536", "12345678901234567890"])
def test_a_port_that_does_not_exist_is_refused_at_once(port: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(OptionError, match=f"{port} is not a port"), matrix.executor_of(f"tcp://127.0.0.1:{port}"):
        pass
