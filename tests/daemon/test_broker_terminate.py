"""A run with `RunOptions.terminate` ends as in onnxruntime, wherever the run waits: in the broker, in the host, or
not at all."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from qnnbridge_daemon.fair_share import Cancellation
from tests.daemon.brokers import GRACE_S, Lab, until
from tests.fakes.hosts import script
from tests.fakes.models import model_bytes, node, tensor

# Import it here: it keeps descriptors open, for which a test would be blamed.
ort = pytest.importorskip("onnxruntime")

X = np.ones(2, np.float32)


@contextlib.contextmanager
def full(lab: Lab) -> Iterator[None]:
    """Let another client occupy all slots of the NPU host during the block."""
    share = lab.broker.fair_share
    other = share.join()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(share.slots):
                stack.enter_context(share.turn(other, Cancellation()))
            yield
    finally:
        share.leave(other)


def outcome(session: Any, options: Any) -> Any:
    """Return the results, or the error's class name and whether its text is onnxruntime's."""
    try:
        return [array.tolist() for array in session.run(None, {"x": X}, options)]
    except Exception as error:
        return type(error).__name__, "terminate flag" in str(error)


def terminated_in_the_queue(lab: Lab, session: qnnbridge.InferenceSession) -> Any:
    out: list[Any] = []
    options = qnnbridge.RunOptions()
    with full(lab):
        thread = threading.Thread(target=lambda: out.append(outcome(session, options)))
        thread.start()
        until(lambda: lab.broker.fair_share.waiting == 1)
        options.terminate = True
        thread.join(GRACE_S)
        assert not thread.is_alive(), "it waits for its turn although it has nothing to do"
    return out[0]


@pytest.mark.simulator
@pytest.mark.parametrize(
    "model",
    [
        model_bytes([node("Add", ["x", "x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])]),
        model_bytes([], [tensor("x", [2])], [tensor("x", [2])]),
    ],
    ids=["a node", "no node"],
)
def test_a_terminated_run_ends_as_in_onnxruntime(model: bytes) -> None:
    native, ours = ort.RunOptions(), qnnbridge.RunOptions()
    native.terminate = ours.terminate = True
    expected = outcome(ort.InferenceSession(model, providers=["CPUExecutionProvider"]), native)
    made = Lab(qnnbridge.Host(sys.executable))
    try:
        session = qnnbridge.InferenceSession(model, providers=["CPUExecutionProvider"], host=made.client())
        assert outcome(session, ours) == expected
        with full(made):
            assert outcome(session, ours) == expected
        assert terminated_in_the_queue(made, session) == expected
    finally:
        made.close()


def test_a_run_that_is_queued_in_the_broker_is_terminated_there(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(on_run=["stoppable:60"]), host=lab.client())
    assert terminated_in_the_queue(lab, session) == ("Fail", True)


def test_a_run_that_is_queued_in_the_host_is_terminated_there(lab: Lab, tmp_path: Any) -> None:
    gate, began = tmp_path / "gate", tmp_path / "began"
    slow = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", f"wait:{gate}"]), host=lab.client())
    session = qnnbridge.InferenceSession(script(on_run=["stoppable:60"]), host=lab.client())
    options, out = qnnbridge.RunOptions(), list[Any]()
    threads = [
        threading.Thread(target=slow.run, args=(None, {"x": X})),
        threading.Thread(target=lambda: out.append(outcome(session, options))),
    ]
    threads[0].start()
    until(began.exists)
    threads[1].start()
    until(lambda: lab.npu_host.stats.calls_in_flight == 2)
    options.terminate = True
    threads[1].join(GRACE_S)
    gate.touch()
    threads[0].join(GRACE_S)
    assert out == [("Fail", True)]


@pytest.mark.parametrize("options", [None, [], {"options": 5}, {"options": {"terminate": "yes"}}])
def test_a_request_without_the_option_terminate_is_queued(options: Any) -> None:
    from qnnbridge_protocol.specs import asks_to_terminate

    assert not asks_to_terminate({"options": options})


def test_a_call_that_is_cancelled_for_another_reason_is_not_run_again(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(on_run=["stoppable:60"]), host=lab.client())
    with full(lab), pytest.raises(errors.DeadlineExceeded):
        session.run(None, {"x": X}, qnnbridge.RunOptions(), timeout=0.2)
