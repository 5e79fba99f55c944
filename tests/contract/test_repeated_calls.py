"""Repeated calls over fast channels return the same bits as calls over the connection, with and without shared
memory."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge._fastpath.channel import ChannelPlans
from tests.contract.small_models import CPU
from tests.fakes.models import model_bytes, node

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


@pytest.fixture(scope="module", params=[True, False], ids=["shared", "connection"])
def quick(request: pytest.FixtureRequest) -> Iterator[qnnbridge.Host]:
    """A host with shared memory, and one without."""
    pytest.importorskip("onnxruntime")
    with qnnbridge.Host(shared_memory=request.param) as host:
        host.start()
        yield host


@pytest.fixture(scope="module")
def shared() -> Iterator[qnnbridge.Host]:
    pytest.importorskip("onnxruntime")
    with qnnbridge.Host(shared_memory=True) as host:
        host.start()
        yield host


ADD_ONE = model_bytes(
    [node("Add", ["x", "one"], ["y"])],
    {"x": (FLOAT, ["n"])},
    {"y": (FLOAT, ["n"])},
    [helper.make_tensor("one", FLOAT, [], [1.0])],
)


def session(host: qnnbridge.Host, data: bytes = ADD_ONE, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(data, providers=[CPU], host=host, **keywords)


def quick_calls(host: qnnbridge.Host) -> int:
    return host.stats.shared_calls


def test_a_call_uses_the_fast_path_from_the_second_time_on(quick: qnnbridge.Host) -> None:
    before = quick_calls(quick)
    with session(quick) as adds:
        for number in range(5):
            x = np.full(7, number, np.float32)
            (y,) = adds.run(None, {"x": x})
            np.testing.assert_array_equal(y, x + 1)
            y[:] = 0  # memory of the application
    assert quick_calls(quick) - before == (4 if quick.stats.shared_memory == "available" else 0)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.uint8, np.int64, np.uint64, np.float16, np.bool_])
def test_each_type_arrives_bit_for_bit(quick: qnnbridge.Host, dtype: type[Any]) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = model_bytes([node("Identity", ["x"], ["y"])], {"x": (element, ["n"])}, {"y": (element, ["n"])})
    raw = np.random.default_rng(1).integers(0, 256, 4096, np.uint8)
    x = (raw & 1).astype(np.bool_) if dtype is np.bool_ else raw.view(dtype)
    with session(quick, data) as same:
        for _ in range(3):
            (y,) = same.run(None, {"x": x})
            assert y.dtype == x.dtype
            assert y.tobytes() == x.tobytes()


def test_a_true_value_is_one_whatever_its_byte_was(quick: qnnbridge.Host) -> None:
    data = model_bytes([node("Identity", ["x"], ["y"])], {"x": (BOOL, [4])}, {"y": (BOOL, [4])})
    x = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    with session(quick, data) as same:
        for _ in range(3):
            (y,) = same.run(None, {"x": x})
            assert y.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_arrays_of_any_layout_are_read_without_changes(quick: qnnbridge.Host) -> None:
    data = model_bytes([node("Identity", ["x"], ["y"])], {"x": (FLOAT, [6, 8])}, {"y": (FLOAT, [6, 8])})
    base = np.arange(12 * 16, dtype=np.float32).reshape(12, 16)
    with session(quick, data) as same:
        for x in (base[::2, ::2], np.asfortranarray(base[:6, :8]), base[6:, :8][::-1], base[:6, :8].copy()):
            np.testing.assert_array_equal(same.run(None, {"x": x})[0], x)


def test_outputs_with_another_shape_than_in_the_last_call_arrive(quick: qnnbridge.Host) -> None:
    data = model_bytes([node("NonZero", ["x"], ["y"])], {"x": (FLOAT, [4])}, {"y": (INT64, [1, "k"])})
    with session(quick, data) as finds:
        for values in ([1, 0, 2, 0], [0, 0, 3, 3], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [5, 0, 5, 0]):
            x = np.array(values, np.float32)
            np.testing.assert_array_equal(finds.run(None, {"x": x})[0], np.stack(np.nonzero(x)))


def test_an_output_that_is_also_an_input_equals_the_input(quick: qnnbridge.Host) -> None:
    data = model_bytes(
        [node("Add", ["x", "x"], ["y"])],
        {"x": (FLOAT, [3])},
        {"y": (FLOAT, [3]), "x": (FLOAT, [3])},
    )
    with session(quick, data) as doubles:
        for number in range(4):
            x = np.full(3, number, np.float32)
            y, same = doubles.run(None, {"x": x})
            np.testing.assert_array_equal(y, x + x)
            np.testing.assert_array_equal(same, x)


def test_an_output_that_is_declared_as_optional_arrives_in_each_call(quick: qnnbridge.Host) -> None:
    # ONNX Runtime cannot bind memory to an optional: the second call failed with "Only binding Tensors is currently
    # supported".
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["n"]))
    ends = [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", *ends)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    x = np.arange(5, dtype=np.float32)
    with session(quick, data) as same:
        for number in range(4):
            assert same.run(None, {"x": x + number})[0].tolist() == (x + number).tolist()


def test_other_names_types_and_shapes_are_refused_as_on_the_slow_path(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        good = {"x": np.zeros(3, np.float32)}
        for _ in range(3):
            adds.run(None, good)
            for wrong in (
                {"x": np.zeros(3)},
                {"z": np.zeros(3, np.float32)},
                {},
                {"x": np.zeros((1, 3), np.float32)},
            ):
                with pytest.raises(Exception, match=r"(?i)input|expected|rank"):
                    adds.run(None, wrong)
            with pytest.raises(qnnbridge.errors.InvalidArgument):
                adds.run(["nothing"], good)


def test_a_failing_run_raises_the_same_error_as_over_the_connection(quick: qnnbridge.Host) -> None:
    data = model_bytes(
        [node("Gather", ["t", "x"], ["y"])],
        {"x": (INT64, [1])},
        {"y": (FLOAT, [1])},
        [helper.make_tensor("t", FLOAT, [3], [1, 2, 3])],
    )
    with session(quick, data) as picks:
        with pytest.raises(qnnbridge.errors.BridgeError) as first:
            picks.run(None, {"x": np.array([99])})
        for _ in range(3):
            assert picks.run(None, {"x": np.array([2])})[0] == 3
            with pytest.raises(type(first.value)) as again:
                picks.run(None, {"x": np.array([99])})
            assert again.value.message == first.value.message


def test_out_fills_the_arrays_of_the_application(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        mine = np.zeros(5, np.float32)
        for number in range(4):
            x = np.full(5, number, np.float32)
            assert adds.run(None, {"x": x}, out=[mine])[0] is mine
            np.testing.assert_array_equal(mine, x + 1)
            assert adds.run(None, {"x": x}, out={"y": mine})[0] is mine
            (new,) = adds.run(None, {"x": x}, out=[None])
            assert new is not mine
            for wrong in ([np.zeros(4, np.float32)], [np.zeros(5)], [mine, mine], {"z": mine}, ["text"]):
                with pytest.raises(qnnbridge.errors.InvalidArgument):
                    adds.run(None, {"x": x}, out=wrong)  # type: ignore[arg-type]


def test_arrays_of_the_session_are_used_in_place(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        x, y = adds.empty_input("x", (1000,)), adds.empty_output("y", (1000,))
        for number in range(4):
            x[:] = number
            assert adds.run(None, {"x": x}, out=[y])[0] is y
            assert (y == number + 1).all()
            np.testing.assert_array_equal(adds.run(None, {"x": x[:500]})[0], x[:500] + 1)
    del x
    gc.collect()
    assert (y == 4).all()


def test_an_array_that_replaces_another_one_is_read(quick: qnnbridge.Host) -> None:
    """The memory of a freed array is reused, and the plan that was made for that array still fits."""
    with session(quick) as adds:
        out = [adds.empty_output("y", (4,))]
        for number in range(5):
            x = adds.empty_input("x", (4,))
            for value in (number, number + 0.5):
                x[...] = value
                assert adds.run(None, {"x": x}, out=out)[0] is out[0]
                np.testing.assert_array_equal(out[0], np.full(4, value + 1, np.float32))
            del x


def test_an_array_that_was_changed_in_place_is_read_with_its_new_contents(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        x, y = adds.empty_input("x", (4,)), adds.empty_output("y", (4,))
        x[...] = 1
        for _ in range(3):
            adds.run(None, {"x": x}, out=[y])
        x.dtype = np.int32
        with pytest.raises(qnnbridge.errors.InvalidArgument):
            adds.run(None, {"x": x}, out=[y])
        x.dtype = np.float32
        with pytest.raises(qnnbridge.errors.InvalidArgument):
            adds.run(["no such output"], {"x": x}, out=[y])
        with pytest.raises(qnnbridge.errors.InvalidArgument):
            adds.run(None, {"x": x, "more": x}, out=[y])
        assert adds.run(["y"], {"x": x}, out=[y])[0] is y
        np.testing.assert_array_equal(y, 2)
        adds.run(None, {"x": x}, out=[y])
        y.flags.writeable = False
        with pytest.raises(qnnbridge.errors.InvalidArgument):
            adds.run(None, {"x": x}, out=[y])


def test_plain_arrays_and_arrays_of_the_session_can_be_used_alternately(quick: qnnbridge.Host) -> None:
    """No state of the previous call's path is used."""
    with session(quick) as adds:
        shared, plain = adds.empty_input("x", (4,)), np.empty(4, np.float32)
        outs: list[Any] = [None, [adds.empty_output("y", (4,))], [np.empty(4, np.float32)], [None]]
        for number, (x, out) in enumerate(itertools.product((shared, plain, shared[:], plain), outs * 2)):
            x[...] = number
            (y,) = adds.run(None, {"x": x}, out=out)
            np.testing.assert_array_equal(y, np.full(4, number + 1, np.float32))
            assert out is None or out[0] is None or y is out[0]


def test_a_freed_output_array_is_not_mistaken_for_a_new_one(quick: qnnbridge.Host) -> None:
    """The memory may already belong to another array."""
    with session(quick) as adds:
        x = np.arange(4, dtype=np.float32)
        mine = adds.empty_output("y", (4,))
        for _ in range(3):
            adds.run(None, {"x": x}, out=[mine])
        del mine
        gc.collect()
        other = adds.empty_output("y", (4,))
        other[...] = -1
        np.testing.assert_array_equal(adds.run(None, {"x": x}, out=[None])[0], x + 1)
        assert (other == -1).all()


def test_arrays_are_created_only_for_inputs_and_shapes_of_the_model(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        for name, shape in (("z", (3,)), ("x", None), ("x", (1, 3))):
            with pytest.raises(qnnbridge.errors.InvalidArgument):
                adds.empty_input(name, shape)
        assert adds.empty_input("x", (0,)).size == 0


def test_borrowed_results_do_not_change(quick: qnnbridge.Host) -> None:
    with session(quick) as adds:
        kept = []
        for number in range(30):
            (y,) = adds.run(None, {"x": np.full(3000, number, np.float32)}, borrow=True)
            assert not y.flags.writeable
            kept.append(y[::2])
        for number, part in enumerate(kept):
            assert (part == number + 1).all()
    assert (kept[-1] == 30).all()


def test_a_borrowed_result_is_kept_until_the_next_one_and_each_call_still_uses_the_fast_path(
    shared: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``y = session.run(...)`` in a loop holds two results at a time, which alternate between two buffers."""

    def looked_for(*_: object) -> None:
        raise AssertionError("a plan was made")

    with session(shared) as adds:
        x = np.zeros(30_000, np.float32)
        y = None
        for number in range(24):
            if number == 4:
                monkeypatch.setattr(ChannelPlans, "make", looked_for)
            x[:] = number
            (later,) = adds.run(None, {"x": x}, borrow=True)
            assert y is None or ((y == number).all() and y.base is not later.base)
            assert (later == number + 1).all()
            assert not later.flags.owndata, "it was copied"
            y = later
            if number > 12:  # without a held result, one buffer is used
                del y, later
                y = None


def test_borrowed_results_survive_a_crash_of_the_host(shared: qnnbridge.Host) -> None:
    with session(shared) as adds:
        for number in range(3):
            (y,) = adds.run(None, {"x": np.full(64, number, np.float32)}, borrow=True)
        x = adds.empty_input("x", (64,))
        x[:] = 5
        adds.run(None, {"x": x})
        assert adds.run(None, {"x": x})[0][0] == 6
        os.kill(shared.info.pid, 9)
        for _ in range(3):  # in the next host, with the same array
            assert (adds.run(None, {"x": x})[0] == 6).all()
        assert (y == 3).all()


def test_several_threads_have_separate_channels(quick: qnnbridge.Host) -> None:
    wrong: list[Any] = []
    with session(quick) as adds:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(60):
                x = random.random(int(random.choice([1, 100, 20_000])), np.float32)
                (y,) = adds.run(None, {"x": x})
                if not np.array_equal(y, x + np.float32(1)):
                    wrong.append(x)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_unused_channels_release_their_memory(shared: qnnbridge.Host) -> None:
    with session(shared) as adds:
        for _ in range(3):
            adds.run(None, {"x": np.zeros(300_000, np.float32)})
        process = shared.supervisor.running
        assert process is not None
        pool = process.pool
        assert pool is not None
        assert shared.stats.shared_bytes > 2_000_000
        seen: dict[int, int] = {}
        while pool.trim(seen):
            pass
        assert len(pool) == 0
        assert shared.stats.shared_bytes == 0
        np.testing.assert_array_equal(adds.run(None, {"x": np.zeros(4, np.float32)})[0], np.ones(4, np.float32))


def test_calls_beyond_the_memory_limit_use_the_connection() -> None:
    pytest.importorskip("onnxruntime")
    with qnnbridge.Host(shared_memory=True) as host:
        host.sharing.channel_memory._limit = 200_000
        with session(host) as adds:
            for size in (10, 10, 10, 100_000, 100_000, 100_000, 10):
                x = np.arange(size, dtype=np.float32)
                np.testing.assert_array_equal(adds.run(None, {"x": x})[0], x + 1)
        assert host.stats.shared_calls == 3, "the large ones go by the connection"
