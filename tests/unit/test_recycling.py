"""When a host has made enough sessions: replacements that cause each other must die out."""

from __future__ import annotations

import pytest

from qnnbridge._supervision.restart_policy import MAX_KEYS, RecycleAfter, Recycler

PID = 0


class Application:
    """Sessions that are made again on demand, and a host that is replaced when it is due."""

    def __init__(self, creations: int) -> None:
        self.recycler = Recycler(RecycleAfter(creations=creations))
        self.generation = 1
        self._lives_in: dict[int, int] = {}

    @property
    def replacements(self) -> int:
        return self.generation - 1

    def call(self, session: int, key: str) -> None:
        if self.recycler.is_due(self.generation, PID):
            self.generation += 1
        if self._lives_in.get(session) != self.generation:
            self._lives_in[session] = self.generation
            self.recycler.created(self.generation, key)


@pytest.mark.parametrize("creations", [1, 2, 3, 5])
@pytest.mark.parametrize("keys", ["abc", "aaa", "aab", "abcdefgh", "aaaaaaaa"])
def test_the_same_sessions_used_in_turn_cause_a_few_replacements_at_most(keys: str, creations: int) -> None:
    application = Application(creations)
    for _ in range(200):
        for session, key in enumerate(keys):
            application.call(session, key)
    assert application.replacements <= len(keys) / creations


def test_sessions_that_are_used_now_and_then_do_not_either() -> None:
    application = Application(1)
    for round_ in range(300):
        application.call(round_ % 7, str(round_ % 7))
        application.call(0, "0")
    assert application.replacements <= 7


@pytest.mark.parametrize("creations", [1, 3, 10])
def test_always_new_sessions_get_a_fresh_host_each_time(creations: int) -> None:
    application = Application(creations)
    for session in range(100):
        application.call(session, f"model {session}")
    assert application.replacements == (100 - 1) // creations


def test_the_same_model_opened_again_and_again_still_gets_fresh_hosts() -> None:
    application = Application(3)
    for session in range(100):
        application.call(session, "model")
    # With one key for all it cannot be told from sessions that come back, so each time later: 3, 9, 18 ...
    assert application.replacements == 7


def test_what_counts_is_forgotten_with_its_host() -> None:
    recycler = Recycler(RecycleAfter(creations=2))
    recycler.created(1, "a")
    recycler.created(2, "b")
    assert not recycler.is_due(2, PID)
    recycler.created(1, "late")
    recycler.created(2, "c")
    assert recycler.is_due(2, PID)
    assert not recycler.is_due(3, PID)


def test_without_a_number_nothing_is_kept() -> None:
    recycler = Recycler(RecycleAfter())
    recycler.created(1, "a")
    assert not recycler.is_due(1, PID)
    assert not recycler._made


def test_the_memory_of_keys_is_bounded() -> None:
    recycler = Recycler(RecycleAfter(creations=1))
    for generation in range(1, 4):
        for n in range(MAX_KEYS):
            recycler.created(generation, f"{generation} {n}")
    recycler.created(4, "x")
    assert len(recycler._free) == MAX_KEYS
