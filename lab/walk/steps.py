"""The steps of a walk. `random.Random` or Hypothesis makes the choices."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import onnxruntime

import qnnbridge
from lab.walk.models import Input, Model, models
from qnnbridge import futures
from qnnbridge_protocol.values import equal_bits

T = TypeVar("T")

CPU = "CPUExecutionProvider"
TIMEOUT_S = 60.0
# Maximum number of results, arrays and values that a walk keeps.
KEPT = 12


class Pick(Protocol):
    def __call__(self, options: Sequence[T]) -> T: ...


class Wrong(AssertionError):
    """Error: the bridge and onnxruntime differ."""


class Pair:
    """Sessions of one model: in process and through the bridge."""

    def __init__(self, model: Model, hosts: Sequence[qnnbridge.Host], pick: Pick) -> None:
        self.model = model
        theirs, ours = onnxruntime.SessionOptions(), qnnbridge.SessionOptions()
        theirs.log_severity_level = ours.log_severity_level = 4
        self.direct = onnxruntime.InferenceSession(model.data, theirs, providers=[CPU])
        self.bridged = qnnbridge.InferenceSession(model.data, ours, providers=[CPU], host=pick(hosts))


class Matrix(np.ndarray):
    """A subclass of numpy's array, such as applications define."""


class Walk:
    """The state of one walker: its sessions, arrays, values and results.

    Args:
        hosts: hosts for the sessions of the bridge.
        pick: makes the choices.
        pairs: sessions that several walkers share; by default the walker opens its own.
        deaths: whether hosts are killed during the walk.
    """

    def __init__(
        self, hosts: Sequence[qnnbridge.Host], pick: Pick, pairs: list[Pair] | None = None, *, deaths: bool = False
    ) -> None:
        self._hosts, self._pick, self._deaths = hosts, pick, deaths
        self._shared = pairs is not None
        self._all = models()
        self.pairs = pairs if pairs is not None else [Pair(pick(self._all), hosts, pick)]
        self._kept: collections.deque[tuple[str, Any, Any]] = collections.deque(maxlen=KEPT)
        self._arrays: collections.deque[np.ndarray[Any, Any]] = collections.deque(maxlen=KEPT)
        # Pairs of OrtValue: onnxruntime's, and the bridge's.
        self._values: collections.deque[tuple[Any, qnnbridge.OrtValue]] = collections.deque(maxlen=KEPT)
        self.log: list[str] = []
        # Number of comparisons.
        self.calls = 0

    def use(self, pick: Pick) -> None:
        """Use `pick` for further choices."""
        self._pick = pick

    def step(self) -> None:
        """Make one step. Raises `Wrong`."""
        ways: tuple[Callable[[], None], ...] = (
            *[self._run] * 8,
            *[self._run_bound] * 3,
            self._run_in_background,
            self._run_with_values,
            self._look_again,
            self._change_sessions,
        )
        self._pick(ways)()

    def close(self) -> None:
        self._look_again()
        if not self._shared:
            for pair in self.pairs:
                pair.bridged.close()

    # --- arguments ----------------------------------------------------------------------------------------

    def _names(self, pair: Pair) -> Callable[[], Any]:
        """Return a function that creates the output names, since a generator can be read only once."""
        outputs = list(pair.model.outputs)
        chosen = self._pick((outputs, outputs[:1], outputs[-1:], outputs[::-1], outputs[1:2] or outputs))
        return self._pick(
            (
                *[lambda: None] * 3,
                *[lambda: list(chosen)] * 5,
                lambda: tuple(chosen),
                list,
                lambda: (name for name in chosen),
                lambda: np.array(chosen, object),
                lambda: dict.fromkeys(chosen).keys(),
                lambda: [*chosen, chosen[0]],
                lambda: [*chosen, "unknown"],
                lambda: chosen[0],
                lambda: [1],
            )
        )

    def _feed(self, pair: Pair) -> dict[str, Any]:
        model = pair.model
        sizes: dict[str, int] = {}
        feed: dict[str, Any] = {}
        for one in model.inputs:
            shape = tuple(
                dim if isinstance(dim, int) else sizes.setdefault(dim, self._pick(model.sizes)) for dim in one.shape
            )
            feed[one.name] = self._array(pair, one, shape)
        spoil = self._pick(("", *[""] * 30, "unknown", "None", "missing", "type", "rank", "reversed"))
        first = model.inputs[0]
        if spoil == "unknown":
            feed["unknown"] = self._pick((None, np.zeros(1, np.float32)))
        elif spoil == "None":
            feed[first.name] = None
        elif spoil == "missing":
            del feed[first.name]
        elif spoil == "type" and not first.texts:
            feed[first.name] = np.asarray(feed[first.name]).astype(np.int16)
        elif spoil == "rank" and isinstance(feed[first.name], np.ndarray):
            feed[first.name] = np.asarray(feed[first.name])[..., None]
        elif spoil == "reversed":
            feed = dict(reversed(list(feed.items())))
        return feed

    def _array(self, pair: Pair, one: Input, shape: tuple[int, ...]) -> Any:
        if one.texts:
            return np.array([self._pick(("", "a", "äö", "b" * 50)) for _ in range(shape[0])], object)
        if one.name == "s" and pair.model.name == "reshape":
            return np.array({1: [12], 2: [3, 4], 3: [2, -1, 3]}[shape[0]], np.int64)
        again = [old for old in self._arrays if old.shape == shape and old.dtype == one.dtype]
        if again and self._pick((True, False)):
            array = self._pick(again)
            if array.flags.writeable and array.size and self._pick((True, False, False)):
                array.flat[0] = self._pick((0, 1, 5))
            return array
        array = np.empty(shape, one.dtype)
        if one.dtype == np.bool_:
            array[...] = np.arange(array.size).reshape(shape) % self._pick((2, 3)) == 0
        else:
            array[...] = (np.arange(array.size).reshape(shape) * self._pick((1, 3, 5)) + self._pick((0, 1))) % 11
        made = self._laid_out(pair, one, array)
        if isinstance(made, np.ndarray) and made.__class__ is np.ndarray and made.dtype == one.dtype:
            self._arrays.append(made)
        return made

    def _laid_out(self, pair: Pair, one: Input, array: Any) -> Any:
        """Return the array with a random memory layout or class, or as a list."""
        way = self._pick(
            ("plain", "plain", "own", "fortran", "gaps", "backwards", "constant", "class", "list", "order")
        )
        if way == "own":
            own = pair.bridged.empty_input(one.name, array.shape)
            own[...] = array
            return own if self._pick((True, False)) else own.reshape(own.shape)
        if way == "fortran":
            return np.asfortranarray(array)
        if way == "gaps" and array.ndim:
            wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        if way == "backwards" and array.ndim:
            return array[::-1]
        if way == "constant":
            array.flags.writeable = False
        elif way == "class":
            return array.view(Matrix)
        elif way == "list" and array.ndim and array.size < 100:
            return array.tolist()
        elif way == "order" and array.dtype.itemsize > 1 and array.dtype.kind in "iuf":
            return array.astype(array.dtype.newbyteorder(">"))
        return array

    # --- ways to run --------------------------------------------------------------------------------------

    def _run(self) -> None:
        pair = self._pick(self.pairs)
        names, feed = self._names(pair), self._feed(pair)
        way = self._pick(
            (
                "plain",
                "plain",
                "plain",
                "borrow",
                "borrow",
                "out",
                "out",
                "map",
                "timeout",
                "options",
                "retry",
                "future",
                "asyncio",
            )
        )
        self._note(way, pair, names, feed)
        expected = _outcome(lambda: pair.direct.run(names(), _native(feed)))
        given: list[Any] = []
        if way in ("out", "map"):
            given = self._targets(pair, expected, names())
        result = _outcome(lambda: self._bridged_run(pair, way, names, feed, given))
        self._compare(expected, result, way)
        if expected[0] == "results":
            for target, value in zip(given, result[1], strict=False):
                if target is not None and value is not target:
                    raise Wrong("a result was not written to the array that was passed for it")
            if way == "borrow" and any(
                getattr(value, "flags", None) and value.flags.writeable for value in result[1]
            ):
                raise Wrong("a borrowed result can be written to")
            if not given:
                self._keep(way, result[1], expected[1])

    def _bridged_run(
        self, pair: Pair, way: str, names: Callable[[], Any], feed: dict[str, Any], given: list[Any]
    ) -> Any:
        session = pair.bridged
        if way == "borrow":
            return session.run(names(), feed, borrow=True)
        if way == "timeout":
            return session.run(names(), feed, timeout=TIMEOUT_S)
        if way == "retry":
            return session.run(names(), feed, retry=2)
        if way == "options":
            return session.run(names(), feed, qnnbridge.RunOptions())
        if way == "future":
            return futures.submit(session, names(), feed).result(TIMEOUT_S)
        if way == "asyncio":
            return asyncio.run(_in_asyncio(session, names(), feed))
        if way == "out" and given:
            return session.run(names(), feed, out=given)
        if way == "map" and given:
            wanted = list(names() if names() is not None else ()) or list(pair.model.outputs)
            return session.run(names(), feed, out=dict(zip(wanted, given, strict=True)))
        return session.run(names(), feed)

    def _targets(self, pair: Pair, expected: tuple[str, Any], names: Any) -> list[Any]:
        """Return arrays for the results, some of them in shared memory; none if the call must fail."""
        if expected[0] != "results" or isinstance(names, str):
            return []
        names = list(pair.model.outputs) if names is None else list(names) or list(pair.model.outputs)
        if len(set(names)) != len(names) or any(type(value) is not np.ndarray for value in expected[1]):
            return []
        if any(value.dtype.hasobject for value in expected[1]):
            return []
        targets: list[Any] = []
        for name, value in zip(names, expected[1], strict=True):
            way = self._pick(("plain", "own", "none", "gaps"))
            if way == "own":
                with contextlib.suppress(qnnbridge.errors.InvalidArgument):  # the model does not accept this shape
                    targets.append(pair.bridged.empty_output(name, value.shape))
                    continue
            if way == "gaps" and value.ndim:
                targets.append(np.zeros((*value.shape[:-1], value.shape[-1] * 2), value.dtype)[..., ::2])
            else:
                targets.append(None if way == "none" else np.zeros(value.shape, value.dtype))
        return targets

    def _run_in_background(self) -> None:
        pair = self._pick(self.pairs)
        names, feed = self._names(pair), self._feed(pair)
        self._note("background", pair, names, feed)
        if isinstance(names(), str) or (isinstance(names(), list) and 1 in names()):
            return  # onnxruntime's run_async crashes the process if the names are a str or contain an int
        expected = _outcome(lambda: pair.direct.run(names(), _native(feed)))
        got: list[Any] = []
        done = threading.Event()

        def callback(results: Any, _data: Any, error: str) -> None:
            got.append((results, error))
            done.set()

        try:
            pair.bridged.run_async(names(), feed, callback, None)
        except Exception as error:
            self._compare(expected, (_name_of(error), str(error)), "background")
            return
        if not done.wait(TIMEOUT_S):
            raise Wrong("run_async never called back")
        results, error = got[0]
        if bool(error) is (expected[0] == "results"):
            raise Wrong(f"run_async: {error!r}, expected {expected[0]}")
        if not error:
            self._compare(expected, ("results", results), "background")

    def _run_with_values(self) -> None:
        pair = self._pick([pair for pair in self.pairs if pair.model.tensors] or [None])
        if pair is None:
            return
        names, feed = self._names(pair), self._feed(pair)
        if not all(
            type(array) is np.ndarray and array.dtype.isnative and array.dtype.kind in "biuf"
            for array in feed.values()
        ):
            return
        self._note("values", pair, names, feed)
        theirs = {name: onnxruntime.OrtValue.ortvalue_from_numpy(_whole(array)) for name, array in feed.items()}
        ours = {name: qnnbridge.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
        expected = _outcome(lambda: pair.direct.run_with_ort_values(names(), theirs))
        result = _outcome(lambda: pair.bridged.run_with_ort_values(names(), ours))
        if expected[0] == "results" == result[0]:
            if [value.data_type() for value in result[1]] != [value.data_type() for value in expected[1]]:
                raise Wrong("types of values differ")
            for one, other in zip(expected[1], result[1], strict=True):
                if other.is_tensor() and other.data_type() != "tensor(string)":
                    self._same(one.numpy(), other.numpy(), "values")
                    if all(
                        one.data_ptr() != known.data_ptr() for known, _ in self._values
                    ):  # if a name was given twice, both results are the same value
                        self._values.append((one, other))
            return
        self._compare(expected, result, "values")

    def _run_bound(self) -> None:
        pair = self._pick([pair for pair in self.pairs if pair.model.tensors] or [None])
        if pair is None:
            return
        sides = (pair.direct.io_binding(), pair.bridged.io_binding())
        feed = {name: array for name, array in self._feed(pair).items() if type(array) is np.ndarray}
        used: list[tuple[str, tuple[Any, qnnbridge.OrtValue]]] = []
        expected = result = ("results", None)
        steps = []
        for name, array in feed.items():
            known = [v for v in self._values if _fits(v, array)]
            if not array.size or not array.dtype.isnative or name == "unknown":
                return
            if known and self._pick((True, True, False)):
                values = self._pick(known)
                if self._pick((True, False, False)):
                    for value in values:
                        value.update_inplace(_whole(array))
                used.append((name, values))
                for side, value in zip(sides, values, strict=True):
                    side.bind_ortvalue_input(name, value)
                steps.append(f"{name}: value")
                continue
            way = self._pick(("cpu", "address", "numpy", "shape"))
            whole = _whole(array)
            steps.append(f"{name}: {way}")
            if way == "cpu":
                for side in sides:
                    side.bind_cpu_input(name, whole)
            elif way == "address":
                self._arrays.append(whole)
                self._kept.append(("address", whole, whole))  # keep the memory alive
                for side in sides:
                    side.bind_input(name, "cpu", 0, whole.dtype, list(whole.shape), whole.ctypes.data)
            else:
                values = self._new_value(whole, way)
                used.append((name, values))
                for side, value in zip(sides, values, strict=True):
                    side.bind_ortvalue_input(name, value)
        names = self._pick((pair.model.outputs, pair.model.outputs[:1], pair.model.outputs[::-1]))
        plain = _outcome(lambda: pair.direct.run(list(names), _native(feed)))
        changed: tuple[Any, qnnbridge.OrtValue] | None = None
        taken = {id(values) for _, values in used}
        for index, name in enumerate(names):
            shaped = plain[0] == "results" and type(plain[1][index]) is np.ndarray and plain[1][index].size
            way = self._pick(("new", "new", "value", "in place") if shaped else ("new",))
            like = plain[1][index] if shaped else None
            if way == "in place" and pair.model.in_place and len(names) == 1:
                mine = [values for _, values in used if _fits(values, like)]
                if mine:
                    changed = mine[0]
                    for side, value in zip(sides, changed, strict=True):
                        side.bind_ortvalue_output(name, value)
                    steps.append(f"{name}: in place")
                    continue
            if way == "value":
                free = [values for values in self._values if _fits(values, like) and id(values) not in taken]
                values = (
                    self._pick(free)
                    if free and self._pick((True, False))
                    else self._new_value(np.zeros_like(like), self._pick(("numpy", "shape")))
                )
                taken.add(id(values))
                for side, value in zip(sides, values, strict=True):
                    side.bind_ortvalue_output(name, value)
                steps.append(f"{name}: memory")
                continue
            steps.append(f"{name}: new")
            for side in sides:
                side.bind_output(name)
        for turn in range(self._pick((1, 1, 2, 3))):
            self._note(f"bound {turn} {steps}", pair, lambda: names, feed)
            expected = _outcome(lambda: pair.direct.run_with_iobinding(sides[0]))
            result = _outcome(lambda: pair.bridged.run_with_iobinding(sides[1]))
            if self._deaths and changed is not None and result[0] == "StateLost":
                # Drop the value, because every later use of it raises StateLost.
                kept = (values for values in self._values if values is not changed)
                self._values = collections.deque(kept, maxlen=KEPT)
                return
            self._compare(expected, result, "bound")
            if expected[0] != "results":
                return
            self._same(sides[0].copy_outputs_to_cpu(), sides[1].copy_outputs_to_cpu(), "bound outputs")
            for name, (theirs, ours) in used:
                if self._pick((True, False, False)):
                    self._same(theirs.numpy(), ours.numpy(), f"value of {name}")
        if self._pick((True, False)):
            for name, theirs, ours in zip(names, sides[0].get_outputs(), sides[1].get_outputs(), strict=True):
                # Keep only outputs that onnxruntime allocated: values in bound memory do not keep that memory
                # alive.
                if f"{name}: new" in steps and theirs.is_tensor():
                    self._values.append((theirs, ours))

    def _new_value(self, array: Any, way: str) -> tuple[Any, qnnbridge.OrtValue]:
        """Return equal values of onnxruntime and of the bridge, in memory of the application ("numpy") or of each
        library."""
        if way == "numpy":
            copies = (array.copy(), array.copy())
            values = (
                onnxruntime.OrtValue.ortvalue_from_numpy(copies[0]),
                qnnbridge.OrtValue.ortvalue_from_numpy(copies[1]),
            )
        else:
            values = (
                onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type),
                qnnbridge.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type),
            )
            for value in values:
                value.update_inplace(array)
        self._values.append(values)
        return values

    # --- between the runs ---------------------------------------------------------------------------------

    def _look_again(self) -> None:
        for way, value, expected in self._kept:
            self._same(expected, value, f"a kept result of {way}")
        if self._pick((True, False)):
            self._kept.clear()
            gc.collect(0)

    def _change_sessions(self) -> None:
        if self._shared:
            return
        if len(self.pairs) > 4 or (len(self.pairs) > 1 and self._pick((True, False))):
            pair = self._pick(self.pairs)
            self.pairs.remove(pair)
            if self._pick((True, False)):
                pair.bridged.close()
            self.log.append(f"closed {pair.model.name}")
        else:
            model = self._pick(self._all)
            self.pairs.append(Pair(model, self._hosts, self._pick))
            self.log.append(f"opened {model.name}")

    # --- comparing ----------------------------------------------------------------------------------------

    def _keep(self, way: str, results: list[Any], expected: list[Any]) -> None:
        for value, right in zip(results, expected, strict=True):
            if self._pick((True, False, False)):
                self._kept.append((way, value, right))
                if type(value) is np.ndarray and not value.dtype.hasobject:
                    # A later call may pass the array as a feed and change it, so a writeable array is not kept for
                    # comparison.
                    self._arrays.append(value)
                    if value.flags.writeable:
                        self._kept.pop()

    def _compare(self, expected: tuple[str, Any], result: tuple[str, Any], way: str) -> None:
        self.calls += 1
        if expected[0] != result[0]:
            raise Wrong(
                f"{way}: {result[0]} ({result[1]!r:.300}), onnxruntime: {expected[0]} ({expected[1]!r:.300})"
            )
        if expected[0] == "results":
            self._same(expected[1], result[1], way)

    @staticmethod
    def _same(expected: Any, result: Any, what: str) -> None:
        if type(expected) is not type(result) or not equal_bits(result, expected):
            raise Wrong(f"{what}: {result!r:.300}, onnxruntime: {expected!r:.300}")

    def _note(self, way: str, pair: Pair, names: Callable[[], Any], feed: dict[str, Any]) -> None:
        given = names()
        if given is not None and not isinstance(given, (str, list, tuple)):
            given = f"{type(given).__name__} of {list(given)}"
        shapes = {
            name: f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            for name, array in feed.items()
        }
        self.log.append(f"{pair.model.name}: {way}({given}, {shapes})")
        del self.log[:-200]


def _whole(array: Any) -> Any:
    """Return the array in C order; unlike `np.ascontiguousarray`, keep a scalar's shape."""
    return np.asarray(array, order="C")


def _native(feed: dict[str, Any]) -> dict[str, Any]:
    """Return the feed in native byte order: unlike the bridge, onnxruntime misreads other byte orders."""
    return {
        name: array.astype(array.dtype.newbyteorder("="))
        if isinstance(array, np.ndarray) and not array.dtype.isnative
        else array
        for name, array in feed.items()
    }


def _outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return ("results", results), or class and text of the error."""
    try:
        return "results", call()
    except (Wrong, AssertionError):
        raise
    except Exception as error:
        return _name_of(error), str(error)


def _name_of(error: Exception) -> str:
    return type(error).__name__.removeprefix("Remote")


async def _in_asyncio(session: qnnbridge.InferenceSession, names: Any, feed: dict[str, Any]) -> list[Any]:
    run = futures.start(session, names, feed)
    return list(await asyncio.wait_for(asyncio.wrap_future(run.future), TIMEOUT_S))


def _fits(values: tuple[Any, qnnbridge.OrtValue], array: Any) -> bool:
    ours = values[1]
    if not ours.is_tensor() or tuple(ours.shape()) != array.shape or not array.dtype.isnative:
        return False
    return ours.element_type() == _element(array)


def _element(array: Any) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


@contextlib.contextmanager
def walking(walk: Walk) -> Iterator[Walk]:
    """Run the block and close the walk. After an exception raise `Wrong`, which lists the walk's last steps."""
    try:
        yield walk
        walk.close()
    except Exception as found:  # an unexpected error is a finding, too
        words = str(found) if isinstance(found, Wrong) else f"{type(found).__name__}: {found}"
        raise Wrong("\n".join([*walk.log[-12:], f"-> {words}"])) from found


__all__ = ["Pair", "Pick", "Walk", "Wrong", "walking"]
