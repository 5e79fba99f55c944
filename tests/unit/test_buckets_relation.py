"""How dimensions of outputs follow from sizes: written, found from observations, and computed."""

from __future__ import annotations

from random import Random

import pytest

from qnnbridge._buckets.arguments import MAX_DENOMINATOR, Relation, fit, parse
from qnnbridge.errors import OptionError


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("seq", 7, 7),
        ("2 * seq", 7, 14),
        ("seq*2", 7, 14),
        ("seq + 1", 7, 8),
        ("1+seq", 7, 8),
        ("seq - 2", 7, 5),
        ("(seq + 3) // 4", 9, 3),
        ("seq // 2", 9, 4),
        ("2 * (seq - 1)", 4, 6),
        ("seq - 9", 4, 0),
    ],
)
def test_an_expression_means_what_python_would_compute(text: str, size: int, expected: int) -> None:
    assert parse(text).size(size) == expected
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seq *",
        "a * b",
        "seq / 2",
        "seq // 0",
        "seq ** 2",
        "f(seq)",
        "3",
        "3 - seq",
        "-2 * seq",
        "seq.x",
        "(" * 500,
    ],
)
def test_what_is_no_such_expression_is_refused_with_examples(text: str) -> None:
    with pytest.raises(OptionError, match="does not say how a dimension") as caught:
        parse(text)
    assert "'seq'" in str(caught.value.fix)


def test_a_length_that_stays_the_same_is_found_from_two_sizes() -> None:
    assert fit("seq", {16: 16, 15: 15}) == Relation("seq")


def test_what_does_not_depend_on_the_size_or_shrinks_is_no_relation() -> None:
    assert fit("seq", {16: 3, 15: 3}) is None
    assert fit("seq", {16: 3, 15: 4}) is None
    assert fit("seq", {16: 16}) is None


def test_a_length_that_grows_with_the_square_is_no_relation() -> None:
    assert fit("seq", {size: size * size for size in range(4, 24)}) is None


def test_any_rounded_length_is_found_from_a_row_of_sizes() -> None:
    random = Random(33)
    for _ in range(300):
        true = Relation("n", random.randint(1, 6), random.randint(0, 30), random.randint(1, MAX_DENOMINATOR))
        base = random.randint(8, 64)
        seen = [*range(base, base + MAX_DENOMINATOR + 1), base - 1, base // 2, 4 * base]
        observed = {size: true.size(size) for size in seen}
        found = fit("n", observed)
        assert found is not None, true
        assert {size: found.size(size) for size in seen} == observed


@pytest.mark.parametrize("divisor", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("up", [False, True])
def test_strides_are_found_exactly(divisor: int, up: bool) -> None:
    true = Relation("n", 1, divisor - 1 if up else 0, divisor)
    found = fit("n", {size: true.size(size) for size in (*range(64, 64 + MAX_DENOMINATOR + 1), 63, 32)})
    assert found == true
