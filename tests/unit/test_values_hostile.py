"""Any descriptor from another process, however invalid, results in a value or `ProtocolDesync`."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.needs import length

from qnnbridge_protocol.errors import ProtocolDesync
from qnnbridge_protocol.values import Decoder, Encoder, Sparse, Typed, decode, decode_all

PARTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.sampled_from([2**31, 2**32, 2**60, 2**62, 2**63 - 1, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from(["t", "n", "q", "m", "d", "r", "v", "x", "coo", "csr"]),
    st.just({"t": []}),
)
TREES = st.recursive(PARTS, lambda inner: st.lists(inner, max_size=5), max_leaves=20)
BUFFERS = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 40).map(bytes), st.sampled_from([b"\0\0\0\0\2\0\0\0", b"ab"])),
    max_size=6,
).map(lambda parts: [np.frombuffer(bytearray(part), np.uint8) for part in parts])

VALID: list[Any] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
    np.array(["ab", "ü"], object),
    Typed(np.array([0x21, 3], np.uint8), 21, (3,)),  # type: ignore[arg-type]
    [np.zeros(2), None, [np.ones(1, np.int8)]],
    {"a": 1.5, "b": 2.5},
    {1: np.zeros(1), 2: [np.zeros(0)]},
    [{"a": 1}, {"a": 2}],
    [{"a": 1}, {"b": 2, "c": 3}],
    Sparse(np.ones(2, np.float32), (3, 3), "coo", (np.array([0, 8]),)),
    Sparse(np.ones(1, np.float32), (1, 3), "csr", (np.array([2]), np.array([0, 1]))),
]


def encoded(value: Any) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    encoder = Encoder()
    descriptor = encoder.add(value)
    return descriptor, [np.array(buffer) for buffer in encoder.buffers]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Draw a valid message with a change in one part of the descriptor, a byte, or the order of the buffers."""
    descriptor, buffers = encoded(draw(st.sampled_from(VALID)))
    places: list[tuple[list[Any], int]] = []

    def collect(node: Any) -> None:
        for index, child in enumerate(node):
            places.append((node, index))
            if isinstance(child, list):
                collect(child)

    collect(descriptor)
    node, index = draw(st.sampled_from(places))
    action = draw(st.sampled_from(["replace", "delete", "repeat", "bytes", "shuffle"]))
    if action == "replace":
        node[index] = draw(TREES)
    elif action == "delete":
        del node[index]
    elif action == "repeat":
        node.insert(index, node[index])
    elif action == "shuffle":
        buffers = draw(st.permutations(buffers))
    else:
        target = draw(st.sampled_from(buffers))
        if target.size:
            target[draw(st.integers(0, target.size - 1))] = draw(st.integers(0, 255))
    return descriptor, buffers


def check(descriptor: Any, buffers: list[np.ndarray[Any, Any]]) -> None:
    """Decode the message; if it is valid, check that the value can be encoded again."""
    try:
        value = decode(descriptor, buffers)
    except ProtocolDesync:
        return
    Encoder().add(value)


@settings(max_examples=length(200, 600))
@given(descriptor=TREES, buffers=BUFFERS)
def test_random_descriptors_give_a_value_or_a_desync(descriptor: Any, buffers: Any) -> None:
    check(descriptor, buffers)


@settings(max_examples=length(200, 600))
@given(message=damaged())
def test_damaged_messages_give_a_value_or_a_desync(message: Any) -> None:
    check(*message)


@settings(max_examples=length(60, 150))
@given(message=damaged() | st.tuples(TREES, BUFFERS))
def test_memory_is_limited_by_what_was_received(message: Any) -> None:
    descriptor, buffers = message
    received = sum(buffer.nbytes for buffer in buffers)
    tracemalloc.start()
    try:
        try:
            decode(descriptor, buffers)
        except ProtocolDesync:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 + 100 * received


EIGHT = np.zeros(8, np.uint8)
HOSTILE: dict[str, tuple[Any, list[Any]]] = {
    "not a list": ({"t": 1}, []),
    "empty": ([], []),
    "tuple": (("n",), []),
    "unknown tag": (["z", 1], []),
    "tag is no text": ([1], []),
    "none with more": (["n", 1], []),
    "unknown element": (["t", 0, [1], 0], [EIGHT]),
    "element from the future": (["t", 99, [8], 0], [EIGHT]),
    "element is a bool": (["t", True, [2], 0], [EIGHT]),
    "huge shape": (["t", 1, [2**40], 0], [EIGHT]),
    "overflowing shape": (["t", 1, [2**33, 2**33], 0], [EIGHT]),
    "overflow to the right size": (["t", 2, [2**64 + 8], 0], [EIGHT]),
    "negative twice": (["t", 1, [-1, -2], 0], [EIGHT]),
    "rank 65": (["t", 2, [1] * 64 + [8], 0], [EIGHT]),
    "zero beside huge": (["t", 1, [0, 2**62], 0], [np.zeros(0, np.uint8)]),
    "bool dimension": (["t", 1, [True, 2], 0], [EIGHT]),
    "float dimension": (["t", 1, [2.0], 0], [EIGHT]),
    "shape is a number": (["t", 1, 2, 0], [EIGHT]),
    "too small": (["t", 1, [3], 0], [EIGHT]),
    "too large": (["t", 1, [1], 0], [EIGHT]),
    "no such buffer": (["t", 1, [2], 1], [EIGHT]),
    "buffer from the end": (["t", 1, [2], -1], [EIGHT]),
    "buffer is a bool": (["t", 1, [2], False], [EIGHT]),
    "extra member": (["t", 1, [2], 0, 0], [EIGHT]),
    "buffer twice": (["q", ["t", 1, [2], 0], ["t", 1, [2], 0]], [EIGHT]),
    "bool of 2": (["t", 9, [8], 0], [np.full(8, 2, np.uint8)]),
    "unused bits": (["t", 21, [15], 0], [np.full(8, 0xFF, np.uint8)]),
    "string with one buffer": (["t", 8, [1], 0], [EIGHT]),
    "offsets fall": (["t", 8, [2], 0, 1], [np.array([0, 2, 1], "<u4").view(np.uint8), np.zeros(1, np.uint8)]),
    "offsets start late": (["t", 8, [1], 0, 1], [np.array([1, 2], "<u4").view(np.uint8), np.zeros(2, np.uint8)]),
    "offsets end early": (["t", 8, [1], 0, 1], [np.array([0, 1], "<u4").view(np.uint8), np.zeros(2, np.uint8)]),
    "offsets end late": (["t", 8, [1], 0, 1], [np.array([0, 3], "<u4").view(np.uint8), np.zeros(2, np.uint8)]),
    "invalid UTF-8": (["t", 8, [1], 0, 1], [np.array([0, 1], "<u4").view(np.uint8), np.array([255], np.uint8)]),
    "cut inside a character": (
        ["t", 8, [2], 0, 1],
        [np.array([0, 1, 2], "<u4").view(np.uint8), np.frombuffer("ü".encode(), np.uint8)],
    ),
    "encoded surrogate": (
        ["t", 8, [1], 0, 1],
        [np.array([0, 3], "<u4").view(np.uint8), np.array([0xED, 0xA0, 0x80], np.uint8)],
    ),
    "map key twice": (["m", ["t", 7, [2], 0], ["t", 7, [2], 1]], [np.zeros(16, np.uint8), np.zeros(16, np.uint8)]),
    "row key twice": (["r", ["t", 7, [2], 0], ["t", 7, [1, 2], 1]], [np.zeros(16, np.uint8)] * 2),
    "map of float keys": (["m", ["t", 11, [1], 0], ["t", 7, [1], 1]], [EIGHT, EIGHT]),
    "map of bools": (["m", ["t", 7, [1], 0], ["t", 9, [8], 1]], [EIGHT, EIGHT]),
    "map with a value too many": (["m", ["t", 7, [1], 0], ["t", 1, [2], 1]], [EIGHT, EIGHT]),
    "map of no dimension": (["m", ["t", 7, [], 0], ["t", 7, [], 1]], [EIGHT, EIGHT]),
    "dict with a value missing": (["d", ["t", 7, [1], 0]], [EIGHT]),
    "endless rows of nothing": (
        ["r", ["t", 7, [0], 0], ["t", 7, [2**60, 0], 1]],
        [np.zeros(0, np.uint8), np.zeros(0, np.uint8)],
    ),
    "rows of another width": (["r", ["t", 7, [1], 0], ["t", 1, [1, 2], 1]], [EIGHT, EIGHT]),
    "negative row length": (
        ["v", ["t", 7, [2], 0], ["t", 7, [1], 1], ["t", 7, [1], 2]],
        [np.array([2, -1]).view(np.uint8), EIGHT, EIGHT],
    ),
    "row lengths too long": (
        ["v", ["t", 7, [1], 0], ["t", 7, [1], 1], ["t", 7, [1], 2]],
        [np.array([2**62]).view(np.uint8), EIGHT, EIGHT],
    ),
    "sparse index outside": (
        ["x", "coo", [3], ["t", 7, [1], 0], ["t", 7, [1], 1]],
        [EIGHT, np.array([3]).view("u1")],
    ),
    "sparse of another format": (["x", "bsr", [3], ["t", 7, [1], 0], ["t", 7, [1], 1]], [EIGHT, EIGHT]),
    "sparse of bfloat16": (["x", "coo", [9], ["t", 16, [4], 0], ["t", 7, [1], 1]], [EIGHT, EIGHT]),
    "sparse in a list": (["x", ["coo"], [9], ["t", 7, [1], 0], ["t", 7, [1], 1]], [EIGHT, EIGHT]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_values_that_the_protocol_forbids_are_a_desync(name: str) -> None:
    descriptor, buffers = HOSTILE[name]
    with pytest.raises(ProtocolDesync) as caught:
        decode(descriptor, buffers)
    assert caught.value.cause
    assert len(str(caught.value)) < 1000


def test_an_endlessly_nested_descriptor_is_a_desync() -> None:
    node: list[Any] = ["n"]
    for _ in range(200_000):
        node = ["q", node]
    try:
        with pytest.raises(ProtocolDesync, match="nested"):
            decode(node, [])
    finally:
        while len(node) > 1:  # unwound manually: freeing the value recursively would be too deep as well
            node = node.pop()


def test_a_buffer_is_used_by_one_value_of_a_message() -> None:
    decoder = Decoder([EIGHT])
    decoder.value(["t", 1, [2], 0])
    with pytest.raises(ProtocolDesync, match="twice"):
        decoder.value(["t", 1, [2], 0])


def test_a_buffer_that_no_value_uses_is_a_desync() -> None:
    tensors = [["t", 1, [2], 0], ["t", 1, [2], 1]]
    assert len(decode_all(tensors, [EIGHT, EIGHT])) == 2
    with pytest.raises(ProtocolDesync, match="no value refers to"):
        decode_all(tensors[:1], [EIGHT, EIGHT])


@pytest.mark.parametrize("value", VALID, ids=lambda v: type(v).__name__)
def test_the_undamaged_messages_of_these_tests_are_valid(value: Any) -> None:
    descriptor, buffers = encoded(value)
    decode_all([descriptor], buffers)
