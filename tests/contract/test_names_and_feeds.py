"""Names of outputs and feeds of every kind: results equal onnxruntime's, and of several faults the same one is
reported."""

from __future__ import annotations

import collections
import itertools
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge_protocol.values import equal_bits
from tests import needs
from tests.contract.both_sides import two_sessions

FLOAT = TensorProto.FLOAT


def info(name: str, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["w"], ["z"])],
        "g",
        [info("x", ["n"]), info("w", [2, 2]), info("unused", [1])],
        [info("y", ["n"]), info("z", [2, 2])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
).SerializeToString()

X, W, U = np.array([1, -2, 3], np.float32), -np.ones((2, 2), np.float32), np.zeros(1, np.float32)
FEED: dict[Any, Any] = {"x": X, "w": W, "unused": U}
DOUBLE = X.astype(np.float64)


class Name(str):
    __slots__ = ()


class WithoutLength:
    def __getitem__(self, index: int) -> str:
        return ["y"][index]


def raising(name: Any) -> Iterator[Any]:
    yield name
    raise LookupError("read to the end first")


NAMES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "list": lambda: ["z", "y"],
    "empty list": list,
    "tuple": lambda: ("y",),
    "empty tuple": tuple,
    "generator": lambda: (name for name in ("y",)),
    "generator of none": lambda: (name for name in ()),
    "iterator": lambda: iter(["y"]),
    "map": lambda: map(str, ["z"]),
    "set": lambda: {"y"},
    "frozenset": lambda: frozenset(["z"]),
    "keys": lambda: {"z": 1, "y": 2}.keys(),
    "dict": lambda: {"y": 1},
    "empty dict": dict,
    "deque": lambda: collections.deque(["z"]),
    "UserList": lambda: collections.UserList(["y"]),
    "array of one": lambda: np.array(["z"]),
    "array of two": lambda: np.array(["y", "z"]),
    "array of none": lambda: np.array([], str),
    "str": lambda: "y",
    "str of names": lambda: "yz",
    "empty str": str,
    "bytes": lambda: b"y",
    "list of bytes": lambda: [b"y"],
    "list of int": lambda: [1],
    "list of None": lambda: [None],
    "str and int": lambda: ["y", 1],
    "unknown and int": lambda: ["q", 1],
    "subclass of str": lambda: [Name("y"), np.str_("z")],
    "twice": lambda: ["y", "y"],
    "unknown": lambda: ["y", "q"],
    "empty name": lambda: [""],
    "int": lambda: 5,
    "False": lambda: False,
    "range": lambda: range(1),
    "keys of an OrderedDict": lambda: collections.OrderedDict(y=1).keys(),
    "mapping": lambda: types.MappingProxyType({"y": 1}),
    "sequence without length": WithoutLength,
    "half a pair": lambda: ["\udc80"],
    "generator that raises": lambda: raising("y"),
    "generator of int that raises": lambda: raising(1),
}

FEEDS: dict[str, Callable[[], Any]] = {
    "right": lambda: FEED,
    "mapping": lambda: types.MappingProxyType(FEED),
    "OrderedDict": lambda: collections.OrderedDict(FEED),
    "unknown None": lambda: {**FEED, "q": None},
    "unknown": lambda: {**FEED, "q": X},
    "bytes as name": lambda: {**FEED, b"q": None},
    "bytes as unknown name": lambda: {**FEED, b"q": X},
    "int as name": lambda: {**FEED, 1: None},
    "missing": lambda: {"x": X},
    "missing and unknown": lambda: {"x": X, "q": X},
    "none at all": dict,
    "None for one that is not needed": lambda: {**FEED, "unused": None},
    "None for one that is needed": lambda: {**FEED, "w": None},
    "None, and a wrong type": lambda: {**FEED, "w": None, "x": DOUBLE},
    "wrong type": lambda: {**FEED, "x": DOUBLE},
    "wrong rank": lambda: {**FEED, "w": X},
    "wrong size": lambda: {**FEED, "w": np.ones((2, 3), np.float32)},
    "two that are wrong": lambda: {"x": DOUBLE, "w": X, "unused": U},
    "two that are wrong, reversed": lambda: {"unused": U, "w": X, "x": DOUBLE},
    "wrong, then unknown": lambda: {**FEED, "x": DOUBLE, "q": X},
    "unknown, then wrong": lambda: {"a": X, **FEED, "x": DOUBLE},
    "cannot be converted, and wrong": lambda: {**FEED, "x": np.zeros(3, "M8[s]"), "w": X},
    "wrong, and cannot be converted": lambda: {**FEED, "x": DOUBLE, "w": np.zeros(3, "M8[s]")},
    "unknown that cannot be converted": lambda: {**FEED, "q": np.zeros(3, "M8[s]")},
    "structured": lambda: {**FEED, "x": np.zeros(3, [("a", "f4")])},
    "void": lambda: {**FEED, "x": np.zeros(3, "V4")},
    "complex": lambda: {**FEED, "x": X.astype(complex)},
    "strings": lambda: {**FEED, "x": np.array(["a"])},
    "objects": lambda: {**FEED, "x": np.array([1, None], object)},
    "a str": lambda: {**FEED, "x": "a"},
    "a set": lambda: {**FEED, "x": {1}},
    "unknown str": lambda: {**FEED, "q": "a"},
    "unknown list": lambda: {**FEED, "q": [1]},
    "unknown dict": lambda: {**FEED, "q": {"a": 1.0}},
    "unknown empty dict": lambda: {**FEED, "q": {}},
    "unknown object": lambda: {"q": object(), **FEED},
    "unknown object, and wrong": lambda: {**FEED, "q": object(), "x": DOUBLE},
    "half a pair as name": lambda: {**FEED, "\udc80": None},
    "half a pair, and cannot be converted": lambda: {**FEED, "\udc80": X, "x": np.zeros(3, "M8[s]")},
    "once as str, once as bytes": lambda: {**FEED, b"x": -X},
    "once as bytes, once as str": lambda: {b"x": -X, **FEED},
    "no map: list": lambda: [("x", X)],
    "no map: None": lambda: None,
    "no map: str": lambda: "xw",
}


@pytest.fixture(scope="module")
def sessions(host: qnnbridge.Host) -> Iterator[tuple[onnxruntime.InferenceSession, qnnbridge.InferenceSession]]:
    with two_sessions(host, MODEL) as both:
        yield both


def outcome(session: Any, names: Any, feed: Any) -> tuple[str, Any]:
    """Return the results, or class and message of the error."""
    try:
        return "results", session.run(names, feed)
    except Exception as error:
        return type(error).__name__.removeprefix("Remote"), str(error).split("\n")[0]


def assert_same(both: Any, names: str, feed: str) -> None:
    theirs = outcome(both[0], NAMES[names](), FEEDS[feed]())
    ours = outcome(both[1], NAMES[names](), FEEDS[feed]())
    assert ours[0] == theirs[0], f"{names} / {feed}: {theirs} became {ours}"
    if theirs[0] == "results":
        assert equal_bits(ours[1], theirs[1]), f"{names} / {feed}"
    elif theirs[0] == "InvalidArgument":
        assert ours[1].split(" Please fix")[0] == theirs[1].split(" Please fix")[0], f"{names} / {feed}"


@pytest.mark.process
@pytest.mark.parametrize("names", needs.some(NAMES))
def test_each_kind_of_names_works_with_each_kind_of_feed(sessions: Any, names: str) -> None:
    for feed in FEEDS:
        assert_same(sessions, names, feed)


@pytest.mark.process
def test_earlier_calls_in_any_order_do_not_affect_a_call(sessions: Any) -> None:
    """Earlier calls, successful or failed, do not affect a call."""
    dice = random.Random(26)
    pairs = list(itertools.product(NAMES, FEEDS))
    usual = [pair for pair in pairs if pair[1] in ("right", "unknown None", "None for one that is not needed")]
    for _ in range(600):
        assert_same(sessions, *dice.choice(usual if dice.random() < 0.7 else pairs))


@pytest.mark.process
@pytest.mark.parametrize("way", ["run_async", "run_with_ort_values", "asyncio", "binding"])
@pytest.mark.parametrize(
    "names", ["generator", "generator of none", "map", "keys", "array of one", "str", "list of int", "iterator"]
)
def test_other_ways_to_run_also_read_the_names_only_once(sessions: Any, way: str, names: str) -> None:
    direct, bridged = sessions
    if way == "binding":  # binds its outputs one by one
        binding = bridged.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("w", W)
        binding.bind_output("y")
        bridged.run_with_iobinding(binding)
        assert equal_bits(binding.copy_outputs_to_cpu(), [-X])
        return
    expected = outcome(direct, NAMES[names](), FEED)
    for _ in range(3):
        if way == "run_with_ort_values":
            values = {name: qnnbridge.OrtValue.ortvalue_from_numpy(array) for name, array in FEED.items()}
            call = lambda values=values: [  # noqa: E731
                value.numpy() for value in bridged.run_with_ort_values(NAMES[names](), values)
            ]
        elif way == "asyncio":
            call = lambda: in_asyncio(bridged, NAMES[names]())  # noqa: E731
        else:
            call = lambda: in_background(bridged, NAMES[names]())  # noqa: E731
        try:
            result = "results", call()
        except Exception as error:
            result = type(error).__name__.removeprefix("Remote"), str(error)
        assert result[0] == expected[0]
        if expected[0] == "results":
            assert equal_bits(result[1], expected[1])


def in_asyncio(bridged: qnnbridge.InferenceSession, names: Any) -> list[Any]:
    import asyncio

    from qnnbridge import aio

    async def program() -> list[Any]:
        async with aio.InferenceSession(MODEL, providers=["CPUExecutionProvider"], host=bridged.host) as made:
            return list(await made.run(names, FEED))

    return asyncio.run(program())


def in_background(bridged: qnnbridge.InferenceSession, names: Any) -> list[Any]:
    done, got = threading.Event(), []

    def callback(results: list[Any], _data: Any, error: str) -> None:
        got.append((results, error))
        done.set()

    bridged.run_async(names, FEED, callback, None)
    assert done.wait(30)
    results, error = got[0]
    if error:  # a callback gets the text only
        raise qnnbridge.errors.InvalidArgument(error)
    return list(results)


@pytest.mark.process
def test_a_future_has_the_names_and_the_feed_of_its_call(sessions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later changes of the application's list and map do not affect a queued run."""
    bridged, changed = sessions[1], threading.Event()
    run = bridged.run

    def late(*arguments: Any, **keywords: Any) -> list[Any]:
        assert changed.wait(30)
        return list(run(*arguments, **keywords))

    monkeypatch.setattr(bridged, "run", late)
    names, feed = ["y"], dict(FEED)
    future = qnnbridge.futures.submit(bridged, names, feed)
    names[:] = []
    feed["x"] = np.zeros(1, np.float32)
    changed.set()
    assert equal_bits(future.result(30), [-X])


SEQUENCE = helper.make_model(
    helper.make_graph(
        [helper.make_node("SequenceLength", ["q"], ["n"])],
        "g",
        [helper.make_tensor_sequence_value_info("q", FLOAT, None)],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
).SerializeToString()


@pytest.mark.process
@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "g", "f4", "V4"])
def test_an_array_is_accepted_as_a_sequence_of_names_or_refused_as_in_onnxruntime(
    host: qnnbridge.Host, dtype: str
) -> None:
    """The check of numpy's type comes before that of the input's type."""
    with two_sessions(host, SEQUENCE) as both:
        theirs, ours = (outcome(session, None, {"q": np.zeros(2, dtype)})[0] for session in both)
    assert ours == theirs
