"""Bound values in shared memory: the results are those of a run, and results that the application does not read
remain in the host."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import qnnbridge
from qnnbridge import OrtValue
from tests.contract.small_models import CPU, model, node, tensor

SIZE = 1 << 18  # one MiB of float32
STEPS = 12
X = np.ones(1, np.float32)

# The state is advanced by x, as keys and values of a decoder are.
DECODER = bytes(
    model(
        [node("Add", ["past", "x"], ["present"]), node("ReduceMax", ["present"], ["logits"], keepdims=1)],
        [tensor("x", [1]), tensor("past", [SIZE])],
        [tensor("logits", [1]), tensor("present", [SIZE])],
    ).SerializeToString()
)


HOST = {"shared_memory": True}


@pytest.fixture
def session(host: qnnbridge.Host) -> Iterator[qnnbridge.InferenceSession]:
    with qnnbridge.InferenceSession(DECODER, providers=[CPU], host=host) as session:
        yield session
    gc.collect()
    host.arrays.collect()
    assert len(host.arrays) == 0


def zeros() -> OrtValue:
    return OrtValue.ortvalue_from_shape_and_type([SIZE], np.float32)


def in_shared_memory(value: OrtValue) -> bool:
    return type(value.numpy().base.base).__name__ == "SharedBlock"


def bind(session: qnnbridge.InferenceSession, past: OrtValue, present: OrtValue | None) -> qnnbridge.IOBinding:
    io = session.io_binding()
    io.bind_cpu_input("x", X)
    io.bind_ortvalue_input("past", past)
    io.bind_output("logits")
    if present is None:
        io.bind_output("present")
    else:
        io.bind_ortvalue_output("present", present)
    return io


def test_outputs_without_memory_are_bound_again_without_a_copy(session: qnnbridge.InferenceSession) -> None:
    value, before = zeros(), session.host.stats.shared_calls
    slabs = set()
    for step in range(STEPS):
        io = bind(session, value, None)
        session.run_with_iobinding(io)
        logits, value = io.get_outputs()
        assert logits.numpy().tolist() == [step + 1]
        if step:
            assert in_shared_memory(value)
            slabs.add(value.data_ptr())
    assert np.array_equal(value.numpy(), np.full(SIZE, STEPS, np.float32))
    assert session.host.stats.shared_calls - before == STEPS - 1
    assert len(slabs) <= 3  # the memory of dropped results is reused
    assert len(session.host.arrays) <= 4


def test_two_bound_values_can_be_used_alternately(session: qnnbridge.InferenceSession) -> None:
    one, other = zeros(), OrtValue.ortvalue_from_shape_and_type([SIZE], np.float32)
    for step in range(STEPS):
        io = bind(session, one, other)
        session.run_with_iobinding(io)
        assert io.get_outputs()[0].numpy().tolist() == [step + 1]
        assert io.get_outputs()[1] is other
        one, other = other, one
    assert in_shared_memory(one)
    assert in_shared_memory(other)
    assert np.array_equal(one.numpy(), np.full(SIZE, STEPS, np.float32))
    assert np.array_equal(other.numpy(), np.full(SIZE, STEPS - 1, np.float32))


def test_a_bound_value_can_be_changed_in_place(session: qnnbridge.InferenceSession) -> None:
    value = zeros()
    for step in range(STEPS):
        io = bind(session, value, value)
        session.run_with_iobinding(io)
        assert io.get_outputs()[0].numpy().tolist() == [step + 1]
    assert in_shared_memory(value)
    assert np.array_equal(value.numpy(), np.full(SIZE, STEPS, np.float32))


def test_new_contents_of_a_bound_array_are_used_in_the_next_run(session: qnnbridge.InferenceSession) -> None:
    value = zeros()
    for step in range(4):
        value.update_inplace(np.full(SIZE, 10 * step, np.float32))
        io = bind(session, value, value)
        session.run_with_iobinding(io)
        assert io.get_outputs()[0].numpy().tolist() == [10 * step + 1]


@pytest.mark.parametrize("held", ["array", "view", "numpy", "address", "memoryview"])
def test_memory_whose_address_the_application_has_is_not_moved(
    session: qnnbridge.InferenceSession, held: str
) -> None:
    array = np.zeros(SIZE, np.float32)
    value = OrtValue.ortvalue_from_numpy(array)
    known = {
        "array": lambda: array,
        "view": lambda: array[:4],
        "numpy": value.numpy,
        "memoryview": lambda: np.asarray(memoryview(array)),
        "address": lambda: np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_float * SIZE).from_address(value.data_ptr())  # type: ignore[attr-defined]
        ),
    }[held]()
    if held != "array":
        del array
    for _ in range(4):
        session.run_with_iobinding(bind(session, value, value))
    assert known[:4].tolist() == [4, 4, 4, 4]
    assert not in_shared_memory(value)
    known[0] = 100
    io = bind(session, value, None)
    session.run_with_iobinding(io)
    assert io.get_outputs()[0].numpy().tolist() == [101]


def test_a_result_does_not_change_while_it_is_referenced(session: qnnbridge.InferenceSession) -> None:
    value, kept = zeros(), []
    for _ in range(STEPS):
        io = bind(session, value, None)
        session.run_with_iobinding(io)
        value = io.get_outputs()[1]
        kept.append(value.numpy()[:1])
    assert [int(view[0]) for view in kept] == list(range(1, STEPS + 1))


def test_an_array_that_is_input_and_output_is_read_before_it_is_written(
    session: qnnbridge.InferenceSession,
) -> None:
    array = session.empty_output("present")
    array[:] = 0
    logits = np.empty(1, np.float32)
    for step in range(STEPS):
        session.run(None, {"x": X, "past": array}, out=[logits, array])
        assert logits.tolist() == [step + 1]
    assert np.array_equal(array, np.full(SIZE, STEPS, np.float32))
