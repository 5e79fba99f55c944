"""`qnnbridge compile` with the real compiler."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests import needs
from tests.contract.small_models import model, node, tensor
from tests.fakes.commands import COMMAND, in_a_process
from tests.fakes.commands import qnnbridge as command
from tests.fakes.later import until

import qnnbridge
from qnnbridge_tools.compile.compiling import ShownStages

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parent.parent / "models"
MUL = MODELS / "mul_1.onnx"

run = functools.partial(command, "compile", COLUMNS="200")


def test_compiling_one_model_reports_file_chip_placement_and_validation(tmp_path: Path) -> None:
    done = in_a_process("compile", MUL, "-o", tmp_path, "--soc-model", "60", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/mul_1_ctx.onnx" in done.stdout
    assert "1 node on QNN, 0 on the CPU" in done.stdout
    assert "largest difference" in done.stdout
    assert re.search(r"with +onnxruntime-qnn \d\S*, QNN SDK \d\S*\n", done.stdout)
    assert "validating mul_1.onnx" in done.stderr
    again = run(MUL, "-o", tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "--overwrite" in again.stderr


def test_the_result_is_compared_on_the_given_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    done = run(MUL, "-o", tmp_path / "a", "--soc-model", "60", "--json", "--input", f"X={tmp_path / 'x.npy'}")
    (told,) = json.loads(done.stdout)["validation"]["outputs"]
    assert told["inputs"] == "the given inputs"
    for name, words in (("Y", "has no input 'Y'"), ("X", "Got invalid dimensions")):
        np.save(tmp_path / "x.npy", np.ones((7, 7), np.float32))
        refused = run(MUL, "-o", tmp_path / name, "--soc-model", "60", "--input", f"{name}={tmp_path / 'x.npy'}")
        assert refused.returncode != 0
        assert words in refused.stderr
        assert not list((tmp_path / name).glob("*"))


def test_a_detector_without_detections_in_generated_inputs_is_not_reported_as_validated(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", ["x"], ["share"]),
        node("Split", ["share", "sizes"], ["of_boxes", "of_scores"], axis=1),
        node("Mul", ["of_boxes", "pixels"], ["boxes"]),
        node("Mul", ["of_scores", "low"], ["scores"]),
        node("Concat", ["boxes", "scores"], ["y"], axis=1),
    ]
    constants = {"sizes": np.asarray([4, 18], np.int64), "pixels": np.float32(640), "low": np.float32(1e-3)}
    head = model(nodes, [tensor("x", [1, 22, 2100])], [tensor("y", [1, 22, 2100])], constants)
    onnx.save(head, tmp_path / "head.onnx")
    done = run(tmp_path / "head.onnx", "-o", tmp_path / "out", "--soc-model", "60")
    assert done.returncode == 0, done.stderr
    assert "1 output (1 of them cannot be judged with these inputs): largest difference" in done.stdout
    assert "It is unknown whether QNN's results equal the CPU's: y" in done.stderr
    assert "nothing is detected. Give real inputs (inputs=, --input)." in done.stderr


def test_both_figures_are_those_of_the_worst_output_which_is_named(tmp_path: Path) -> None:
    """The other output has the larger absolute difference, but a smaller one relative to its own values."""
    model = MODELS / "silero_vad_openvino_16k.onnx"
    document = json.loads(run(model, "-o", tmp_path, "--soc-model", "60", "--json").stdout)["validation"]
    outputs = {one["output"]: one for one in document["outputs"]}
    assert outputs["stateN"]["max_abs"] > 5 * outputs["output"]["max_abs"]
    assert document["worst_output"] == "output"
    assert (document["max_abs"], document["max_rel"]) == (
        outputs["output"]["max_abs"],
        outputs["output"]["max_rel"],
    )
    shown = run(model, "-o", tmp_path, "--soc-model", "60", "--overwrite").stdout
    share = f"{document['max_rel'] * 100:.1f} %"
    assert f'largest difference {document["max_abs"]:.3g} ({share} of the range of output "output")' in shown


def test_an_unknown_chip_is_tried_and_named(tmp_path: Path) -> None:
    warned = run(MODELS / "q.onnx", "-o", tmp_path, "--soc-model", "61", "--no-validate")
    assert warned.returncode == 0, "the table is not all that QNN knows"
    assert "Warning: soc_model=61 is not in qnnbridge's table of chips (SM8350=30, " in warned.stderr
    failed = run(MUL, "-o", tmp_path, "--soc-model", "61")
    assert failed.returncode == 1
    assert "Cause: 61 is not in qnnbridge's table of chips (soc_model)." in failed.stderr
    assert "SC8380XP=60" in failed.stderr


def test_json_is_one_document(tmp_path: Path) -> None:
    done = run(MUL, "-o", tmp_path / "m.onnx", "--embed", "--no-validate", "--htp-arch", "73", "--json")
    document = json.loads(done.stdout)
    assert document["path"] == str(tmp_path / "m.onnx")
    assert document["blob"] is None
    assert document["placement"]["qnn_nodes"] == 1
    assert document["validation"]["skipped"]
    assert document["provider_options"]["htp_arch"] == "73"


def test_the_error_for_a_model_with_free_dimensions_names_options_that_work(tmp_path: Path) -> None:
    done = run(MODELS / "pnet.onnx", "-o", tmp_path)
    assert done.returncode == 1
    assert "--dim N=SIZE --dim M1=SIZE --dim M2=SIZE" in done.stderr
    assert "died" not in done.stderr, "the compiler was not needed any more, which is no crash"
    dims = [word for dim in ("N=1", "M1=60", "M2=60") for word in ("--dim", dim)]
    assert run(MODELS / "pnet.onnx", "-o", tmp_path, "--no-validate", *dims).returncode == 0


def test_a_compiled_model_is_refused_in_plain_language(tmp_path: Path) -> None:
    done = run(MODELS / "compiled" / "good.onnx", "-o", tmp_path, "--json")
    assert done.returncode == 2
    assert "is a compiled model (EPContext)" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "model.CompiledRefused"


def test_models_and_chips_are_reported_in_one_table_with_one_exit_code(tmp_path: Path) -> None:
    chips = ("--soc-model", "60", "--soc-model", "88")
    options = ("-o", tmp_path, "--no-validate", "--jobs", "2")
    done = run(MUL, MODELS / "logreg_iris.onnx", *chips, *options)
    assert done.returncode == 1, "one of the models is not for QNN"
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert rows[1:] == [
        ["mul_1.onnx", "60", "done"],
        ["mul_1.onnx", "88", "done"],
        ["logreg_iris.onnx", "60", "failed"],
        ["logreg_iris.onnx", "88", "failed"],
    ]
    assert "compiling 4 models" in done.stderr
    assert "[4/4]" in done.stderr
    again = run(MUL, *chips, *options, "--json")
    assert again.returncode == 0
    assert [outcome["state"] for outcome in json.loads(again.stdout)["outcomes"]] == ["skipped", "skipped"]


def test_each_bucket_is_compiled_to_a_separate_model(tmp_path: Path) -> None:
    done = run(
        MODELS / "rnet.onnx", "--bucket", "N=1,2", "--soc-model", "60", "--no-validate", "-o", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["rnet.onnx", "(N=1)"],
        ["rnet.onnx", "(N=2)"],
    ]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.onnx")) == [
        "rnet_N1_ctx.onnx",
        "rnet_N2_ctx.onnx",
    ]
    with qnnbridge.InferenceSession(str(tmp_path / "out" / "rnet_N2_ctx.onnx")) as session:
        assert session.get_inputs()[0].shape[0] == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--bucket", "M=1,2"], 'no free dimension "M"'),
        (["--bucket", "N=1,2", "--dim", "N=1"], "by --dim and by --bucket"),
        (["--bucket", "N=1,2", "-o", "one.onnx"], "Give a folder"),
        (["--bucket", "N=one"], "not of the form"),
    ],
)
def test_impossible_buckets_are_refused(given: list[str], words: str) -> None:
    done = run(MODELS / "rnet.onnx", *given)
    assert done.returncode == 2
    assert words in done.stderr


def test_models_with_shared_weights_are_compiled_together(tmp_path: Path) -> None:
    done = run(MUL, MODELS / "sigmoid.onnx", "--share-weights", "-o", tmp_path / "out", "--soc-model", "60")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.bin")) == ["mul_1_ctx_qnn.bin"]
    assert "The simulator cannot load" in done.stdout
    assert "Warning: Not validated" in done.stderr


def test_a_timeout_limits_the_compilation(tmp_path: Path) -> None:
    done = run(MUL, "-o", tmp_path / "out", "--timeout", "0")
    assert done.returncode == 1
    assert "mul_1.onnx was not compiled within 0 s" in done.stderr
    assert "--timeout" in done.stderr
    assert os.listdir(tmp_path) == []


@needs.posix
def test_ctrl_c_ends_the_compilation_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, begun, never_ready = tmp_path / "out", tmp_path / "begun", tmp_path / "python"
    # However late the signal arrives, the command is not ready, and does not end otherwise.
    never_ready.write_text(f"#!/bin/sh\n: > '{begun}'\nwhile true; do sleep 1; done\n")
    never_ready.chmod(0o700)
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", str(never_ready))
    command = [*COMMAND, "compile", str(MUL), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "compiling mul_1.onnx\n"
        # A process that is being started when the signal arrives ends with its stdin, as hosts do.
        until(begun.exists)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all foreground processes
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "Interrupted.\n"
    assert sorted(os.listdir(tmp_path)) == [begun.name, never_ready.name]


def test_elapsed_time_is_updated_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ShownStages("m.onnx") as stages:
        stages("validating", 3.0)
    assert re.search(r"validating m\.onnx.*0:00:0\d", terminal.getvalue())


def test_elapsed_time_is_printed_as_occasional_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    with ShownStages("m.onnx") as stages:
        for seconds in (0.2, 15, 31, 45, 62):
            stages("compiling", seconds)
        stages("validating", 63)
    assert piped.getvalue().splitlines() == [
        "compiling m.onnx",
        "compiling m.onnx, 31 s",
        "compiling m.onnx, 62 s",
        "validating m.onnx",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "There is no model file"),
        ([str(MUL), "--provider-option", "soc_model"], "KEY=VALUE"),
        ([str(MUL), "--soc-model", "60", "--provider-option", "soc_model=88"], "given twice"),
        ([str(MUL), "--dim", "x:0=1"], "by their names only"),
        ([str(MUL), "--dim", "Q=3"], 'no free dimension "Q"'),
        ([str(MUL), str(MODELS / "pnet.onnx"), "--dim", "N=1", "--dim", "Q=3"], "Its free dimensions: N, M1, M2."),
        ([str(MODELS / "compiled" / "good.onnx"), "--dim", "Q=3"], "is a compiled model (EPContext)"),
        ([str(MUL), "-o", "x.ort"], "does not end in .onnx"),
        ([str(MUL), "--share-weights"], "at least two models"),
        ([str(MUL), "--input", "X=nowhere.npy"], "no file nowhere.npy"),
        ([str(MUL), "--input", "X=nowhere.npy", "--no-validate"], "--input does not go with --no-validate"),
        ([str(MUL), str(MODELS / "sigmoid.onnx"), "--input", "x=a.npy"], "a single model of a single size"),
    ],
)
def test_bad_input_is_refused_before_a_host_is_started(arguments: list[str], message: str) -> None:
    done = run(*arguments, "--host-python", "/nonexistent/python")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
