"""A frame's prefix of 40 bytes: its layout, and that every invalid value in it is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest

from qnnbridge_protocol.errors import ProtocolDesync
from qnnbridge_protocol.frames import (
    ALIGNMENT,
    HELLO_KINDS,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    WIRE_VERSION,
    Kind,
    Prefix,
    aligned,
    check_crc,
    desync,
    pack_prefix,
    parse_prefix,
)
from qnnbridge_protocol.limits import EVIDENCE_BYTES, MAX_HELLO_BYTES, Limits

LIMITS = Limits(max_header=1000, max_buffers=3, max_body=5000)
CRC_OFFSET = 32
FIELDS = {  # name: offset and struct code, written a second time deliberately
    "magic": (0, "4s"),
    "wire_version": (4, "B"),
    "kind": (5, "B"),
    "flags": (6, "<H"),
    "request_id": (8, "<Q"),
    "header_bytes": (16, "<I"),
    "buffer_count": (20, "<I"),
    "body_bytes": (24, "<Q"),
    "crc": (32, "<I"),
    "zero": (36, "<I"),
}


def changed(prefix: bytes, field: str, value: int | bytes) -> bytes:
    """Return a prefix with another value in one field."""
    offset, code = FIELDS[field]
    raw = struct.pack(code, value)
    return prefix[:offset] + raw + prefix[offset + len(raw) :]


REQUEST = pack_prefix(Kind.REQUEST, 7, b"\x80", 2, 4000)
HELLO = pack_prefix(Kind.HELLO, 0, b"\x80", 0, 0)


def test_each_field_has_the_offset_of_the_protocol_and_is_little_endian() -> None:
    header = b"\x81\xa1a\x01"
    prefix = pack_prefix(Kind.REPLY, 0x0102030405060708, header, 0x11121314, 0x2122232425262728)
    crc = zlib.crc32(prefix[:CRC_OFFSET] + header)
    expected = (
        b"\x89NPB" + b"\x01" + b"\x05" + b"\0\0" + b"\x08\x07\x06\x05\x04\x03\x02\x01" + b"\x04\0\0\0"
        b"\x14\x13\x12\x11" + b"\x28\x27\x26\x25\x24\x23\x22\x21" + crc.to_bytes(4, "little") + b"\0\0\0\0"
    )
    assert prefix == expected
    assert len(prefix) == PREFIX_BYTES == PREFIX.size == 40


def test_the_first_byte_of_the_magic_is_not_ascii() -> None:
    assert MAGIC[0] >= 0x80


def test_a_packed_prefix_is_unpacked_unchanged() -> None:
    prefix = parse_prefix(REQUEST, LIMITS)
    crc = struct.unpack_from("<I", REQUEST, CRC_OFFSET)[0]
    assert prefix == Prefix(WIRE_VERSION, Kind.REQUEST, 7, 1, 2, 4000, crc)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_can_be_announced(kind: Kind) -> None:
    request_id = 0 if kind in HELLO_KINDS else 2**64 - 1
    assert parse_prefix(pack_prefix(kind, request_id, b"", 0, 0), LIMITS).kind is kind


@pytest.mark.parametrize("number", sorted(set(range(256)) - {int(kind) for kind in Kind}))
def test_an_unknown_kind_is_refused(number: int) -> None:
    with pytest.raises(ProtocolDesync, match=f"unknown kind {number}"):
        parse_prefix(changed(REQUEST, "kind", number), LIMITS)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_only_a_hello_may_be_of_another_wire_version(version: int) -> None:
    assert parse_prefix(changed(HELLO, "wire_version", version), LIMITS).wire_version == version
    with pytest.raises(ProtocolDesync, match=f"wire version {version}, not the agreed version {WIRE_VERSION}"):
        parse_prefix(changed(REQUEST, "wire_version", version), LIMITS)


@pytest.mark.parametrize("bit", range(16))
def test_an_undefined_flag_is_refused(bit: int) -> None:
    with pytest.raises(ProtocolDesync, match="flags"):
        parse_prefix(changed(REQUEST, "flags", 1 << bit), LIMITS)


@pytest.mark.parametrize("bit", range(32))
def test_reserved_bytes_that_are_not_zero_are_refused(bit: int) -> None:
    with pytest.raises(ProtocolDesync, match="reserved bytes"):
        parse_prefix(changed(REQUEST, "zero", 1 << bit), LIMITS)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_magic_is_refused(at: int, bit: int) -> None:
    damaged = bytearray(REQUEST)
    damaged[at] ^= 1 << bit
    with pytest.raises(ProtocolDesync, match="the next bytes are not a frame"):
        parse_prefix(damaged, LIMITS)


@pytest.mark.parametrize(
    ("field", "limit"), [("header_bytes", 1000), ("buffer_count", 3), ("body_bytes", 5000)], ids=lambda v: str(v)
)
def test_a_number_at_the_limit_is_accepted_and_one_above_is_refused(field: str, limit: int) -> None:
    assert getattr(parse_prefix(changed(REQUEST, field, limit), LIMITS), field) == limit
    with pytest.raises(ProtocolDesync, match=f"{limit + 1} .*the limit is {limit}"):
        parse_prefix(changed(REQUEST, field, limit + 1), LIMITS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("header_bytes", 2**31),
        ("header_bytes", 2**32 - 1),
        ("buffer_count", 2**31),
        ("buffer_count", 2**32 - 1),
        ("body_bytes", 2**32 - 1),
        ("body_bytes", 2**63),
        ("body_bytes", 2**64 - 1),
    ],
)
def test_a_huge_number_is_refused_before_memory_is_allocated_for_it(field: str, value: int) -> None:
    prefix = changed(REQUEST, field, value)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolDesync, match=str(value)):
            parse_prefix(prefix, Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


@pytest.mark.parametrize("kind", sorted(HELLO_KINDS))
def test_a_hello_has_separate_limits(kind: Kind) -> None:
    """The limits for a hello apply before any agreement, and whatever the agreement is."""
    hello = pack_prefix(kind, 0, b"", 0, 0)
    assert parse_prefix(changed(hello, "header_bytes", MAX_HELLO_BYTES), LIMITS).header_bytes == MAX_HELLO_BYTES
    with pytest.raises(ProtocolDesync, match=f"the limit is {MAX_HELLO_BYTES}"):
        parse_prefix(changed(hello, "header_bytes", MAX_HELLO_BYTES + 1), Limits())
    for field in ("request_id", "buffer_count"):
        with pytest.raises(ProtocolDesync, match="no buffers and no request id"):
            parse_prefix(changed(hello, field, 1), LIMITS)


def test_a_body_without_buffers_is_refused() -> None:
    with pytest.raises(ProtocolDesync, match="the body has 4000 bytes, but the frame has no buffers"):
        parse_prefix(changed(REQUEST, "buffer_count", 0), LIMITS)


def test_buffers_without_a_body_are_accepted_because_they_may_be_empty() -> None:
    assert parse_prefix(changed(REQUEST, "body_bytes", 0), LIMITS).buffer_count == 2


def test_the_checksum_covers_every_bit_of_the_prefix_before_it_and_of_the_header() -> None:
    header = b"\x81\xa1a\x01"
    prefix = pack_prefix(Kind.REQUEST, 7, header, 0, 0)
    crc = parse_prefix(prefix, LIMITS).crc
    check_crc(prefix, header, crc)
    for at in range(8 * CRC_OFFSET):
        damaged = bytearray(prefix)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(ProtocolDesync, match="checksum"):
            check_crc(damaged, header, crc)
    for at in range(8 * len(header)):
        damaged = bytearray(header)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(ProtocolDesync, match="checksum"):
            check_crc(prefix, damaged, crc)


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 65, 128, 2**31 - 1, 2**40 + 1])
def test_alignment_rounds_up_to_the_next_multiple(offset: int) -> None:
    assert aligned(offset) % ALIGNMENT == 0
    assert 0 <= aligned(offset) - offset < ALIGNMENT


def test_evidence_shows_the_first_256_bytes_as_numbers_and_as_text() -> None:
    error = desync("reason", b"Hello\x00" + b"x" * 1000)
    assert error.details["bytes"] == b"Hello\x00" + b"x" * (EVIDENCE_BYTES - 6)
    assert "48656c6c 6f007878" in str(error)
    assert "Hello.xxx" in str(error)
    assert "reason" in error.message
    assert error.fix


def test_without_bytes_there_is_no_evidence() -> None:
    assert desync("reason").evidence == ()
