"""The search for optimizers that harm a model, and the effect of disabling them on a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from qnnbridge_host.cache.memo import OptimizerChoice, OptimizerChoices
from qnnbridge_host.model.optimizers import BASIC_OPTIMIZERS, LEVEL_ALL, harmful, optimizers_of
from qnnbridge_host.numerics.sampling import knowledge_of, make_samples, ordinary_inputs
from qnnbridge_protocol.specs import NodeInfo, SessionSpec

NAMES = tuple(f"o{number}" for number in range(40))


@pytest.mark.parametrize("culprits", [("o0",), ("o17",), ("o39",), ("o3", "o30"), ("o0", "o1", "o39")])
def test_all_harmful_optimizers_are_found_in_few_attempts(culprits: tuple[str, ...]) -> None:
    attempts: list[Sequence[str]] = []

    def is_right(disabled: Sequence[str]) -> bool:
        attempts.append(disabled)
        return set(culprits) <= set(disabled)

    assert sorted(harmful(is_right, NAMES) or ()) == sorted(culprits)
    assert len(attempts) <= 3 + 7 * len(culprits)


def test_of_two_optimizers_that_both_fix_the_model_the_less_important_is_disabled() -> None:
    assert harmful(lambda disabled: "o30" in disabled or "o5" in disabled, NAMES) == ("o5",)


def test_a_right_model_takes_one_attempt_and_a_hopeless_one_two() -> None:
    attempts: list[Sequence[str]] = []

    def never(disabled: Sequence[str]) -> bool:
        attempts.append(disabled)
        return False

    assert harmful(lambda _disabled: True, NAMES) == ()
    assert harmful(never, NAMES) is None
    assert len(attempts) == 2


def test_a_predicate_with_contradictory_answers_ends_the_search() -> None:
    answers = iter([False, True] + [False] * 100)
    assert harmful(lambda _disabled: next(answers), NAMES) is None


def test_a_higher_level_includes_the_optimizers_of_the_lower_ones() -> None:
    assert optimizers_of(0) == ()
    assert optimizers_of(LEVEL_ALL)[: len(BASIC_OPTIMIZERS)] == BASIC_OPTIMIZERS == optimizers_of(1)
    assert len(set(optimizers_of(LEVEL_ALL))) == len(optimizers_of(LEVEL_ALL))


def test_a_choice_extends_the_optimizers_that_the_application_disabled() -> None:
    spec = SessionSpec("m.onnx", disabled_optimizers=("A", "B"))
    assert OptimizerChoice(("B", "C")).applied(spec).disabled_optimizers == ("A", "B", "C")
    assert OptimizerChoice().applied(spec) is spec
    assert OptimizerChoice(off=True).applied(spec).options == {"graph_optimization_level": 0}


def test_choices_are_stored_on_disk(tmp_path: Path) -> None:
    choice = OptimizerChoice(("A",), False, "A is wrong")
    OptimizerChoices(tmp_path).write("k", choice)
    assert OptimizerChoices(tmp_path).read("k") == choice
    assert OptimizerChoices(tmp_path).read("other") is None
    (tmp_path / "optimizers" / "k.json").write_text('{"schema": "1"}')
    assert OptimizerChoices(tmp_path).read("k") is None


@pytest.mark.parametrize(("kind", "low", "high"), [("int32", -256, 256), ("int16", -256, 256), ("uint16", 0, 256)])
def test_dequantised_inputs_get_values_beyond_8_bits(kind: str, low: int, high: int) -> None:
    """Zeros and ones would not show that an optimizer uses uint8 instead of int32."""
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = [helper.make_tensor_value_info("q", onnx_type, [40]), helper.make_tensor_value_info("y", 1, [40])]
    nodes = [
        helper.make_node("Identity", ["q"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s"], ["y"]),
    ]
    scale = numpy_helper.from_array(np.float32(0.1), "s")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [scale])
    known = knowledge_of(helper.make_model(graph))
    assert known.quantised == {"q"}
    declared = [NodeInfo("q", f"tensor({kind})", (40,))]
    for one in ordinary_inputs(declared, known):
        assert one.feeds["q"].min() < max(low, 100)
        assert (low < 0) == (one.feeds["q"].min() < 0)
        assert one.feeds["q"].max() > high
    samples = make_samples(declared, seed=0, accepts=lambda feeds: feeds, quantised=known.quantised)
    assert all(feeds["q"].max() > high for feeds in samples.feeds)
    assert make_samples(declared, seed=0, accepts=lambda feeds: feeds).feeds[0]["q"].max() == 1
