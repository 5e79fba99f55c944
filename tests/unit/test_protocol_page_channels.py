"""The description of fast channels in `docs/dev/protocol.md` matches the code."""

from __future__ import annotations

import re
from typing import Any, cast

from tests.unit.test_protocol_page import bare, rows, section

from qnnbridge_host.fastpath import OpenChannels
from qnnbridge_protocol import fastpath
from qnnbridge_protocol.fastpath import ChannelKind


def test_the_head_has_the_layout_of_the_page() -> None:
    sizes = {"4s": 4, "B": 1, "H": 2, "I": 4, "Q": 8}
    codes = re.findall(r"\d*[a-zA-Z]", fastpath.HEAD.format.removeprefix("<"))
    table = rows("Fast channels", "offset", "size", "field")
    assert [int(row[1]) for row in table] == [sizes[code] for code in codes]
    offset = 0
    for row in table:
        assert int(row[0]) == offset
        offset += int(row[1])
    assert offset == fastpath.HEAD_BYTES
    assert f"head of {fastpath.HEAD_BYTES} bytes" in section("Fast channels")
    assert f"`{fastpath.CHANNEL_MAGIC.hex(' ').upper()}`" in table[0][3]


def test_the_kinds_equal_those_of_the_code() -> None:
    table = rows("Fast channels", "number", "kind", "from")
    assert [(int(row[0]), row[1]) for row in table] == [(int(kind), kind.name) for kind in ChannelKind]
    assert {row[1] for row in table if row[2] == "client"} == {kind.name for kind in fastpath.FROM_CLIENT}


def test_the_operations_on_channels_equal_those_of_the_code() -> None:
    operations = OpenChannels(cast(Any, None), cast(Any, None)).operations
    assert [bare(row[0]) for row in rows("Fast channels", "`op`", "fields", "meaning")] == list(operations)
    assert [bare(row[0]) for row in rows("Plans", "`op`", "fields")] == ["plan.make", "plan.drop"]


def test_the_numbers_equal_those_of_the_code() -> None:
    assert (
        f"at most {fastpath.MAX_PLANS} plans on a channel, {fastpath.MAX_CHANNELS} channels and {fastpath.MAX_SLABS} slabs"
        in (section("Plans").replace("\n", " "))
    )
    phases = section("Phase record").replace("\n", " ")
    assert re.findall(r"(\d) `(\w+)`", phases) == [(str(n), name) for n, name in enumerate(fastpath.PHASES) if name]
    assert f"at {fastpath.PHASE_RECORD_BYTES} times" in phases
    assert fastpath.MAX_CHANNELS * fastpath.PHASE_RECORD_BYTES <= fastpath.PHASE_SLAB_BYTES
    assert f"2^{fastpath.CALL_SHIFT}" in section("Plans")
