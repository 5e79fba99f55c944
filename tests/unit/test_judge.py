"""The verdict on results: garbage differs, rounding does not, and values that prove nothing get no verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qnnbridge_host.numerics.judge import NO_ERROR_DB, judge, judge_over_inputs, snr_db, worst
from qnnbridge_host.numerics.pairing import judge_all

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
def test_garbage_differs_and_its_figures_are_reported(decibel: float) -> None:
    judged = judge(SIGNAL, at(decibel))
    assert judged.state == "differs"
    assert f"SNR {judged.snr_db:.1f} dB" in judged.reason


def test_a_few_values_over_a_threshold_are_not_a_fault() -> None:
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


def test_between_the_limits_the_location_of_errors_decides() -> None:
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


def test_many_wrong_values_differ_however_high_the_snr_is() -> None:
    rows = RNG.random((1, 4, 2100)) * 100 + 540
    found = rows.copy()
    found[:, :, :125] -= 230  # 36 % of the range, in 6 % of the values
    judged = judge(rows, found, "quantized")
    assert (judged.snr_db or 0) > 20
    assert (judged.state, "by up to 36% of it" in judged.reason) == ("differs", True)
    found[:, :, 90:] = rows[:, :, 90:]
    assert judge(rows, found, "quantized").state == "agrees"


def test_nan_on_the_cpu_is_inconclusive() -> None:
    nan = np.full(4, np.nan, np.float32)
    assert judge(nan, np.zeros(4, np.float32)).state == "unknown"
    half = np.float32([np.nan, 1, 2, np.inf])
    assert judge(half, np.float32([7, 1, 2, 65504])).state == "agrees"


def test_nan_only_on_the_npu_differs() -> None:
    judged = judge(np.float32([1, 2]), np.float32([1, np.nan]))
    assert (judged.state, judged.lost) == ("differs", 1)


def test_values_below_the_noise_are_not_judged() -> None:
    assert judge(np.float32([1e-8, 2e-8]), np.float32([0, 0])).state == "unknown"
    probability = judge(np.float32([0.0012]), np.float32([0.0029]))
    assert (probability.state, "noise of the number format" in probability.reason) == ("unknown", True)
    # 0.05 is noise if values reach 100 on other inputs; without such values it is not.
    assert judge(np.float32([0.01]), np.float32([0.06]), scale=100.0).state == "unknown"
    assert judge(np.float32([0.01]), np.float32([0.06])).state == "differs"
    assert judge(np.zeros(4, np.float32), np.zeros(4, np.float32)).state == "agrees"
    assert judge(np.zeros(4, np.float32), np.ones(4, np.float32)).state == "differs"


def test_few_integers_may_differ() -> None:
    ids = np.arange(100)
    moved, shuffled = ids.copy(), ids[::-1].copy()
    moved[3] = 50
    assert judge(ids, moved).state == "agrees"
    assert judge(ids, shuffled).state == "differs"
    assert judge(np.uint8([1, 2]), np.uint8([2, 1])).state == "agrees"
    assert judge(np.int64([3]), np.int64([4])).state == "differs"


def test_differences_of_shape_and_of_other_values_are_judged() -> None:
    assert judge(np.zeros(2), np.zeros(3)).state == "differs"
    assert judge(np.zeros(0), np.zeros(0)).state == "unknown"
    assert judge(object(), object()).state == "unknown"


def test_strings_sequences_and_maps_are_compared_leaf_by_leaf() -> None:
    assert judge(["a", "b"], ["a", "b"]).state == "agrees"
    assert judge(np.array(["a", "b"], object), np.array(["a", "c"], object)).state == "differs"
    scores = [{0: 0.1, 1: 0.9}, {0: 0.7, 1: 0.3}]
    assert judge(scores, [{0: 0.1001, 1: 0.8999}, {0: 0.7, 1: 0.3}]).state == "agrees"
    assert judge(scores, [{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.3}]).state == "differs"
    assert judge([np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(3)]).state == "unknown"
    turned = np.exp(1j * np.linspace(0, 6, 64))
    assert judge(turned, turned.conj()).state == "differs"


def test_quantised_outputs_have_a_larger_tolerance() -> None:
    found = at(22)
    assert judge(SIGNAL, found, "quantized").state == "agrees"
    assert judge(SIGNAL, at(5), "quantized").state == "differs"


def test_an_output_that_does_not_depend_on_its_inputs_is_inconclusive() -> None:
    same = np.float32([[0.3, 0.7]])
    state, reason, judged = judge_over_inputs([(same, same + 1e-4), (same, same - 1e-4)])
    assert [one.state for one in judged] == ["agrees", "agrees"]
    assert state == "unknown"
    assert "nearly the same for all of these inputs" in reason
    other = np.float32([[0.6, 0.4]])
    assert judge_over_inputs([(same, same + 1e-4), (other, other)])[0] == "agrees"
    # A constant output on QNN only is still reported as a difference.
    assert judge_over_inputs([(same, same), (other, same)])[0] == "differs"
    assert judge_over_inputs([(same, same)])[0] == "agrees", "one set of inputs is all that was asked for"
    assert judge_over_inputs([])[0] == "unknown"


def test_a_large_constant_does_not_hide_a_wrong_answer() -> None:
    base, change = np.full(50, 1000.0), RNG.standard_normal((3, 50))
    pairs = [(base + one, base + RNG.standard_normal(50)) for one in change]
    state, reason, judged = judge_over_inputs(pairs)
    assert all((one.snr_db or 0) > 50 for one in judged)
    assert (state, "output changes by 0.8" in reason or "output changes by 0.7" in reason) == ("unknown", True)


def test_an_output_that_is_constant_only_on_qnn_differs_however_high_its_snr() -> None:
    state, reason, judged = judge_over_inputs([(np.full(4, v), np.full(4, 1.0)) for v in (0.98, 1.0, 1.02)])
    assert all(one.state == "agrees" for one in judged)
    assert (state, "does not change with the inputs" in reason) == ("differs", True)


def test_scores_in_a_box_detector_are_judged_separately() -> None:
    boxes, scores = RNG.random((1, 4, 200)) * 640, RNG.random((1, 80, 200))
    both = np.concatenate([boxes, scores], axis=1)
    assert judge(both, both + RNG.normal(0, 0.002, both.shape)).state == "agrees"
    lost = np.concatenate([boxes, np.zeros_like(scores)], axis=1)
    judged = judge(both, lost)
    assert snr_db(both, lost) > 40
    assert (judged.state, judged.part) == ("differs", "columns 4 to 83 of axis 1")
    assert judged.snr_db == pytest.approx(0.1, abs=0.1), "the figure is that of the worst columns"
    assert "dB in column" in judged.reason


def head(count: int = 2100, objects: int = 40) -> np.ndarray:
    """Return outputs of a detector: boxes in pixels, and scores that are nearly all 0."""
    rng = np.random.default_rng(3)
    table = np.concatenate([rng.random((1, 4, count)) * 600 + 20, rng.random((1, 18, count)) ** 8 * 0.02], axis=1)
    rows = rng.choice(count, objects, replace=False)
    table[0, 4 + rng.integers(0, 18, objects), rows] = rng.uniform(0.4, 0.9, objects)
    return table.astype(np.float32)


@pytest.mark.parametrize("number_format", ["fp16", "quantized"])
@pytest.mark.parametrize("turned", [False, True], ids=["columns first", "columns last"])
def test_sparse_scores_in_a_box_detector_are_judged_separately(number_format: Any, turned: bool) -> None:
    expected = head()
    found = expected.copy()
    found[:, 4:] *= 0.41  # 0.304 was returned as 0.126
    found[:, :4] += RNG.normal(0, 1.0, found[:, :4].shape)
    assert snr_db(expected, found) > 40
    sides = [np.swapaxes(one, 1, 2) if turned else one for one in (expected, found)]
    judged = judge(*sides, number_format)
    assert judged.state == "differs", judged
    assert judged.part == f"columns 4 to 21 of axis {2 if turned else 1}"
    assert (judged.snr_db or 0) < 6
    assert judge_over_inputs([tuple(sides), tuple(side * 0.9 for side in sides)], number_format)[0] == "differs"


@pytest.mark.parametrize(("number_format", "noise"), [("fp16", 0.003), ("quantized", 0.008)])
def test_rounding_noise_in_scores_that_are_nearly_all_0_is_not_a_fault(number_format: Any, noise: float) -> None:
    expected = head()
    found = expected + RNG.normal(0, 0.3, expected.shape)
    found[:, 4:] = expected[:, 4:] + RNG.uniform(-noise, noise, expected[:, 4:].shape)
    assert snr_db(expected[:, 4:], found[:, 4:]) < 30
    judged = judge(expected, found, number_format)
    assert (judged.state, judged.decisions) == ("agrees", 1.0), judged


def test_scores_without_a_detection_are_inconclusive() -> None:
    expected = head(objects=0)
    judged = judge(expected, expected + np.float32(0.001), "quantized")
    assert (judged.state, "nothing is detected" in judged.reason) == ("unknown", True)
    found = expected.copy()
    found[0, 7, 100:140] = 0.8
    assert judge(expected, found, "quantized").state == "differs", "what is detected on the NPU alone"


def test_the_same_detections_outweigh_a_low_snr_of_scores() -> None:
    expected = head(objects=6)
    found = expected.copy()
    found[:, 4:][expected[:, 4:] < 0.1] += 0.1
    judged = judge(expected, found, "quantized")
    assert (judged.snr_db or 99) < 10
    assert (judged.state, judged.decisions) == ("agrees", 1.0)
    assert "100.0% of 6 detections are the same" in judged.reason
    found[0, :2, expected[0, 4:].max(axis=0) > 0.3] += 150
    assert judge(expected, found, "quantized").state == "differs", "their boxes are elsewhere"


@pytest.mark.parametrize(("factor", "state"), [(0.85, "agrees"), (0.6, "differs"), (1.5, "differs")])
def test_a_detection_with_another_score_is_a_different_one(factor: float, state: str) -> None:
    expected = head(objects=6)
    best = expected[:, 4:] > 0.3
    expected[:, 4:][best] = (0.55, 0.5, 0.45, 0.4, 0.6, 0.55)
    found = expected.copy()
    found[:, 4:][best] *= factor
    found[:, 4:][~best] += 0.09
    assert judge(expected, found, "quantized").state == state


def test_the_reason_refers_to_the_columns_whose_figure_is_shown() -> None:
    expected = head()
    found = expected.copy()
    found[:, :4] += RNG.normal(0, 150, found[:, :4].shape)
    found[:, 4:] *= 0.3
    judged = judge(expected, found, "quantized")
    assert (judged.state, judged.part) == ("differs", "columns 4 to 21 of axis 1")
    assert judged.reason.startswith(f"in {judged.part} (")


def test_columns_that_are_not_a_table_are_judged_as_a_whole() -> None:
    channels = RNG.standard_normal((1, 64, 20, 20)) * np.geomspace(0.01, 20, 64)[RNG.permutation(64)][:, None, None]
    step = 40 / 255
    judged = judge(channels.astype(np.float32)[..., :16], np.round(channels / step)[..., :16] * step, "quantized")
    assert not judged.part.startswith("columns")
    logits = RNG.standard_normal((40, 97)) * 6
    tails = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rounded = np.round(tails * 255) / 255
    assert judge(tails[None], rounded[None], "quantized").state == "agrees", "softmax tails"
    constant = np.concatenate([RNG.random((1, 4, 300)) * 640, np.full((1, 1, 300), 0.5)], axis=1)
    assert judge(constant, constant + RNG.normal(0, 0.003, constant.shape)).state == "agrees"
    silent = np.concatenate([RNG.random((1, 2, 300)) * 640, np.full((1, 3, 300), 1e-5)], axis=1)
    assert judge(silent, np.concatenate([silent[:, :2], silent[:, 2:] * 0], axis=1)).state == "agrees"


def text_map(shift: int = 0, blur: float = 0.0) -> np.ndarray:
    """Return the output of a text detector: six lines of text."""
    page = np.zeros((1, 1, 320, 320), np.float32)
    for number in range(6):
        page[..., 20 + 48 * number : 44 + 48 * number, 30 + shift : 280 + shift] = 0.95
    if blur:
        edge = np.abs(np.diff(page, axis=2, prepend=0)) > 0
        page[edge] = blur
        page[np.roll(edge, -1, axis=2)] = blur
    return page


def test_the_same_objects_in_a_map_outweigh_a_low_snr() -> None:
    expected, found = text_map(), text_map(blur=0.45)
    judged = judge(expected, found)
    assert 10 < (judged.snr_db or 0) < 20
    assert (judged.state, judged.decisions) == ("agrees", 1.0), judged
    assert "100.0% of 6 objects are the same" in judged.reason
    gone = found.copy()
    gone[..., 20:44, :] = 0
    assert judge(expected, gone).state == "differs", "one line is missing"
    assert judge(expected, text_map(shift=120)).state == "differs"
    grey = np.linspace(0, 1, 320 * 320, dtype=np.float32).reshape(1, 1, 320, 320)
    assert judge(grey, np.clip(grey + 0.1, 0, 1)).state == "differs", "a picture has no objects"


def test_the_same_regions_of_a_segmentation_outweigh_a_low_snr() -> None:
    expected = np.zeros((1, 3, 64, 64), np.float32)
    expected[0, 0, :, :30], expected[0, 1, :, 30:50], expected[0, 2, :, 50:] = 1, 1, 1
    soft = expected * 0.7 + 0.1
    assert judge(expected, soft).state == "agrees"
    other = np.roll(soft, 8, axis=3)
    assert judge(expected, other).state == "differs"


def test_nan_for_some_inputs_does_not_affect_the_others() -> None:
    nan = np.full((1, 2), np.nan, np.float32)
    good = [(np.float32([[0.3, 0.7]]), np.float32([[0.3, 0.7]])), (np.float32([[2, 1]]), np.float32([[2, 1]]))]
    assert judge_over_inputs([(nan, np.zeros((1, 2), np.float32)), *good])[0] == "agrees"
    assert judge_over_inputs([(nan, nan), (nan, nan)])[0] == "unknown"


def test_8_of_102400_pixels_at_41_db_agree() -> None:
    picture = RNG.random((1, 1, 320, 320)).astype(np.float32)
    found = picture.copy()
    found.flat[:8] += 0.5
    judged = judge(picture, found + RNG.normal(0, 0.002, picture.shape).astype(np.float32))
    assert judged.snr_db == pytest.approx(41.5, abs=1)
    assert judged.state == "agrees"


def test_thresholds_and_classes_of_pixels_count_as_decisions() -> None:
    probabilities = np.float32([0.9, 0.8, 0.1, 0.2, 0.7])
    assert judge(probabilities, probabilities * np.float32(1.02)).decisions == 1.0
    assert judge(probabilities, np.float32([0.9, 0.8, 0.1, 0.6, 0.7])).decisions == pytest.approx(0.8)
    classes = np.zeros((1, 3, 4, 4), np.float32)
    classes[:, 1] = 1
    turned = classes.copy()
    turned[:, 1, :2], turned[:, 2, :2] = 0, 1
    assert judge(classes, turned).decisions == pytest.approx(0.5)


def test_the_worst_output_decides() -> None:
    judged = judge_all(["good", "bad", "none"], [SIGNAL, SIGNAL, "x"], [at(60), at(5), "x"], "fp16")
    found = worst(judged)
    assert found is not None
    assert (found[0], found[1].state) == ("bad", "differs")
    assert worst([]) is None


def test_the_snr_neither_overflows_nor_underflows() -> None:
    huge = np.float64([1e300, -1e300])
    assert snr_db(huge, huge) == NO_ERROR_DB
    assert snr_db(huge, -huge) == pytest.approx(-6.02, abs=0.01)
    assert snr_db(np.zeros(2), np.ones(2)) == -NO_ERROR_DB
