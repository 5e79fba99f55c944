"""The verdict on numbers: garbage is told, rounding is not, and what proves nothing is not judged."""

from __future__ import annotations

import numpy as np
import pytest

from qnnbridge_host.numerics.judge import NO_ERROR_DB, judge, judge_all, snr_db, worst

RNG = np.random.default_rng(7)
SIGNAL = RNG.standard_normal((16, 400)).astype(np.float32)


def at(decibel: float) -> np.ndarray:
    noise = RNG.standard_normal(SIGNAL.shape)
    return (SIGNAL + noise * 10 ** (-decibel / 20)).astype(np.float32)


@pytest.mark.parametrize("decibel", [35, 50, 80])
def test_rounding_agrees(decibel: float) -> None:
    judged = judge(SIGNAL, at(decibel))
    assert judged.state == "agrees"
    assert judged.snr_db == pytest.approx(decibel, abs=1)


@pytest.mark.parametrize("decibel", [-10, 3, 19])
def test_garbage_differs_with_its_numbers(decibel: float) -> None:
    judged = judge(SIGNAL, at(decibel))
    assert judged.state == "differs"
    assert f"SNR {judged.snr_db:.1f} dB" in judged.reason


def test_a_few_values_over_a_threshold_are_no_fault() -> None:
    found = SIGNAL.copy()
    found.flat[:4] += 0.5
    judged = judge(SIGNAL, found)
    assert judged.state == "agrees"
    assert judged.max_abs == pytest.approx(0.5)


def test_wrong_border_values_differ() -> None:
    found = SIGNAL.copy()
    found[:, -1] = 131008.0
    judged = judge(SIGNAL, found)
    assert (judged.state, judged.max_abs > 1e5) == ("differs", True)


def test_between_the_limits_the_places_decide() -> None:
    picture = np.zeros((1, 1, 64, 64), np.float32) + 1
    blurred, bent = picture.copy(), picture.copy()
    blurred += 0.045
    bent[..., :2] += 0.3
    assert judge(picture, blurred).state == "agrees"
    assert judge(picture, bent).state == "differs"


def test_between_the_limits_a_changed_decision_differs() -> None:
    scores = np.tile(np.float32([10, 10.6, 0, 0]), (50, 1))
    other = scores + np.float32([0.5, -0.5, 0, 0])
    judged = judge(scores, other)
    assert 20 < (judged.snr_db or 0) < 30
    assert judged.decisions is not None


def test_nan_on_the_cpu_proves_nothing() -> None:
    nan = np.full(4, np.nan, np.float32)
    assert judge(nan, np.zeros(4, np.float32)).state == "unknown"
    half = np.float32([np.nan, 1, 2, np.inf])
    assert judge(half, np.float32([7, 1, 2, 65504])).state == "agrees"


def test_nan_on_the_npu_alone_differs() -> None:
    judged = judge(np.float32([1, 2]), np.float32([1, np.nan]))
    assert (judged.state, judged.lost) == ("differs", 1)


def test_values_that_are_hardly_there_are_not_judged() -> None:
    assert judge(np.float32([1e-8, 2e-8]), np.float32([0, 0])).state == "unknown"
    assert judge(np.zeros(4, np.float32), np.zeros(4, np.float32)).state == "agrees"
    assert judge(np.zeros(4, np.float32), np.ones(4, np.float32)).state == "differs"


def test_integers_may_fall_to_the_other_side_now_and_then() -> None:
    ids = np.arange(100)
    moved, shuffled = ids.copy(), ids[::-1].copy()
    moved[3] = 50
    assert judge(ids, moved).state == "agrees"
    assert judge(ids, shuffled).state == "differs"
    assert judge(np.uint8([1, 2]), np.uint8([2, 1])).state == "agrees"
    assert judge(np.int64([3]), np.int64([4])).state == "differs"


def test_shapes_and_other_values() -> None:
    assert judge(np.zeros(2), np.zeros(3)).state == "differs"
    assert judge(np.zeros(0), np.zeros(0)).state == "unknown"
    assert judge(["a"], ["a"]).state == "unknown"


def test_quantised_steps_are_allowed_more() -> None:
    found = at(22)
    assert judge(SIGNAL, found, "quantized").state == "agrees"
    assert judge(SIGNAL, at(5), "quantized").state == "differs"


def test_the_worst_output_decides() -> None:
    judged = judge_all(["good", "bad", "none"], [SIGNAL, SIGNAL, "x"], [at(60), at(5), "x"], "fp16")
    found = worst(judged)
    assert found is not None
    assert (found[0], found[1].state) == ("bad", "differs")
    assert worst([]) is None


def test_snr_neither_over_nor_underflows() -> None:
    huge = np.float64([1e300, -1e300])
    assert snr_db(huge, huge) == NO_ERROR_DB
    assert snr_db(huge, -huge) == pytest.approx(-6.02, abs=0.01)
    assert snr_db(np.zeros(2), np.ones(2)) == -NO_ERROR_DB
