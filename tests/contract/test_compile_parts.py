"""The parts of compiling that work without QNN: names, paths, comparison of numbers, explanation of errors."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge._compile import make_jobs
from qnnbridge.errors import CompileFailed, DeadlineExceeded, EPFail, ModelChanged, OptionError, PlacementRefused
from qnnbridge_host.create import compiler, publish
from qnnbridge_host.create.compiler import blame_unknown_chips, nothing_to_compile, staging_dir, unknown_chips
from qnnbridge_host.create.orchestrate import compare, tolerance_text, validate
from qnnbridge_host.create.order import WorkOrder, worker_command
from qnnbridge_host.create.publish import CompiledFiles, CompilerInput, Destination, destination_of, job_key
from qnnbridge_host.create.worker import ticking
from qnnbridge_host.model import paths
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.model_records import Difference, Validation
from qnnbridge_protocol.specs import QNN, NodeInfo, ProviderSpec, SessionSpec

MODELS = Path(__file__).parent.parent / "models"


def job_of(path: Path, **spec: Any) -> CompilerInput:
    source = ModelSource.open(path)
    return CompilerInput(source, SessionSpec(source.path, **spec))


def job_for(path: Path, soc_model: int, *, embed: bool = False) -> CompilerInput:
    job = job_of(path, providers=(ProviderSpec(QNN, {"soc_model": str(soc_model)}),))
    return dataclasses.replace(job, embed=embed)


# --- names and paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("pnet", "pnet_ctx"),
        ("a.b", "a.b_ctx"),
        ("a..b", "a_b_ctx"),
        ("a....b..c", "a_b_c_ctx"),
        ("modèle", "modèle_ctx"),
        (None, "model_ctx"),
    ],
)
def test_a_compiled_model_gets_a_file_name_that_qnn_can_load(stem: str | None, expected: str) -> None:
    assert publish.context_stem(stem) == expected


def test_long_file_names_are_shortened_and_stay_different() -> None:
    first, second = publish.context_stem("m" * 250 + "1"), publish.context_stem("m" * 250 + "2")
    assert first != second
    assert all(len(os.fsencode(stem)) <= publish.MAX_STEM_BYTES for stem in (first, second))
    assert publish.context_stem("m" * 200) == "m" * 200 + "_ctx"
    assert len(os.fsencode(publish.context_stem("ж" * 240))) <= publish.MAX_STEM_BYTES


def place_of(source: ModelSource, output: Path | str | None, tag: str = "") -> Destination:
    return destination_of(source, None if output is None else str(output), os.getcwd(), tag=tag)


def test_without_an_output_path_the_result_is_written_to_the_folder_of_the_model() -> None:
    place = place_of(ModelSource.open(MODELS / "pnet.onnx"), None)
    assert place.path == str(MODELS / "pnet_ctx.onnx")


def test_an_output_folder_gets_a_file_with_the_name_of_the_model(tmp_path: Path) -> None:
    source = ModelSource.open(MODELS / "pnet.onnx")
    assert place_of(source, tmp_path).path == str(tmp_path / "pnet_ctx.onnx")
    assert place_of(source, f"{tmp_path}/v1.0/").path == str(tmp_path / "v1.0" / "pnet_ctx.onnx")
    assert place_of(source, tmp_path / "new").path == str(tmp_path / "new" / "pnet_ctx.onnx")
    assert place_of(source, tmp_path, tag="_soc60").model == "pnet_soc60_ctx.onnx"


@pytest.mark.parametrize("name", ["m.ort", "m.bin", "a..b.onnx", "x" * 240 + ".onnx"])
def test_an_output_name_that_qnn_could_not_load_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError):
        place_of(ModelSource.open(MODELS / "pnet.onnx"), tmp_path / name)


def test_the_model_itself_is_refused_as_the_output(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes((MODELS / "mul_1.onnx").read_bytes())
    with pytest.raises(OptionError, match="is the model itself"):
        place_of(ModelSource.open(model), model)


# --- jobs ------------------------------------------------------------------------------------------------


def test_a_job_can_be_pickled_for_another_process() -> None:
    (job,) = make_jobs([MODELS / "mul_1.onnx"], [60])
    assert pickle.loads(pickle.dumps(job)) == job


def test_the_key_of_a_job_depends_on_contents_options_and_versions_and_not_on_paths(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes((MODELS / "mul_1.onnx").read_bytes())
    versions = {"onnxruntime": "1", "python": "3.11"}
    key = job_key(job_for(MODELS / "mul_1.onnx", 60), versions)
    assert job_key(job_for(model, 60), versions) == key
    assert job_key(job_for(model, 60), {**versions, "python": "3.12"}) == key
    others = [
        job_key(job_for(model, 88), versions),
        job_key(job_for(model, 60, embed=True), versions),
        job_key(job_for(model, 60), {**versions, "onnxruntime": "2"}),
        job_key(job_for(MODELS / "sigmoid.onnx", 60), versions),
    ]
    assert len({key, *others}) == 5


def test_a_chip_that_is_given_by_two_options_must_be_the_same_in_both() -> None:
    (job,) = make_jobs([MODELS / "mul_1.onnx"], [60], provider_options={"soc_model": "60"})
    assert job.recipe.spec.providers == (ProviderSpec("QNNExecutionProvider", {"soc_model": "60"}),)
    with pytest.raises(OptionError, match="soc_model is given twice"):
        make_jobs([MODELS / "mul_1.onnx"], [60], provider_options={"soc_model": 88})


def test_session_options_without_qnn_are_refused() -> None:
    options = qnnbridge.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    with pytest.raises(OptionError, match="compiled for QNNExecutionProvider"):
        make_jobs([MODELS / "mul_1.onnx"], sess_options=options)


# --- staging at an ASCII path ----------------------------------------------------------------------------


def test_ascii_paths_are_used_without_staging(tmp_path: Path) -> None:
    job = job_of(MODELS / "mul_1.onnx")
    with staging_dir([job], str(tmp_path)) as place:
        assert (place.folder, place.specs) == (str(tmp_path), (job.spec,))


def test_models_at_other_paths_are_staged_with_their_files_and_the_results_are_moved_back(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    home = tmp_path / "Küche"
    (home / "weights").mkdir(parents=True)
    model = onnx.load(str(MODELS / "pnet.onnx"))
    onnx.save(model, str(home / "ж.onnx"), save_as_external_data=True, location="weights/w.bin", size_threshold=0)
    job = job_of(home / "ж.onnx")
    with staging_dir([job], str(home)) as place:
        path = place.specs[0].model_path
        assert path is not None
        assert path.isascii()
        assert place.folder.isascii()
        assert Path(path).read_bytes() == (home / "ж.onnx").read_bytes()
        beside = Path(path).parent / "weights" / "w.bin"
        assert beside.read_bytes() == (home / "weights" / "w.bin").read_bytes()
        error = place.with_real_paths(EPFail(f"cannot load {path}", evidence=[os.path.basename(path)]))
        assert str(home / "ж.onnx") in error.message
        assert error.evidence == ("ж.onnx",)
        Path(place.folder, "result.bin").write_bytes(b"1")
    assert (home / "result.bin").read_bytes() == b"1"
    assert not os.path.exists(place.folder)


# --- models that change during a compilation -------------------------------------------------------------


def test_a_copy_that_differs_from_the_hashed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes((MODELS / "mul_1.onnx").read_bytes())
    job = job_of(path)
    with staging_dir([job], str(tmp_path), copied=True) as place:
        assert place.private
        assert place.specs[0].model_path not in (None, str(path))
        assert place.folder != str(tmp_path)
    path.write_bytes((MODELS / "sigmoid.onnx").read_bytes())
    with pytest.raises(ModelChanged), staging_dir([job], str(tmp_path), copied=True):
        pass


def test_a_model_that_changed_during_the_compilation_is_compiled_again_from_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewrite the model and restore it with its dates while the worker compiles: hashes and dates do not show it."""
    path, tried = tmp_path / "m.onnx", []
    good, other = (MODELS / "mul_1.onnx").read_bytes(), (MODELS / "sigmoid.onnx").read_bytes()
    path.write_bytes(good)
    os.utime(path, ns=(10**18, 10**18))
    job = job_of(path)
    order = WorkOrder((), StopSignal(), job.source)
    time.sleep(0.05)  # longer than a tick of the file system's clock

    def run(self: compiler._Compilation) -> list[Any]:
        tried.append(str(self._place.specs[0].model_path))
        for contents in (other, good):
            path.write_bytes(contents)
        os.utime(path, ns=(10**18, 10**18))
        job.source.check_unchanged()
        return []

    monkeypatch.setattr(compiler._Compilation, "run", run)
    assert compiler.compile_together([job], str(tmp_path), order) == ()
    assert tried[0] == str(path)
    assert len(tried) == 2
    assert tried[1] != str(path)
    job = dataclasses.replace(job, source=job.source._replace(path=None))  # given as bytes: nothing to copy
    with pytest.raises(ModelChanged, match="keeps writing"):
        compiler.compile_together([job], str(tmp_path), order)


# --- comparison of numbers -------------------------------------------------------------------------------


def level(got: Any, expected: Any) -> str:
    found = compare("y", {"ones": np.asarray(got)}, {"ones": np.asarray(expected)}, "fp16")
    assert found is not None
    return found.level


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_a_rounding_difference_is_ok_a_larger_one_is_unusual_and_a_large_one_is_wrong() -> None:
    assert level(floats(1.001, 2, 3), floats(1, 2, 3)) == "ok"
    assert level(floats(1.1, 2.1, 3.1), floats(1, 2, 3)) == "unusual"
    assert level(floats(3, 2, 1), floats(1, 2, 3)) == "wrong"
    assert level(floats(0, 0, 0), floats(1, 2, 3)) == "wrong"
    assert level(floats(65504, 1), floats(1e6, 1)) == "wrong"
    assert tolerance_text("fp16") == "fp16: an output agrees with an SNR of at least 30 dB, and differs below 20 dB"


def test_nan_and_infinity_are_wrong_only_where_the_cpu_has_a_finite_number() -> None:
    assert level(floats(math.nan, 1), floats(1, 1)) == "wrong"
    assert level(floats(math.inf, 1), floats(1, 1)) == "wrong"
    assert level(floats(0, 1), floats(math.nan, 1)) == "ok"


def test_the_range_of_an_output_covers_all_inputs() -> None:
    small, large = floats(0.01), floats(100.0)
    found = compare("y", {"a": floats(0.02), "b": large}, {"a": small, "b": large}, "fp16")
    assert found is not None
    assert found.level == "ok"
    assert found.max_rel == pytest.approx(1e-4, rel=0.01)


def test_a_difference_that_the_inputs_cannot_show_is_not_reported_as_ok() -> None:
    same = floats(0.5, 0.5)
    found = compare("y", {"a": same, "b": same}, {"a": same, "b": same}, "fp16")
    assert found is not None
    assert found.level == "unusual"
    assert "not shown by these inputs" in (found.remark or "")
    nan = floats(math.nan)
    unknown = compare("y", {"a": nan}, {"a": nan}, "fp16")
    assert unknown is not None
    assert unknown.level == "unusual"


def test_an_output_with_another_shape_is_wrong() -> None:
    assert level(np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32)) == "wrong"


def test_only_few_integers_may_differ() -> None:
    assert level(np.arange(100) + 1, np.arange(100)) == "wrong"
    assert level(np.arange(100), np.arange(100)) == "ok"
    assert level(np.array([10, 11], np.uint8), np.array([11, 11], np.uint8)) in ("ok", "unusual")
    assert level(np.array([200, 0], np.uint8), np.array([0, 200], np.uint8)) == "wrong"


def test_strings_are_not_compared() -> None:
    assert compare("y", {"a": ["x"]}, {"a": ["x"]}, "fp16") is None


def test_the_figures_are_those_of_the_output_with_the_largest_relative_difference() -> None:
    large = Difference("large", "ok", 5.0, 0.01, 0.999, "ones")
    small = Difference("small", "unusual", 0.1, 0.2, 0.99, "ones")
    found = Validation((large, small))
    assert found.worst is small
    assert (found.max_abs, found.max_rel, found.to_json()["worst_output"]) == (0.1, 0.2, "small")
    assert (Validation().worst, Validation().max_abs) == (None, 0.0)


# --- messages --------------------------------------------------------------------------------------------


def test_the_error_for_no_model_keeps_the_sizes_and_drops_the_advice_for_sessions() -> None:
    """Commands replace the call by their option: `use_options_in_fix`."""
    refused = PlacementRefused(
        "No node of m.onnx can run on the NPU (3 nodes), and this session forbids the CPU.",
        cause="dynamic",
        fix="Fix the dimensions: add_free_dimension_override_by_name('N', SIZE), or export the model with fixed "
        "shapes. To run unsupported nodes on the CPU, create the session with fallback='cpu'.",
        evidence=["Conv: Cannot get shape"],
    )
    failed = nothing_to_compile(refused)
    assert failed.message == "No node of m.onnx can run on the NPU (3 nodes), so there is nothing to compile."
    assert failed.fix is not None
    assert "add_free_dimension_override_by_name('N', SIZE)" in failed.fix
    assert "fallback" not in failed.fix
    assert failed.evidence == refused.evidence


def test_dimensions_without_a_name_are_fixed_in_a_copy_of_the_model() -> None:
    refused = PlacementRefused(
        "No node.",
        fix="Export the model with fixed shapes. To run unsupported nodes on the CPU, "
        "create the session with fallback='cpu'.",
    )
    inputs_of_model = (NodeInfo("x", "tensor(float)", (None, 3, "?", "?")), NodeInfo("s", "tensor(float)", ()))
    failed = nothing_to_compile(refused, inputs_of_model)
    assert failed.fix is not None
    assert "qnnbridge optimize MODEL -o FIXED.onnx --dim x:0=SIZE --dim x:2=SIZE --dim x:3=SIZE" in failed.fix
    assert nothing_to_compile(refused).fix == "Export the model with fixed shapes."


def test_an_unknown_chip_is_the_first_cause_in_an_error_of_qnn() -> None:
    providers = (ProviderSpec(QNN, {"soc_model": "60, 61,sc8380xp,0,9999"}),)
    assert unknown_chips(providers) == ("61", "9999")
    refused = PlacementRefused("No node.", cause="QNN took none.", fix="Change these nodes.")
    blame_unknown_chips(refused, providers)
    assert refused.cause == "61, 9999 are not in qnnbridge's table of chips (soc_model). QNN took none."
    assert refused.fix is not None
    assert "SC8380XP=60" in refused.fix
    assert refused.fix.endswith("Change these nodes.")
    for error, chips in ((PlacementRefused("x"), "60"), (OptionError("x"), "61")):
        blame_unknown_chips(error, (ProviderSpec(QNN, {"soc_model": chips}),))
        assert (error.cause, error.fix) == (None, None)


def test_a_deadline_that_expires_before_the_comparison_is_reported_as_such() -> None:
    job = job_for(MODELS / "mul_1.onnx", 60)
    files = CompiledFiles("/nowhere", "m_ctx.onnx", None, None, "60", {}, {}, 0.1)
    order = WorkOrder(worker_command(None), StopSignal(), job.source, deadline=time.monotonic())
    with pytest.raises(
        DeadlineExceeded, match=r"mul_1\.onnx was compiled, but the timeout expired before"
    ) as caught:
        validate(job, files, order, Hello())
    assert "--no-validate" in str(caught.value.fix)
    assert caught.value.state == "not-started"


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to write context cache file.",
        "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Protobuf serialization failed when saving model to m.onnx",
        "SystemError : 30",
    ],
)
def test_a_failed_write_is_reported_as_a_failed_write(text: str, tmp_path: Path) -> None:
    told = paths.from_host(EPFail(text), str(tmp_path))
    assert isinstance(told, CompileFailed)
    assert str(tmp_path) in told.message
    assert told.evidence == (text,)
    other = EPFail("Failed to finalize QNN graph. Error code: 1002")
    assert paths.from_host(other, str(tmp_path)) is other


def test_progress_is_reported_even_for_work_that_ends_immediately() -> None:
    told: list[float] = []
    with ticking(told.append):
        pass
    assert told[0] == 0.0


def test_a_failing_progress_callback_does_not_stop_the_work(caplog: pytest.LogCaptureFixture) -> None:
    def fail(seconds: float) -> None:
        raise ValueError("no terminal")

    with ticking(fail):
        deadline = time.monotonic() + 20
        while not caplog.records and time.monotonic() < deadline:
            pass
    assert "on_progress failed" in caplog.text
