"""Misused bound values: in another host, after the end of session or host, in several threads at once, after a
fork.

Class and text of an error are onnxruntime's if it raises one, and the next call works.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import OrtValue
from qnnbridge_protocol.errors import BridgeError, Closed
from tests import needs
from tests.contract.small_models import CPU
from tests.contract.test_bound_values import DECODER, SIZE, bind, zeros

STEPS = 4


HOST = {"shared_memory": True}


@pytest.fixture
def other_host() -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(shared_memory=True) as host:
        yield host


def decoder(host: qnnbridge.Host) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(DECODER, providers=[CPU], host=host)


def stepped(session: qnnbridge.InferenceSession, past: OrtValue, steps: int = STEPS) -> OrtValue:
    """Return the state after this number of steps. The outputs are bound without memory of the application."""
    for _ in range(steps):
        io = bind(session, past, None)
        session.run_with_iobinding(io)
        past = io.get_outputs()[1]
    return past


def holds(value: OrtValue, number: float) -> bool:
    return bool(np.array_equal(value.numpy(), np.full(SIZE, number, np.float32)))


def test_a_value_of_one_host_can_be_used_in_another_host(host: qnnbridge.Host, other_host: qnnbridge.Host) -> None:
    with decoder(host) as one, decoder(other_host) as other:
        value = stepped(one, zeros())
        value = stepped(other, value)
        value = stepped(one, value)
        assert holds(value, 3 * STEPS)


def test_a_value_outlives_its_session_and_its_host(host: qnnbridge.Host, other_host: qnnbridge.Host) -> None:
    with decoder(other_host) as session:
        value = stepped(session, zeros())
        io = bind(session, value, None)
    with pytest.raises(Closed):
        session.run_with_iobinding(io)
    assert holds(value, STEPS)
    other_host.close()
    gc.collect()
    assert holds(value, STEPS)
    with decoder(host) as session:
        assert holds(stepped(session, value), 2 * STEPS)


def test_a_value_of_a_crashed_host_can_be_used_in_the_next_host(other_host: qnnbridge.Host) -> None:
    with decoder(other_host) as session:
        value, kept = stepped(session, zeros()), zeros()
        io = bind(session, value, kept)
        session.run_with_iobinding(io)
        os.kill(other_host.info.pid, signal.SIGKILL)
        assert holds(value, STEPS)
        assert holds(kept, STEPS + 1)
        session.run_with_iobinding(io)  # the binding of the crashed host's generation
        assert holds(kept, STEPS + 1)
        assert holds(stepped(session, kept), 2 * STEPS + 1)
        assert other_host.info.generation == 2


def test_an_error_for_a_cleared_binding_names_the_missing_inputs(host: qnnbridge.Host) -> None:
    with decoder(host) as session:
        io = bind(session, zeros(), None)
        session.run_with_iobinding(io)
        io.clear_binding_inputs()
        with pytest.raises((BridgeError, ValueError, RuntimeError), match=r"past|x"):
            session.run_with_iobinding(io)
        assert holds(stepped(session, zeros()), STEPS)


def test_threads_can_share_a_value_and_a_session(host: qnnbridge.Host) -> None:
    """Each thread advances from the same state to its own state, while other threads read the common one."""
    with decoder(host) as session:
        state = stepped(session, zeros())
        wrong: list[Any] = []

        def work() -> None:
            try:
                for _ in range(6):
                    assert holds(stepped(session, state, 2), STEPS + 2)
                    assert holds(state, STEPS)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []


def test_threads_that_share_a_binding_neither_hang_nor_mix_states(host: qnnbridge.Host) -> None:
    with decoder(host) as session:
        present = zeros()
        io = bind(session, zeros(), present)
        wrong: list[Any] = []

        def work() -> None:
            try:
                for _ in range(10):
                    session.run_with_iobinding(io)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        assert holds(present, 1)


@needs.posix
def test_values_can_be_used_after_a_fork(host: qnnbridge.Host, tmp_path: Path) -> None:
    """The child reads the values and uses them in its own host; the parent's values do not change."""
    with decoder(host) as session:
        value = stepped(session, zeros())
        io = bind(session, value, None)
        told = tmp_path / "told"
        child = os.fork()
        if child == 0:
            said = "read" if holds(value, STEPS) else "lost"
            try:
                said += " ran" if holds(stepped(session, value), 2 * STEPS) else " wrong"
                session.run_with_iobinding(io)
                said += " ran" if holds(io.get_outputs()[1], STEPS + 1) else " wrong"
                host.close()
            except BaseException as error:
                said += f" {error!r}"
            told.write_text(said)
            os._exit(0)
        os.waitpid(child, 0)
        assert told.read_text() == "read ran ran"
        assert holds(value, STEPS)
        session.run_with_iobinding(io)
        assert holds(stepped(session, value), 2 * STEPS)
