"""If a call's inputs prove nothing, its comparison has no verdict, and further calls are compared.

The wrong model is an edge padding, which QNN 2.7 computes wrong at the border: inputs with zeros there agree, others
differ.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge._session import fast_calls, numbers_check
from qnnbridge._session.numbers_check import has_content
from qnnbridge.errors import NumbersDiffer
from qnnbridge_daemon.accounts import BrokerSettings
from tests.comparisons import settled
from tests.contract.test_numbers import X, edge_padding, open_session
from tests.daemon.brokers import lab

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

ZEROS = np.zeros_like(X)
INNER = X.copy()
INNER[..., :2] = INNER[..., -2:] = 0.0
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def numbers_are_compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")
    # The calls of a test follow each other immediately.
    monkeypatch.setattr(numbers_check, "DECISION_INTERVAL_S", 0.0)
    monkeypatch.setattr(fast_calls, "UPKEEP_INTERVAL_S", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", qnnbridge.NumbersWarning)
        yield


def compared(session: qnnbridge.InferenceSession, number: int) -> qnnbridge.NumbersReport:
    """Return the report once this number of comparisons has been made."""
    until = time.monotonic() + WAIT_S
    while session.verified.compared < number or session.verified.state == "pending":
        assert time.monotonic() < until, session.verified
        time.sleep(0.01)
    return session.verified


def differs(session: qnnbridge.InferenceSession, x: Any, more: int = 0) -> None:
    """Run until the difference is reported, and then this number of calls more."""
    session.run(None, {"x": x})
    until = time.monotonic() + WAIT_S
    while session.verified.state != "differs":
        assert time.monotonic() < until, session.verified
        time.sleep(0.01)
    # The report is available before the warning, which another thread issues.
    for thread in threading.enumerate():
        if thread.name.startswith("qnnbridge verify"):
            thread.join(WAIT_S)
    run(session, x, more)


def differs_from_the_start(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        assert (session.verified.state, session.verified.kept) == ("differs", True)


def run(session: qnnbridge.InferenceSession, x: Any, times: int = 1) -> None:
    for _ in range(times):
        session.run(None, {"x": x})


def test_a_warm_up_with_zeros_is_inconclusive_and_the_first_real_input_is_compared(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        run(session, ZEROS)
        report = settled(session)
        assert report.state == "unknown"
        assert "nearly constant" in report.reason
    # No verdict was stored.
    with open_session(host, edge_padding(), cache=True) as session:
        assert session.verified.state == "pending"
        run(session, ZEROS, 5)
        settled(session)
        with pytest.warns(qnnbridge.NumbersWarning, match="different results") as told:
            differs(session, X, 50)
        assert len(told) == 1
    with pytest.warns(qnnbridge.NumbersWarning):
        differs_from_the_start(host)


def test_a_real_input_does_not_wait_for_the_comparison_of_the_warm_up(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        run(session, ZEROS)
        with pytest.warns(qnnbridge.NumbersWarning):
            differs(session, X)


def test_a_later_difference_replaces_the_verdict_agrees_and_is_reported_once(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        run(session, INNER)
        report = compared(session, 1)
        assert (report.state, str(report).splitlines()[0]) == ("agrees", "agrees on 1 of 1 call")
        with pytest.warns(qnnbridge.NumbersWarning) as told:
            differs(session, X, 50)
        assert len(told) == 1
        assert session.verified.compared == 2
    # This applies to sessions of other processes, too.
    with qnnbridge.Host() as other:
        with pytest.warns(qnnbridge.NumbersWarning):
            differs_from_the_start(other)
        with pytest.raises(NumbersDiffer):
            open_session(other, edge_padding(), cache=True, verify="raise")


def test_the_2nd_4th_and_8th_call_are_compared_and_the_verdict_counts_them(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        for number, calls in ((1, 1), (2, 1), (3, 2), (4, 4)):
            run(session, INNER, calls)
            compared(session, number)
        assert (session.verified.calls, session.verified.compared) == (8, 4)
        run(session, INNER, 7)
        assert (session.verified.calls, session.verified.compared) == (15, 4)
        assert str(session.verified).startswith("agrees on 4 of 15 calls")
        with pytest.warns(qnnbridge.NumbersWarning):
            differs(session, X)


def test_programs_that_make_one_call_each_reach_a_further_comparison_together(host: qnnbridge.Host) -> None:
    said = []
    for number in range(1, 9):
        with open_session(host, edge_padding(), cache=True, verify="raise") as session:
            if number < 8:
                run(session, INNER)
            else:
                with pytest.raises(NumbersDiffer, match="different results"):
                    run(session, X)
            said.append((session.verified.state, session.verified.calls, session.verified.compared))
    expected = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3), (7, 3), (8, 4)]
    assert said == [("differs" if calls == 8 else "agrees", calls, many) for calls, many in expected]


def test_a_session_can_raise_at_a_later_call(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), verify="raise") as session:
        run(session, ZEROS)
        run(session, INNER)
        assert session.verified.state == "agrees"
        with pytest.raises(NumbersDiffer):
            run(session, X, 2)


def test_comparisons_keep_to_their_share_of_the_time(host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_check, "FREE_S", 0.0)
    with open_session(host, edge_padding()) as session:
        run(session, INNER)
        assert compared(session, 1).state == "agrees"
        run(session, X, 100)
        assert session.verified.compared == 1
        # After a hundred times as long, another comparison is due.
        assert session._runner._numbers is not None
        session._runner._numbers._since -= 1000.0
        with pytest.warns(qnnbridge.NumbersWarning):
            differs(session, X)


def test_calls_of_the_fast_path_are_examined_only_when_a_comparison_is_due(
    host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    content = numbers_check.has_content
    monkeypatch.setattr(numbers_check, "has_content", lambda values: looked.append(1) or content(values))
    with open_session(host, edge_padding()) as session:
        run(session, INNER)
        compared(session, 1)
        run(session, INNER, 2)
        compared(session, 2)
        monkeypatch.setattr(numbers_check, "FIRST_CALLS", 0)
        monkeypatch.setattr(numbers_check, "DECISION_INTERVAL_S", 3600.0)
        monkeypatch.setattr(fast_calls, "UPKEEP_INTERVAL_S", 3600.0)
        run(session, INNER)
        looked.clear()
        before = host.stats.shared_calls
        run(session, INNER, 200)
        assert not looked
        assert host.stats.shared_calls - before == 200
        assert session.verified.calls == 204


def test_verdicts_that_are_stored_at_the_same_moment_are_all_counted(host: qnnbridge.Host) -> None:
    with open_session(host, edge_padding(), cache=True) as session:
        run(session, INNER)
        compared(session, 1)
    made: list[qnnbridge.NumbersReport] = []

    def one() -> None:
        with qnnbridge.Host() as other, open_session(other, edge_padding(), cache=True, verify="raise") as session:
            run(session, INNER)
            made.append(session.verified)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [report.state for report in made] == ["agrees"] * 3
    with open_session(host, edge_padding(), cache=True) as session:
        assert session.verified.calls >= 3


def test_clients_of_a_daemon_start_with_the_verdicts_of_other_clients() -> None:
    with lab(qnnbridge.Host(sys.executable), BrokerSettings(keep_unused_s=60.0)) as made:
        one = open_session(made.client(), edge_padding(), cache=False)
        run(one, INNER)
        assert compared(one, 1).state == "agrees"
        two = open_session(made.client(), edge_padding(), cache=False)
        assert (two.verified.state, two.verified.kept) == ("agrees", True)
        with pytest.warns(qnnbridge.NumbersWarning):
            differs(two, X)
        with pytest.raises(NumbersDiffer):
            open_session(made.client(), edge_padding(), cache=False, verify="raise")


NOISE = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
PICTURE = np.tile(np.linspace(0, 1, 64, dtype=np.float32), (1, 3, 64, 1))
MASK = np.asarray([[1] * 12 + [0] * 4], np.int64)


@pytest.mark.parametrize(
    ("values", "content"),
    [
        ([NOISE], True),
        ([PICTURE], True),
        ([np.zeros_like(NOISE)], False),
        ([np.full_like(NOISE, 114.0)], False),
        ([np.full_like(NOISE, 0.5) + 0.004 * NOISE], False),
        ([np.full_like(NOISE, np.nan)], False),
        ([(255 * PICTURE).astype(np.uint8)], True),
        ([np.full((1, 8, 8), 7, np.uint8)], False),
        ([MASK, np.zeros_like(MASK)], False),
        ([MASK, np.arange(16)[None]], True),
        ([MASK.astype(bool)], False),
        ([np.float32(16000.0)], True),
        ([np.zeros((1, 2), np.float32)], True),
        ([np.zeros((1, 2, 4, 64), np.float32), np.asarray(["a", "b"], object)], False),
        ([["words"]], True),
    ],
)
def test_inputs_that_hardly_vary_are_treated_as_without_content(values: list[Any], content: bool) -> None:
    assert has_content(values) is content
