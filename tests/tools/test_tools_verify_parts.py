"""Parts of `verify` that need no host: extreme inputs, judging, the rules about traps, verdicts from answers."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_models.verify import bisection, traps, trying, verifier
from qnnbridge_models.verify.traps import NodeAt, NodeChange
from qnnbridge_models.verify.trying import EXTREMES, applied, why_not
from qnnbridge_models.verify.verification import InputSetResult, OutputVerdict
from qnnbridge_protocol.errors import Fail, HostCrashed, HostHung, OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.sessions import RunAnswer, SessionSettings


def names_for(dtype: str) -> set[str]:
    return {one.name for one in EXTREMES if applied(one, {"x": np.zeros((2, 8), dtype)}) is not None}


@pytest.mark.parametrize(
    ("dtype", "there", "not_there"),
    [
        ("float32", {"NaN", "infinity", "beyond half floats: up to 1e5"}, {"negative numbers (-1)"}),
        ("float16", {"NaN", "large: up to 1e4"}, {"beyond half floats: up to 1e5"}),
        ("int64", {"negative numbers (-1)", "integers beyond 32 bits"}, {"NaN"}),
        ("uint64", {"integers beyond 32 bits"}, {"negative numbers (-1)"}),
        ("int32", {"negative numbers (-1)"}, {"integers beyond 32 bits"}),
    ],
)
def test_each_extreme_value_is_used_if_the_type_allows_it(dtype: str, there: set[str], not_there: set[str]) -> None:
    assert there <= names_for(dtype)
    assert not not_there & names_for(dtype)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_types_without_extreme_values_get_none(dtype: str) -> None:
    assert names_for(dtype) == set()


def test_extremes_change_only_suitable_inputs_and_keep_types() -> None:
    feeds = {
        "x": np.full((2, 9), 0.25, np.float32),
        "ids": np.ones(4, np.int64),
        "none": np.zeros((0, 3), np.float32),
    }
    for extreme in EXTREMES:
        changed = applied(extreme, feeds)
        assert changed is not None
        for name, value in feeds.items():
            assert (changed[name].dtype, changed[name].shape) == (value.dtype, value.shape)
    assert float(feeds["x"].max()) == 0.25, "the ordinary ones are left as they are"
    assert np.isnan(applied(EXTREMES[0], feeds)["x"]).any()  # type: ignore[index]


def test_integers_that_may_be_sizes_are_not_made_huge() -> None:
    wide = next(one for one in EXTREMES if one.as_sizes)
    assert "Range" in why_not(wide, {"Range": 1, "Add": 2})
    assert why_not(wide, {"Gather": 1}) == ""
    assert why_not(EXTREMES[0], {"Range": 1}) == "", "NaN is no size"


VALUES: dict[str, tuple[Any, Any]] = {
    "int64-in-32-bits": (np.array([2**33 + 6, 1]), np.array([6, 1])),
    "nan-vanishes": (np.float32([np.nan, 1]), np.float32([0, 1])),
    "infinity-vanishes": (np.float32([np.inf, 1]), np.float32([65536, 1])),
    "half-range": (np.float32([1.0, 2.0]), np.float32([98304, 2.0])),
}


@pytest.mark.parametrize("name", VALUES)
def test_each_rule_about_values_detects_its_trap_and_no_other(name: str) -> None:
    found = traps.of_values("y", *VALUES[name])
    assert [trap.name for trap in found] == [name]
    assert found[0].evidence.startswith("y: 1 of 2 values, the first at 0: ")


def test_every_rule_has_a_case_in_this_file_and_an_advice() -> None:
    assert {trap.name for trap in traps.VALUE_TRAPS} == set(VALUES)
    assert {trap.name for trap in traps.NODE_TRAPS} == {name for name, _ in NODES}
    for rule in (*traps.VALUE_TRAPS, *traps.NODE_TRAPS):
        assert rule.words.endswith(".")
        assert rule.advice.endswith(".")


def test_a_trap_that_does_not_explain_the_error_is_not_named() -> None:
    expected, found = np.float32([1.0, 2.0, 3.0, np.nan]), np.float32([1.08, 2.5, 0.4, 65536])
    assert traps.of_values("y", expected, found) == ()
    explained = traps.of_values("y", expected, np.float32([1.001, 2.001, 3.0, 65536]))
    assert [trap.name for trap in explained] == ["nan-vanishes"]
    assert explained[0].proof == "1 values show the trap, and the other values agree"


def test_a_rounding_difference_matches_no_trap() -> None:
    same = np.float32([1.0, 1e5, 1e-4, 0])
    assert traps.of_values("y", same, same * np.float32(1.001)) == ()
    assert traps.of_values("y", np.array([2**33]), np.array([7])) == (), "wrong, and not by a multiple of 2**32"
    assert traps.of_values("y", np.array(["a"]), np.array(["b"])) == ()


SOME = np.float32([1, 2])
NODES = [
    ("isnan", NodeAt("IsNaN", {}, (np.float32([np.nan, 1]),))),
    ("softmax-of-large-values", NodeAt("Softmax", {}, (np.float32([1e4, 0]),))),
    ("average-pool-padding", NodeAt("AveragePool", {"pads": [0, 0, 1, 1]})),
    ("max-pool-padding", NodeAt("MaxPool", {"auto_pad": "SAME_UPPER"})),
    ("conv-transpose-padding", NodeAt("ConvTranspose", {"pads": [1, 1]})),
    ("resize", NodeAt("Resize", {"mode": "nearest"})),
    ("grid-sample-nearest", NodeAt("GridSample", {"mode": "nearest"})),
    (
        "masked-attention",
        NodeAt("com.microsoft.MultiHeadAttention", {}, (SOME, SOME, SOME, SOME, np.array([[0, 1]]))),
    ),
    ("negative-indices", NodeAt("GatherElements", {}, (None, np.array([[-1, 0]])), (), ((2, 2), (1, 2)))),
    ("negative-gather-index", NodeAt("Gather", {"axis": 1}, (None, np.array([-1])), (), ((2, 5), (1,)))),
    ("int64-in-32-bits", NodeAt("Add", {}, (np.array([2**33]),))),
    ("half-range", NodeAt("Conv", {}, (SOME,), (np.float32([7e4]),))),
    ("half-underflow", NodeAt("Log", {}, (np.float32([1e-10, 1]),))),
]


@pytest.mark.parametrize(("name", "node"), NODES)
def test_each_rule_about_nodes_detects_its_trap_and_can_change_its_cause(name: str, node: NodeAt) -> None:
    (trap, seen), *others = traps.suspected(node)
    assert (trap.name, others) == (name, [])
    assert node.op.rpartition(".")[2] in seen
    changes = trap.changes(node)
    assert changes
    for change in changes:
        assert change.words
        assert change.attributes or change.inputs or change.scale != 1.0


def test_indices_are_counted_from_the_start_of_their_own_axis() -> None:
    node = dict(NODES)["negative-gather-index"]
    trap = traps.suspected(node)[0][0]
    assert trap.changes(node)[0].inputs[1].tolist() == [4]
    assert trap.changes(NodeAt("Gather", {}, (None, np.array([-1])))) == [], "the length is not known"


def test_small_values_are_also_raised_without_scaling_the_large_ones() -> None:
    given = np.float32([1e-10, -1e-9, 0, 1e4])
    trap = traps.suspected(NodeAt("Log", {}, (given,)))[0][0]
    *scaled, raised = trap.changes(NodeAt("Log", {}, (given,)))
    assert all(change.scale > 1 for change in scaled)
    np.testing.assert_array_equal(raised.inputs[0], np.float32([1e-4, -1e-4, 0, 1e4]))
    assert raised.inputs[0].dtype == given.dtype


def test_a_proof_is_reported() -> None:
    trap = traps.NODE_TRAPS[0]
    found = traps.proven(trap, "pool", "seen", NodeChange("no pads"))
    assert found.proof == "with no pads the node agrees"


def test_inputs_of_an_attention_that_are_not_masks_are_not_changed() -> None:
    mask = np.array([[0, 1]])
    inputs = (SOME, SOME, SOME, SOME, mask, np.zeros((1, 1, 2, 2), np.float32), SOME, SOME)
    trap = traps.suspected(NodeAt("com.microsoft.MultiHeadAttention", {}, inputs))[0][0]
    (change,) = trap.changes(NodeAt("com.microsoft.MultiHeadAttention", {}, inputs))
    assert sorted(change.inputs) == [4, 5], "neither the bias nor the keys and values of earlier tokens"
    assert change.inputs[4].tolist() == [[1, 1]]
    assert trap.changes(NodeAt("Attention", {}, (SOME, SOME, SOME, mask, SOME)))[0].inputs.keys() == {3}
    assert trap.changes(NodeAt("com.microsoft.Attention", {}, (SOME, SOME, None, np.array([2, 1])))) == [], (
        "lengths"
    )


def test_an_upsample_is_changed_into_a_valid_upsample() -> None:
    """With attributes of Resize the model would be invalid, and the trap could never be proven."""
    x, scales = np.zeros((1, 1, 4, 4), np.float32), np.float32([1, 1, 1.4, 1.4])
    node = NodeAt("Upsample", {"mode": "nearest"}, (x, scales), (), ((1, 1, 4, 4), (4,)))
    changes = traps.suspected(node)[0][0].changes(node)
    assert [change.words for change in changes] == ["mode 'linear'", "scales of 2", "scales of 2 and mode 'linear'"]
    for change in changes:
        given = {0: x, 1: change.inputs.get(1, scales)}
        attributes = {**node.attributes, **change.attributes}
        made = helper.make_node("Upsample", ["x", "scales"], ["y"], **attributes)
        graph = helper.make_graph(
            [made],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
            [numpy_helper.from_array(given[1], "scales")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8)
        onnx.checker.check_model(model)


@pytest.mark.parametrize(
    "node",
    [
        NodeAt("AveragePool", {"pads": [0, 0], "auto_pad": "NOTSET"}),
        NodeAt("Softmax", {}, (np.float32([1, 2]),)),
        NodeAt("GatherElements", {}, (None, np.array([[1, 0]]))),
        NodeAt("Conv", {"pads": [1, 1]}),
        NodeAt("Mul", {}, (np.float32([0, 1e-5]),)),
    ],
)
def test_a_harmless_node_is_not_suspected(node: NodeAt) -> None:
    assert traps.suspected(node) == []


INPUTS = (NodeInfo("ids", "tensor(int64)", ("batch", "seq")), NodeInfo("x", "tensor(float)", (None, "?", "?")))


def test_a_name_with_two_sizes_cannot_be_passed_to_a_session() -> None:
    dims = Dimensions({"batch": 1, "seq": 8}, {("x", 0): 1, ("x", 1): 4, ("x", 2): 9})
    sizes = trying.sizes_of(INPUTS, Dimensions(dims.by_name, dims.by_axis), ())
    assert not sizes.all_named
    assert [node.shape for node in sizes.of(INPUTS)] == [(1, 8), (1, 4, 9)]
    assert trying.sizes_of(INPUTS[:1], Dimensions({"batch": 1, "seq": 8}), ()).all_named
    with pytest.raises(OptionError, match=r"x:0, \?"):
        trying.sizes_of(INPUTS, Dimensions({"batch": 1, "seq": 8}), ())


def test_ids_and_masks_get_no_unrealistic_numbers() -> None:
    feeds = {"x": np.ones(4, np.float32), "ids": np.ones(4, np.int64), "count": np.ones(4, np.int64)}
    negative = next(one for one in EXTREMES if one.name == "negative numbers (-1)")
    changed = applied(negative, feeds, {"ids"})
    assert changed is not None
    assert (int(changed["ids"][0]), int(changed["count"][0])) == (1, -1)
    assert applied(negative, {"ids": feeds["ids"]}, {"ids"}) is None


def verdicts(**found: tuple[str, float]) -> list[str]:
    """Return the verdicts of an output with a given error on QNN, for sets of inputs of these kinds."""
    values = {name: np.linspace(number, number + 1, 50) for number, name in enumerate(found)}
    trials = tuple(
        trying.Trial(name, kind, kind == "given", {"x": values[name]}, RunAnswer([values[name]]))  # type: ignore[arg-type]
        for name, (kind, _) in found.items()
    )
    prepared = trying.TrialSet(trials, True, ("y",), "fp16", {"y": 3.0})
    answers = {name: [values[name] * (1 + off)] for name, (_, off) in found.items()}
    return [one.state for one in trying.verdicts_of(prepared, answers)]


def test_an_output_that_no_input_reaches_agrees_although_it_is_constant() -> None:
    same = np.linspace(0, 1, 50)
    trials = tuple(trying.Trial(name, "made up", True, {}, RunAnswer([same])) for name in "ab")
    prepared = trying.TrialSet(trials, True, ("y",), "fp16", {"y": 1.0})
    right, wrong = ({name: [same * factor] for name in "ab"} for factor in (1.0, 2.0))
    constant = dataclasses.replace(prepared, constant=frozenset("y"))
    for trial_set, found, state in (
        (prepared, right, "unknown"),
        (constant, right, "agrees"),
        (constant, wrong, "differs"),
    ):
        assert [one.state for one in trying.verdicts_of(trial_set, found)] == [state]


def test_outputs_that_no_input_reaches_are_detected(tmp_path: Path) -> None:
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["w"], ["anchors"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [2])],
        [helper.make_tensor_value_info(name, kind, [2]) for name in ("y", "anchors", "w", "x")],
        [helper.make_tensor("w", kind, [2], [1.0, 2.0])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    _, nodes, constant = verifier._known_of(path, trying.FixedSizes({}, {}, True), None)
    assert (nodes, constant) == (1, {"anchors", "w"})


def test_real_inputs_override_generated_ones() -> None:
    assert verdicts(a=("given", 0.001), b=("given", 0.0), c=("made up", 0.9)) == ["agrees"]
    assert verdicts(a=("given", 0.9), b=("made up", 0.0)) == ["differs"]
    assert verdicts(a=("made up", 0.9), b=("made up", 0.0)) == ["differs"]


def test_generated_inputs_may_show_what_real_ones_do_not() -> None:
    same, other = np.linspace(0, 1, 50), np.linspace(2, 5, 50)
    kinds = {"a": ("given", same), "b": ("given", same), "c": ("made up", other)}
    trials = tuple(
        trying.Trial(name, kind, kind == "given", {}, RunAnswer([value]))  # type: ignore[arg-type]
        for name, (kind, value) in kinds.items()
    )
    prepared = trying.TrialSet(trials, True, ("y",), "fp16", {"y": 5.0})
    right = {name: [value + 1e-4] for name, (_, value) in kinds.items()}
    assert [one.state for one in trying.verdicts_on(prepared, right, ("given",))] == ["unknown"]
    assert [one.state for one in trying.verdicts_of(prepared, right)] == ["agrees"]
    wrong = {**right, "c": [other * 2]}
    assert [one.state for one in trying.verdicts_of(prepared, wrong)] == ["unknown"], "and no more than that"


def trial(values: list[Any] | None, error: Any = None) -> trying.Trial:
    return trying.Trial("some", "extreme", True, {"x": np.zeros(1)}, RunAnswer(values, error))


class Answering:
    """A provider of which only the result is used."""

    def __init__(self, answer: RunAnswer) -> None:
        self.given = answer

    def answer(self, feeds: Any, timeout_s: float | None = None) -> RunAnswer:
        return self.given


@pytest.mark.parametrize(
    ("cpu", "qnn", "status"),
    [
        (RunAnswer([np.ones(3)]), RunAnswer([np.ones(3)]), "agrees"),
        (RunAnswer([np.ones(3)]), RunAnswer([np.zeros(3)]), "differs"),
        (RunAnswer([np.ones(3)]), RunAnswer(None, Fail("no")), "failed"),
        (RunAnswer([np.ones(3)]), RunAnswer(None, HostCrashed("gone")), "failed"),
        (RunAnswer(None, Fail("no")), RunAnswer([np.ones(3)]), "unchecked"),
        (RunAnswer(None, Fail("no")), RunAnswer(None, Fail("no")), "refused"),
        (RunAnswer(None, Fail("no")), RunAnswer(None, HostCrashed("gone")), "failed"),
        (RunAnswer(None, HostCrashed("gone")), RunAnswer([np.ones(3)]), "skipped"),
    ],
)
def test_the_answers_of_both_sides_determine_the_row(cpu: RunAnswer, qnn: RunAnswer, status: str) -> None:
    prepared = trying.TrialSet((), True, ("y",), "fp16", {"y": 1.0})
    side: Any = Answering(qnn)
    row, answer = trying.try_on_qnn(side, trial(cpu.values, cpu.error), prepared)
    assert (answer.values is not None) == (status in ("agrees", "differs"))
    assert row.status == status
    assert row.died == any(isinstance(side.error, HostCrashed) for side in (cpu, qnn))
    assert row.is_bad == (status in ("differs", "failed"))
    assert bool(row.reason) == (status in ("failed", "unchecked", "refused", "skipped"))


def test_the_names_of_extremes_are_unique() -> None:
    assert len({one.name for one in trying.EXTREMES}) == len(trying.EXTREMES)


@pytest.mark.parametrize("kind", ["given", "made up"])
def test_the_verdict_mentions_real_inputs_only_if_they_were_given(kind: Any) -> None:
    """Without real inputs, a set of inputs that does not count is a guess at what the model accepts."""
    trials = (trying.Trial("first", kind, True, {"x": np.zeros(1)}, RunAnswer([np.zeros(1)])),)
    rows = (InputSetResult("guess", "made up", False, "differs"),)
    tried = verifier._Tried(trying.TrialSet(trials, True, ("y",), "fp16", {}), rows, {}, None, {})
    verdict, reason = verifier._verdict(tried, [OutputVerdict("y", "agrees")])
    assert verdict == "agrees"
    assert "Made-up inputs show a difference" in reason
    assert ("because real inputs are given" in reason) == (kind == "given")


def test_a_session_that_the_time_limit_of_the_search_stopped_blames_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("Relu", [f"t{number}"], [f"t{number + 1}"], name=f"n{number}") for number in range(9)]
    ends = [helper.make_tensor_value_info(name, 1, [2]) for name in ("t0", "t9")]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))
    cutter = bisection.Cutter(model, tmp_path / "m.onnx", [], tmp_path)
    feeds = {"t0": np.zeros(2, np.float32)}
    settings = SessionSettings({}, {}, 1.0)
    search = bisection.DivergenceSearch(
        cutter, "row", feeds, settings, "fp16", {}, None, time.monotonic() + 60, HostCrashed("died")
    )

    def stopped(*_: Any) -> None:
        search.deadline = time.monotonic()
        search._error = HostHung("no answer")

    monkeypatch.setattr(bisection.DivergenceSearch, "_on_cpu", lambda *_: [])
    monkeypatch.setattr(bisection.DivergenceSearch, "_on_qnn", stopped)
    divergence, _ = search.run()
    assert (divergence.window, divergence.exact, divergence.error) == (9, False, "")
