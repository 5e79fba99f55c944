"""If a host crashes in the middle of a message or a call, the call gets its result from the next host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests import needs
from tests.fakes.hosts import dying_host, fake_host, script

import qnnbridge
from qnnbridge import errors

X = np.arange(4, dtype=np.float32)
# 4 MiB: more than a pipe holds, so that either side crashes while the other one is writing.
LARGE = np.arange(1 << 20, dtype=np.float32)


@pytest.mark.parametrize(
    ("step", "row"),
    needs.some(
        [
            ("client:REQUEST+:body", 3),
            ("client:REQUEST+:prefix", 2),
            ("client:REQUEST+:whole", 3),
            ("host:REPLY+:body", 6),
            ("host:REPLY+:prefix", 6),
        ]
    ),
)
@pytest.mark.parametrize("x", [X, LARGE], ids=["small", "large"])
def test_a_crash_in_the_middle_of_a_message_costs_only_a_repetition(
    step: str, row: int, x: np.ndarray, tmp_path: Path, no_leaks
):
    """Cover rows 2, 3 and 6 of the fault table: no torn array, no BrokenPipeError, one generation more."""
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))  # a file: a model given as bytes would be the first request with a body
    with dying_host(step, tmp_path / "once", limits=None) as host:
        session = qnnbridge.InferenceSession(model, host=host)
        (result,) = session.run(None, {"x": x})
        assert np.array_equal(result, x * 3)
        assert (session.generation, host.stats.generation, host.stats.retried_calls) == (2, 2, 1)
        assert "SIGKILL" in str(host.stats.last_crash)


@pytest.mark.parametrize(
    ("step", "doing"),
    [("client:REQUEST+:body", "while a request was waiting for it"), ("host:REPLY+:body", "while running model")],
)
def test_without_retries_the_crash_is_reported(step: str, doing: str, tmp_path: Path):
    """The host cannot have worked on a request that never arrived completely."""
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))
    with dying_host(step, tmp_path / "once") as host:
        session = qnnbridge.InferenceSession(model, host=host)
        with pytest.raises(errors.HostCrashed) as caught:
            session.run(None, {"x": LARGE}, retry=0)
        assert doing in str(caught.value)
        assert host.stats.retried_calls == 0
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3), (
            "the next call needs nothing from the application"
        )


@pytest.mark.parametrize("step", ["client:REQUEST:prefix", "client:REQUEST:whole", "host:REPLY:prefix"])
def test_a_creation_during_a_crash_is_repeated_too(step: str, tmp_path: Path):
    model = tmp_path / "model"
    model.write_bytes(script(scale=3))
    with dying_host(step, tmp_path / "once") as host:
        session = qnnbridge.InferenceSession(model, host=host)
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3)
        assert session.generation == 2


def test_other_sessions_are_recreated_on_their_next_use_and_not_before(tmp_path: Path):
    """Cover row 5 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        made = [tmp_path / str(n) for n in range(3)]
        sessions = [
            qnnbridge.InferenceSession(script(scale=n + 2, on_create=[f"note:{made[n]}"]), host=host)
            for n in range(3)
        ]
        dies = script(on_run=["signal:9"], once=str(tmp_path / "once"))
        assert np.array_equal(qnnbridge.InferenceSession(dies, host=host).run(None, {"x": X})[0], X * 2)
        assert [path.read_text() for path in made] == ["."] * 3
        assert [session.generation for session in sessions] == [1, 1, 1]
        for n in (0, 2):
            assert np.array_equal(sessions[n].run(None, {"x": X})[0], X * np.float32(n + 2))
        assert [path.read_text() for path in made] == ["..", ".", ".."]
        assert [session.generation for session in sessions] == [2, 1, 2]


def test_a_model_that_was_replaced_is_not_run_instead_of_the_old_one(tmp_path: Path):
    """Cover row 47 of the fault table in docs/dev/verification.md."""
    with fake_host() as host:
        path = tmp_path / "model.onnx"
        path.write_bytes(script(scale=3))
        session = qnnbridge.InferenceSession(path, host=host)
        path.write_bytes(script(scale=4))
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3), "what is loaded goes on"
        host.restart()
        with pytest.raises(errors.ModelChanged) as caught:
            session.run(None, {"x": X})
        assert "model.onnx" in str(caught.value)
        assert caught.value.fix
        path.unlink()
        with pytest.raises(errors.ModelChanged, match="cannot be read"):
            session.run(None, {"x": X})
        path.write_bytes(script(scale=3))
        assert np.array_equal(session.run(None, {"x": X})[0], X * 3), "put back, it works again"


def test_a_host_that_grows_is_replaced_between_two_calls(tmp_path: Path, no_leaks):
    """Cover row 66 of the fault table: a planned restart fails no call and is not a crash."""
    limit = 300 << 20
    with fake_host(recycle=qnnbridge.RecycleAfter(rss_bytes=limit)) as host:
        grows = qnnbridge.InferenceSession(
            script(scale=5, on_run=["grow:400"], once=str(tmp_path / "once")), host=host
        )
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        host.recycler._next_check = 0.0  # the host's memory is checked only every two seconds
        assert np.array_equal(grows.run(None, {"x": X})[0], X * 5)
        host.recycler._next_check = 0.0
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
        assert (host.stats.planned_restarts, host.stats.crashes, host.stats.retried_calls) == (1, 0, 0)
        assert host.stats.generation == 2


def test_a_host_that_has_created_enough_sessions_is_replaced():
    with fake_host(recycle=qnnbridge.RecycleAfter(creations=3)) as host:
        for n in range(4):
            with qnnbridge.InferenceSession(script(scale=n), host=host) as session:
                assert np.array_equal(session.run(None, {"x": X})[0], X * np.float32(n))
        # The third session is recreated in the second host, so the fourth is the second one that is created there.
        assert (host.stats.planned_restarts, host.stats.crashes, host.stats.retried_calls) == (1, 0, 0)


def test_bound_values_and_options_of_the_application_are_kept_in_the_next_host(tmp_path: Path):
    """A binding and the dynamic options are stored in the application, so that a crash does not lose them."""
    told = tmp_path / "told"
    with fake_host() as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_dynamic=[f"note:{told}"]), host=host)
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        for generation in (2, 3):
            host.supervisor.running._child.kill()
            session.run_with_iobinding(binding)
            assert np.array_equal(binding.copy_outputs_to_cpu()[0], X * 3)
            assert session.generation == generation
            assert told.read_text() == "." * generation
