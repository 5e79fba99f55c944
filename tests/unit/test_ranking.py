"""Rows that a model sorts by score may have another order if scores are closer than the resolution of the number
format.
"""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")

from qnnbridge_host.numerics.pairing import judge_all, paired  # noqa: E402

# Ten rows: 1 and 2 have the same score, and so do the last three.
SCORES = np.array([0.9, 0.8, 0.79998, 0.7, 0.6, 0.5, 0.4, 0.3, 0.29999, 0.29998], np.float32)
NOISE = np.linspace(-1, 1, 10, dtype=np.float32) * 2e-4


def detections() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    return SCORES[None], rng.integers(0, 80, (1, 10)), rng.uniform(0, 640, (1, 10, 4)).astype(np.float32)


def in_order(order: list[int]) -> tuple[Any, Any, Any]:
    scores, labels, boxes = detections()
    found = np.sort(scores + NOISE)[:, ::-1]
    return found, labels[:, order], (boxes * 1.0005)[:, order]


def states(expected: Any, found: Any) -> list[str]:
    return [one.state for _, one in judge_all(["a", "b", "c"][: len(expected)], expected, found, "fp16")]


def one_output(parts: tuple[Any, Any, Any]) -> Any:
    return np.concatenate([parts[2], parts[0][..., None], parts[1][..., None]], axis=-1).astype(np.float32)


def test_rows_with_equal_scores_may_change_places() -> None:
    order = [0, 2, 1, 3, 4, 5, 6, 9, 7, 8]
    assert states(detections(), in_order(order)) == ["agrees"] * 3
    assert states([one_output(detections())], [one_output(in_order(order))]) == ["agrees"]


def test_rows_with_different_scores_may_not_change_places() -> None:
    order = [3, 1, 2, 0, 4, 6, 5, 7, 8, 9]
    assert states(detections(), in_order(order))[1:] == ["differs"] * 2
    assert states([one_output(detections())], [one_output(in_order(order))]) == ["differs"]


def test_different_rows_count_unless_they_tie_with_the_last_row() -> None:
    scores, labels, boxes = in_order(list(range(10)))
    labels, boxes = labels.copy(), boxes.copy()
    labels[0, 9], boxes[0, 9] = 33, 7  # another row with the same score as the last
    mine, _ = paired(detections(), (scores, labels, boxes), "fp16")
    assert [one.shape for one in mine] == [(1, 10), (9,), (9, 4)]
    assert states(detections(), (scores, labels, boxes)) == ["agrees"] * 3
    labels[0, :3], boxes[0, :3] = 33, 7
    assert states(detections(), (scores, labels, boxes))[1:] == ["differs"] * 2


def test_a_row_that_is_missing_on_one_side_counts() -> None:
    scores, labels, boxes = in_order([8, 0, 1, 2, 3, 4, 5, 6, 7, 9])
    assert states(detections(), (scores, labels, boxes))[1:] == ["differs"] * 2


def test_outputs_without_sorted_scores_are_not_reordered() -> None:
    _, labels, boxes = detections()
    other = [labels[:, ::-1], boxes[:, ::-1]]
    mine, theirs = paired([labels, boxes], other, "fp16")
    assert mine[0] is labels
    assert theirs[1] is other[1]
    assert states([labels, boxes], other) == ["differs"] * 2


def test_equal_orders_and_values_that_are_not_arrays_are_not_changed() -> None:
    expected, found = [*detections(), "text", [1, 2]], [*in_order(list(range(10))), "text", [1, 2]]
    mine, theirs = paired(expected, found, "fp16")
    assert all(a is b for a, b in zip(mine + theirs, expected + found, strict=True))
    empty = np.zeros((0, 4, 2), np.float32)
    assert paired([empty], [empty], "fp16")[1][0] is empty
    lost = np.full_like(SCORES, np.nan)
    assert paired([SCORES, SCORES], [lost, SCORES], "fp16")[1][0] is lost
