"""Lists of detections without NMS: columns by kind, images without objects, rows in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qnnbridge_host.numerics.judge import judge, judge_over_inputs
from qnnbridge_host.numerics.pairing import judge_all

ROWS, CLASSES = 100, 80
Parts = tuple[Any, Any, Any]


def picture(found: int, size: float, rng: np.random.Generator) -> Parts:
    """Return boxes, scores and classes of rows sorted by score, of which some are objects."""
    corner = rng.random((ROWS, 2)) * 0.7 + 0.1
    boxes = np.concatenate([corner, corner + rng.random((ROWS, 2)) * 0.2 + 0.01], axis=1) * size
    scores = np.concatenate([rng.uniform(0.4, 0.95, found), rng.random(ROWS - found) ** 4 * 5e-4])
    return boxes, np.sort(scores)[::-1], rng.integers(1, CLASSES - 1, ROWS)


def on_qnn(parts: Parts, found: int, size: float, rng: np.random.Generator) -> Parts:
    """Return the same objects with the noise of half floats; the other rows are arbitrary."""
    boxes, scores, classes = picture(0, size, rng)
    scores = scores * 0
    order = np.argsort(-(parts[1][:found] + rng.normal(0, 1e-3, found)))
    for mine, theirs in zip((boxes, scores, classes), parts, strict=True):
        mine[:found] = theirs[:found][order]
    scores[:found] = np.sort(scores[:found] + rng.normal(0, 5e-4, found))[::-1]
    return boxes + rng.normal(0, 2e-4 * size, boxes.shape), scores, classes


def table(*columns: Any) -> np.ndarray:
    return np.concatenate([np.reshape(one, (ROWS, -1)) for one in columns], axis=1).astype(np.float32)


LAYOUTS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "[N, 6]": lambda b, s, c: [table(b, s, c)],
    "[1, N, 6]": lambda b, s, c: [table(b, s, c)[None]],
    "[1, 1, N, 7]": lambda b, s, c: [table(c * 0, c, s, b)[None, None]],
    "[N, 7]": lambda b, s, c: [table(c * 0, b, c, s)],
    "class first": lambda b, s, c: [table(c, s, b)[None]],
    "middle and size": lambda b, s, c: [table((b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2], s, c)[None]],
    "one class": lambda b, s, c: [table(b, s, c * 0)[None]],
    "[1, N, 5]": lambda b, s, c: [table(b, s)[None]],
    "apart": lambda b, s, c: [b[None].astype(np.float32), s[None].astype(np.float32), c[None]],
    "apart, in floats": lambda b, s, c: [table(one)[None] for one in (b, s, c)],
}


def states(layout: str, expected: Parts, found: Parts, number_format: Any = "fp16") -> set[str]:
    sides = [LAYOUTS[layout](*side) for side in (expected, found)]
    return {one.state for _, one in judge_all("abc"[: len(sides[0])], *sides, number_format)}


@pytest.mark.parametrize("size", [1.0, 640.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_detections_agree_and_an_empty_image_is_inconclusive(layout: str, size: float) -> None:
    rng = np.random.default_rng(5)
    for number_format in ("fp16", "quantized"):
        for found in (0, 1, 3, 20):
            expected = picture(found, size, rng)
            seen = states(layout, expected, on_qnn(expected, found, size, rng), number_format)
            assert seen == ({"agrees"} if found else {"unknown"}), (found, number_format)


@pytest.mark.parametrize("size", [1.0, 640.0])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", ["scores lost", "scores halved", "classes", "boxes", "one coordinate", "ghosts"])
def test_a_fault_in_each_kind_of_column_is_detected(fault: str, layout: str, size: float) -> None:
    if fault == "classes" and layout in ("one class", "[1, N, 5]"):
        return
    rng = np.random.default_rng(7)
    for found in (1, 3, 20):
        expected = picture(0 if fault == "ghosts" else found, size, rng)
        boxes, scores, classes = on_qnn(expected, 0 if fault == "ghosts" else found, size, rng)
        if fault == "scores lost":
            scores = scores * 0
        elif fault == "scores halved":
            scores = scores * 0.5
        elif fault == "classes":
            classes = classes + 1
        elif fault == "boxes":
            boxes = boxes * 0.6
        elif fault == "one coordinate":
            boxes[:, 3] -= 0.3 * size
        else:
            scores[:found] = 0.8
        assert "differs" in states(layout, expected, (boxes, scores, classes)), found


def test_scores_that_are_all_0_count_as_an_empty_image() -> None:
    rng = np.random.default_rng(9)
    one, other = picture(0, 640.0, rng), picture(0, 640.0, rng)
    for layout in ("[1, N, 6]", "[N, 7]", "apart"):
        empty = [(boxes, scores * 0, classes) for boxes, scores, classes in (one, other)]
        assert states(layout, *empty) == {"unknown"}
        assert "differs" in states(layout, empty[0], (other[0], np.full(ROWS, 0.7), other[2]))


@pytest.mark.parametrize("turned", [False, True], ids=["[1, N, 5 + C]", "[1, 5 + C, N]"])
@pytest.mark.parametrize("size", [1.0, 640.0])
def test_the_scores_of_a_dense_head_are_judged_separately_from_normalised_boxes_too(
    size: float, turned: bool
) -> None:
    rng = np.random.default_rng(3)
    expected = np.concatenate([rng.random((900, 4)) * size, rng.random((900, 21)) ** 8 * 0.02], axis=1)
    silent = expected[None].copy()
    rows = rng.choice(900, 12, replace=False)
    expected[rows, 5 + rng.integers(0, 20, 12)] = rng.uniform(0.4, 0.9, 12)
    expected[:, 4] = expected[:, 5:].max(axis=1)

    def state(one: Any, other: Any) -> str:
        sides = [np.swapaxes(side, 1, 2) if turned else side for side in (one, other)]
        return judge(*sides).state

    expected = expected[None]
    noise = rng.normal(0, 5e-4, expected.shape)
    noise[..., :4] *= size
    assert state(expected, expected + noise) == "agrees"
    assert state(silent, silent + noise) == "unknown"
    for fault in (0.0, 0.5):
        found = expected + noise
        found[..., 4:] *= fault
        assert state(expected, found) == "differs"
    other = expected + noise
    other[..., 5:] = np.roll(other[..., 5:], 1, axis=-1)
    assert state(expected, other) == "differs", "the class of each is another one"


def test_a_difference_of_one_quantisation_step_of_the_output_is_not_a_finding() -> None:
    rng = np.random.default_rng(2)
    step = 0.03
    expected = np.round(rng.uniform(-1, 1, (1, 8, 4, 4)) / step) * step
    expected[:, 4] = np.round(expected[:, 4] / 30 / step) * step
    found = expected.copy()
    found[0, 4, 1, 1] += step
    found[0, 4, 2, 3] -= step
    assert judge(expected, found, "quantized").state == "differs", "what is judged without the step"
    assert judge(expected, found, "quantized", step=step).state == "agrees"
    found[0, 4, :, :] += 3 * step
    assert judge(expected, found, "quantized", step=step).state == "differs"
    few = np.float32([step, 2 * step, 0, step])
    one = judge(few, few + step, "quantized", step=step)
    assert (one.state, "one step of the output's quantisation" in one.reason) == ("unknown", True)


def test_an_output_that_changes_less_than_the_noise_is_not_reported_as_wrong() -> None:
    pairs = [(np.full(4, 1e-3 + n * 2e-4), np.full(4, 1e-3 + 2e-4)) for n in range(3)]
    assert judge_over_inputs(pairs)[0] == "unknown"
