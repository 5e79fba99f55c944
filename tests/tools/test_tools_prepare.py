"""`qnnbridge prepare` on the real simulator: a folder's contents, repeated steps, and SIGKILL at any point."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs
from tests.fakes.commands import qnnbridge

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")

import model_work_models as models
import verify_models

from qnnbridge_host.cache.files import EARLIER_MARK, MARK, try_hold
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.manifest import read_manifest
from qnnbridge_models import journals
from qnnbridge_models.journals import PrepareJournal, key_of
from qnnbridge_models.prepare import PrepareOptions, prepare_model
from qnnbridge_models.prepare.preparation import StepResult
from qnnbridge_models.prepare.preparer import shipped_numbers, was_measured
from qnnbridge_os.files import TEMPORARY
from qnnbridge_protocol.errors import (
    BridgeError,
    Busy,
    DeadlineExceeded,
    DeviceReset,
    EPFail,
    HostCrashed,
    ModelError,
    OptionError,
)
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_tools.sessions import ProviderSession

pytestmark = pytest.mark.simulator

BATCH = ("--dim", "batch=2", "--soc-model", "60", "--no-extreme")


def prepare(*arguments: str | Path) -> Any:
    return qnnbridge("prepare", *arguments, "--json")


def told(result: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def states(document: dict[str, Any]) -> dict[str, str]:
    return {f"{step['step']} {step['soc_model'] or ''}".strip(): step["state"] for step in document["steps"]}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, str | int]:
    """Return the shipped files, as far as repeated runs give the same bytes.

    QNN writes the path of the working folder into a context binary, so only its size is returned.
    """
    found: dict[str, str | int] = {}
    for name in files_of(folder):
        if name.startswith("models/"):
            found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        elif name.endswith(".bin"):
            found[name] = (folder / name).stat().st_size
    return found


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and its prepared folder; tests work on copies."""
    folder = tmp_path_factory.mktemp("prepared")
    model = models.saved(verify_models.free_batch(), folder / "m.onnx")
    result = prepare(model, "-o", folder / "out", *BATCH)
    assert result.returncode == 0, result.output
    return folder


@pytest.fixture
def copy(ready: Path, tmp_path: Path) -> Path:
    shutil.copytree(ready, tmp_path / "copy")
    return tmp_path / "copy"


def again(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    result = prepare(folder / "m.onnx", "-o", folder / "out", *(arguments or BATCH))
    assert result.returncode == 0, result.output
    return told(result)


def test_the_folder_contains_everything_to_ship_and_its_report_lists_it(ready: Path) -> None:
    out = ready / "out"
    shipped = json.loads((out / "manifest.json").read_text())
    compiled = {f"compiled/soc60/m_ctx{suffix}" for suffix in (".onnx", "_qnn.bin", ".qnnbridge.json")}
    assert {one["name"] for one in shipped["files"]} == {"models/m.onnx", *compiled}
    assert files_of(out) == {"models/m.onnx", *compiled, "manifest.json", "report.md", journals.JOURNAL_NAME}
    for one in shipped["files"]:
        content = (out / one["name"]).read_bytes()
        assert (one["size"], one["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert (shipped["ready"], shipped["source"], shipped["model"]) == (True, "m.onnx", "models/m.onnx")
    (chip,) = shipped["chips"]
    assert (chip["soc_model"], chip["verified"], chip["cpu_nodes"]) == (60, "agrees", 0)
    assert chip["qnn_nodes"] > 0
    assert chip["snr_db"] > 40
    assert read_manifest(out / chip["compiled"]) is not None
    assert str(ready) not in (out / "manifest.json").read_text() + (out / "report.md").read_text()


def test_the_report_is_one_page_with_the_chip_the_change_and_the_usage(ready: Path) -> None:
    page = (ready / "out" / "report.md").read_text()
    assert len(page.splitlines()) < 60
    for words in ("**Ready: ", "Snapdragon X Elite", "2 of 2", "agrees", "fixed-shapes", "x 2x4", "manifest.json"):
        assert words in page, page
    assert "qnnbridge.InferenceSession('compiled/soc60/m_ctx.onnx')" in page


def test_finished_steps_are_kept(copy: Path) -> None:
    before = contents(copy / "out")
    assert set(states(again(copy)).values()) == {"kept"}
    assert contents(copy / "out") == before


def test_changed_options_repeat_only_the_steps_that_depend_on_them(copy: Path) -> None:
    more = again(copy, *BATCH, "--soc-model", "SM8650", "--seed", "0")
    assert states(more) == {
        "fix": "kept",
        "compile 60": "kept",
        "compile 57": "done",
        "verify 60": "kept",
        "verify 57": "done",
    }
    other = again(copy, "--dim", "batch=3", "--soc-model", "57", "--no-extreme")
    assert states(other) == {"fix": "done", "compile 57": "done", "verify 57": "done"}
    assert not (copy / "out/compiled/soc60").exists(), "what is not wished any more is not shipped"
    assert other["chips"][0]["name"] == "SoC 57 (SM8650, V75)"


def test_another_model_of_the_same_name_is_prepared_again(copy: Path) -> None:
    made = verify_models.free_batch()
    made.graph.initializer[0].CopyFrom(models.weights("w", 4, 3, seed=8))
    models.saved(made, copy / "m.onnx")
    assert set(states(again(copy)).values()) == {"done"}


@pytest.mark.parametrize("damage", needs.some(["changed", "cut off", "gone"]))
def test_an_incomplete_file_is_created_again(damage: str, copy: Path) -> None:
    before = contents(copy / "out")
    blob = copy / "out/compiled/soc60/m_ctx_qnn.bin"
    content = blob.read_bytes()
    changed = bytes([*content[:100], content[100] ^ 1, *content[101:]])
    blob.unlink()
    if damage != "gone":
        blob.write_bytes(content[:1000] if damage == "cut off" else changed)
    document = again(copy)
    assert states(document) == {"fix": "kept", "compile 60": "done", "verify 60": "kept"}
    assert set(states(again(copy)).values()) == {"kept"}, "it is whole now"
    assert contents(copy / "out") == before


def test_an_unreadable_journal_does_not_prevent_a_preparation(copy: Path) -> None:
    (copy / "out" / journals.JOURNAL_NAME).write_text('{"schema": 1, "steps": ')
    left_behind = copy / "out" / f"{TEMPORARY}1234-56.part"
    left_behind.write_text("{")
    assert set(states(again(copy)).values()) == {"done"}
    assert not left_behind.exists()


# The process kills itself, so that it is certainly in that step.
KILLED_SOON_AFTER = """
import os, signal, sys, threading

from qnnbridge_tools.cli import main

class Stderr:
    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)

    def write(self, text):
        if text.startswith(step) and text.endswith("..."):
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return sys.__stderr__.write(text)

step = sys.argv.pop(1)
sys.stderr = Stderr()
main()
"""


@needs.posix
def test_a_preparation_killed_in_any_step_continues_from_that_step(ready: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    shutil.copy(ready / "m.onnx", model)
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED_SOON_AFTER, "prepare", str(model), "-o", str(out), *BATCH]
    temporary = tmp_path / "temporary"  # a killed process cannot remove its temporary folder
    temporary.mkdir()
    for step in ("fix ...", "compile ", "verify "):
        process = subprocess.Popen(
            [*command[:3], step, *command[3:]],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert process.stderr is not None
        kept = list(process.stderr)
        process.stderr.close()
        assert process.wait() == -signal.SIGKILL, kept
        assert not (out / "manifest.json").exists(), "it would say that all is there"
        if step == "verify ":
            assert kept[0] == "fix: done before, kept\n", "and what was killed last time is done now"
            assert any(line.startswith("compile for SoC 60 (SC8380XP, V73): done in") for line in kept)
    document = told(prepare(model, "-o", out, *BATCH))
    assert states(document) == {"fix": "kept", "compile 60": "kept", "verify 60": "done"}
    assert set(states(told(prepare(model, "-o", out, *BATCH))).values()) == {"kept"}
    assert contents(out) == contents(ready / "out"), "as if it had never been killed"
    assert files_of(out) == files_of(ready / "out"), "nothing half made is left"


@needs.posix
@pytest.mark.parametrize("of_qnn", [True, False], ids=["the host of QNN", "the host of the CPU"])
def test_a_killed_host_is_not_stored_as_a_verdict(
    of_qnn: bool, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy / "out"
    shutil.rmtree(out)
    answer, left = ProviderSession.answer, [1]

    def kill_first(self: ProviderSession, *arguments: Any, **options: Any) -> Any:
        on_qnn = bool(self.placement.qnn_nodes)
        if on_qnn == of_qnn and left:
            left.pop()
            os.kill(self._session.host.info.pid, signal.SIGKILL)
        return answer(self, *arguments, **options)

    monkeypatch.setattr(ProviderSession, "answer", kill_first)
    killed = told(prepare(copy / "m.onnx", "-o", out, *BATCH))
    assert not left
    # Without the CPU's result for one of the inputs, the others still decide.
    assert killed["ready"] is not of_qnn
    assert "SIGKILL" in str(killed)
    assert "SIGKILL" not in (out / journals.JOURNAL_NAME).read_text("utf-8")
    manifest = read_manifest(next(out.glob("compiled/*/*.onnx")))
    assert manifest is not None
    assert "verified" not in manifest.extra, "no session hears of it"
    document = again(copy)
    assert states(document) == {"fix": "kept", "compile 60": "kept", "verify 60": "done"}
    assert document["verdict"].startswith("Ready")
    assert set(states(again(copy)).values()) == {"kept"}


@needs.posix
@pytest.mark.parametrize("size", [100, 1500, 20_000])
def test_a_step_that_a_full_disk_ended_is_repeated(size: int, copy: Path) -> None:
    """Limit the size of files: the model, the journal and the context binary are the first files to exceed it."""
    out = copy / "out"
    shutil.rmtree(out)
    words = ["qnnbridge", "prepare", str(copy / "m.onnx"), "-o", str(out), *BATCH]
    code = (
        # With bytecode enabled, Python would keep truncated files for all later tests.
        "import resource, sys; sys.dont_write_bytecode = True; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); "
        f"from qnnbridge_tools.cli import main; sys.argv = {words!r}; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr or "a full disk" in done.stderr
    document = again(copy)
    assert document["verdict"].startswith("Ready")
    assert "done" in states(document).values()
    assert set(states(again(copy)).values()) == {"kept"}


def test_a_crash_that_an_earlier_version_stored_as_a_verdict_is_verified_again(copy: Path) -> None:
    path = copy / "out" / journals.JOURNAL_NAME
    journal = json.loads(path.read_text("utf-8"))
    verified = journal["steps"]["verify 60"]["told"]
    verified["rows"][0] |= {"status": "failed", "died": True, "reason": "SIGKILL"}
    verified |= {"verdict": "differs", "reason": "QNN ends the host, or does not come back."}
    path.write_text(json.dumps(journal), "utf-8")
    assert states(again(copy)) == {"fix": "kept", "compile 60": "kept", "verify 60": "done"}


@pytest.mark.parametrize(
    ("error", "holds"),
    [
        (None, True),
        (EPFail("QNN refuses it."), True),
        (HostCrashed("SIGKILL"), False),
        (DeadlineExceeded("too late"), False),
        (DeviceReset("the NPU was reset"), False),
    ],
)
def test_a_quantised_model_whose_run_was_interrupted_is_measured_again(
    error: BridgeError | None, holds: bool
) -> None:
    assert was_measured({"qnn": {"error": None if error is None else error.to_wire()}}) is holds
    assert was_measured({"qnn": None})


def test_working_folders_are_removed_unless_their_process_still_runs(copy: Path) -> None:
    place = copy / "out" / "compiled" / "soc60"
    left, earlier, used, foreign = (
        place / f".qnnbridge-compile-{name}" for name in ("left", "earlier", "used", "no")
    )
    for folder in (left, earlier, used, foreign):
        (folder / "work").mkdir(parents=True)
    (left / MARK).touch()
    (earlier / EARLIER_MARK).touch()
    held = try_hold(used / MARK)
    assert held is not None
    try:
        again(copy)
        assert not left.exists()
        assert not earlier.exists()
        assert not foreign.exists()
        assert used.exists(), "its maker lives"
    finally:
        held.release()
    again(copy)
    assert not used.exists()


def test_a_compiler_that_ends_during_the_next_call_leaves_no_folder(copy: Path) -> None:
    used = copy / "out" / "compiled" / "soc60" / ".qnnbridge-compile-used"
    used.mkdir()
    held = try_hold(used / MARK)
    assert held is not None

    def release(result: StepResult | None, title: str) -> None:
        held.release()

    options = PrepareOptions(dims=Dimensions({"batch": 2}), soc_models=("60",), extreme=False)
    prepare_model(copy / "m.onnx", copy / "out", options, release)
    assert not used.exists()


def test_two_concurrent_preparations_do_not_share_a_folder(copy: Path) -> None:
    with journals.opened(copy / "out", "m.onnx"), pytest.raises(Busy, match="is using"):
        prepare_model(copy / "m.onnx", copy / "out", PrepareOptions(dims=Dimensions({"batch": 2})))
    assert (copy / "out/manifest.json").exists()


def test_a_name_that_qnn_cannot_find_or_markdown_would_interpret_is_handled(tmp_path: Path) -> None:
    model = tmp_path / "m\u00f6del..1 [x](y).onnx"
    shutil.copy(models.MODELS / "sigmoid.onnx", model)
    document = told(prepare(model, "-o", tmp_path / "o\u00fct", "--no-extreme"))
    assert document["verdict"].startswith("Ready") is True
    assert document["chips"][0]["compiled"] == "compiled/soc60/m\u00f6del_1 [x](y)_ctx.onnx"
    page = (tmp_path / "o\u00fct" / "report.md").read_text(encoding="utf-8")
    assert page.startswith("# m\u00f6del..1 \\[x\\](y).onnx for the NPU\n")


def test_a_slow_model_without_a_chip_option_is_compiled_for_a_default_chip(tmp_path: Path) -> None:
    """Without a chip QNN compiles the model of the long form for three minutes; with one it takes seconds."""
    name = "model_v8" if needs.length(0, 1) else "rnet"
    result = prepare(models.MODELS / f"{name}.onnx", "-o", tmp_path / "out", "--dim", "N=1", "--no-extreme")
    document = told(result)
    assert result.returncode == 0, result.output
    assert document["chips"][0]["soc_model"] == 60
    assert document["notes"] == [
        "No chip was given: prepared for SoC 60 (SC8380XP, V73). Select other chips with --soc-model."
    ]
    compiled = next(step for step in document["steps"] if step["step"] == "compile")
    assert compiled["told"]["compile_seconds"] < 60


def test_a_quantised_model_is_shipped_with_its_loss_of_accuracy(tmp_path: Path) -> None:
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    for number in range(4):
        rng = np.random.default_rng(number)
        np.savez(tmp_path / f"{number}.npz", x=rng.random((1, 3, 16, 16), np.float32))
    samples = [argument for number in range(4) for argument in ("--calibration", tmp_path / f"{number}.npz")]
    arguments = ("--quantize", *samples, "--soc-model", "60", "--no-extreme")
    result = prepare(model, "-o", tmp_path / "out", *arguments)
    document = told(result)
    assert result.returncode == 0, result.output
    assert document["model"] == "models/m_quantized.onnx"
    assert document["chips"][0]["compiled"] == "compiled/soc60/m_quantized_ctx.onnx"
    assert "## Quantised" in (tmp_path / "out/report.md").read_text()
    np.savez(tmp_path / "0.npz", x=np.zeros((1, 3, 16, 16), np.float32))
    changed = told(prepare(model, "-o", tmp_path / "out", *arguments))
    assert states(changed)["fix"] == "kept"
    assert states(changed)["quantize"] == "done", "other samples"


def test_a_model_that_qnn_computes_wrong_is_not_reported_as_ready(tmp_path: Path) -> None:
    model = models.saved(verify_models.towers(), tmp_path / "m.onnx")
    result = prepare(model, "-o", tmp_path / "out", "--soc-model", "60", "--no-extreme")
    document = told(result)
    assert result.returncode == 1
    assert document["chips"][0]["verified"] == "differs"
    page = (tmp_path / "out/report.md").read_text()
    for words in ("**Not ready", "node that differs is exp3", "half-range", "Scale the inputs"):
        assert words in page
    assert "How to use it" not in page


def test_a_model_with_nodes_on_the_cpu_is_used_with_that_permission(tmp_path: Path) -> None:
    model = models.saved(verify_models.partly_for_qnn(), tmp_path / "m.onnx")
    done = qnnbridge("prepare", model, "-o", tmp_path / "out", "--soc-model", "60", "--no-extreme")
    assert done.returncode == 0, done.stderr
    (next_command,) = (line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("  next"))
    assert qnnbridge(*shlex.split(next_command)[1:]).returncode == 0
    page = (tmp_path / "out" / "report.md").read_text()
    assert "InferenceSession('compiled/soc60/m_ctx.onnx', fallback=\"cpu\")" in page


def bad_inputs(folder: Path) -> dict[str, tuple[list[Path | str], str]]:
    full, file = folder / "full", folder / "file"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    size = ["--dim", "batch=1"]
    return {
        "no size": (["-o", folder / "out"], '--dim "batch=SIZE"'),
        "two sizes": (["-o", folder / "out", *size, "--shape", "x=2,4"], "2"),
        "no chip of that name": (
            ["-o", folder / "out", *size, "--soc-model", "SM1"],
            "neither a number nor the name",
        ),
        "no samples": (["-o", folder / "out", *size, "--quantize"], "--quantize needs --calibration"),
        "only samples": (["-o", folder / "out", *size, "--calibration", file], "--calibration needs --quantize"),
        "no such samples": (
            ["-o", folder / "out", *size, "--quantize", "--calibration", folder / "no"],
            "does not exist",
        ),
        "no rewrite of that name": (["-o", folder / "out", *size, "--skip", "magic"], "magic"),
        "a full folder": (["-o", full, *size], "was not created by qnnbridge prepare"),
        "a file": (["-o", file, *size], "is a file"),
        "where the model is": (["-o", folder, *size], "is inside"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "no size",
        "two sizes",
        "no chip of that name",
        "no samples",
        "only samples",
        "no such samples",
        "no rewrite of that name",
        "a full folder",
        "a file",
        "where the model is",
    ],
)
def test_bad_input_exits_with_2_and_leaves_no_file(what: str, tmp_path: Path) -> None:
    arguments, words = bad_inputs(tmp_path)[what]
    model = models.saved(verify_models.free_batch(), tmp_path / "m.onnx")
    result = prepare(model, *arguments)
    assert result.returncode == 2, result.output
    assert words in result.output
    assert {path.name for path in tmp_path.iterdir()} - {"out"} == {"full", "file", "m.onnx"}
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_a_folder_of_another_model_is_not_changed(copy: Path) -> None:
    other = shutil.copy(copy / "m.onnx", copy / "other.onnx")
    result = prepare(other, "-o", copy / "out", *BATCH)
    assert result.returncode == 2
    assert "contains the prepared model m.onnx" in result.output
    assert (copy / "out/manifest.json").exists()


def test_a_call_that_fails_in_its_first_step_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ModelError("refused")

    monkeypatch.setattr("qnnbridge_models.prepare.preparer.fix_model", fails)
    model = models.saved(verify_models.free_batch(), tmp_path / "m.onnx")
    result = prepare(model, "-o", tmp_path / "new" / "out", *BATCH)
    assert "refused" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("steps", "is_whole", "refused"),
    [
        (["fix"], True, ""),
        (["fix", "compile 60"], True, "contains the prepared model a.onnx"),
        (["fix"], False, "contains the unfinished work of qnnbridge prepare on the model a.onnx"),
    ],
    ids=["nothing compiled", "compiled", "interrupted"],
)
def test_a_folder_in_which_nothing_was_compiled_can_be_used_for_another_model(
    steps: list[str], is_whole: bool, refused: str, tmp_path: Path
) -> None:
    with journals.opened(tmp_path / "out", "a.onnx") as journal:
        for step in steps:
            name = f"{step[:3]}.onnx"
            (tmp_path / "out" / name).write_text(step)
            journal.finish(step, "key", [name], {}, 1.0)
        if is_whole:
            (tmp_path / "out" / "manifest.json").write_text("{}")
    if refused:
        with pytest.raises(OptionError, match=refused), journals.opened(tmp_path / "out", "b.onnx"):
            pass
        assert (tmp_path / "out" / "fix.onnx").exists()
        return
    with journals.opened(tmp_path / "out", "b.onnx"):
        assert not (tmp_path / "out" / "fix.onnx").exists()


def test_a_journal_cannot_refer_to_files_outside_of_its_folder(tmp_path: Path) -> None:
    """Such files would be removed."""
    (tmp_path / "precious").write_text("x")
    folder = tmp_path / "out"
    folder.mkdir()
    entry = {"key": "k", "files": [{"name": "../precious", "size": 1, "sha256": ""}], "told": {}, "seconds": 0}
    written = {"schema": journals.SCHEMA, "source": "m.onnx", "steps": {"fix": entry}}
    (folder / journals.JOURNAL_NAME).write_text(json.dumps(written))
    journal = PrepareJournal(folder, "m.onnx")
    journal.read()
    journal.keep_only([])
    assert (tmp_path / "precious").exists()


def test_keys_differ_for_different_steps_models_and_options() -> None:
    base = {"model": "a", "dims": [("n", 1)]}
    assert key_of("fix", **base) == key_of("fix", dims=[("n", 1)], model="a")
    others = [
        key_of("quantize", **base),
        key_of("fix", model="b", dims=[("n", 1)]),
        key_of("fix", model="a", dims=[]),
    ]
    assert len({key_of("fix", **base), *others}) == 4


def test_each_bucket_is_a_separate_model_and_kept_separately(tmp_path: Path) -> None:
    models.saved(verify_models.free_batch(), tmp_path / "m.onnx")
    given = ("--soc-model", "60", "--no-extreme", "--bucket")
    first = told(prepare(tmp_path / "m.onnx", "-o", tmp_path / "out", *given, "batch=1"))
    assert [chip["bucket"] for chip in first["chips"]] == ["batch=1"]
    both = told(prepare(tmp_path / "m.onnx", "-o", tmp_path / "out", *given, "batch=1,2"))
    assert [(chip["bucket"], chip["verified"]) for chip in both["chips"]] == [
        ("batch=1", "agrees"),
        ("batch=2", "agrees"),
    ]
    assert [step["state"] for step in both["steps"]] == ["kept"] * 3 + ["done"] * 3
    assert {chip["compiled"] for chip in both["chips"]} == {f"compiled/soc60/m_batch{n}_ctx.onnx" for n in (1, 2)}
    refused = prepare(tmp_path / "m.onnx", "-o", tmp_path / "other", *given, "rows=1,2")
    assert refused.returncode == 2
    assert "batch" in refused.output


def test_a_session_of_a_prepared_folder_reports_the_shipped_verdict(copy: Path, tmp_path: Path) -> None:
    compiled = next((copy / "out" / "compiled").rglob("*_ctx.onnx"))
    assert states(told(prepare(copy / "m.onnx", "-o", copy / "out", *BATCH)))["compile 60"] == "kept"
    shipped = tmp_path / "shipped"
    shutil.copytree(compiled.parent, shipped)
    program = (
        "import sys, qnnbridge\n"
        "with qnnbridge.InferenceSession(sys.argv[1], verify='raise') as session:\n"
        "    report = session.verified\n"
        "    print(report.state, report.kept, report.inputs, report.worst.snr_db, sep='|')\n"
    )
    path = shipped / compiled.name
    for _ in range(2):
        environ = {**os.environ, "QNNBRIDGE_CACHE": "1", "QNNBRIDGE_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], env=environ, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        state, kept, inputs, ratio = done.stdout.strip().split("|")
        assert (state, kept) == ("agrees", "True")
        assert inputs.startswith("qnnbridge prepare, onnxruntime-qnn 2")
        assert float(ratio) > 30
    manifest = path.with_suffix("").with_suffix(".qnnbridge.json")
    document = json.loads(manifest.read_text())
    document["extra"]["verified"]["state"] = "differs"
    manifest.write_text(json.dumps(document))
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=100)
    assert "NumbersDiffer" in done.stderr, "what was found wrong is said by every session"
    del document["extra"]["verified"]
    manifest.write_text(json.dumps(document))
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("agrees|True|qnnbridge compile, onnxruntime-qnn"), done.stderr


def test_a_shipped_verdict_lists_the_worst_output_first_as_a_session_does() -> None:
    def output(name: str, state: Any, ratio: float | None, lost: int = 0) -> dict[str, Any]:
        return {"name": name, **JudgedNumbers(state, 4, ratio, lost=lost).to_wire()}

    found = {"verdict": "differs", "reason": "x", "seconds": 1.0, "versions": {}}
    found["outputs"] = [
        output("good", "agrees", 60.0),
        output("not shown", "unknown", None),
        output("noisy", "differs", 3.0),
        output("NaN on QNN", "differs", None, 4),
    ]
    shipped = shipped_numbers(StepResult("verify", "done", "60", (), found, "", 1.0))
    assert shipped is not None
    assert [one["output"] for one in shipped["outputs"]] == ["NaN on QNN", "noisy", "good", "not shown"]
