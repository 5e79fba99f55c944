"""Locks of the cache, wait policy, and the order of eviction when the cache is full."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.unit.cache_entries import key_number, put

from qnnbridge_host.cache.files import Heartbeat, WaitPolicy, hold, try_hold, write_json
from qnnbridge_host.cache.store import HITS_FILE, Store, evict, shrink, total_bytes

SECONDS_FOR_ALL = 30.0

HOLDER = """
    import sys, time
    from pathlib import Path
    from qnnbridge_host.cache.files import try_hold
    held = try_hold(Path(sys.argv[1]))
    print("held" if held else "not held", flush=True)
    sys.stdin.read()
"""


def other_process(path: Path) -> subprocess.Popen[str]:
    """Program that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def test_a_lock_has_one_holder_also_within_one_process(tmp_path: Path) -> None:
    first = try_hold(tmp_path / "a.lock")
    assert first is not None
    assert try_hold(tmp_path / "a.lock") is None
    first.release()
    second = try_hold(tmp_path / "a.lock")
    assert second is not None
    second.release()


@pytest.mark.process
def test_the_lock_of_a_killed_process_is_free_immediately(tmp_path: Path) -> None:
    process = other_process(tmp_path / "a.lock")
    try:
        assert try_hold(tmp_path / "a.lock") is None
    finally:
        end(process)
    held = hold(tmp_path / "a.lock", time.monotonic() + SECONDS_FOR_ALL)
    assert held is not None
    held.release()


def test_waiting_ends_with_the_deadline(tmp_path: Path) -> None:
    held = try_hold(tmp_path / "a.lock")
    assert held is not None
    begun = time.monotonic()
    assert hold(tmp_path / "a.lock", begun + 0.2) is None
    assert time.monotonic() - begun >= 0.2
    held.release()


def test_waiting_reports_its_duration_and_can_be_stopped(tmp_path: Path) -> None:
    held = try_hold(tmp_path / "a.lock")
    assert held is not None
    told: list[float] = []

    def patience(seconds: float) -> bool:
        told.append(seconds)
        return len(told) < 2

    assert hold(tmp_path / "a.lock", None, patience) is None
    assert len(told) == 2
    assert told[1] > told[0] > 0
    held.release()


def test_a_lock_in_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        try_hold(Path("/proc/nowhere/a.lock") if sys.platform == "linux" else tmp_path / "a\0nowhere")


def test_a_compiler_with_a_heartbeat_is_waited_for_and_a_stalled_one_is_not(tmp_path: Path) -> None:
    now = [0.0]
    beat = Heartbeat(tmp_path / "beat", lambda _: None)
    patience = WaitPolicy(tmp_path / "beat", lambda _: None, clock=lambda: now[0], stalled_s=60.0)
    for second in range(0, 300, 30):
        now[0] = float(second)
        beat(float(second))
        os.utime(tmp_path / "beat", ns=(second * 10**9, second * 10**9))  # as the file's date would be
        assert patience(float(second))
    now[0] += 59.0
    assert patience(now[0])
    now[0] += 2.0
    assert not patience(now[0])
    beat.stop()
    assert not (tmp_path / "beat").exists()


# --- the size limit ---


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def used(store: Store, number: int, when: float) -> None:
    write_json(store.root / "uses" / key_number(number) / HITS_FILE, {"count": 1, "last": when})


def fill(store: Store, count: int) -> int:
    """Create the entries 0, 1 ... of which the first is the least recently used. Return the size of each."""
    before = 0
    for number in range(count):
        put(store, key_number(number), f"{number:04}".encode() * 25_000)
        (store.root / "uses" / key_number(number)).mkdir()
        used(store, number, 1000.0 + number)
        before = total_bytes(store)
    return before // count


def numbers(store: Store) -> set[int]:
    return {number for number in range(20) if key_number(number) in store.all_keys()}


def test_the_least_recently_used_entry_is_evicted_first(store: Store) -> None:
    size = fill(store, 5)
    used(store, 0, 2000.0)
    gone = shrink(store, 3 * size + size // 2)
    assert gone == [key_number(1), key_number(2)]
    assert numbers(store) == {0, 3, 4}
    assert total_bytes(store) <= 3 * size + size // 2


def test_nothing_is_evicted_while_there_is_space(store: Store) -> None:
    size = fill(store, 3)
    assert shrink(store, 4 * size) == []


@pytest.mark.process
def test_entries_in_use_are_kept_also_for_another_process(store: Store) -> None:
    fill(store, 3)
    mine = store.use(key_number(0))
    process = other_process(store.root / "uses" / key_number(1) / "1-2.lock")
    try:
        assert shrink(store, 0) == [key_number(2)]
        assert numbers(store) == {0, 1}
    finally:
        end(process)
    mine.release(remove=True)
    assert shrink(store, 0) == [key_number(0), key_number(1)]


def test_entries_being_created_or_checked_are_kept(store: Store) -> None:
    fill(store, 1)
    held = store.try_lock(key_number(0))
    assert held is not None
    assert not evict(store, key_number(0))
    held.release()
    assert evict(store, key_number(0))


def test_the_newly_created_entry_is_kept(store: Store) -> None:
    fill(store, 2)
    shrink(store, 0, keep=key_number(0))
    assert numbers(store) == {0}


def test_a_shared_context_binary_counts_once_and_is_deleted_with_its_last_entry(store: Store) -> None:
    blob = b"shared" * 20_000
    put(store, key_number(0), blob)
    alone = total_bytes(store)
    put(store, key_number(1), blob)
    both = total_bytes(store)
    assert both - alone < 10_000
    assert evict(store, key_number(0))
    assert total_bytes(store) >= len(blob)
    assert store.find(key_number(1)) is not None
    assert evict(store, key_number(1))
    assert total_bytes(store) == 0


def test_invalidated_entries_are_evicted_before_valid_ones(store: Store) -> None:
    size = fill(store, 2)
    store.quarantine_entry(key_number(1), "damaged", "x")
    assert shrink(store, size + size // 2) == []
    assert store.invalid_entries() == []
    assert numbers(store) == {0}


def test_two_concurrent_evictions_do_not_evict_twice(store: Store) -> None:
    fill(store, 2)
    held = try_hold(store.root / "locks" / "evict.lock")
    assert held is not None
    assert shrink(store, 0) == []
    held.release()
