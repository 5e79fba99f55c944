"""Counting calls: percentiles are nearly exact, and rates are those of the last seconds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qnnbridge_daemon.accounts import BOUNDS_S, RATE_WINDOW_S, Histogram, Meter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_equal_those_of_the_samples_within_the_width_of_a_bucket(seed: int) -> None:
    rng = random.Random(seed)
    samples = [rng.lognormvariate(-6, 1.5) for _ in range(5000)]
    histogram = Histogram()
    for sample in samples:
        histogram.add(sample)
    for share in (0.5, 0.9, 0.99):
        true = float(np.quantile(samples, share))
        assert true / 1.45 < histogram.percentile(share) < true * 1.45
    assert histogram.percentile(1.0) == max(samples)


def test_the_percentile_of_an_empty_histogram_is_zero_and_never_exceeds_the_largest_sample() -> None:
    histogram = Histogram()
    assert histogram.percentile(0.5) == 0
    histogram.add(0.003)
    assert 0 < histogram.percentile(0.5) <= 0.003
    histogram.add(10_000.0)
    assert histogram.percentile(1.0) == 10_000.0


def test_histogram_buckets_are_cumulative_and_exclude_samples_beyond_the_last_bound() -> None:
    histogram = Histogram()
    for seconds in (1e-6, 0.001, 0.001, 5.0, 1e6):
        histogram.add(seconds)
    buckets = histogram.buckets()
    assert [bound for bound, _ in buckets] == list(BOUNDS_S)
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == histogram.count - 1, "the slowest is beyond the last bound"


def test_the_rate_covers_the_last_ten_seconds() -> None:
    clock = Clock()
    meter = Meter(clock)
    for _ in range(20):
        for _ in range(5):
            meter.count(0.001, 10, failed=False)
        clock.now += 1
    assert 4.5 <= meter.calls_per_s <= 5.5
    clock.now += RATE_WINDOW_S + 1
    assert meter.calls_per_s == 0
    assert (meter.calls, meter.bytes, meter.errors) == (100, 1000, 0)


def test_a_rate_is_reported_before_ten_seconds_have_passed() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 2
    for _ in range(8):
        meter.count(0.001, 0, failed=True)
    assert meter.calls_per_s == 4
    assert meter.errors == 8


def test_latencies_are_reported_in_milliseconds_and_as_a_histogram_in_seconds() -> None:
    meter = Meter()
    meter.count(0.002, 0, failed=False)
    told = meter.latency_ms()
    assert list(told) == ["p50", "p90", "p99", "max"]
    assert told["max"] == 2
    whole = meter.latency_s()
    assert (whole["sum"], whole["count"]) == (0.002, 1)
