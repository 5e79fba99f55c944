"""The compiler crashes, hangs or cannot write; the application is killed while it moves the files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.fakes.hosts import patched_host

import qnnbridge
from qnnbridge.errors import CompileFailed, DeadlineExceeded, HostCrashed, OptionError
from qnnbridge_host.cache.files import sweep
from qnnbridge_host.create import publish
from qnnbridge_host.create.publish import Destination
from qnnbridge_host.model.manifest import manifest_path, read_manifest

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parent.parent / "models"
HOST = Path(__file__).parent.parent / "fakes" / "compile_host.py"
MUL = MODELS / "mul_1.onnx"


def dying_host(step: str, once: Path | None = None, file_bytes: int | None = None) -> qnnbridge.Host:
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", str(HOST), f"--step={step}"]
    if once is not None:
        command.append(f"--once={once}")
    if file_bytes is not None:
        command.append(f"--file-bytes={file_bytes}")
    return qnnbridge.Host(_command=[*command, "--parent", str(os.getpid())])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def compiled_at(path: Path) -> list[Any]:
    with qnnbridge.InferenceSession(str(path), provider_options=[{"soc_model": "60"}]) as session:
        x = session.get_inputs()[0]
        import numpy as np

        return session.run(None, {x.name: np.ones(x.shape, np.float32)})


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


ALL_THREE = ["mul_1_ctx.onnx", "mul_1_ctx.qnnbridge.json", "mul_1_ctx_qnn.bin"]


# --- the compiler ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", needs.some(["before", "native", "blob", "half"]))
def test_a_compiler_killed_without_a_complete_result_leaves_no_file_and_the_next_one_works(
    target: Path, tmp_path: Path, step: str
) -> None:
    host = dying_host(step, once=tmp_path / "died")
    with pytest.raises(HostCrashed) as caught:
        qnnbridge.compile(MUL, target, host=host, validate=False)
    assert caught.value.details["exit"]["name"] == "SIGKILL"
    assert step == "before" or "while compiling mul_1.onnx" in caught.value.message
    assert names_in(target) == []
    result = qnnbridge.compile(MUL, target, host=host, validate=False)
    assert names_in(target) == ALL_THREE
    assert compiled_at(Path(result.path))


def test_a_crash_in_native_code_is_explained(target: Path) -> None:
    with pytest.raises(HostCrashed) as caught:
        qnnbridge.compile(MUL, target, host=dying_host("segv"))
    assert "while compiling mul_1.onnx" in caught.value.message
    assert "SIGSEGV" in caught.value.message
    assert names_in(target) == []


def test_a_model_that_crashed_the_compiler_twice_is_not_compiled_a_third_time(target: Path) -> None:
    for _ in range(2):
        with pytest.raises(HostCrashed):
            qnnbridge.compile(MUL, target, host=dying_host("segv"))
    with pytest.raises(qnnbridge.errors.ModelQuarantined):
        qnnbridge.compile(MUL, target, host=dying_host("none"))


def test_a_complete_result_is_kept_even_if_the_compiler_was_killed_before_it_answered(
    target: Path, tmp_path: Path
) -> None:
    result = qnnbridge.compile(MUL, target, host=dying_host("both", once=tmp_path / "died"))
    assert result.died_at_teardown
    assert any("crashed after it had finished" in warning for warning in result.warnings)
    assert result.validation.skipped is None
    assert compiled_at(Path(result.path))


def test_a_crash_at_the_exit_of_the_compiler_keeps_the_result(target: Path, tmp_path: Path) -> None:
    result = qnnbridge.compile(MUL, target, host=dying_host("teardown", once=tmp_path / "died"))
    assert result.died_at_teardown
    assert result.placement is not None
    assert result.placement.qnn_nodes == 1
    assert json.loads(Path(result.manifest).read_text())["extra"]["died_at_teardown"] is True


def test_a_compiler_that_hangs_is_ended_at_its_deadline(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"mul_1\.onnx was not compiled within 2 s") as caught:
        qnnbridge.compile(MUL, target, host=dying_host("stop"), timeout=2)
    # The promise is one second; the remaining time is for a busy machine.
    assert time.monotonic() - begun < 2 + 1 + 5
    assert caught.value.state == "stopped"
    assert "died" not in caplog.text, "it was ended, and nobody is told of a crash"
    assert names_in(target) == []


@pytest.mark.parametrize("embed", [False, True])
def test_files_that_cannot_be_written_completely_are_one_clear_error(target: Path, embed: bool) -> None:
    with pytest.raises(CompileFailed, match="cannot be written to") as caught:
        qnnbridge.compile(MUL, target, host=dying_host("none", file_bytes=20_000), embed=embed)
    assert caught.value.message == f"The compiled model cannot be written to {target}."
    assert caught.value.fix is not None
    assert names_in(target) == []


def test_a_folder_that_cannot_be_written_is_one_clear_error() -> None:
    with pytest.raises(OptionError, match=r"/proc/self/m\.onnx cannot be written") as caught:
        qnnbridge.compile(MUL, "/proc/self/m.onnx")
    assert "/proc/self" in (caught.value.cause or "")


# --- the application -------------------------------------------------------------------------------------

KILLED_WHILE_MOVING = """
import os, signal, sys
from qnnbridge_host.create import publish
from qnnbridge_host.create.publish import Destination
from qnnbridge_host.model.manifest import write_manifest

target, work, blob, at, overwrite = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "True"
write_manifest(work, "m.onnx", (blob,), source_name="new")
steps = 0


def counted(really):
    def step(*arguments, **options):
        global steps
        if str(arguments[-1]).startswith(target) or str(arguments[0]).startswith(target):
            steps += 1
            if steps == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return really(*arguments, **options)
    return step


for name in ("link", "replace", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
publish.move_whole(work, [Destination(target, "m.onnx")], [blob], overwrite=overwrite)
print(steps)
"""


def fill(folder: Path, blob: str, contents: bytes) -> None:
    """Write a model that proves its own integrity: the .onnx file contains the name and the hash of its context
    binary.
    """
    folder.mkdir(exist_ok=True)
    (folder / blob).write_bytes(contents)
    (folder / "m.onnx").write_bytes(f"{blob} {hashlib.sha256(contents).hexdigest()}".encode())


def check_nothing_is_torn(folder: Path) -> str | None:
    """Return the model at the path. Fails if the model does not match its context binary or its manifest."""
    model = folder / "m.onnx"
    if not model.exists():
        return None
    blob, digest = model.read_text().split()
    contents = (folder / blob).read_bytes()
    assert hashlib.sha256(contents).hexdigest() == digest
    manifest = read_manifest(model)
    if manifest is not None:
        for record in manifest.files:
            found = (folder / record.name).read_bytes()
            assert hashlib.sha256(found).hexdigest() == record.sha256
    return contents.decode()


def move(target: Path, work: Path, blob: str, at: int, overwrite: bool) -> subprocess.CompletedProcess[str]:
    arguments = [str(target), str(work), blob, str(at), str(overwrite)]
    return subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_MOVING, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_application_killed_at_any_step_of_the_move_leaves_the_old_model_or_the_new_one(
    tmp_path: Path, overwrite: bool
) -> None:
    seen = []
    for at in range(1, 20):
        target = tmp_path / f"target{at}"
        target.mkdir()
        blob = "m_qnn.bin"
        if overwrite:
            fill(target, blob, b"old")
            publish.write_manifest(target, "m.onnx", (blob,), source_name="old")
            blob = "m-1234_qnn.bin"
        work = tmp_path / f"work{at}"
        fill(work, blob, b"new")
        done = move(target, work, blob, at, overwrite)
        seen.append(check_nothing_is_torn(target))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        # Existing files do not delay the next compilation.
        again = tmp_path / f"again{at}"
        fill(again, "m-5678_qnn.bin", b"next")
        publish.write_manifest(again, "m.onnx", ("m-5678_qnn.bin",))
        publish.move_whole(str(again), [Destination(str(target), "m.onnx")], ["m-5678_qnn.bin"], overwrite=True)
        assert check_nothing_is_torn(target) == "next"
    assert seen[-1] == "new"
    assert len(seen) > 3, "the kills hit something"
    assert set(seen) == ({"old", "new"} if overwrite else {None, "new"})
    assert overwrite or names_in(target) == ["m.onnx", "m.qnnbridge.json", "m_qnn.bin"]
    assert not overwrite or names_in(target) == ["m-1234_qnn.bin", "m.onnx", "m.qnnbridge.json"]


KILLED_BEFORE_THE_MOVE = """
    import os, signal
    from qnnbridge_host.create import publish

    publish.move_whole = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_host_killed_before_the_move_leaves_only_files_that_the_next_compilation_removes(
    target: Path, tmp_path: Path
) -> None:
    with pytest.raises(HostCrashed):
        qnnbridge.compile(MUL, target, host=patched_host(tmp_path, KILLED_BEFORE_THE_MOVE), validate=False)
    (left,) = target.iterdir()
    assert left.name.startswith(".qnnbridge-compile-")
    os.utime(left, (1, 1))  # long ago
    qnnbridge.compile(MUL, target, validate=False)
    assert names_in(target) == ALL_THREE


def test_the_folder_of_a_running_compilation_is_not_removed(target: Path) -> None:
    with publish.compile_folder(str(target)) as folder:
        os.utime(os.path.dirname(folder), (1, 1))
        assert sweep(str(target), ".qnnbridge-compile-") == 0
        assert os.path.isdir(folder)
    assert names_in(target) == []


def test_an_output_folder_that_was_created_for_a_failed_compilation_is_removed(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed):
        qnnbridge.compile(MODELS / "logreg_iris.onnx", tmp_path / "a" / "b" / "m.onnx")
    assert names_in(tmp_path) == []


# --- existing files --------------------------------------------------------------------------------------


NO_WORKER = """
    from qnnbridge_host.create import orchestrate

    def compile_together(*_, **__):
        raise AssertionError("a worker is started")

    orchestrate.compile_together = compile_together
"""


def test_an_existing_output_is_refused_before_a_compiler_is_started(target: Path, tmp_path: Path) -> None:
    (target / "mul_1_ctx.onnx").write_bytes(b"precious")
    with pytest.raises(OptionError, match="exists already") as caught:
        qnnbridge.compile(MUL, target, host=patched_host(tmp_path, NO_WORKER))
    assert "--overwrite" in str(caught.value)
    assert (target / "mul_1_ctx.onnx").read_bytes() == b"precious"


def test_an_output_that_appears_during_the_compilation_is_not_replaced(target: Path, tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from qnnbridge_host.create import publish

        describe = publish.describe

        def describe_late(*arguments, **options):
            Path({str(target / "mul_1_ctx.onnx")!r}).write_bytes(b"precious")
            return describe(*arguments, **options)

        publish.describe = describe_late
        """
    with pytest.raises(OptionError, match="exists already"):
        qnnbridge.compile(MUL, target, host=patched_host(tmp_path, code), validate=False)
    assert (target / "mul_1_ctx.onnx").read_bytes() == b"precious"
    assert names_in(target) == ["mul_1_ctx.onnx"]


def test_the_context_binary_of_another_model_is_never_replaced(target: Path) -> None:
    (target / "mul_1_ctx_qnn.bin").write_bytes(b"of another model")
    result = qnnbridge.compile(MUL, target, validate=False)
    assert (target / "mul_1_ctx_qnn.bin").read_bytes() == b"of another model"
    assert result.blob is not None
    assert os.path.basename(result.blob) != "mul_1_ctx_qnn.bin"
    assert os.path.basename(result.path) == "mul_1_ctx.onnx"
    assert compiled_at(Path(result.path))


def test_of_two_compilations_to_one_output_the_last_one_stays_complete(target: Path, tmp_path: Path) -> None:
    theirs = target / "mul_1_ctx_qnn.bin"
    another_one_is_quicker = f"""
        from pathlib import Path
        from qnnbridge_host.create import publish

        describe = publish.describe

        def describe_late(*arguments, **options):  # the names are chosen
            Path({str(theirs)!r}).write_bytes(b"theirs")
            return describe(*arguments, **options)

        publish.describe = describe_late
        """
    host = patched_host(tmp_path, another_one_is_quicker)
    with pytest.raises(CompileFailed, match=r"Another compilation has created mul_1_ctx_qnn\.bin in") as caught:
        qnnbridge.compile(MUL, target, host=host, validate=False)
    assert "Compile again" in str(caught.value.fix)
    assert names_in(target) == ["mul_1_ctx_qnn.bin"]

    theirs.unlink()
    result = qnnbridge.compile(MUL, target, host=host, validate=False, overwrite=True)
    assert theirs.read_bytes() == b"theirs"
    assert compiled_at(Path(result.path))


def test_overwriting_replaces_model_and_manifest_and_removes_the_old_context_binary(target: Path) -> None:
    first = qnnbridge.compile(MUL, target, validate=False)
    second = qnnbridge.compile(MUL, target, validate=False, overwrite=True, soc_model=88)
    assert second.path == first.path
    assert first.blob is not None
    assert not os.path.exists(first.blob)
    assert len(names_in(target)) == 3
    manifest = read_manifest(manifest_path(second.path))
    assert manifest is not None
    assert manifest.soc_models == (88,)
