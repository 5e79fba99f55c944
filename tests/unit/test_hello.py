"""HELLO: the facts that each side sends, the agreement of both, and the error if they cannot agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_protocol.connection import API_VERSIONS, FEATURES, SHARING_FEATURES, Agreement, Hello, negotiate
from qnnbridge_protocol.errors import HandshakeFailed, ProtocolDesync, VersionMismatch
from qnnbridge_protocol.frames import decode_header, encode_header
from qnnbridge_protocol.limits import MAX_HELLO_BYTES, MIN_HEADER_BYTES, Limits

FULL = Hello(
    api=(1, 3),
    features=frozenset({"phase", "cancel"}),
    limits=Limits(max_header=5000, max_in_flight=2),
    qnnbridge="0.1.0",
    pid=4711,
    machine="ARM64",
    python="3.11.9",
    executable="C:\\Program Files\\Python311-arm64\\python.exe",
    platform="win32",
    versions={"onnxruntime": "1.31.1", "qnn_sdk": "2.50"},
)
RANGES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: (min(pair), max(pair)))


def on_the_wire(**changes: Any) -> dict[str, Any]:
    """Return the header of a valid HELLO with some changed fields."""
    return {**FULL.to_wire(), **changes}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in FULL.to_wire().items() if name not in names}


@pytest.mark.parametrize("tiny", [1, MIN_HEADER_BYTES - 1])
def test_a_header_limit_too_small_for_errors_is_refused_with_the_numbers(tiny: int) -> None:
    small, usual = Hello(limits=Limits(max_header=tiny)), Hello()
    with pytest.raises(
        HandshakeFailed, match=f"application side accepts headers of at most {tiny} bytes; at least 4096"
    ):
        negotiate(small, usual)
    with pytest.raises(HandshakeFailed, match="The host accepts"):
        negotiate(usual, small)
    assert negotiate(Hello(limits=Limits(MIN_HEADER_BYTES, 1, 1, 1)), usual).limits == (MIN_HEADER_BYTES, 1, 1, 1)


def test_an_encoded_hello_is_decoded_unchanged() -> None:
    assert Hello.from_wire(decode_header(encode_header(FULL.to_wire()))) == FULL


def test_a_real_hello_is_far_below_the_limit() -> None:
    assert 50 * len(encode_header(FULL.to_wire())) < MAX_HELLO_BYTES


def test_the_supported_versions_are_a_valid_range() -> None:
    assert API_VERSIONS[0] <= API_VERSIONS[1]
    assert Hello().api == API_VERSIONS


def test_informative_fields_may_be_missing() -> None:
    hello = Hello.from_wire({"api": [1, 1], "limits": {}})
    assert hello == Hello(api=(1, 1), features=frozenset(), limits=Limits(), qnnbridge="?")


def test_unknown_fields_and_unknown_limits_are_ignored() -> None:
    limits = {**FULL.limits.to_wire(), "max_daydreams": "many"}
    assert Hello.from_wire(on_the_wire(favourite_colour="blue", limits=limits)) == FULL


@pytest.mark.parametrize(
    "data",
    [
        {},
        without("api"),
        without("limits"),
        on_the_wire(api=None),
        on_the_wire(api=1),
        on_the_wire(api=[1]),
        on_the_wire(api=[1, 2, 3]),
        on_the_wire(api=["1", "2"]),
        on_the_wire(api=[1.0, 2.0]),
        on_the_wire(api=[True, True]),
        on_the_wire(api=[2, 1]),
        on_the_wire(features="phase"),
        on_the_wire(features={"phase": 1}),
        on_the_wire(versions=["1.0"]),
        on_the_wire(limits=[1]),
        on_the_wire(limits={"max_body": 0}),
        on_the_wire(limits={"max_body": -1}),
        on_the_wire(limits={"max_body": 1.5}),
        on_the_wire(limits={"max_body": True}),
        on_the_wire(limits={"max_body": None}),
    ],
    ids=lambda data: str({k: v for k, v in data.items() if FULL.to_wire()[k] != v}),
)
def test_a_hello_with_a_wrong_type_is_invalid(data: dict[str, Any]) -> None:
    with pytest.raises(ProtocolDesync, match="HELLO"):
        Hello.from_wire(data)


@pytest.mark.parametrize("field", ["qnnbridge", "machine", "python", "executable", "platform", "system", "pid"])
@pytest.mark.parametrize("value", [None, [1], {"a": 1}, b"\xff", 1.5, 10**18])
def test_informative_fields_are_read_as_text_whatever_they_are(field: str, value: object) -> None:
    """A HELLO does not fail because of a field that is only shown."""
    got = getattr(Hello.from_wire(on_the_wire(**{field: value})), field)
    assert type(got) is (int if field == "pid" else str)


def test_features_and_versions_are_read_as_text_whatever_they_contain() -> None:
    hello = Hello.from_wire(on_the_wire(features=[["x"], 1, "phase"], versions={"a": 1, "b": None}))
    assert hello.features == {"['x']", "1", "phase"}
    assert hello.versions == {"a": "1", "b": "None"}


def outcome(client: Hello, host: Hello) -> Agreement | str:
    """Return the agreement, or the reason why there is none."""
    try:
        return negotiate(client, host)
    except VersionMismatch as error:
        return str(error)


# --- agreement -------------------------------------------------------------------------------------------


@given(RANGES, RANGES)
def test_the_highest_common_version_is_used(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    common = set(range(ours[0], ours[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    client, host = Hello(api=ours), Hello(api=theirs)
    if common:
        assert negotiate(client, host).api == max(common)
    else:
        with pytest.raises(VersionMismatch):
            negotiate(client, host)


def test_only_features_of_both_sides_are_used() -> None:
    client = Hello(features=frozenset({"phase", "cancel", "time-travel"}))
    host = Hello(features=frozenset({"phase", "shm1"}))
    assert negotiate(client, host).features == {"phase"}


LIMITS = st.builds(
    Limits, st.integers(MIN_HEADER_BYTES, 2**40), *(st.integers(1, 2**40) for _ in Limits._fields[1:])
)


@given(LIMITS, LIMITS)
def test_the_smaller_limit_of_both_sides_is_used(ours: Limits, theirs: Limits) -> None:
    agreed = negotiate(Hello(limits=ours), Hello(limits=theirs)).limits
    for name in Limits._fields:
        assert getattr(agreed, name) == min(getattr(ours, name), getattr(theirs, name))


@given(RANGES, RANGES, LIMITS, LIMITS, st.frozensets(st.sampled_from([*sorted(FEATURES), "new"])))
def test_both_sides_come_to_the_same_agreement(
    ours: tuple[int, int], theirs: tuple[int, int], one: Limits, other: Limits, features: frozenset[str]
) -> None:
    client, host = Hello(api=ours, limits=one, features=features), Hello(api=theirs, limits=other)
    sent_client, sent_host = (Hello.from_wire(hello.to_wire()) for hello in (client, host))
    assert outcome(client, sent_host) == outcome(sent_client, host)


@pytest.mark.parametrize(
    ("client", "host", "older"),
    [
        (Hello(api=(1, 2), qnnbridge="0.3.0"), Hello(api=(3, 4), qnnbridge="0.9.0"), "application side"),
        (Hello(api=(3, 4), qnnbridge="0.9.0"), Hello(api=(1, 2), qnnbridge="0.3.0"), "host"),
    ],
)
def test_without_a_common_version_both_are_named_and_the_older_should_be_upgraded(
    client: Hello, host: Hello, older: str
) -> None:
    with pytest.raises(VersionMismatch) as caught:
        negotiate(client, host)
    error = caught.value
    for side in (client, host):
        assert f"qnnbridge {side.qnnbridge}, protocol {side.api[0]} to {side.api[1]}" in error.message
    assert error.fix is not None
    assert error.fix.startswith(f"Upgrade the {older}")
    assert error.details == {"client": client.qnnbridge, "host": host.qnnbridge, "older": older}


def test_sides_of_different_systems_share_neither_streams_nor_memory() -> None:
    here, there = Hello(system="linux:1:pid:[1]"), Hello(system="win32:ARM")
    assert negotiate(here, there).features == FEATURES - SHARING_FEATURES
    assert negotiate(here, here).features == FEATURES
    assert negotiate(here, Hello()).features == FEATURES  # a side that does not report its system
