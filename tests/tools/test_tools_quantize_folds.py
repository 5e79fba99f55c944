"""The folds with which `quantize` chooses, ranges without a part of the samples, and the last calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_models.accuracy import FloatResults, measure
from qnnbridge_models.quantize.candidates import folds_of, shown_by
from qnnbridge_models.quantize.ort_quantizer import ExtremesBySample
from qnnbridge_models.quantize.qnn_check import Comparison
from qnnbridge_models.quantize.quantizer import _lost
from qnnbridge_models.quantize.samples import SampleSets


def sets(calibrating: int, held: int) -> SampleSets:
    samples = [{"x": np.full(1, number)} for number in range(calibrating + held)]
    compared = samples[calibrating:] if held else samples[:10]
    return SampleSets(samples[:calibrating], compared, bool(held), ())


@pytest.mark.parametrize(("calibrating", "held", "count"), [(15, 5, 4), (190, 10, 4), (2, 1, 3), (20, 0, 4)])
def test_every_sample_is_held_out_exactly_once(calibrating: int, held: int, count: int) -> None:
    samples = sets(calibrating, held)
    every = samples.every
    compared = FloatResults(["y"], samples.compared, [[feeds["x"]] for feeds in samples.compared])
    found = folds_of(samples, compared, True, lambda feeds: [feeds["x"]])
    assert len(found) == count
    assert sorted(number for fold in found for number in fold.left_out) == list(range(calibrating + held))
    for fold in found:
        left_out = [float(every[number]["x"][0]) for number in fold.left_out]
        assert 0 < len(fold.results.samples) <= 10
        assert all(float(feeds["x"][0]) in left_out for feeds in fold.results.samples), "none that calibrates"
        assert [one[0] for one in fold.results.expected] == [feeds["x"] for feeds in fold.results.samples]


@pytest.mark.parametrize(("calibrating", "held", "by_sample"), [(1, 0, True), (1, 1, True), (15, 5, False)])
def test_there_is_one_fold_if_no_samples_can_be_held_out(calibrating: int, held: int, by_sample: bool) -> None:
    samples = sets(calibrating, held)
    (only,) = folds_of(samples, FloatResults(["y"], samples.compared, []), by_sample, lambda feeds: [])
    assert only.left_out == samples.held_numbers


def test_ranges_are_those_of_the_samples_in_use() -> None:
    def end(value: float) -> Any:
        return np.asarray([value], np.float32)

    ends = [{"a": (end(-n), end(2 * n)), "clip": (end(0), end(min(n, 2)))} for n in (1, 2, 3)]
    measured = ExtremesBySample(ends, frozenset(("clip",)))

    def ranges(left_out: set[int], widened: bool) -> list[float]:
        found = measured.of(frozenset(left_out), widened)
        return [float(one[0]) for name in ("a", "clip") for one in found[name].range_value]

    assert ranges(set(), False) == [-3, 6, 0, 2]
    assert ranges({2}, False) == [-2, 4, 0, 2]
    assert ranges({1, 2}, True) == [-1.5, 3, 0, 1], "the limit of a Clip is no range that may grow"
    most = np.finfo(np.float32).max
    huge = ExtremesBySample([{"a": (end(-most), end(1))}]).of(frozenset(), True)
    assert np.isfinite(huge["a"].range_value).all()


@pytest.mark.parametrize(
    ("before_db", "after_db", "lost"),
    [(30, 35, False), (30, 29.5, False), (30, 28, True), (60, 58, False), (60, 55, True), (41, 38.5, True)],
)
def test_the_last_calibration_is_not_kept_if_it_loses(before_db: float, after_db: float, lost: bool) -> None:
    expected = np.random.default_rng(0).standard_normal((1, 400)).astype(np.float32)

    def with_noise(db: float) -> Comparison:
        sign = np.where(np.arange(400) % 2, 1, -1)
        noise = sign * np.sqrt(np.mean(np.square(expected))) * 10 ** (-db / 20)
        return Comparison(measure(["y"], [[expected]], [[(expected + noise).astype(np.float32)]]), None)

    assert bool(_lost(with_noise(before_db), with_noise(after_db))) is lost


@pytest.mark.parametrize(
    ("verdict", "samples", "shown"),
    [("good", 7, "not shown"), ("fair", 2, "not shown"), ("good", 8, "good"), ("useless", 1, "useless")],
)
def test_a_few_samples_can_prove_a_bad_result_but_not_a_good_one(verdict: Any, samples: int, shown: str) -> None:
    assert shown_by(verdict, samples) == shown


def test_two_held_out_samples_are_reported_as_few_and_the_others_judge_by_folds(tmp_path: Path) -> None:
    source = models.saved(models.conv_net(), tmp_path / "m.onnx")
    x = np.random.default_rng(5).standard_normal((12, 3, 16, 16)).astype(np.float32)
    x[0] *= 40  # no other sample gives such ranges
    np.save(tmp_path / "x.npy", x)
    result = models.quantize(source, tmp_path / "q.onnx", tmp_path / "x.npy", activation_type="uint8")
    assert (result.compared_samples, result.held_out) == (2, True)
    assert result.folds is not None
    assert result.folds.samples == 12
    assert result.snr_db is not None
    assert min(result.folds.snr_db) < result.snr_db - 10, "the loud sample is seen in its fold"
    assert result.verdict == result.folds.verdict == "useless"
    assert any("Only 2 samples are held out" in warning for warning in result.warnings)
    few = models.quantize(source, tmp_path / "r.onnx", tmp_path / "x.npy", held_out=10, activation_type="uint8")
    assert few.folds is None, "ten are enough"
    np.save(tmp_path / "five.npy", x[1:6])
    five = models.quantize(source, tmp_path / "s.onnx", tmp_path / "five.npy", activation_type="uint8")
    assert five.folds is not None
    assert (five.folds.samples, five.verdict) == (5, "not shown")
