"""The targets of the developers' benchmark, and the comparison of two results."""

from __future__ import annotations

import pytest
from lab.bench.compare import compare, medians
from lab.bench.targets import TARGETS, Target, of_the_floor

SMALLER = Target("s", "x", 2.0, 1.25, lambda f: f["a"] / f["b"])
LARGER = Target("l", "x", 0.6, 0.9, lambda f: f["a"] / f["b"], more=True)


@pytest.mark.parametrize(
    ("target", "a", "verdict"),
    [
        (SMALLER, 1.2, "aim"),
        (SMALLER, 1.25, "aim"),
        (SMALLER, 1.3, "must"),
        (SMALLER, 2.1, "missed"),
        (LARGER, 0.95, "aim"),
        (LARGER, 0.7, "must"),
        (LARGER, 0.5, "missed"),
    ],
)
def test_a_target_is_exceeded_met_or_missed(target: Target, a: float, verdict: str) -> None:
    assert target.verdict({"a": a, "b": 1.0}) == verdict


def test_a_target_without_a_measurement_is_not_a_success() -> None:
    assert SMALLER.value({"a": 1.0}) is None
    assert SMALLER.verdict({"a": 1.0}) == "not measured"


def test_the_overhead_of_the_bridge_is_the_additional_time_of_its_call() -> None:
    zero_copy = next(target for target in TARGETS if "zero-copy, 4 KB" in target.name)
    figures = {"zero-copy 4 KB": 30e-6, "direct 4 KB": 20e-6, "raw ping": 5e-6}
    assert zero_copy.value(figures) == pytest.approx(2.0)
    assert zero_copy.verdict(figures) == "must"


def test_bandwidth_counts_both_directions_without_the_ping() -> None:
    bandwidth = next(target for target in TARGETS if target.name == "bandwidth, plain arrays, 600 KB")
    figures = {"copy 600 KB": 10e-6, "bridge 600 KB": 50e-6, "direct 600 KB": 15e-6, "ping": 10e-6}
    assert bandwidth.value(figures) == pytest.approx(20 / 25)


def test_a_target_is_relative_to_the_time_of_a_bridge_without_work() -> None:
    zero_copy = next(target for target in TARGETS if "zero-copy, 4 KB" in target.name)
    figures = {"zero-copy 4 KB": 30e-6, "direct 4 KB": 20e-6, "raw ping": 5e-6, "floor 4 KB": 25e-6}
    assert zero_copy.value(of_the_floor(figures)) == pytest.approx(1.0)
    assert zero_copy.value(figures) == pytest.approx(2.0)


def test_an_aim_is_never_easier_than_a_requirement() -> None:
    for target in TARGETS:
        assert target.aim >= target.must if target.more else target.aim <= target.must, target.name


def result(value: float | None) -> dict[str, object]:
    target = {"name": "ping", "unit": "x", "must": 2.0, "aim": 1.25, "more": False, "value": value, "verdict": ""}
    return {"targets": [target]}


@pytest.mark.parametrize(
    ("before", "after", "word", "worse"),
    [
        (1.0, 1.1, "same", False),
        (1.0, 1.3, "WORSE", True),
        (1.95, 2.05, "WORSE", True),
        (1.5, 1.0, "better", False),
    ],
)
def test_two_results_are_compared_target_by_target(before: float, after: float, word: str, worse: bool) -> None:
    lines, bad = compare([result(before)], result(after), tolerance=0.15)
    assert lines[0].startswith(word)
    assert bad is worse


def test_of_several_results_the_medians_are_used() -> None:
    assert medians([result(1.0), result(9.0), result(2.0), result(None)]) == {"ping": 2.0}
