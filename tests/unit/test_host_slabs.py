"""The memory that an application shares with a host, in any order of the host's threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests import needs

from qnnbridge._fastpath.memory import SMALLEST_SLAB_BYTES, Slab
from qnnbridge_host.fastpath import AttachedSlab, FastCall, HostChannel, OpenChannels, Slabs
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import InvalidArgument, ProtocolDesync
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.limits import Limits

pytestmark = needs.linux

NUMBER = 7


@pytest.fixture
def slab() -> Iterator[Slab]:
    made = Slab(NUMBER, SMALLEST_SLAB_BYTES, host_writes=True)
    yield made
    made.close()


def attach(slabs: Slabs, slab: Slab, asked: int) -> None:
    slabs.attach(NUMBER, slab.share_handle(os.getpid()), slab.size, host_writes=True, asked=asked)


def test_a_release_that_arrives_before_its_allocation_is_not_lost(slab: Slab) -> None:
    """Separate threads handle the requests. A client that abandoned the attaching sends no further release."""
    slabs = Slabs()
    slabs.release(NUMBER, asked=2)
    with pytest.raises(InvalidArgument, match="released before it was attached"):
        attach(slabs, slab, asked=1)
    assert NUMBER not in slabs


def test_memory_that_is_attached_after_a_release_is_available(slab: Slab) -> None:
    slabs = Slabs()
    slabs.release(NUMBER, asked=1)
    attach(slabs, slab, asked=2)
    assert NUMBER in slabs
    slabs.release(NUMBER, asked=3)
    assert NUMBER not in slabs


class Session:
    def run_bound(self, *_: Any) -> None:
        raise AssertionError("nobody calls")


class FakeSink:
    """Replacement of the server."""

    limits = Limits()

    def find(self, _session: int) -> tuple[Any, None]:
        return Session(), None

    def accept(self, call: FastCall, lane: str | None) -> None:
        raise AssertionError("nobody calls")

    def declare(self, call: FastCall, phase: str) -> None:
        raise AssertionError("nobody calls")

    def broken(self, error: ProtocolDesync) -> None:
        raise error


class Interfering(Slabs):
    """A slab is released after its look-up and before its plan exists."""

    channels: OpenChannels

    def get(self, number: int) -> AttachedSlab:
        found = super().get(number)
        self.channels.operations["slab.release"]({"slab": number}, 2)
        return found


def test_memory_that_is_released_while_a_plan_is_made_is_not_kept_by_the_plan(slab: Slab) -> None:
    """Nothing else would release the memory before the channel ends."""
    slabs = Interfering()
    slabs.channels = channels = OpenChannels(FakeSink(), slabs)
    attach(slabs, slab, asked=1)
    (in_fd, to_host), (from_host, out_fd) = os.pipe(), os.pipe()
    try:
        channel = HostChannel(channels, 1, (in_fd, out_fd), None)
        channels._open.add(channel)
        output = ["y", int(ElementType.FLOAT), [4], NUMBER, 0]
        plan = {"op": "plan.make", "plan": 1, "session": 1, "inputs": [], "outputs": [output]}
        channel._answer_question(1, Frame(Kind.REQUEST, 1, plan))
        assert channel._plans == {}
    finally:
        for fd in (in_fd, to_host, from_host, out_fd):
            os.close(fd)
