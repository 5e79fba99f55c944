"""A Python exception in the host fails only its call: the host continues to run, and the next call works (row
32)."""

from __future__ import annotations

import numpy as np
import pytest
from tests import needs
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

X = np.arange(4, dtype=np.float32)
KINDS = ["SystemExit", "KeyboardInterrupt", "MemoryError", "RecursionError", "BadText"]


@pytest.mark.parametrize("when", ["on_create", "on_run"])
@pytest.mark.parametrize("kind", needs.some(KINDS))
def test_an_exception_of_any_kind_is_an_error_of_its_call_and_the_host_survives(kind: str, when: str, no_leaks):
    with fake_host() as host:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        for _ in range(2):
            with pytest.raises(errors.RemoteError) as caught:
                qnnbridge.InferenceSession(script(**{when: [f"exception:{kind}"]}), host=host).run(None, {"x": X})
            assert kind in str(caught.value)
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert (host.stats.generation, host.stats.retried_calls, host.stats.crashes) == (1, 0, 0)


def test_an_exception_in_one_call_does_not_affect_those_queued_after_it():
    from concurrent.futures import ThreadPoolExecutor

    with fake_host() as host, ThreadPoolExecutor(8) as pool:
        bad = qnnbridge.InferenceSession(script(on_run=["exception:SystemExit"]), host=host)
        good = qnnbridge.InferenceSession(script(scale=3), host=host)
        calls = [(session, pool.submit(session.run, None, {"x": X})) for _ in range(20) for session in (bad, good)]
        for session, call in calls:
            if session is good:
                assert np.array_equal(call.result(30)[0], X * 3)
            else:
                assert isinstance(call.exception(30), errors.RemoteError)
        assert host.stats.generation == 1
