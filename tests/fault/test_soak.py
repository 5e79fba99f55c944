"""A small part of the fault lab. The complete lab is ``python -m lab.faultlab``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab.faultlab.killing import kill_under_load
from lab.faultlab.leaks import holdings, leaked_since
from lab.faultlab.models import is_right, new_host, real, scripted
from lab.faultlab.orphans import kill_an_application
from lab.faultlab.promises import PROMISES, Ledger
from lab.faultlab.soak import Soak
from tests.fakes.hosts import script
from tests.needs import length

import qnnbridge

THREADS = 8


def test_every_call_gets_its_result_while_the_host_is_killed_repeatedly(capsys):
    """The complete run is ``python -m lab.faultlab --calls 10000 --kills 200``."""
    result = kill_under_load(
        new_host(False), scripted(), calls=length(250, 700), kills=length(5, 15), threads=THREADS, seed=1
    )
    with capsys.disabled():
        print(f"\n{result}")
    assert result.good, str(result)
    assert result.calls >= length(250, 700)
    assert result.kills == length(5, 15)
    assert len(result.recovery_s) >= length(3, 10)


def test_every_call_gets_its_result_even_if_the_host_is_killed_as_soon_as_one_call_has_recovered() -> None:
    """The complete runs are ``python -m lab.faultlab --storm --calls 4000 --seed 7``, and ``--kills 200 --calls
    10000``.

    A call meets many kills here, none of which it causes.
    """
    result = kill_under_load(
        new_host(False), scripted(), calls=length(40, 100), kills=None, threads=THREADS, seed=7, storm=True
    )
    assert result.good, str(result)
    assert result.kills >= length(4, 10)
    assert result.retried > result.calls, "calls were hit more than once"


@pytest.mark.simulator
def test_every_call_gets_its_result_on_the_real_simulator_too():
    """The complete run is ``python -m lab.faultlab --real --calls 2000 --kills 40``."""
    pytest.importorskip("onnxruntime_qnn")
    result = kill_under_load(
        new_host(True), real(), calls=length(40, 100), kills=length(2, 4), threads=THREADS, seed=1
    )
    assert result.good, str(result)
    assert result.kills == length(2, 4)


def test_all_promises_hold_under_random_faults(tmp_path: Path):
    """The complete run is ``python -m lab.faultlab --seconds 3600``."""
    soak = Soak(
        new_host(False),
        scripted(),
        seconds=length(6, 12),
        seed=3,
        threads=THREADS,
        folder=tmp_path,
        real=False,
        least_crashes=4,
    )
    ledger = soak.run()
    assert ledger.kept, str(ledger)
    assert soak.stats.crashes > 3
    assert all(ledger.tried(promise) for promise in PROMISES), str(ledger)


# --- the lab itself must be able to fail ---


def test_the_fault_lab_detects_a_wrong_result():
    cases = [case for case in scripted() if case.name == "times 3"]
    wrong = [type(case)(case.name, case.open, tuple((f, -y) for f, y in case.inputs)) for case in cases]
    result = kill_under_load(new_host(False), wrong, calls=20, kills=0, threads=2, seed=1)
    assert result.wrong == 20
    assert not result.good


def test_the_fault_lab_detects_a_typed_error_and_a_leftover_file(tmp_path: Path):
    (case, *_) = scripted()
    fails = script(on_run=["raise:ort.Fail=no luck"])
    cases = [type(case)("fails", lambda host: qnnbridge.InferenceSession(fails, host=host), case.inputs)]
    before = holdings()
    with open(tmp_path / "kept open", "w") as kept:
        result = kill_under_load(new_host(False), cases, calls=3, kills=0, threads=1, seed=1)
        assert list(leaked_since(before, grace_s=0.1)) == ["open files"]
        kept.write("")
    assert result.errors.total() == 3
    assert "no luck" in str(result)


def test_a_result_that_differs_in_its_type_or_sign_of_zero_is_wrong():
    assert is_right(np.float32([0.0, np.nan]), np.float32([0.0, np.nan]))
    assert not is_right(np.float32([0.0]), np.float32([-0.0]))
    assert not is_right(np.float64([0.0]), np.float32([0.0]))
    assert not is_right(np.zeros((1, 2)), np.zeros((2, 1)))


def test_the_ledger_reports_broken_promises():
    ledger = Ledger()
    ledger.check("leak", True)
    assert ledger.kept
    ledger.check("deadline", False, "3 s")
    assert not ledger.kept
    assert "BROKEN    No call blocks" in str(ledger)
    assert "1 x 3 s" in str(ledger)
    assert "not tried" in str(ledger)


def test_an_application_that_does_not_start_is_not_a_success():
    with pytest.raises(AssertionError, match="ended before"):
        kill_an_application("no such state")
