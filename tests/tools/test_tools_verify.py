"""`qnnbridge verify` on the real simulator: agreement, differences with their first node, and known traps."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")

import model_work_models as models
import verify_models
from lab.sweep.cases import float_model
from tests import needs
from tests.contract import optimizer_models
from tests.fakes.commands import qnnbridge

from qnnbridge_host.model import known_wrong
from qnnbridge_host.numerics.cases import Case
from qnnbridge_models.analyze import analyze_model
from qnnbridge_models.verify import Verification, verifier, verify_model
from qnnbridge_models.verify.verifier import VerifyOptions
from qnnbridge_protocol.errors import ModelChanged
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.settings import state_dir

pytestmark = pytest.mark.simulator

ORDINARY = VerifyOptions(extreme=False)


def verify(*arguments: str | Path) -> Any:
    return qnnbridge("verify", *arguments)


def verified(made: Any, folder: Path, how: VerifyOptions | None = None, **kwargs: Any) -> Verification:
    return verify_model(models.saved(made, folder / "m.onnx"), soc_model="60", how=how, **kwargs)


def names_of(result: Verification) -> set[str]:
    return {trap.name for trap in result.traps}


def test_a_real_model_agrees_and_every_row_has_its_figures() -> None:
    result = verify(models.MODELS / "rnet.onnx", "--dim", "N=1", "--soc-model", "60", "--json")
    told = json.loads(result.stdout)
    assert result.returncode == 0, result.output
    assert (told["verdict"], told["agrees"], told["placement"]["qnn_nodes"]) == ("agrees", True, 14)
    assert told["snr_db"] > 45
    assert {one["state"] for one in told["outputs"]} == {"agrees"}
    assert told["nodes"] == 19, "as analyze counts them"
    kinds = [row["kind"] for row in told["rows"]]
    assert kinds.count("extreme") == 5, "all inputs are floats"
    assert 3 <= kinds.count("made up") <= 8
    for row in told["rows"]:
        assert [one["name"] for one in row["outputs"]] == ["dense_2", "softmax_1"]
    ordinary = [one for row in told["rows"] if row["kind"] == "made up" for one in row["outputs"]]
    assert all(0 < one["max_abs"] < 0.01 and not one["differs"] for one in ordinary), "half floats, not equal"


def test_memory_that_qnn_does_not_write_is_detected(tmp_path: Path) -> None:
    """In a new process the memory is zero, which is right for zeros."""
    result = verified(verify_models.padded_behind(), tmp_path, ORDINARY)
    zeros = next(row for row in result.rows if row.name == "made up: zeros")
    assert zeros.status == "differs"
    assert result.divergence is not None
    assert result.divergence.node == "pad"


def test_nan_is_reported_and_counts_only_on_request(tmp_path: Path) -> None:
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    lenient = verify_model(model, soc_model="60", how=VerifyOptions(bisect=False))
    strict = verify_model(model, soc_model="60", how=VerifyOptions(bisect=False, strict=True))
    for result in (lenient, strict):
        rows = {row.name: row for row in result.rows}
        assert rows["NaN"].status == "differs"
        assert {trap.name for trap in rows["NaN"].traps} == {"nan-vanishes"}
        assert rows["made up: zeros"].status == "agrees"
    assert (lenient.verdict, strict.verdict) == ("agrees", "differs")
    assert "On extreme inputs the results differ" in lenient.reason


def test_64_bit_integers_that_lose_their_upper_half_are_named(tmp_path: Path) -> None:
    result = verify(models.saved(verify_models.wide_integers(), tmp_path / "m.onnx"), "--soc-model", "60")
    assert result.returncode == 1, result.output
    assert "DIFFERS: m.onnx" in result.stdout
    assert "Trap: int64-in-32-bits" in result.stdout
    assert "8589934598 on the CPU, 6 on QNN" in result.stdout
    assert "add (Add), node 1 of 1" in result.stdout


def test_the_first_node_that_differs_is_found_in_few_sessions(tmp_path: Path) -> None:
    result = verified(verify_models.padded_pooling(before=18, after=12), tmp_path, ORDINARY)
    found = result.divergence
    assert result.verdict == "differs"
    assert found is not None
    assert (found.node, found.op, found.exact, found.number, found.of) == ("pool", "AveragePool", True, 20, 33)
    assert found.alone is not None
    assert found.alone.agrees is False, "it is wrong by itself, too"
    assert found.sessions <= 9, "two for each of two rounds, three for the node by itself, and some to spare"
    assert "average-pool-padding" in names_of(result)


def test_a_value_outside_of_float16_between_two_nodes_is_found(tmp_path: Path) -> None:
    result = verified(verify_models.towers(), tmp_path, ORDINARY)
    assert result.divergence is not None
    assert result.divergence.node == "exp3"
    assert "half-range" in names_of(result)


def test_a_model_that_crashes_the_host_is_a_finding_with_its_node(tmp_path: Path) -> None:
    result = verify(models.saved(verify_models.zero_size(), tmp_path / "m.onnx"), "--soc-model", "60", "--json")
    told = json.loads(result.stdout)
    assert result.returncode == 1
    assert told["verdict"] == "failed"
    assert "size 0" in told["error"]["cause"]
    assert told["first_divergence"]["node"] == "multiply"
    assert told["first_divergence"]["exact"] is True
    assert "Traceback" not in result.output


@pytest.mark.parametrize("what", ["not_for_qnn", "random_numbers"])
def test_nothing_compared_is_not_reported_as_agreement(what: str, tmp_path: Path) -> None:
    result = verify(models.saved(getattr(verify_models, what)(), tmp_path / "m.onnx"), "--soc-model", "60")
    assert result.returncode == 1
    # Random numbers that QNN draws only once cause another difference.
    verdict, words = {
        "not_for_qnn": ("NOT COMPARED", "No node"),
        "random_numbers": ("DIFFERS", "change with every run on the CPU"),
    }[what]
    assert result.stdout.startswith(f"{verdict}: m.onnx.")
    assert words in result.stdout


def test_indices_that_only_the_cpu_refuses_are_reported(tmp_path: Path) -> None:
    names = {row.name for row in verified(verify_models.embedding(), tmp_path).rows}
    assert "negative numbers (-1)" not in names, "nobody gives such ids"
    result = verified(verify_models.embedding(), tmp_path, VerifyOptions(strict=True))
    rows = {row.name: row for row in result.rows}
    assert rows["negative numbers (-1)"].status == "agrees"
    assert rows["integers beyond 32 bits"].status == "unchecked"
    assert names_of(result) == {"unchecked"}
    assert result.verdict == "agrees"


def test_given_inputs_are_rows_and_supply_the_sizes(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.ones((5, 4), np.float32))
    for named in (True, False):  # a session accepts a size by name; without a name the model is copied
        result = verified(verify_models.free_batch(named=named), tmp_path, ORDINARY, inputs=[tmp_path / "one.npz"])
        assert result.rows[0].name == "given: one.npz"
        assert result.sizes == ({"batch": 5} if named else {"x:0": 5})
        assert result.verdict == "agrees"
        assert result.placement is not None
        assert result.placement.cpu_nodes == 0


def test_without_onnx_everything_but_the_search_works(tmp_path: Path) -> None:
    model = models.saved(verify_models.wide_integers(), tmp_path / "m.onnx")
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['onnxruntime'] = None\n"
        "from qnnbridge_tools.cli import main; sys.argv = ['qnnbridge', *sys.argv[1:]]; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", str(model), "--soc-model", "60", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert [trap["name"] for trap in told["traps"]] == ["int64-in-32-bits"]
    assert told["first_divergence"] is None
    assert install_command("models") in told["not_bisected"]


def bad_inputs(folder: Path) -> dict[str, tuple[list[str], str]]:
    np.savez(folder / "other.npz", z=np.ones((2, 4), np.float32))
    np.savez(folder / "wide.npz", x=np.ones((2, 5), np.float32))
    return {
        "no size": ([], '--dim "batch=SIZE"'),
        "no such dimension": (["--dim", "seq=3"], 'no free dimension "seq"'),
        "other names": (["--input", str(folder / "other.npz")], "other.npz has no array x"),
        "other shape": (["--input", str(folder / "wide.npz")], "does not run the model on wide.npz"),
        "no file": (["--input", str(folder / "none.npz")], "There is no file"),
        "no such chip": (["--dim", "batch=1", "--soc-model", "x"], '--soc-model "x" is neither'),
    }


@pytest.mark.parametrize(
    "what", ["no size", "no such dimension", "other names", "other shape", "no file", "no such chip"]
)
def test_bad_input_exits_with_2_and_names_what_to_give(what: str, tmp_path: Path) -> None:
    arguments, told = bad_inputs(tmp_path)[what]
    result = verify(models.saved(verify_models.free_batch(), tmp_path / "m.onnx"), *arguments)
    assert result.returncode == 2, result.output
    assert told in result.output
    assert "Traceback" not in result.output


SILENT: dict[str, tuple[Any, str, str]] = {
    "negative indices": (verify_models.indexed("GatherElements"), "60", "negative-indices"),
    "rounded scales": (verify_models.resized("linear", 1.4, 11), "60", "resize"),
    "nearest grid": (verify_models.sampled(), "60", "grid-sample-nearest"),
    "padded maximum": (verify_models.maximum(), "30", "max-pool-padding"),
    "test for NaN": (verify_models.tests_for_nan(), "60", "isnan"),
}
# Further examples of the same traps.
MORE_SILENT: dict[str, tuple[Any, str, str]] = {
    "negative indices to write to": (verify_models.indexed("ScatterElements"), "60", "negative-indices"),
    "nearest, smaller": (verify_models.resized("nearest", 0.6, 4), "60", "resize"),
}
SILENT |= MORE_SILENT if needs.length(0, 1) else {}


@pytest.mark.parametrize("what", SILENT)
def test_each_silent_trap_of_the_simulator_is_named(what: str, tmp_path: Path) -> None:
    made, chip, name = SILENT[what]
    result = verify_model(models.saved(made, tmp_path / "m.onnx"), soc_model=chip)
    assert name in names_of(result), (result.verdict, result.rows, result.divergence)
    if name != "isnan":  # this trap shows only on extreme inputs
        assert result.verdict == "differs"
        assert result.divergence is not None
        assert result.divergence.alone is not None
        assert result.divergence.alone.agrees is False


def test_a_model_that_refuses_generated_zeros_is_tried_with_ones(tmp_path: Path) -> None:
    result = verified(verify_models.divided(), tmp_path, ORDINARY)
    assert result.rows[0].status == "agrees"
    assert result.rows[-1].status == "unchecked", "zeros, which the CPU refuses"


# --- verdicts that are neither, and proofs ---------------------------------------------------------------


def test_a_negative_index_in_a_quantised_model_is_found_in_its_group_and_proven(tmp_path: Path) -> None:
    made = verify_models.quantised(["Relu", "Gather", "LeakyRelu"])
    result = verified(made, tmp_path)
    rows = {row.name: row.status for row in result.rows}
    assert rows["negative numbers (-1)"] == "differs"
    assert result.divergence is not None
    assert result.divergence.node == "gather1"
    assert result.divergence.group == ("q_t0", "d_t0", "gather1", "q_t1")
    trap = next(trap for trap in result.traps if trap.name == "negative-gather-index")
    assert trap.proof == "with indices counted from the start the node agrees"
    assert "half-underflow" not in names_of(result)


def masked_text_model() -> Any:
    """Return a model that adds a mask as text encoders do: (1 - mask) * -10000, which is 20000 for a mask of -1."""
    nodes = [
        models.helper.make_node("Gather", ["table", "input_ids"], ["words"], name="embed"),
        models.helper.make_node("Cast", ["attention_mask"], ["kept"], name="cast", to=1),
        models.helper.make_node("Sub", ["one", "kept"], ["gone"], name="gone"),
        models.helper.make_node("Mul", ["gone", "low"], ["bias"], name="bias"),
        models.helper.make_node("Mul", ["bias", "bias"], ["energy"], name="energy"),
        models.helper.make_node("ReduceSum", ["words"], ["scores"], name="sum", keepdims=0),
        models.helper.make_node("Add", ["energy", "scores"], ["y"], name="add"),
    ]
    ids = [models.value(name, [1, 8], models.INT64) for name in ("input_ids", "attention_mask")]
    constants = [
        models.weights("table", 50, 16),
        models.constant("one", np.float32(1)),
        models.constant("low", np.float32(-10000)),
    ]
    return models.model(nodes, ids, [models.value("y", [1, 8])], constants)


def test_unrealistic_ids_and_masks_are_not_a_reason_to_differ(tmp_path: Path) -> None:
    result = verified(masked_text_model(), tmp_path)
    assert result.verdict == "agrees", result.reason
    assert {row.kind for row in result.rows} == {"made up"}
    strict = verified(masked_text_model(), tmp_path, VerifyOptions(strict=True, bisect=False))
    assert strict.verdict == "differs", "a mask of -1 leaves the range of half floats"


def test_a_fault_that_sessions_fix_is_reported_with_its_rewrite(tmp_path: Path) -> None:
    fault = next(row for row in known_wrong.table() if row.name == "conv-equal-padding")
    result = verified(float_model(Case.from_words(fault.example)), tmp_path, ORDINARY)
    assert result.verdict == "differs"
    assert result.cure is not None
    assert result.cure.agrees
    assert any("conv-padding" in rewrite for rewrite in result.cure.rewrites)
    assert "Sessions fix the model automatically" in result.reason
    assert "dB" in result.cure.words


def test_a_gate_that_qnn_merges_is_reported_with_the_rewrite_that_was_tried(tmp_path: Path) -> None:
    result = verified(verify_models.close_gates(), tmp_path, ORDINARY)
    assert result.verdict == "differs"
    assert result.cure is not None
    assert (result.cure.rewrites, result.cure.agrees) == (("gates",), True)
    assert result.cure.command in result.reason
    words = shlex.split(result.cure.command)[2:]
    assert (
        qnnbridge(
            "fix", *[str(tmp_path / "fixed.onnx") if word == "m_fixed.onnx" else word for word in words]
        ).returncode
        == 0
    )
    assert verify_model(tmp_path / "fixed.onnx", soc_model="60", how=ORDINARY).verdict == "agrees"


def test_an_optimizer_that_changes_the_model_is_named_and_not_qnn(tmp_path: Path) -> None:
    harmed = optimizer_models.integers_divided(3.5)
    np.savez(tmp_path / "x.npz", **harmed.feeds)
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    result = verify_model(
        tmp_path / "m.onnx", soc_model="60", inputs=[tmp_path / "x.npz"], how=VerifyOptions(bisect=False)
    )
    assert result.verdict == "differs"
    assert result.cure is not None
    assert (result.cure.by_optimizers, result.cure.agrees) == (True, True)
    assert "The cause is ONNX Runtime's optimizer DivMulFusion" in result.reason


@pytest.mark.parametrize("made", ["weights_in_8_bits", "normalised_without_keepdims", "int8_behind_a_reshape"])
def test_the_cpu_reference_is_not_optimised(made: str, tmp_path: Path) -> None:
    harmed = getattr(optimizer_models, made)()
    np.savez(tmp_path / "x.npz", **harmed.feeds)
    (tmp_path / "m.onnx").write_bytes(harmed.data)
    result = verify_model(
        tmp_path / "m.onnx", soc_model="60", inputs=[tmp_path / "x.npz"], how=VerifyOptions(bisect=False)
    )
    assert result.verdict == "agrees", result.reason


def test_a_logarithm_of_a_value_outside_of_float16_is_named(tmp_path: Path) -> None:
    result = verified(verify_models.logarithm_of_small_and_large(), tmp_path, ORDINARY)
    assert result.divergence is not None
    assert result.divergence.node == "log"
    assert "half-underflow" in names_of(result)


def test_nan_on_the_cpu_is_not_reported_as_a_difference(tmp_path: Path) -> None:
    result = verified(verify_models.undefined_for_zeros(), tmp_path, ORDINARY)
    rows = {row.name: row.status for row in result.rows}
    assert rows["made up: zeros"] == "not shown"
    assert result.verdict == "agrees", result.reason


def test_an_output_that_no_input_changes_is_not_shown_until_given_inputs_show_it(tmp_path: Path) -> None:
    result = verified(verify_models.saturated(), tmp_path, ORDINARY)
    assert result.verdict == "not shown"
    states = {one.name: one.state for one in result.outputs}
    assert states == {"y": "agrees", "p": "unknown"}
    assert "nearly the same for all of these inputs" in result.reason
    assert "--input FILE.npz" in result.reason
    real = []
    for number, low in enumerate((-3001.0, -2999.0)):
        real.append(tmp_path / f"real{number}.npz")
        np.savez(real[-1], x=np.float32([[low, low + 1, low + 0.5, low - 1]]))
    given = verified(verify_models.saturated(), tmp_path, ORDINARY, inputs=real)
    assert {one.name for one in given.given} == {"y", "p"}
    alone, every = ({one.name: one for one in outputs} for outputs in (given.given, given.outputs))
    assert (alone["p"].state, every["p"]) == ("differs", alone["p"]), "real inputs beat made-up ones"
    assert (alone["y"].state, every["y"].state) == ("unknown", "agrees"), "made-up ones show what they do not"
    shown = verify(tmp_path / "m.onnx", "--soc-model", "60", "--no-extreme", "--input", real[0])
    assert "given alone" in shown.stdout
    assert "y, " in shown.stdout or "p, " in shown.stdout


def test_the_summary_has_the_worst_row(tmp_path: Path) -> None:
    result = verified(verify_models.padded_pooling(), tmp_path, VerifyOptions(extreme=False, bisect=False))
    worst = min((one.snr_db, row.name) for row in result.rows for _, one in row.outputs if one.snr_db)
    assert result.worst is not None
    assert result.worst.inputs == worst[1]
    assert f"SNR {worst[0]:.1f} dB" in result.reason
    assert result.snr_db == worst[0]


def test_an_interrupted_verification_continues_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", str(tmp_path / "state"))
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    seen: list[str] = []

    def stop_after_two(names: Any, outputs: Any) -> Any:
        def row_is_there(row: Any) -> None:
            seen.append(row.name)
            if len(seen) == 2:
                raise KeyboardInterrupt

        return row_is_there

    with pytest.raises(KeyboardInterrupt):
        verify_model(model, soc_model="60", how=ORDINARY, on_rows=stop_after_two)
    assert len(list((tmp_path / "state" / "verify").rglob("*.npz"))) == 2
    other = verify_model(model, soc_model="60", how=VerifyOptions(extreme=False, seed=5))
    assert not any(row.kept for row in other.rows), "other inputs are other rows"
    # The folder of the second verification is removed; nothing of the first is used with other options.
    again = verify_model(model, soc_model="60", how=VerifyOptions(extreme=False, resume=False))
    assert not any(row.kept for row in again.rows)
    with pytest.raises(KeyboardInterrupt):
        seen.clear()
        verify_model(model, soc_model="60", how=ORDINARY, on_rows=stop_after_two)
    resumed = verify_model(model, soc_model="60", how=ORDINARY)
    assert [row.kept for row in resumed.rows[:3]] == [True, True, False]
    assert resumed.outputs == again.outputs
    assert list((tmp_path / "state" / "verify").iterdir()) == []


def test_a_model_that_is_replaced_between_the_two_sides_is_not_reported_as_differing(tmp_path: Path) -> None:
    path = Path(models.saved(models.conv_net(), tmp_path / "m.onnx"))
    weights = onnx.load(path)
    weights.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(
            -numpy_helper.to_array(weights.graph.initializer[0]), weights.graph.initializer[0].name
        )
    )

    def replace(stage: str, _done: int, _of: int) -> None:
        if stage == "compiling for QNN":
            onnx.save(weights, path)

    with pytest.raises(ModelChanged, match=r"m\.onnx or one of its weight files changed"):
        verify_model(path, soc_model="60", how=VerifyOptions(bisect=False, extreme=False), on_progress=replace)


def test_crash_reports_in_analyze_and_verify_name_the_model(tmp_path: Path) -> None:
    ins = [("x", [1, 128, 1], models.FLOAT), ("step", [], models.INT64), ("length", [], models.INT64)]
    made = models.model(
        [models.helper.make_node("STFT", ["x", "step", "", "length"], ["y"])],
        [models.value(*one) for one in ins],
        [models.value("y", [1, 15, 9, 2])],
    )
    model = models.saved(made, tmp_path / "stft.onnx")
    analysis = analyze_model(model, soc_model="60")
    assert analysis.truth is not None
    assert analysis.truth.error is not None
    assert "stft.onnx" in analysis.truth.error.message
    # The rule that predicted the crash has the advice; the advice about compiled models does not apply here.
    assert not any("model is compiled" in advice.what for advice in analysis.advice)
    verify_model(model, soc_model="60")
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in (state_dir() / "crashes").glob("*.json")]
    named = {name for report in reports for name in report["models"]}
    assert named
    assert all(name.startswith("stft.") for name in named), named


def test_two_chips_share_the_cpu_results_and_another_model_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu: list[str] = []
    run = verifier.trying.prepare_trials

    def counted(side: Any, *arguments: Any) -> Any:
        on_cpu.append(side.fingerprint)
        return run(side, *arguments)

    monkeypatch.setattr(verifier.trying, "prepare_trials", counted)
    model = models.saved(models.conv_net(), tmp_path / "m.onnx")
    reference = verifier.CpuReference()

    def found(chip: str, how: VerifyOptions = ORDINARY) -> Verification:
        return verify_model(model, soc_model=chip, how=how, reference=reference)

    first, second = found("60"), found("88")
    assert len(on_cpu) == 1
    assert (first.verdict, second.verdict) == ("agrees", "agrees")
    assert [row.name for row in first.rows] == [row.name for row in second.rows]
    found("88", VerifyOptions(extreme=False, seed=1))
    assert len(on_cpu) == 2, "other inputs"
    changed = models.conv_net()
    changed.graph.node[0].name = "another"
    models.saved(changed, model)
    found("60")
    assert len(set(on_cpu)) == 2, "another model"


def test_a_result_with_another_shape_is_reported_once(tmp_path: Path) -> None:
    (row,) = (one for one in known_wrong.table() if one.name == "conv-transpose-3d-same-output-padding")
    path = models.saved(float_model(Case.from_words(row.example)), tmp_path / "m.onnx")
    result = verify_model(path, soc_model="60", how=VerifyOptions(extreme=False, bisect=False))
    assert (result.verdict, result.reason.count("the output has shape")) == ("differs", 1)
    assert result.reason.count("but shape") == 1
