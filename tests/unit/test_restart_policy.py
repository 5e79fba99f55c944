"""When a crashed host may be restarted, with a simulated clock and fixed random numbers."""

from __future__ import annotations

import random
import threading

import pytest
from fake_clock import FakeClock

from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._supervision.restart_policy import MAX_KEYS, RecycleAfter, Recycler, RestartPolicy
from qnnbridge_protocol.errors import BreakerOpen, HostNotFound, VersionMismatch

CRASHED = ExitStatus(-11, "posix")
KILLED = ExitStatus(-9, "posix")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def full_delay(clock: FakeClock) -> RestartPolicy:
    """Return a policy whose jitter always uses the whole delay."""
    return RestartPolicy(clock=clock, jitter=lambda: 1.0)


def live(policy: RestartPolicy, clock: FakeClock, seconds: float = 1.0, replies: int = 0) -> None:
    """Simulate one generation: wait for the delay, start, become ready, answer calls, run for some seconds."""
    clock.sleep(policy.next_start().delay_s)
    policy.on_start()
    policy.on_ready()
    for _ in range(replies):
        policy.on_good_reply()
    clock.sleep(seconds)


def die_at_start(policy: RestartPolicy, clock: FakeClock, status: ExitStatus = CRASHED) -> float:
    """Simulate a start that fails immediately; return the delay before the next one."""
    clock.sleep(policy.next_start().delay_s)
    policy.on_start()
    policy.on_death(status)
    return policy.next_start().delay_s


def test_the_first_start_is_immediate(clock: FakeClock) -> None:
    start = full_delay(clock).next_start()
    assert (start.delay_s, start.probe) == (0.0, False)


def open_breaker(policy: RestartPolicy, clock: FakeClock) -> BreakerOpen:
    """Simulate five starts that crash immediately; return the error of the sixth."""
    with pytest.raises(BreakerOpen) as caught:
        for _ in range(5):
            die_at_start(policy, clock)
    return caught.value


def test_delays_double_when_every_start_crashes(clock: FakeClock) -> None:
    policy = full_delay(clock)
    assert [die_at_start(policy, clock) for _ in range(4)] == [0.25, 0.5, 1.0, 2.0]


def test_delays_grow_to_half_a_minute_when_every_start_is_killed_and_the_first_three_are_immediate(
    clock: FakeClock,
) -> None:
    policy = full_delay(clock)
    delays = [die_at_start(policy, clock, KILLED) for _ in range(13)]
    assert delays == [0.25, 0.25, 0.25, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_jitter_covers_the_whole_delay(clock: FakeClock) -> None:
    policy = RestartPolicy(clock=clock, jitter=random.Random(1).random)
    delays = [die_at_start(policy, clock, KILLED) for _ in range(50)][12:]
    assert all(0 <= delay <= 30 for delay in delays)
    assert min(delays) < 5
    assert max(delays) > 25


def test_time_since_the_crash_counts_towards_the_delay(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(4):
        die_at_start(policy, clock)
    clock.sleep(0.5)
    assert policy.next_start().delay_s == 1.5
    clock.sleep(100)
    assert policy.next_start().delay_s == 0


def test_a_host_that_is_killed_two_hundred_times_a_minute_while_it_works_is_restarted_immediately(
    clock: FakeClock,
) -> None:
    policy = full_delay(clock)
    waited = 0.0
    for _ in range(200):
        waited += policy.next_start().delay_s
        live(policy, clock, seconds=0.3, replies=1)
        policy.on_death(KILLED)
    assert waited == 0
    assert policy.state == "closed"


def test_kills_at_random_moments_never_stop_the_restarts(clock: FakeClock) -> None:
    chance = random.Random(7)
    policy = RestartPolicy(clock=clock, jitter=chance.random)
    begin = clock.now
    for _ in range(200):
        live(policy, clock, seconds=0.3, replies=chance.choice([0, 0, 3]))
        policy.on_death(KILLED)
    assert policy.state == "closed"
    # Two out of three kills hit the start, and still the delay is short.
    assert (clock.now - begin) / 200 < 1


def test_one_good_reply_ends_the_growth_of_the_delay(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(3):
        die_at_start(policy, clock)
    live(policy, clock, replies=1)
    policy.on_death(CRASHED)
    assert policy.next_start().delay_s == 0
    assert die_at_start(policy, clock) == 0.25


def test_a_minute_of_readiness_counts_as_a_success_without_requests(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(4):
        die_at_start(policy, clock)
    live(policy, clock, seconds=60)
    policy.on_death(CRASHED)
    assert policy.next_start().delay_s == 0.25
    assert policy.state == "closed"


def test_five_crashes_without_a_reply_open_the_breaker(clock: FakeClock) -> None:
    policy = full_delay(clock)
    error = open_breaker(policy, clock)
    assert policy.state == "open"
    assert error.details["retry_after_s"] == 60
    assert error.details["deaths"] == ["exit code -11 (SIGSEGV)"] * 5
    assert "died 5 times in a row" in error.message
    assert error.retry == "safe"


def test_the_breaker_tries_once_after_a_minute_and_doubles_the_delay_on_a_failure(clock: FakeClock) -> None:
    policy = full_delay(clock)
    open_breaker(policy, clock)
    for open_s in (60, 120, 240, 480, 600, 600):
        with pytest.raises(BreakerOpen) as caught:
            policy.next_start()
        assert caught.value.details["retry_after_s"] == open_s
        clock.sleep(open_s - 0.001)
        with pytest.raises(BreakerOpen):
            policy.next_start()
        clock.sleep(0.001)
        assert policy.state == "half-open"
        assert policy.next_start().probe
        policy.on_start()
        policy.on_death(CRASHED)


def test_a_good_probe_closes_the_breaker(clock: FakeClock) -> None:
    policy = full_delay(clock)
    open_breaker(policy, clock)
    clock.sleep(60)
    live(policy, clock, replies=1)
    assert policy.state == "closed"
    policy.on_death(CRASHED)
    assert policy.next_start().delay_s == 0
    for _ in range(4):
        die_at_start(policy, clock)  # the old crashes are discarded
    assert policy.state == "closed"


def test_a_probe_that_is_killed_from_outside_is_repeated_after_a_delay(clock: FakeClock) -> None:
    policy = full_delay(clock)
    open_breaker(policy, clock)
    clock.sleep(60)
    policy.on_start()
    policy.on_death(KILLED)
    start = policy.next_start()
    assert start.probe
    assert start.delay_s > 0


def test_crashes_that_are_far_apart_do_not_open_the_breaker(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(30):  # one every two minutes for an hour
        live(policy, clock, seconds=10)
        policy.on_death(CRASHED)
        clock.sleep(110)
    assert policy.state == "closed"


def test_a_good_generation_in_between_keeps_the_breaker_closed(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for n in range(40):
        live(policy, clock, seconds=0.5, replies=n % 4 == 3)
        policy.on_death(CRASHED)
    assert policy.state == "closed"


def test_kills_from_outside_slow_the_restarts_but_do_not_open_the_breaker(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(50):
        delay_s = die_at_start(policy, clock, KILLED)
    assert policy.state == "closed"
    assert delay_s == 30


def test_crashes_that_are_blamed_on_models_neither_open_the_breaker_nor_delay_the_next_model(
    clock: FakeClock,
) -> None:
    policy = full_delay(clock)
    for _ in range(50):
        live(policy, clock, seconds=0.5)
        policy.on_death(CRASHED, booked=True)
        assert policy.next_start().delay_s == 0
    assert policy.state == "closed"


def test_a_failure_that_a_restart_cannot_fix_is_never_tried_again(clock: FakeClock) -> None:
    policy = full_delay(clock)
    policy.on_start()
    policy.on_death(incurable=VersionMismatch("The host speaks version 2.", fix="Upgrade it."))
    clock.sleep(1e6)
    for _ in range(2):
        with pytest.raises(VersionMismatch, match="version 2") as caught:
            policy.next_start()
        assert caught.value.fix == "Upgrade it."
        assert caught.value.retry == "pointless"
    assert policy.state == "broken"
    policy.reset()
    assert policy.next_start().delay_s == 0


def test_the_error_is_a_new_instance_each_time_it_is_raised(clock: FakeClock) -> None:
    policy = full_delay(clock)
    policy.on_death(incurable=HostNotFound("no interpreter"))
    errors = []
    for _ in range(2):
        with pytest.raises(HostNotFound) as caught:
            policy.next_start()
        errors.append(caught.value)
    assert errors[0] is not errors[1]  # otherwise each raise would extend one traceback


def test_a_wall_clock_that_changes_has_no_effect(clock: FakeClock) -> None:
    policy = full_delay(clock)
    die_at_start(policy, clock)
    clock.wall_offset += 365 * 86400
    assert policy.next_start().delay_s == 0.25
    clock.wall_offset -= 2 * 365 * 86400
    assert policy.next_start().delay_s == 0.25


def test_delays_and_thresholds_can_be_configured(clock: FakeClock) -> None:
    policy = RestartPolicy(
        first_delay_s=1, max_delay_s=3, breaker_deaths=3, open_s=10, max_open_s=15, clock=clock, jitter=lambda: 1.0
    )
    assert [die_at_start(policy, clock) for _ in range(2)] == [1, 2]
    with pytest.raises(BreakerOpen) as caught:
        die_at_start(policy, clock)
    assert caught.value.details["retry_after_s"] == 10


def test_a_thousand_crashes_do_not_overflow(clock: FakeClock) -> None:
    policy = full_delay(clock)
    for _ in range(2000):
        policy.on_death(KILLED)
    assert policy.next_start().delay_s == 30


def test_many_threads_may_report_good_replies_at_the_same_time() -> None:
    policy = RestartPolicy()
    policy.on_start()
    policy.on_ready()
    threads = [threading.Thread(target=lambda: [policy.on_good_reply() for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    policy.on_death(CRASHED)
    assert policy.next_start().delay_s == 0


PID = 0


class Application:
    """An application whose sessions are recreated on demand, and whose host is replaced when due."""

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
def test_sessions_used_in_turn_cause_at_most_a_few_replacements(keys: str, creations: int) -> None:
    application = Application(creations)
    for _ in range(200):
        for session, key in enumerate(keys):
            application.call(session, key)
    assert application.replacements <= len(keys) / creations


def test_sessions_that_are_used_occasionally_cause_at_most_a_few_replacements() -> None:
    application = Application(1)
    for round_ in range(300):
        application.call(round_ % 7, str(round_ % 7))
        application.call(0, "0")
    assert application.replacements <= 7


@pytest.mark.parametrize("creations", [1, 3, 10])
def test_new_sessions_get_a_fresh_host_each_time(creations: int) -> None:
    application = Application(creations)
    for session in range(100):
        application.call(session, f"model {session}")
    assert application.replacements == (100 - 1) // creations


def test_the_same_model_opened_repeatedly_gets_fresh_hosts() -> None:
    application = Application(3)
    for session in range(100):
        application.call(session, "model")
    # With one key, new sessions cannot be distinguished from recreated ones, so the interval grows: 3, 9, 18 ...
    assert application.replacements == 7


def test_counts_are_discarded_with_their_host() -> None:
    recycler = Recycler(RecycleAfter(creations=2))
    recycler.created(1, "a")
    recycler.created(2, "b")
    assert not recycler.is_due(2, PID)
    recycler.created(1, "late")
    recycler.created(2, "c")
    assert recycler.is_due(2, PID)
    assert not recycler.is_due(3, PID)


def test_without_a_limit_nothing_is_recorded() -> None:
    recycler = Recycler(RecycleAfter())
    recycler.created(1, "a")
    assert not recycler.is_due(1, PID)
    assert not recycler._made


def test_the_number_of_recorded_keys_is_limited() -> None:
    recycler = Recycler(RecycleAfter(creations=1))
    for generation in range(1, 4):
        for n in range(MAX_KEYS):
            recycler.created(generation, f"{generation} {n}")
    recycler.created(4, "x")
    assert len(recycler._free) == MAX_KEYS
