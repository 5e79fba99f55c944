"""Walks whose steps Hypothesis chooses, and whose failures Hypothesis shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import qnnbridge
from lab.walk.steps import Walk

T = TypeVar("T")


class _Choices:
    """Choices by Hypothesis, which shrinks towards the first option."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __call__(self, options: Sequence[T]) -> T:
        return options[self._data.draw(st.integers(0, len(options) - 1))]


def shrinking_walk(hosts: Sequence[qnnbridge.Host], examples: int, steps: int, *, random: bool) -> None:
    """Walk; raise `Wrong` with the shortest failing sequence of steps. random: choose other steps in each run."""

    class Machine(RuleBasedStateMachine):
        @initialize(data=st.data())
        def begin(self, data: Any) -> None:
            self.walk = Walk(hosts, _Choices(data))

        @rule(data=st.data())
        def step(self, data: Any) -> None:
            self.walk.use(_Choices(data))
            self.walk.step()

        def teardown(self) -> None:
            walk = getattr(self, "walk", None)
            if walk is not None:
                walk.use(lambda options: options[0])
                walk.close()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not random,
            database=None,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.normal,
            print_blob=False,
        ),
    )
