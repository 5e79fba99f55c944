"""The search for the optimizers that harm a model, and what a choice changes of a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qnnbridge_host.cache.memo import OptimizerChoice, OptimizerChoices
from qnnbridge_host.model.optimizers import BASIC_OPTIMIZERS, LEVEL_ALL, harmful, optimizers_of
from qnnbridge_protocol.specs import SessionSpec

NAMES = tuple(f"o{number}" for number in range(40))


@pytest.mark.parametrize("culprits", [("o0",), ("o17",), ("o39",), ("o3", "o30"), ("o0", "o1", "o39")])
def test_all_culprits_are_found_in_few_attempts(culprits: tuple[str, ...]) -> None:
    attempts: list[Sequence[str]] = []

    def is_right(disabled: Sequence[str]) -> bool:
        attempts.append(disabled)
        return set(culprits) <= set(disabled)

    assert sorted(harmful(is_right, NAMES) or ()) == sorted(culprits)
    assert len(attempts) <= 3 + 7 * len(culprits)


def test_of_two_that_both_cure_the_more_dispensable_is_taken() -> None:
    assert harmful(lambda disabled: "o30" in disabled or "o5" in disabled, NAMES) == ("o5",)


def test_a_right_model_costs_one_attempt_and_a_hopeless_one_two() -> None:
    attempts: list[Sequence[str]] = []

    def never(disabled: Sequence[str]) -> bool:
        attempts.append(disabled)
        return False

    assert harmful(lambda _disabled: True, NAMES) == ()
    assert harmful(never, NAMES) is None
    assert len(attempts) == 2


def test_a_predicate_that_changes_its_mind_ends_the_search() -> None:
    answers = iter([False, True] + [False] * 100)
    assert harmful(lambda _disabled: next(answers), NAMES) is None


def test_a_higher_level_has_the_names_of_the_lower_ones() -> None:
    assert optimizers_of(0) == ()
    assert optimizers_of(LEVEL_ALL)[: len(BASIC_OPTIMIZERS)] == BASIC_OPTIMIZERS == optimizers_of(1)
    assert len(set(optimizers_of(LEVEL_ALL))) == len(optimizers_of(LEVEL_ALL))


def test_a_choice_adds_to_what_the_application_left_out() -> None:
    spec = SessionSpec("m.onnx", disabled_optimizers=("A", "B"))
    assert OptimizerChoice(("B", "C")).applied(spec).disabled_optimizers == ("A", "B", "C")
    assert OptimizerChoice().applied(spec) is spec
    assert OptimizerChoice(off=True).applied(spec).options == {"graph_optimization_level": 0}


def test_choices_are_kept_on_the_disk(tmp_path: Path) -> None:
    choice = OptimizerChoice(("A",), False, "A is wrong")
    OptimizerChoices(tmp_path).write("k", choice)
    assert OptimizerChoices(tmp_path).read("k") == choice
    assert OptimizerChoices(tmp_path).read("other") is None
    (tmp_path / "optimizers" / "k.json").write_text('{"schema": "1"}')
    assert OptimizerChoices(tmp_path).read("k") is None
