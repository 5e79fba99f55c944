"""What a host does with the memory that it is shown and told to forget, in whatever order its threads come."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from qnnbridge._platform.sharing import SharedMemory
from qnnbridge_host.sharing import Slab, Slabs
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.lines import MAX_SLABS

SIZE = 64 * 1024
ATTACH, RELEASE = "slab.attach", "slab.release"


class SlowSlabs(Slabs):
    """In which something happens while a slab is mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Any] = []

    def _map(self, where: Any, size: int, host_writes: bool) -> Slab:
        slab = super()._map(where, size, host_writes)
        while self.meanwhile:
            self.meanwhile.pop(0)()
        return slab

    def read(self, *ops: str, number: int = 7) -> None:
        """These requests were read, and are about to be served by threads of their own."""
        for op in ops:
            self.announce({"op": op, "slab": number})


@pytest.fixture
def memory() -> Any:
    made = SharedMemory(SIZE, writable=True)
    yield made
    made.close()


def attach(slabs: Slabs, memory: SharedMemory, number: int = 7) -> None:
    slabs.attach(number, memory.place(0), SIZE, host_writes=True)


def test_a_release_that_overtakes_its_attach_is_not_lost(memory: SharedMemory) -> None:
    """Its caller gave up waiting: nobody would ever release it again."""
    slabs = SlowSlabs()
    slabs.read(ATTACH, RELEASE)
    slabs.release(7)
    with pytest.raises(InvalidArgument, match="released before"):
        attach(slabs, memory)
    assert len(slabs) == 0


def test_a_release_that_comes_while_the_memory_is_mapped_is_not_lost(memory: SharedMemory) -> None:
    slabs = SlowSlabs()
    slabs.meanwhile = [lambda: slabs.read(RELEASE), lambda: slabs.release(7)]
    slabs.read(ATTACH)
    with pytest.raises(InvalidArgument, match="released before"):
        attach(slabs, memory)
    assert len(slabs) == 0


def test_what_is_shown_again_after_its_release_stays(memory: SharedMemory) -> None:
    slabs = SlowSlabs()
    slabs.read(ATTACH)
    attach(slabs, memory)
    slabs.read(RELEASE, ATTACH)
    slabs.release(7)
    attach(slabs, memory)
    assert len(slabs) == 1


def test_others_are_not_touched_by_a_release(memory: SharedMemory) -> None:
    slabs = SlowSlabs()
    slabs.read(ATTACH, number=1)
    slabs.read(ATTACH, RELEASE, number=2)
    slabs.release(2)
    attach(slabs, memory, 1)
    assert slabs.get(1).data.nbytes == SIZE


def test_nonsense_and_what_never_comes_is_no_burden() -> None:
    slabs = SlowSlabs()
    for header in (
        {},
        {"op": ATTACH},
        {"op": ATTACH, "slab": "7"},
        {"op": [], "slab": 1},
        {"op": RELEASE, "slab": 1},
    ):
        slabs.announce(header)
    assert not slabs._coming
    for number in range(2 * MAX_SLABS):
        slabs.read(ATTACH, number=number)
    assert len(slabs._coming) == MAX_SLABS


def test_the_thread_that_reads_is_not_kept_by_one_that_maps(memory: SharedMemory) -> None:
    slabs = SlowSlabs()
    reader = threading.Thread(target=slabs.read, args=(ATTACH, RELEASE), kwargs={"number": 8}, daemon=True)

    def read_meanwhile() -> None:
        reader.start()
        reader.join(20.0)

    slabs.meanwhile = [read_meanwhile]
    attach(slabs, memory)
    assert not reader.is_alive()
