"""The short form of the walks: what it finds in older code it finds within seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import qnnbridge
from tests.walk import crowd
from tests.walk.machine import shrinking_walk

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[qnnbridge.Host]]:
    with qnnbridge.Host(shared_memory=True) as one, qnnbridge.Host(shared_memory=True) as other:
        one.start()
        other.start()
        yield [one, other]


def test_alone(hosts: list[qnnbridge.Host]) -> None:
    assert crowd.alone(hosts, 4_000, seed=1) > 3_000


def test_by_hypothesis(hosts: list[qnnbridge.Host]) -> None:
    shrinking_walk(hosts, examples=20, steps=30, random=False)


def test_several_threads_over_the_same_sessions(hosts: list[qnnbridge.Host]) -> None:
    assert crowd.crowd(hosts, threads=4, steps=2_400, seed=2) > 1_500


def test_without_shared_memory() -> None:
    with qnnbridge.Host(shared_memory=False) as host:
        assert crowd.alone([host], 800, seed=3) > 600


def test_while_hosts_are_killed() -> None:
    with qnnbridge.Host(shared_memory=True) as one, qnnbridge.Host(shared_memory=True) as other:
        assert crowd.crowd([one, other], threads=3, steps=1_200, seed=4, kills=True) > 600


def test_through_the_daemon() -> None:
    from tests.daemon.brokers import lab

    with lab(qnnbridge.Host(shared_memory=True)) as made:
        assert crowd.crowd([made.client(), made.client()], threads=3, steps=1_200, seed=5) > 600
