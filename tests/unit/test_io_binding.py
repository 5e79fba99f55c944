"""`IOBinding` compared with onnxruntime's: bound values, when they are read, where results are written, and
refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from direct_ort import assert_same_class, outcome, session

from qnnbridge._io_binding import IOBinding
from qnnbridge._session.runs import NodeArg
from qnnbridge._values.feeds import FeedChecker
from qnnbridge._values.ort_value import OrtValue
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.tensors import Typed


def f32(*shape: int, value: float = 1.0) -> Any:
    return np.full(shape, value, np.float32)


class Session:
    """A minimal session without a host: bound values are passed on unchanged."""

    run_values: Callable[..., list[Any]]

    def run_bound(
        self,
        output_names: Sequence[str],
        inputs: Mapping[str, Any],
        outputs: Sequence[Any],
        run_options: Any = None,
        **limits: Any,
    ) -> list[Any]:
        assert len(output_names) == len(outputs)
        return self.run_values(list(output_names), dict(inputs), run_options, **limits)


class AddAndSubtract(Session):
    """Session that computes z = x + y and d = x - y here, after the checks of a session."""

    inputs = (NodeArg(NodeInfo("x", "tensor(float)", (4, "N"))), NodeArg(NodeInfo("y", "tensor(float)", (4, "N"))))
    outputs = (NodeArg(NodeInfo("z", "tensor(float)", (4, "N"))), NodeArg(NodeInfo("d", "tensor(float)", (4, "N"))))

    def get_inputs(self) -> Sequence[NodeArg]:
        return self.inputs

    def get_outputs(self) -> Sequence[NodeArg]:
        return self.outputs

    def get_overridable_initializers(self) -> Sequence[NodeArg]:
        return ()

    def run_values(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        **limits: Any,
    ) -> list[Any]:
        fed = {name: value for name, value, _ in FeedChecker(self.inputs).check(input_feed)}
        for name in output_names or ():
            if name not in "zd":
                raise errors.InvalidArgument(
                    f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid output name:{name}"
                )
        results = {"z": fed["x"] + fed["y"], "d": fed["x"] - fed["y"]}
        return [results[name] for name in output_names or "zd"]


def bound(own: Any = None, *, x: Any = None, y: Any = None) -> IOBinding:
    binding = IOBinding(own or AddAndSubtract())
    binding.bind_cpu_input("x", f32(4, 2) if x is None else x)
    binding.bind_cpu_input("y", f32(4, 2) if y is None else y)
    return binding


# --- comparison with onnxruntime -------------------------------------------------------------------------


class _Ours:
    """Create both sessions, ours and onnxruntime's, for the same calls."""

    OrtValue = OrtValue

    @staticmethod
    def binding() -> IOBinding:
        return IOBinding(AddAndSubtract())

    @staticmethod
    def run(binding: IOBinding) -> None:
        binding.run()


class _Direct:
    def __init__(self) -> None:
        ort = pytest.importorskip("onnxruntime")
        h = pytest.importorskip("onnx.helper")
        value = h.make_tensor_value_info
        self.OrtValue = ort.OrtValue
        self._session = session(
            [h.make_node("Add", ["x", "y"], ["z"]), h.make_node("Sub", ["x", "y"], ["d"])],
            [value("x", 1, [4, "N"]), value("y", 1, [4, "N"])],
            [value("z", 1, [4, "N"]), value("d", 1, [4, "N"])],
        )
        self.binding = self._session.io_binding
        self.run = self._session.run_with_iobinding


def _inputs(side: Any, *, x: Any = None) -> Any:
    binding = side.binding()
    binding.bind_cpu_input("x", f32(4, 2) if x is None else x)
    binding.bind_cpu_input("y", f32(4, 2))
    return binding


def _results(side: Any, binding: Any) -> list[Any]:
    side.run(binding)
    return [array.tolist() for array in binding.copy_outputs_to_cpu()]


def _order_of_binding(side: Any) -> Any:
    binding = _inputs(side)
    binding.bind_output("d")
    binding.bind_output("z")
    return _results(side, binding)


def _rebound_keeps_its_place(side: Any) -> Any:
    binding = _inputs(side)
    binding.bind_output("d")
    binding.bind_output("z")
    binding.bind_ortvalue_output("d", side.OrtValue.ortvalue_from_numpy(f32(4, 2)))
    return _results(side, binding)


def _input_changed_after_binding(side: Any) -> Any:
    x = f32(4, 2)
    binding = _inputs(side, x=x)
    binding.bind_output("z")
    x[:] = 7
    return _results(side, binding)


def _transposed_input_changed_after_binding(side: Any) -> Any:
    x = f32(2, 4)
    binding = _inputs(side, x=x.T)
    binding.bind_output("z")
    x[:] = 7
    return _results(side, binding)


def _input_by_address(side: Any) -> Any:
    x = f32(4, 2)
    binding = _inputs(side)
    binding.bind_input("x", "cpu", 0, np.float32, (4, 2), x.ctypes.data)
    binding.bind_output("z")
    x[:] = 7
    return _results(side, binding)


def _input_value_updated_in_place(side: Any) -> Any:
    value = side.OrtValue.ortvalue_from_numpy(f32(4, 2))
    binding = _inputs(side)
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("z")
    value.update_inplace(f32(4, 2, value=7))
    return _results(side, binding)


def _into_a_value(side: Any) -> Any:
    z = f32(4, 2)
    binding = _inputs(side)
    binding.bind_ortvalue_output("z", side.OrtValue.ortvalue_from_numpy(z))
    side.run(binding)
    return z.tolist(), binding.get_outputs()[0].data_ptr() == z.ctypes.data


def _into_memory_by_address(side: Any) -> Any:
    z = f32(4, 2)
    binding = _inputs(side)
    binding.bind_output("z", "cpu", 0, 1, (4, 2), z.ctypes.data)
    side.run(binding)
    return z.tolist(), binding.get_outputs()[0].data_ptr() == z.ctypes.data


def _value_as_input_and_output(side: Any) -> Any:
    z = f32(4, 2)
    value = side.OrtValue.ortvalue_from_numpy(z)
    binding = _inputs(side)
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("z", value)
    side.run(binding)
    side.run(binding)
    return z.tolist()


def _copies_stay_as_they_were(side: Any) -> Any:
    binding = _inputs(side)
    binding.bind_output("z")
    side.run(binding)
    first = binding.copy_outputs_to_cpu()[0]
    binding.bind_cpu_input("x", f32(4, 2, value=5))
    side.run(binding)
    return first.tolist()


def _outputs_follow_later_runs(side: Any) -> Any:
    binding = _inputs(side)
    binding.bind_output("z")
    side.run(binding)
    first = binding.get_outputs()[0]
    binding.bind_cpu_input("x", f32(4, 2, value=5))
    side.run(binding)
    return first.numpy().tolist()


def _outputs_without_a_run(side: Any) -> Any:
    binding = _inputs(side)
    empty = (binding.get_outputs(), binding.copy_outputs_to_cpu())
    binding.bind_output("z")
    return empty, [value.has_value() for value in binding.get_outputs()]


def _cleared(side: Any) -> Any:
    binding = _inputs(side)
    binding.bind_output("z")
    binding.synchronize_inputs()
    side.run(binding)
    binding.synchronize_outputs()
    binding.clear_binding_outputs()
    return binding.get_outputs(), binding.copy_outputs_to_cpu()


@pytest.mark.parametrize(
    "story",
    [
        _order_of_binding,
        _rebound_keeps_its_place,
        _input_changed_after_binding,
        _transposed_input_changed_after_binding,
        _input_by_address,
        _input_value_updated_in_place,
        _into_a_value,
        _into_memory_by_address,
        _value_as_input_and_output,
        _copies_stay_as_they_were,
        _outputs_follow_later_runs,
        _outputs_without_a_run,
        _cleared,
    ],
    ids=lambda story: story.__name__.lstrip("_"),
)
def test_a_binding_behaves_as_in_onnxruntime(story: Callable[[Any], Any]) -> None:
    assert story(_Ours) == story(_Direct())


def _ran(binding: Any, side: Any) -> None:
    side.run(binding)


def _run_with(side: Any, prepare: Callable[[Any], Any], output: Callable[[Any], Any] | None = None) -> None:
    binding = _inputs(side)
    prepare(binding)
    (output or (lambda b: b.bind_output("z")))(binding)
    side.run(binding)


def _nothing(_: Any) -> None:
    pass


REFUSALS: dict[str, Callable[[Any], Any]] = {
    "unknown input": lambda s: s.binding().bind_cpu_input("q", f32(4, 2)),
    "unknown input value": lambda s: s.binding().bind_ortvalue_input("q", s.OrtValue.ortvalue_from_numpy(f32(1))),
    "list as input": lambda s: s.binding().bind_cpu_input("x", [[1, 2]] * 4),
    "no output": lambda s: s.run(_inputs(s)),
    "wrong dimension": lambda s: _run_with(s, lambda b: b.bind_cpu_input("x", f32(3, 2))),
    "wrong rank": lambda s: _run_with(s, lambda b: b.bind_cpu_input("x", f32(3))),
    "wrong type": lambda s: _run_with(s, lambda b: b.bind_cpu_input("x", np.zeros((4, 2)))),
    "missing input": lambda s: _run_with(s, lambda b: b.clear_binding_inputs()),
    "unknown output": lambda s: _run_with(s, _nothing, lambda b: b.bind_output("q")),
    "output of the wrong shape": lambda s: _run_with(s, _nothing, lambda b: _out(s, b, f32(2, 4))),
    "output of the wrong free dimension": lambda s: _run_with(s, _nothing, lambda b: _out(s, b, f32(4, 3))),
    "output of the wrong rank": lambda s: _run_with(s, _nothing, lambda b: _out(s, b, f32(8))),
    "output of the wrong type": lambda s: _run_with(s, _nothing, lambda b: _out(s, b, np.zeros((4, 2)))),
    "output of a type of the same size": lambda s: _run_with(
        s, _nothing, lambda b: _out(s, b, np.zeros((4, 2), np.int32))
    ),
    "memory without type": lambda s: s.binding().bind_output("z", buffer_ptr=3),
    "unknown device": lambda s: s.binding().bind_output("z", "foo"),
    "input on another device": lambda s: s.binding().bind_input("x", "cuda", 0, np.float32, (4, 2), 4096),
    "input of strings": lambda s: s.binding().bind_input("x", "cpu", 0, np.str_, (4, 2), 4096),
    "input of objects": lambda s: s.binding().bind_input("x", "cpu", 0, object, (4, 2), 4096),
    "input of ONNX strings": lambda s: s.binding().bind_input("x", "cpu", 0, 8, (4, 2), 4096),
    "negative shape": lambda s: s.binding().bind_input("x", "cpu", 0, np.float32, (-4, 2), 4096),
    "type that is none": lambda s: s.binding().bind_input("x", "cpu", 0, "x", (4, 2), 4096),
    "number that is no type": lambda s: s.binding().bind_input("x", "cpu", 0, 99, (4, 2), 4096),
    "no address": lambda s: s.binding().bind_input("x", "cpu", 0, np.float32, (4, 2), None),
    "address as a float": lambda s: s.binding().bind_input("x", "cpu", 0, np.float32, (4, 2), 1.5),
}


def _out(side: Any, binding: Any, array: Any) -> None:
    binding.bind_ortvalue_output("z", side.OrtValue.ortvalue_from_numpy(array))


@pytest.mark.parametrize("name", REFUSALS)
def test_calls_that_the_onnxruntime_binding_refuses_are_refused_alike(name: str) -> None:
    theirs, ours = outcome(lambda: REFUSALS[name](_Direct())), outcome(lambda: REFUSALS[name](_Ours))
    assert isinstance(theirs, Exception)
    assert isinstance(ours, errors.BridgeError)
    assert_same_class(ours, theirs)
    said = str(theirs)
    if not re.search("onnxruntime_src|incompatible function|data transfer|Invalid output name", said):
        assert ours.message == said


def test_no_public_method_of_the_onnxruntime_binding_is_missing() -> None:
    theirs = pytest.importorskip("onnxruntime").IOBinding
    assert not [name for name in vars(theirs) if not name.startswith("_") and not hasattr(IOBinding, name)]


# --- without a comparison --------------------------------------------------------------------------------


def test_results_are_written_bit_for_bit() -> None:
    nan = np.array([[0x7FC12345, 0xFFC54321]] * 4, np.uint32).view(np.float32)

    class Nan(AddAndSubtract):
        def run_values(self, *_: Any) -> list[Any]:
            return [nan]

    target = f32(4, 2)
    binding = bound(Nan())
    binding.bind_output("z", "cpu", 0, np.float32, (4, 2), target.ctypes.data)
    binding.run()
    assert target.tobytes() == nan.tobytes()


def test_all_outputs_are_written_or_none() -> None:
    """The second array does not fit: the first one must not have been written."""
    first, second = f32(4, 2, value=-1), f32(4, 3, value=-1)
    binding = bound()
    binding.bind_ortvalue_output("z", OrtValue.ortvalue_from_numpy(first))
    binding.bind_ortvalue_output("d", OrtValue.ortvalue_from_numpy(second))
    with pytest.raises(RuntimeError, match=r"computed output shape for this run is \{4,2\}"):
        binding.run()
    assert (first == -1).all()
    assert (second == -1).all()


def test_memory_that_is_too_small_is_refused_before_anything_runs() -> None:
    class Never(AddAndSubtract):
        def run_values(self, *_: Any) -> list[Any]:
            pytest.fail("the model was run")

    binding = bound(Never())
    binding.bind_ortvalue_output("z", OrtValue.ortvalue_from_numpy(f32(5, 2)))
    with pytest.raises(RuntimeError, match="invalid dimensions for output: z"):
        binding.run()


def test_read_only_memory_is_refused_as_an_output() -> None:
    target = f32(4, 2, value=-1)
    target.flags.writeable = False
    binding = bound()
    binding.bind_ortvalue_output("z", OrtValue.ortvalue_from_numpy(target))
    with pytest.raises(RuntimeError, match="read-only"):
        binding.run()
    assert (target == -1).all()


def test_an_output_without_memory_may_change_its_shape_from_run_to_run() -> None:
    binding = bound()
    binding.bind_output("z")
    binding.run()
    value = binding.get_outputs()[0]
    held = value.numpy()
    binding.bind_cpu_input("x", f32(4, 5))
    binding.bind_cpu_input("y", f32(4, 5))
    binding.run()
    assert value.shape() == [4, 5]
    assert held.shape == (4, 2), "an array that was handed out stays as it was"


def test_copies_before_a_run_are_refused() -> None:
    """onnxruntime itself crashes here."""
    binding = bound()
    binding.bind_output("z")
    with pytest.raises(RuntimeError, match="has no value yet"):
        binding.copy_outputs_to_cpu()


def test_an_address_of_zero_is_refused_unless_the_tensor_is_empty() -> None:
    with pytest.raises(RuntimeError, match="not a valid address"):
        bound().bind_input("x", "cpu", 0, np.float32, (4, 2), 0)
    bound().bind_input("x", "cpu", 0, np.float32, (4, 0), 0)


def test_raw_types_are_bound_by_their_onnx_number() -> None:
    class Negate(AddAndSubtract):
        inputs = (NodeArg(NodeInfo("x", "tensor(bfloat16)", (2,))),)  # type: ignore[assignment]
        outputs = (NodeArg(NodeInfo("z", "tensor(bfloat16)", (2,))),)  # type: ignore[assignment]

        def run_values(self, output_names: Any, input_feed: Any, run_options: Any = None, **_: Any) -> list[Any]:
            value = FeedChecker(self.inputs).check(input_feed)[0][1]
            return [Typed(value.data ^ 0x8000, ElementType.BFLOAT16, (2,))]

    source, target = np.array([0x3F80, 0x4000], np.uint16), np.zeros(2, np.uint16)
    binding = IOBinding(Negate())
    binding.bind_input("x", "cpu", 0, 16, [2], source.ctypes.data)
    binding.bind_output("z", "cpu", 0, 16, [2], target.ctypes.data)
    binding.run()
    assert target.tolist() == [0xBF80, 0xC000]


def test_failures_keep_their_cause_fix_and_code() -> None:
    class Broken(AddAndSubtract):
        def run_values(self, *_: Any) -> list[Any]:
            raise errors.DeviceReset(
                "[ONNXRuntimeError] : 18 : DEVICE_RESET : gone",
                cause="c",
                fix="f",
                evidence=["e"],
                details={"n": 1},
            )

    binding = bound(Broken())
    binding.bind_output("z")
    with pytest.raises(errors.RemoteRuntimeError, match="Error in execution: gone") as caught:
        binding.run()
    error = caught.value
    assert (error.cause, error.fix, error.evidence, error.retry) == ("c", "f", ("e",), "safe")
    assert error.details == {"n": 1, "code": "ort.DeviceReset"}
    assert isinstance(error.__cause__, errors.DeviceReset)


def test_a_crash_of_the_host_keeps_its_error_class() -> None:
    class Dead(AddAndSubtract):
        def run_values(self, *_: Any) -> list[Any]:
            raise errors.HostCrashed("The host died.")

    binding = bound(Dead())
    binding.bind_output("z")
    with pytest.raises(errors.HostCrashed):
        binding.run()


def test_sequences_and_strings_are_returned_as_new_values() -> None:
    class Words(AddAndSubtract):
        outputs = (
            NodeArg(NodeInfo("z", "tensor(string)", ("N",))),
            NodeArg(NodeInfo("d", "seq(tensor(float))", ())),
        )

        def run_values(self, *_: Any) -> list[Any]:
            return [np.array(["a"], object), [f32(1)]]

    binding = bound(Words())
    binding.bind_output("z")
    binding.bind_output("d")
    binding.run()
    words, sequence = binding.get_outputs()
    assert words.numpy().tolist() == ["a"]
    assert sequence.is_tensor_sequence()
    copied = binding.copy_outputs_to_cpu()
    copied[1][0][0] = 9
    assert sequence.value[0].tolist() == [1]


def test_run_options_are_passed_on() -> None:
    seen: list[Any] = []

    class Listening(AddAndSubtract):
        def run_values(self, output_names: Any, input_feed: Any, run_options: Any = None, **_: Any) -> list[Any]:
            seen.append(run_options)
            return super().run_values(output_names, input_feed)

    binding = bound(Listening())
    binding.bind_output("z")
    options = object()
    binding.run(options)
    assert seen == [options]
