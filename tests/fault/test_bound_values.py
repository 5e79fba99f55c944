"""Bound values after the end of the host: runs whose values were changed in place fail, other runs are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import fake_host, script
from tests.fakes.later import warm

import qnnbridge
from qnnbridge import OrtValue, errors

SIZE = 1 << 16  # 256 KiB: large enough to be shared
X = np.ones(SIZE, np.float32)


@pytest.fixture
def host(no_leaks: Any) -> Iterator[qnnbridge.Host]:
    with fake_host(shared_memory=True) as host:
        yield host


def dies_behind_the_result(host: qnnbridge.Host, folder: Path, *actions: str) -> qnnbridge.InferenceSession:
    """Return a session whose first repeated call fails while its result (twice the input) is written."""
    marker = folder / "died"
    return qnnbridge.InferenceSession(
        script(scale=2, npu=False, once=str(marker), on_written=list(actions)),
        host=host,
        providers=["CPUExecutionProvider"],
    )


def ones() -> OrtValue:
    """Bind values in memory of the bridge."""
    value = OrtValue.ortvalue_from_shape_and_type([SIZE], np.float32)
    value.update_inplace(X)
    return value


def step(session: qnnbridge.InferenceSession, value: OrtValue, result: OrtValue, **limits: Any) -> None:
    io = session.io_binding()
    io.bind_ortvalue_input("x", value)
    io.bind_ortvalue_output("y", result)
    session.run_with_iobinding(io, **limits)


def test_a_value_that_was_changed_in_place_is_lost_with_the_host(host: qnnbridge.Host, tmp_path: Path) -> None:
    session = dies_behind_the_result(host, tmp_path, "signal:9")
    value = ones()
    step(session, value, value)
    assert np.array_equal(value.numpy(), X * 2)
    with pytest.raises(errors.StateLost, match="in place") as caught:
        step(session, value, value)
    assert "SIGKILL" in str(caught.value)
    for use in (value.numpy, value.shape, lambda: step(session, value, value), lambda: value.value):
        with pytest.raises(errors.StateLost, match="in place"):
            use()
    with pytest.raises(errors.RemoteRuntimeError):
        value.update_inplace(np.zeros(3, np.float32))
    with pytest.raises(errors.StateLost):
        value.numpy()
    value.update_inplace(X * 3)
    step(session, value, value)
    step(session, value, value)
    assert np.array_equal(value.numpy(), X * 12)
    assert session.generation == 2


def test_values_in_memory_of_the_application_survive_the_host(host: qnnbridge.Host, tmp_path: Path) -> None:
    session = dies_behind_the_result(host, tmp_path, "signal:9")
    one = ones()
    other = OrtValue.ortvalue_from_shape_and_type([SIZE], np.float32)
    for _ in range(5):
        step(session, one, other)
        one, other = other, one
    assert np.array_equal(one.numpy(), X * 32)
    assert session.generation == 2
    assert (tmp_path / "died").exists()


def test_a_run_whose_output_is_its_input_is_repeated_with_the_original_input(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    session = dies_behind_the_result(host, tmp_path, "signal:9")
    array = session.empty_output("y", (SIZE,))
    array[:] = 1
    for _ in range(4):
        session.run(None, {"x": array}, out=[array])
    assert np.array_equal(array, X * 16)
    assert session.generation == 2


def test_an_input_that_is_a_view_of_the_output_is_never_read_after_the_host_wrote_it(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    session = dies_behind_the_result(host, tmp_path, "signal:9")
    array = session.empty_output("y", (SIZE,))
    array[:] = 1
    session.run(None, {"x": array[::-1]}, out=[array])
    with pytest.raises(errors.StateLost):
        session.run(None, {"x": array[::-1]}, out=[array])
    array[:] = 1
    session.run(None, {"x": array[::-1]}, out=[array])
    assert np.array_equal(array, X * 2)


def test_memory_of_the_application_is_written_when_the_run_has_ended(host: qnnbridge.Host, tmp_path: Path) -> None:
    """The run is repeated with its original inputs."""
    session = dies_behind_the_result(host, tmp_path, "signal:9")
    value = OrtValue.ortvalue_from_numpy(X.copy())
    for _ in range(4):
        step(session, value, value)
    assert np.array_equal(value.numpy(), X * 16)
    assert session.generation == 2


@pytest.mark.parametrize("on_deadline", ["raise", "kill"])
def test_a_value_is_lost_when_its_run_exceeds_the_deadline(
    host: qnnbridge.Host, tmp_path: Path, on_deadline: str
) -> None:
    session = dies_behind_the_result(host, tmp_path, "sleep:2")
    value = ones()
    step(session, value, value)
    with pytest.raises(errors.DeadlineExceeded):
        step(session, value, value, timeout=0.3, on_deadline=on_deadline)
    with pytest.raises(errors.StateLost, match="deadline"):
        value.numpy()
    fresh = ones()
    step(session, fresh, fresh)
    assert np.array_equal(fresh.numpy(), X * 2)


def test_a_run_that_was_not_sent_loses_no_value(host: qnnbridge.Host, tmp_path: Path) -> None:
    session = dies_behind_the_result(host, tmp_path)
    value = ones()
    step(session, value, value)
    step(session, value, value)
    warm(session)
    host.restart()
    step(session, value, value)
    assert np.array_equal(value.numpy(), X * 8)
    process = host.supervisor.running
    assert process is not None
    process.kill("for the test")
    process.exit_code(5.0)
    step(session, value, value)
    assert np.array_equal(value.numpy(), X * 16)
