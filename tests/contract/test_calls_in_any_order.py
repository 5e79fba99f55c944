"""A call returns the requested results after any earlier calls of the same session; compared with onnxruntime."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge_protocol.values import equal_bits
from tests.contract.small_models import CPU
from tests.fakes.models import model_bytes, node

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


HOST = {"shared_memory": True}


def session(host: qnnbridge.Host, data: bytes, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(data, providers=[CPU], host=host, **keywords)


TWO_OUTPUTS = model_bytes(
    [node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["z"])],
    {"x": (FLOAT, ["n"])},
    {"y": (FLOAT, ["n"]), "z": (FLOAT, ["n"])},
)
X = np.array([1, -2, 3], np.float32)


def by_async(made: qnnbridge.InferenceSession, names: Any) -> list[Any]:
    done, got = threading.Event(), []

    def callback(results: list[Any], _data: Any, error: str) -> None:
        got.append(error or results)
        done.set()

    made.run_async(names, {"x": X}, callback, None)
    assert done.wait(10)
    return list(got[0])


WAYS: dict[str, Callable[[qnnbridge.InferenceSession, Any], list[Any]]] = {
    "plain": lambda made, names: made.run(names, {"x": X}),
    "borrow": lambda made, names: made.run(names, {"x": X}, borrow=True),
    "timeout": lambda made, names: made.run(names, {"x": X}, timeout=10),
    "background": by_async,
    "out": lambda made, names: made.run(names, {"x": X}, out=[np.empty(3, np.float32)] * len(names or "yz")),
}


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
def test_a_call_for_all_outputs_after_a_call_for_one_output_returns_all_of_them(
    host: qnnbridge.Host, way: str
) -> None:
    wanted = [["y"], None, ["z"], [], ["z", "y"], ("y",), None]
    with session(host, TWO_OUTPUTS) as made:
        for names in wanted * 3:
            results = WAYS[way](made, names)
            expected = [{"y": -X, "z": abs(X)}[name] for name in (names or ["y", "z"])]
            assert len(results) == len(expected), f"{way}: {names} gave {len(results)} outputs"
            if way != "out":  # all targets are one array
                assert equal_bits(results, expected)


@pytest.mark.process
def test_a_boolean_scalar_is_an_array_in_every_call(host: qnnbridge.Host) -> None:
    data = model_bytes([node("Not", ["x"], ["y"])], {"x": (BOOL, [])}, {"y": (BOOL, [])})
    direct = onnxruntime.InferenceSession(data, providers=[CPU])
    with session(host, data) as made:
        for value in (True, False) * 3:
            feed = {"x": np.array(value)}
            (expected,) = direct.run(None, feed)
            for keywords in ({}, {"borrow": True}, {"out": [np.empty((), np.bool_)]}):
                (result,) = made.run(None, feed, **keywords)
                assert type(result) is type(expected) is np.ndarray
                assert equal_bits(result, expected)
        binding = made.io_binding()
        for _ in range(3):
            binding.bind_cpu_input("x", np.array(True))
            binding.bind_output("y")
            made.run_with_iobinding(binding)
            assert binding.get_outputs()[0].shape() == []
            assert binding.copy_outputs_to_cpu()[0].shape == ()


NONZERO = model_bytes([node("NonZero", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (INT64, [1, "k"])})


@pytest.mark.process
def test_out_arrays_get_the_shape_of_the_current_call_and_not_of_the_first(host: qnnbridge.Host) -> None:
    with session(host, NONZERO) as made:
        for count in (1, 2, 3, 1, 3):
            x = np.array([1] * count + [0] * (3 - count), np.float32)
            target = np.empty((1, count), np.int64)
            (result,) = made.run(None, {"x": x}, out=[target])
            assert result is target
            np.testing.assert_array_equal(target, [range(count)])
            with pytest.raises(qnnbridge.errors.InvalidArgument, match="the output is"):
                made.run(None, {"x": x}, out=[np.empty((1, 4), np.int64)])


@pytest.mark.process
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "ordinary"])
def test_out_of_another_type_or_shape_is_refused_after_calls_that_fit(host: qnnbridge.Host, shared: bool) -> None:
    data = model_bytes([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})
    with session(host, data) as made:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        out = made.empty_output("y") if shared else np.empty((2, 3), np.float32)
        for other in (out.view(np.int32), out.reshape(3, 2), np.empty((1, 2, 3), np.float32)):
            for _ in range(3):
                (result,) = made.run(None, {"x": x}, out=[out])
                assert result is out
                np.testing.assert_array_equal(out, -x)
            with pytest.raises(qnnbridge.errors.InvalidArgument, match="the output is"):
                made.run(None, {"x": x}, out=[other])


@pytest.mark.process
def test_strides_that_the_application_sets_on_an_array_of_the_session_are_respected(host: qnnbridge.Host) -> None:
    data = model_bytes([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})
    with session(host, data) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about setting strides
        x, out = made.empty_input("x"), made.empty_output("y")
        x[:] = [[0, 1, 2], [3, 4, 5]]
        for strides in ((12, 4), (4, 8), (12, 4), (4, 8)):  # row-major, then column-major
            x.strides = out.strides = strides
            made.run(None, {"x": x}, out=[out])
            np.testing.assert_array_equal(out, -x)
            (result,) = made.run(None, {"x": x})
            np.testing.assert_array_equal(result, -x)


@pytest.mark.process
@pytest.mark.parametrize("make", ["numpy", "shape", "result"])
def test_memory_whose_address_the_application_has_is_not_moved(host: qnnbridge.Host, make: str) -> None:
    """Use at least 64 KiB, which bound runs place in shared memory if they can."""
    count = 1 << 16
    data = model_bytes([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [count])}, {"y": (FLOAT, [count])})
    with session(host, data) as made:
        if make == "numpy":
            array = np.ones(count, np.float32)
            address = array.ctypes.data
            value = qnnbridge.OrtValue.ortvalue_from_numpy(array)
            del array
        elif make == "shape":
            value = qnnbridge.OrtValue.ortvalue_from_shape_and_type([count], np.float32)
            address = value.data_ptr()
        else:
            (value,) = made.run_with_ort_values(
                None, {"x": qnnbridge.OrtValue.ortvalue_from_numpy(-np.ones(count, np.float32))}
            )
            address = value.numpy().ctypes.data
        floats = (ctypes.c_float * count).from_address(address)
        for step in range(1, 4):
            floats[0] = step
            binding = made.io_binding()
            binding.bind_ortvalue_input("x", value)
            binding.bind_output("y")
            made.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0][0] == -step
            binding.bind_cpu_input("x", np.full(count, 10 * step, np.float32))
            binding.bind_ortvalue_output("y", value)
            made.run_with_iobinding(binding)
            assert floats[0] == -10 * step
            assert value.numpy()[0] == -10 * step


@pytest.mark.process
def test_the_asyncio_session_returns_the_requested_outputs(host: qnnbridge.Host) -> None:
    from qnnbridge import aio

    async def program() -> list[int]:
        async with aio.InferenceSession(TWO_OUTPUTS, providers=[CPU], host=host) as made:
            return [len(await made.run(names, {"x": X})) for names in (["y"], None, ["y"], None)]

    assert asyncio.run(program()) == [1, 2, 1, 2]


@pytest.mark.process
@pytest.mark.parametrize("way", ["value", "binding"])
def test_a_value_keeps_the_shape_type_and_strides_that_its_array_had(host: qnnbridge.Host, way: str) -> None:
    """The value also shares the array's memory, as in onnxruntime."""
    data = model_bytes([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})
    with session(host, data) as made:
        for array in (np.ones((2, 3), np.float32), made.empty_input("x")):
            array[:] = [[1, 2, 3], [4, 5, 6]]
            binding = made.io_binding()
            if way == "value":
                binding.bind_ortvalue_input("x", qnnbridge.OrtValue.ortvalue_from_numpy(array))
            else:
                binding.bind_cpu_input("x", array)
            expected = -array.copy()
            array.shape = (3, 2)
            array.dtype = np.int32
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                array.strides = (4, 12)
            binding.bind_output("y")
            for _ in range(3):
                made.run_with_iobinding(binding)
                assert equal_bits(binding.copy_outputs_to_cpu(), [expected])
            array.strides = (8, 4)
            array.view(np.float32)[0, 0] = 7
            expected[0, 0] = -7
            made.run_with_iobinding(binding)
            assert equal_bits(binding.copy_outputs_to_cpu(), [expected])


@pytest.mark.process
def test_a_background_run_uses_the_feed_of_its_own_call(host: qnnbridge.Host) -> None:
    with session(host, TWO_OUTPUTS) as made:
        feed, got, done = {"x": X}, [], threading.Semaphore(0)
        for _ in range(20):
            feed["x"] = X
            made.run_async(["y"], feed, lambda results, *_: (got.append(results[0]), done.release()), None)
            feed["x"] = np.zeros(5, np.float32)
        for _ in range(20):
            assert done.acquire(timeout=10)
        assert all(equal_bits(result, -X) for result in got)
