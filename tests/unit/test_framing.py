"""Frames that are written and read again are equal, however the stream is split into pieces."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.wire_streams import feed, feed_until_refused, plain, wire

from qnnbridge_protocol.errors import ProtocolDesync, TooLarge
from qnnbridge_protocol.frames import (
    ALIGNMENT,
    HELLO_KINDS,
    OWN_ARRAY_BYTES,
    PREFIX_BYTES,
    STAGING_BYTES,
    Frame,
    FrameReader,
    Kind,
    pack_prefix,
    write_frame,
)
from qnnbridge_protocol.limits import MAX_HELLO_BYTES, Limits

PING = wire(Frame(Kind.PING, 1, {}))
THRESHOLDS = [0, 1, 63, 64, 65, OWN_ARRAY_BYTES - 1, OWN_ARRAY_BYTES, OWN_ARRAY_BYTES + 1]

FRAMES = st.builds(
    Frame,
    st.sampled_from(sorted(set(Kind) - HELLO_KINDS)),
    st.integers(0, 2**64 - 1),
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key != "bufs"),
        st.none() | st.integers(0, 9) | st.text(max_size=80) | st.lists(st.floats(allow_nan=False), max_size=3),
        max_size=3,
    ),
    st.lists(st.binary(max_size=200), max_size=5).map(tuple),
)


def filled(size: int, seed: int = 0) -> bytes:
    """Return bytes that differ from their neighbours, also at a distance of 64 and 256."""
    return ((np.arange(size, dtype=np.uint32) * 2654435761 + seed) >> 13).astype(np.uint8).tobytes()


def message(*sizes: int, **header: Any) -> Frame:
    return Frame(Kind.REQUEST, 1, header, tuple(filled(size, at) for at, size in enumerate(sizes)))


def raw_frame(header: bytes, count: int = 0, body_bytes: int = 0) -> bytes:
    """Return a frame with any header and any sizes, with a correct checksum."""
    return pack_prefix(Kind.REQUEST, 1, header, count, body_bytes) + header


def described(sizes: Any, count: int, body_bytes: int) -> bytes:
    return raw_frame(msgpack.packb({"bufs": sizes}), count, body_bytes)


# --- pieces of the stream --------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=4), st.lists(st.integers(1, 300), min_size=1, max_size=20))
@example([Frame(Kind.REQUEST, 1, {}, (b"a",)), Frame(Kind.PING, 2, {})], [1])
def test_frames_are_the_same_however_the_stream_is_cut(frames: list[Frame], sizes: list[int]) -> None:
    data = b"".join(map(wire, frames))
    expected = [plain(frame) for frame in frames]
    for cut in (itertools.cycle(sizes), itertools.repeat(1), itertools.repeat(len(data))):
        reader = FrameReader(Limits())
        assert [plain(frame) for frame in feed(reader, data, cut)] == expected
        assert not reader.mid_frame


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_large_and_small_buffers_are_the_same_however_the_stream_is_cut(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from(THRESHOLDS) | st.integers(0, 200_000), min_size=1, max_size=4))
    frames = [message(*sizes), Frame(Kind.PING, 2, {}), message(*sizes[::-1])]
    stream = b"".join(map(wire, frames))
    cut = itertools.cycle(data.draw(st.lists(st.integers(1, 2 * OWN_ARRAY_BYTES), min_size=1, max_size=10)))
    reader = FrameReader(Limits())
    assert [plain(frame) for frame in feed(reader, stream, cut)] == [plain(frame) for frame in frames]
    assert not reader.mid_frame


@pytest.mark.parametrize("size", THRESHOLDS)
def test_a_buffer_of_every_size_around_the_thresholds_is_read_byte_by_byte(size: int) -> None:
    frames = feed(FrameReader(Limits()), wire(message(size)) + PING, itertools.repeat(1))
    assert [frame.kind for frame in frames] == [Kind.REQUEST, Kind.PING]
    assert bytes(frames[0].buffers[0]) == filled(size)


@pytest.mark.parametrize("sizes", [*itertools.product(THRESHOLDS, repeat=2), (65, 0, 0, 65), (0, 0, 0)], ids=str)
def test_adjacent_buffers_of_every_size_do_not_disturb_each_other(sizes: tuple[int, ...]) -> None:
    (frame, ping) = feed(FrameReader(Limits()), wire(message(*sizes)) + PING, itertools.repeat(10_007))
    assert [bytes(buffer) for buffer in frame.buffers] == [filled(size, at) for at, size in enumerate(sizes)]
    assert ping.kind is Kind.PING


@pytest.mark.parametrize(
    "length", [*range(PREFIX_BYTES - 2, PREFIX_BYTES + 3), *range(60, 70), 4096, STAGING_BYTES]
)
def test_a_frame_may_end_anywhere_in_the_staging_buffer(length: int) -> None:
    """The next frame then begins at every possible position, also cut by the end of the buffer."""
    text = "x" * length
    frames = [Frame(Kind.EVENT, number, {"t": text}) for number in range(STAGING_BYTES // length + 3)]
    got = feed(FrameReader(Limits()), b"".join(map(wire, frames)))
    assert got == frames


def test_a_thousand_frames_in_one_read_are_a_thousand_frames() -> None:
    stream = b"".join(wire(Frame(Kind.PING, number, {})) for number in range(1000))
    assert [frame.request_id for frame in feed(FrameReader(Limits()), stream)] == list(range(1000))


def test_the_reader_reports_whether_the_stream_may_end_here() -> None:
    stream = wire(message(10, 70_000, 0, a=1))
    reader = FrameReader(Limits())
    assert not reader.mid_frame
    for at in range(300):
        feed(reader, stream[at : at + 1])
        assert reader.mid_frame
    feed(reader, stream[300:-1], itertools.repeat(5000))
    assert reader.mid_frame
    assert len(feed(reader, stream[-1:])) == 1
    assert not reader.mid_frame


# --- received frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", THRESHOLDS)
def test_received_buffers_are_writable_arrays_of_bytes(size: int) -> None:
    (frame,) = feed(FrameReader(Limits()), wire(message(size, 5)))
    array = frame.buffers[0]
    assert type(array) is np.ndarray
    assert (array.dtype, array.ndim, array.nbytes) == (np.uint8, 1, size)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    array[:] = 255
    assert bytes(frame.buffers[1]) == filled(5, 1)


def test_buffers_do_not_change_when_more_is_read() -> None:
    reader = FrameReader(Limits())
    sizes = (10, 100, OWN_ARRAY_BYTES, 3)
    (first,) = feed(reader, wire(message(*sizes)))
    feed(reader, wire(Frame(Kind.REQUEST, 2, {}, tuple(b"\xff" * size for size in sizes))) * 3)
    assert [bytes(buffer) for buffer in first.buffers] == [filled(size, at) for at, size in enumerate(sizes)]


def test_small_buffers_start_at_multiples_of_64_in_their_block() -> None:
    (frame,) = feed(FrameReader(Limits()), wire(message(1, 64, 3)))
    first, *others = (buffer.__array_interface__["data"][0] for buffer in frame.buffers)
    assert [other - first for other in others] == [ALIGNMENT, 2 * ALIGNMENT]


def test_a_large_tensor_is_received_directly_into_its_own_array() -> None:
    size = 8 * STAGING_BYTES
    reader = FrameReader(Limits())
    data = wire(message(size))
    head = len(data) - size
    feed(reader, data[:head])
    target = np.frombuffer(reader.get_buffer(), np.uint8)
    assert target.nbytes == size
    (frame,) = feed(reader, data[head:])
    assert frame.buffers[0].ctypes.data == target.ctypes.data


def test_the_returned_header_does_not_contain_the_sizes_of_buffers() -> None:
    (frame,) = feed(FrameReader(Limits()), wire(message(1, 2, a=1)))
    assert frame.header == {"a": 1}


# --- written frames --------------------------------------------------------------------------------------


def test_each_buffer_starts_at_a_multiple_of_64_and_the_last_is_not_padded() -> None:
    data = wire(message(1, 65, 0, 10))
    header_bytes = int.from_bytes(data[16:20], "little")
    start = -(-(PREFIX_BYTES + header_bytes) // 64) * 64
    assert int.from_bytes(data[24:32], "little") == 64 + 128 + 10
    assert len(data) == start + 64 + 128 + 10
    assert data[start : start + 1] == filled(1, 0)
    assert data[start + 64 : start + 129] == filled(65, 1)
    assert data[start + 192 :] == filled(10, 3)
    for gap in (
        data[PREFIX_BYTES + header_bytes : start],
        data[start + 1 : start + 64],
        data[start + 129 : start + 192],
    ):
        assert not any(gap)


def test_a_frame_without_buffers_is_not_padded() -> None:
    assert len(PING) == PREFIX_BYTES + 1


def test_no_copy_of_a_buffer_is_made() -> None:
    array = np.zeros(1000, np.float32)
    chunks = write_frame(Frame(Kind.REQUEST, 1, {}, (array,)), Limits())
    array[0] = 1
    assert bytes(chunks[-1][:4]) == np.float32(1).tobytes()


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
def test_any_contiguous_array_can_be_a_buffer(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    (frame,) = feed(FrameReader(Limits()), wire(Frame(Kind.REPLY, 1, {}, (array,))))
    assert bytes(frame.buffers[0]) == array.tobytes()


def test_the_header_of_the_caller_is_not_changed() -> None:
    header = {"a": 1}
    write_frame(Frame(Kind.REQUEST, 1, header, (b"x",)), Limits())
    assert header == {"a": 1}


LIMITS = Limits(max_header=200, max_buffers=3, max_body=1000)


@pytest.mark.parametrize(
    "frame",
    [message(a="x" * 200), message(1, 1, 1, 1), message(1001), message(64 * 15, 41)],
    ids=["header", "buffers", "body", "body with padding"],
)
def test_a_frame_that_the_other_side_would_refuse_is_not_sent(frame: Frame) -> None:
    with pytest.raises(TooLarge) as caught:
        write_frame(frame, LIMITS)
    assert caught.value.fix


@pytest.mark.parametrize("frame", [message(a="x" * 190), message(1, 1, 1), message(1000), message(64 * 15, 40)])
def test_a_frame_exactly_at_the_limits_is_sent_and_accepted(frame: Frame) -> None:
    assert [plain(got) for got in feed(FrameReader(LIMITS), wire(frame, LIMITS))] == [plain(frame)]


@pytest.mark.parametrize("kind", sorted(HELLO_KINDS))
def test_a_hello_is_limited_only_by_the_limit_for_hellos(kind: Kind) -> None:
    """Use also limits so small, or so large, that they would decide differently."""
    overhead = len(msgpack.packb({"a": "x" * 60_000})) - 60_000
    largest = Frame(kind, 0, {"a": "x" * (MAX_HELLO_BYTES - overhead)})
    assert feed(FrameReader(LIMITS), wire(largest, LIMITS)) == [largest]
    with pytest.raises(TooLarge):
        write_frame(Frame(kind, 0, {"a": "x" * (MAX_HELLO_BYTES - overhead + 1)}), Limits())


# --- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [PING, wire(message(5, 70)), wire(Frame(Kind.HELLO_OK, 0, {"a": 1}))], ids=len)
@pytest.mark.parametrize("at", range(PREFIX_BYTES))
def test_no_flipped_bit_of_a_prefix_is_ever_accepted(whole: bytes, at: int) -> None:
    """The frame is refused, at the latest with the header: a flipped header size requests more bytes first."""
    for bit in range(8):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        reader = FrameReader(Limits())
        frames, error = feed_until_refused(reader, bytes(damaged) + PING * 40, itertools.repeat(len(PING)))
        if error is None:
            assert 16 <= at < 20, "only a larger header may ask for more bytes first"
            assert reader.mid_frame
            header_bytes = int.from_bytes(damaged[16:20], "little")
            more, error = feed_until_refused(reader, bytes(header_bytes), itertools.repeat(STAGING_BYTES))
            frames += more
        assert frames == []
        assert error is not None


@settings(deadline=None)
@given(FRAMES, st.data())
def test_no_flipped_bit_of_a_header_is_ever_accepted(frame: Frame, data: st.DataObject) -> None:
    whole = bytearray(wire(frame))
    header_bytes = int.from_bytes(whole[16:20], "little")
    at = data.draw(st.integers(8 * PREFIX_BYTES, 8 * (PREFIX_BYTES + header_bytes) - 1))
    whole[at // 8] ^= 1 << at % 8
    with pytest.raises(ProtocolDesync, match="checksum"):
        feed(FrameReader(Limits()), bytes(whole))


@pytest.mark.parametrize(
    "data",
    [
        described([5], 1, 6),
        described([7], 1, 6),
        described([5, 5], 2, 10),
        described([2**63], 1, 6),
        described([2**64 - 1, 1], 2, 64),
        described([-1], 1, 6),
        described([6.0], 1, 6),
        described([True], 1, 1),
        described([None], 1, 0),
        described([], 1, 0),
        described([0, 0], 1, 0),
        described([0], 0, 0),
        described({"0": 0}, 1, 0),
        described("x", 1, 0),
        raw_frame(b"\x80", 1, 0),
        described([2 * 2**30], 1, 2 * 2**30 - 1),
        described([0] * 16_384, 16_383, 0),
    ],
)
def test_sizes_of_buffers_that_do_not_fit_the_prefix_are_refused_before_memory_is_allocated(data: bytes) -> None:
    reader = FrameReader(Limits())
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolDesync, match="buffer"):
            feed(reader, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 1024 * 1024


def test_a_body_is_only_allocated_after_its_header_has_arrived() -> None:
    data = described([2**30], 1, 2**30)
    reader = FrameReader(Limits())
    tracemalloc.start()
    try:
        feed(reader, data[:-1])
        before = tracemalloc.get_traced_memory()[1]
        feed(reader, data[-1:])
        after = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert before < 64 * 1024
    assert after >= 2**30


def test_text_instead_of_a_frame_is_refused_with_its_first_byte() -> None:
    with pytest.raises(ProtocolDesync, match="the next bytes are not a frame"):
        feed(FrameReader(Limits()), b"E")


def test_text_between_frames_is_refused_with_the_received_bytes_as_evidence() -> None:
    text = b"Starting stage: Graph Preparation Initializing\n" * 10
    with pytest.raises(ProtocolDesync) as caught:
        feed(FrameReader(Limits()), PING + text)
    assert caught.value.details["bytes"] == text[:256]


def test_the_padding_before_and_between_buffers_is_skipped_whatever_it_contains() -> None:
    """The padding has no checksum and no meaning."""
    data = bytearray(wire(message(1, 1)))
    data[-2] = data[-3] = 0xEE
    data[PREFIX_BYTES + int.from_bytes(data[16:20], "little")] = 0xEE
    (frame,) = feed(FrameReader(Limits()), bytes(data), itertools.repeat(7))
    assert plain(frame) == plain(message(1, 1))
