"""Version numbers: of packages and of QNN SDK builds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_host.engine.qnn_options import newer_release
from qnnbridge_host.model.known_wrong import rows_for, table
from qnnbridge_host.model.option_names import newest_release
from qnnbridge_host.model.releases import (
    is_final,
    load_releases,
    newest_final,
    satisfies,
    sdk_is_newer,
    sdk_numbers,
    standing_of,
    version_key,
)
from qnnbridge_protocol.version_numbers import numbers_of

numbers = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


def test_releases_are_sorted_in_the_order_of_publication() -> None:
    in_order = [
        "1.9.9",
        "1.20.2.dev20250213004",
        "1.20.2rc1",
        "1.20.2",
        "1.20.2.post1",
        "1.22.0",
        "1.24.1",
        "2.0.0",
        "2.10.0",
    ]
    assert sorted(sorted(in_order, key=len), key=version_key) == in_order


@pytest.mark.parametrize(("one", "other"), [("2.0", "2.0.0"), ("v1.2", "1.2"), ("1.31.1+cu12", "1.31.1")])
def test_the_same_version_may_be_written_in_two_ways(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@pytest.mark.parametrize("text", ["", "latest", "1.x", "1..2", "-1", "2.0.0 beta"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version number"):
        version_key(text)


def test_only_a_release_is_final() -> None:
    assert is_final("1.23.2")
    assert is_final("1.23.2.post1")
    assert not is_final("1.20.2.dev20250213004")
    assert not is_final("2.0.0rc1")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("2.40", (2, 40)),
        ("v2.51.0.260929181845", (2, 51, 0)),
        ("2.37.1.250807093845_124904", (2, 37, 1)),
        ("2.45.41", (2, 45, 41)),
    ],
)
def test_an_sdk_build_is_recognised_by_its_numbers_without_the_stamp(text: str, parts: tuple[int, ...]) -> None:
    assert sdk_numbers(text) == parts


@pytest.mark.parametrize("text", ["", "2", "thirty", "2.x"])
def test_an_invalid_sdk_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a QNN SDK version"):
        sdk_numbers(text)


@pytest.mark.parametrize(
    ("sdk", "system", "newer"),
    [
        ("2.42.0.251225135753_193295", "2.40", True),
        ("2.37.1.250807093845_124904", "2.40", False),
        ("2.40.1.250807093845", "2.40", False),  # the third number of the system's version is unknown
        ("2.40.1", "2.40.0", True),
        ("2.40.0.1", "2.40.0", False),
        ("3.0.0", "2.99", True),
    ],
)
def test_sdks_are_compared_by_the_numbers_that_both_have(sdk: str, system: str, newer: bool) -> None:
    assert sdk_is_newer(sdk, system) is newer


@given(st.integers(0, 99), st.integers(0, 99))
def test_of_two_sdks_at_most_one_is_newer(left: int, right: int) -> None:
    one, other = f"2.{left}.0.250807093845", f"2.{right}"
    assert [sdk_is_newer(one, other), sdk_is_newer(other, one)] == [left > right, right > left]


@pytest.mark.parametrize(
    ("version", "specifier", "met"),
    [
        ("1.24.4", ">=1.24.2", True),
        ("1.24.1", ">=1.24.2", False),
        ("1.31.1", ">=1.24.2,<1.28", False),
        ("1.27.0", ">=1.24.2,<1.28", True),
        ("1.24.4", "==1.24.4", True),
        ("1.24.4", "!=1.24.4", False),
        ("1.24.4", "", True),
        ("1.9", "<1.24", True),
    ],
)
def test_specifiers_mean_what_they_mean_to_pip(version: str, specifier: str, met: bool) -> None:
    assert satisfies(version, specifier) is met


@given(numbers, numbers)
def test_a_version_meets_exactly_one_of_less_equal_and_greater(version: str, other: str) -> None:
    assert [satisfies(version, f"{sign}{other}") for sign in ("<", "==", ">")].count(True) == 1


def test_a_specifier_that_cannot_be_judged_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not a version specifier"):
        satisfies("1.0", "~=1.0")


@pytest.mark.parametrize(
    ("version", "position"),
    [
        ("2.7.0", "listed"),
        ("2.7", "listed"),
        ("2.7.0+site", "listed"),
        ("2.8.0", "newer"),
        ("2.8.0rc1", "newer"),
        ("2.8.0.dev20261101", "newer"),
        ("2.8.0+site", "newer"),
        ("2.7.0.post1", "newer"),
        ("2.7.0rc1", "unlisted"),
        ("2.6.7", "unlisted"),
        ("1.0", "older"),
        ("nightly", "unreadable"),
        ("1!2.8", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_a_version_is_classified_as_listed_newer_or_older_than_the_table(version: str, position: str) -> None:
    assert standing_of(version) == position


def test_every_release_of_the_table_is_listed() -> None:
    assert {standing_of(release.version) for release in load_releases()} == {"listed"}


def test_the_table_of_options_ends_with_the_same_release() -> None:
    """Both tables decide whether an installed release is newer."""
    assert newest_release() == newest_final()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.8", (2, 8, 0)),
        ("2.8.0rc1", (2, 8, 0)),
        ("2.8rc1", (2, 8, 0)),
        ("2.8+site.1", (2, 8, 0)),
        ("2.8.0.dev20261101", (2, 8, 0)),
        ("v2.10.1.post2", (2, 10, 1)),
        ("nightly", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_the_numbers_of_a_version_are_parsed(text: str | None, numbers: tuple[int, ...]) -> None:
    assert numbers_of(text) == numbers


@pytest.mark.parametrize(
    "release", ["2.8.0", "2.8.0rc1", "2.8.0.dev20261101", "2.8rc1", "2.8+site", "2.7+site", "2.7", "nightly", "3.0"]
)
def test_rows_without_an_end_version_also_apply_to_newer_releases(release: str) -> None:
    assert {row.name for row in rows_for(73, release)} == {row.name for row in rows_for(73, newest_final())}


def test_rows_with_a_later_first_version_do_not_apply_to_an_older_release() -> None:
    later = {row.name for row in table() if numbers_of(row.first) > (2, 3, 0) and row.least_arch <= 73}
    assert later
    assert not later & {row.name for row in rows_for(73, "2.3.0")}
    assert not later & {row.name for row in rows_for(73, "2.3+site")}


@pytest.mark.parametrize("release", ["2.8.0", "2.8.0rc1", "2.8.0.dev20261101", "2.8.0+site"])
def test_a_session_with_a_newer_release_logs_that(release: str) -> None:
    (text,) = newer_release(release)
    assert f"onnxruntime-qnn {release} is newer than this table ({newest_final()})" in text


def test_a_session_with_an_unparsable_version_logs_that() -> None:
    (text,) = newer_release("nightly")
    assert "is a version that this table cannot judge" in text


@pytest.mark.parametrize("release", ["2.7.0", "2.7.0+site", "2.6.0", "1.23.2", "2.6.7", None])
def test_a_session_with_a_known_release_logs_nothing(release: str | None) -> None:
    assert newer_release(release) == []
