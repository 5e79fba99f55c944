"""The header of a frame: decoding reverses encoding, and bytes that `encode` never writes are refused at little
cost."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_protocol.elements import MAX_DEPTH as MAX_VALUE_DEPTH
from qnnbridge_protocol.errors import InvalidArgument, ProtocolDesync
from qnnbridge_protocol.frames import decode_header, encode_header
from qnnbridge_protocol.limits import MAX_DEPTH, MAX_HELLO_BYTES
from qnnbridge_protocol.values import Encoder, Sparse

# Limit of CPU time. Building the values that these headers announce would take minutes, if it were possible at all.
MAX_REFUSAL_S = 0.1

MAX_REFUSAL_BYTES = 1024 * 1024

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=300),
)
HEADERS = st.dictionaries(
    st.text(),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)


def nested(depth: int, leaf: Any = None) -> dict[str, Any]:
    """Return `depth` nested containers, including the header itself."""
    node: Any = leaf
    for level in range(depth - 1):
        node = [node] if level % 2 else {"k": node}
    return {"k": node}


@given(HEADERS)
def test_an_encoded_header_is_decoded_unchanged(fields: dict[str, Any]) -> None:
    assert decode_header(encode_header(fields)) == fields


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        fields = decode_header(data)
    except ProtocolDesync:
        return
    assert all(type(key) is str for key in fields)


def test_a_header_is_read_from_any_kind_of_buffer() -> None:
    data = encode_header({"a": [1]})
    assert decode_header(bytearray(data)) == decode_header(memoryview(data)) == {"a": [1]}


def test_tuples_and_enumerations_are_encoded_as_lists_and_numbers() -> None:
    from qnnbridge_protocol.frames import Kind

    assert decode_header(encode_header({"a": (1, Kind.PING)})) == {"a": [1, 10]}


def test_nan_is_encoded_as_a_number() -> None:
    """Values of maps occur in headers of errors and statistics, and may be NaN."""
    value = decode_header(encode_header({"a": math.nan, "b": -math.inf}))
    assert math.isnan(value["a"])
    assert value["b"] == -math.inf


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, pytest], ids=lambda v: type(v).__name__)
def test_a_value_that_msgpack_cannot_encode_is_an_internal_error(value: object) -> None:
    with pytest.raises(TypeError):
        encode_header({"a": value})


def test_the_deepest_allowed_header_is_accepted() -> None:
    assert decode_header(encode_header(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


def test_a_header_that_is_one_level_too_deep_is_refused() -> None:
    with pytest.raises(ProtocolDesync, match=f"deeper than {MAX_DEPTH}"):
        decode_header(encode_header(nested(MAX_DEPTH + 1)))


HOSTILE = {
    "nothing": b"",
    "cut short": encode_header({"a": "text"})[:-1],
    "more behind it": encode_header({"a": 1}) + b"\xc0",
    "a list": msgpack.packb([1]),
    "a number": b"\x01",
    "a text": msgpack.packb("text"),
    "nil": b"\xc0",
    "a byte that msgpack never uses": b"\x81\xa1a\xc1",
    "lists 100,000 deep": b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    "maps 100,000 deep": b"\x81\xa1a" * 100_000 + b"\xc0",
    "a map of 1,000,000,000 entries": b"\xdf" + struct.pack(">I", 10**9),
    "a list of 1,000,000,000 entries": b"\x81\xa1a\xdd" + struct.pack(">I", 10**9),
    "a text of 4 GiB": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "bytes of 4 GiB": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\x81\xa1a\xc9\xff\xff\xff\xff\x05",
    "the same key twice": b"\x82\xa1a\x01\xa1a\x02",
    "the same key twice, further in": b"\x81\xa1b\x91\x82\xa1a\x01\xa1a\x01",
    "a key of bytes": b"\x81\xc4\x01a\x01",
    "a key of bytes, further in": b"\x81\xa1b\x81\xc4\x01a\x01",
    "a key that is a number": b"\x81\x01\x01",
    "a key that is nil": b"\x81\xc0\x01",
    "a key that is a list": b"\x81\x90\x01",
    "a key that is a timestamp": b"\x81\xd6\xff\x00\x00\x00\x01\x01",
    "a text that is not UTF-8": b"\x81\xa1a\xa1\xff",
    "a key that is not UTF-8": b"\x81\xa1\xff\x01",
    "half of a surrogate pair": b"\x81\xa1a\xa3\xed\xa0\x80",
    "an extension": msgpack.packb({"a": msgpack.ExtType(5, b"x")}),
    "an extension of no bytes": b"\x81\xa1a\xc7\x00\x01",
    "a timestamp": msgpack.packb({"a": msgpack.Timestamp(1, 2)}),
    "a timestamp in a list": msgpack.packb({"a": [[msgpack.Timestamp(1, 2)]]}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_header_is_refused_quickly_and_with_little_memory(data: bytes) -> None:
    times = []
    for _ in range(3):  # the best of three: another process may interfere
        start = time.process_time()
        with pytest.raises(ProtocolDesync):
            decode_header(data)
        times.append(time.process_time() - start)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolDesync):
            decode_header(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_REFUSAL_BYTES
    assert min(times) < MAX_REFUSAL_S


def test_a_hello_full_of_empty_lists_takes_little_memory() -> None:
    """Valid msgpack, one byte per list: the worst message that a stranger can send before any agreement."""
    data = b"\x81\xa1a\xdd" + struct.pack(">I", MAX_HELLO_BYTES - 8) + b"\x90" * (MAX_HELLO_BYTES - 8)
    tracemalloc.start()
    try:
        decode_header(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def test_the_refusal_shows_the_received_bytes() -> None:
    with pytest.raises(ProtocolDesync) as caught:
        decode_header(b"\x81\xa1aTraceback")
    assert "aTraceback" in "\n".join(caught.value.evidence)


LEAVES: dict[str, tuple[Any, int]] = {  # and the number of levels of a value
    "tensor": (np.zeros(1), 1),
    "sparse": (Sparse(np.ones(1), (3,), "coo", (np.array([0]),)), 1),
    "map": ({"a": 1}, 1),
    "rows": ([{"a": 1}, {"a": 2}], 1),
    "varied rows": ([{"a": 1}, {"b": 2}], 1),
    "map of tensors": ({"a": np.zeros(1)}, 2),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_the_deepest_value_fits_into_a_header(leaf: str) -> None:
    """The value is an input of a run, the deepest position of values in a header."""
    value, levels = LEAVES[leaf]
    for _ in range(MAX_VALUE_DEPTH - levels):
        value = [value, None]
    with pytest.raises(InvalidArgument, match="nested"):
        Encoder().add([value])
    fields = {"op": "session.run", "inputs": [["x", Encoder().add(value)]]}
    assert decode_header(encode_header(fields)) == fields
