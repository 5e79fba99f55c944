"""`IOBinding`: inputs and outputs tied to memory of the application, with the methods of ``onnxruntime.IOBinding``.

A binding owns the bound values, in the order of binding. Inputs are read when the session runs, not when they are
bound. Large tensors in memory that qnnbridge allocated are moved to memory that is shared with the host, and
results are written to such memory: a value that is bound again in the next run is neither copied nor sent through a
pipe. A value that is bound as input and output of the same run is changed in place; if the host dies in that run,
the value is lost (`StateLost`). A failed run leaves all other outputs unchanged, except outputs in shared memory,
which may be partly written. A binding uses only those methods of the session that are in `BindableSession`. Not
thread-safe: only one thread at a time may use a binding, as in ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np

from qnnbridge._fastpath.call import OutputPlacement
from qnnbridge._fastpath.memory import SHARED_BYTES, ArraySource, SharedBlock, allocate
from qnnbridge._options.providers import require_cpu
from qnnbridge._values.feed_rules import INVALID_ARGUMENT, Node, check_tensor, checked_shape, element_from, rule_of
from qnnbridge._values.ort_value import OrtValue, SparseTensor, as_numpy, typed_view
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType, nbytes
from qnnbridge_protocol.errors import DeadlineExceeded, StateLost
from qnnbridge_protocol.shown import with_article
from qnnbridge_protocol.tensors import Sparse, Typed

Array = np.ndarray[Any, np.dtype[Any]]

_EXECUTION = "Error in execution: "
_NO_STRINGS = "Only binding non-string Tensors is currently supported"


class BindableSession(Protocol):
    """Interface of a session that a binding uses."""

    def run_bound(
        self,
        output_names: Sequence[str],
        inputs: Mapping[str, OrtValue],
        outputs: Sequence[OrtValue | None],
        run_options: Any = None,
        *,
        timeout: float | None = ...,
        retry: int | None = ...,
        on_deadline: Literal["raise", "kill"] = ...,
    ) -> list[Any]: ...
    def get_inputs(self) -> Sequence[Node]: ...
    def get_overridable_initializers(self) -> Sequence[Node]: ...
    def get_outputs(self) -> Sequence[Node]: ...


@dataclasses.dataclass(slots=True)
class _Output:
    """An output of the binding.

    Attributes:
        holder: value that contains the result after a run.
        fixed: whether results are written to the application's memory.
    """

    holder: OrtValue
    fixed: bool


class IOBinding:
    """Inputs and outputs that are tied to memory of the application. Created by ``session.io_binding()``."""

    __slots__ = ("_declared", "_input_rules", "_inputs", "_output_rules", "_outputs", "session")

    def __init__(self, session: BindableSession) -> None:
        self.session = session
        nodes = (*session.get_inputs(), *session.get_overridable_initializers())
        self._input_rules = {node.name: rule_of(node) for node in nodes}
        outputs = session.get_outputs()
        self._declared = {node.name: node.type for node in outputs}
        self._output_rules = {node.name: rule_of(node, role="output") for node in outputs}
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, _Output] = {}

    # --- inputs ------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind a numpy array. Later changes of the array take effect, unless the array was copied because it is
        not in C order."""
        # Check only the class of the value here, with ONNX Runtime's messages. The session checks element type and
        # shape when it runs.
        rule = self._input_rules.get(name)
        if rule is None:
            raise errors.RemoteRuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        if rule.inner.kind != "tensor":
            raise errors.RemoteRuntimeError(
                "Only binding Tensors is currently supported", cause=f"Input {name!r} takes {rule.declared}."
            )
        if rule.inner.element is ElementType.STRING:
            raise errors.RemoteRuntimeError(_NO_STRINGS, fix="Feed strings with run().")
        if not isinstance(arr_on_cpu, np.ndarray):
            raise errors.RemoteRuntimeError(
                "Unable to create OrtValue from the given python object",
                cause=f"Got {with_article(type(arr_on_cpu).__name__)} for input {name!r}.",
                fix="Pass a numpy array.",
            )
        self._inputs[name] = OrtValue.ortvalue_from_numpy(arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory of this process by its address. The memory must remain valid, and is read when the session
        runs."""
        self._known_input(name)
        require_cpu(device_type)
        self._inputs[name] = OrtValue(view_of_memory(element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an `OrtValue`. A later ``update_inplace`` of the value takes effect."""
        self._known_input(name)
        self._inputs[name] = _ort_value(ortvalue)

    def _known_input(self, name: str) -> None:
        if name not in self._input_rules:
            raise errors.RemoteRuntimeError(
                f"Error when binding input: Failed to find input name in the mapping: {name}",
                fix=f"The model's inputs are {', '.join(self._input_rules)}.",
            )

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing, because the CPU's memory needs no synchronization."""

    # --- outputs -----------------------------------------------------------------------------------------

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory of this process at an address. Without an address, bind it to a new value in
        each run."""
        require_cpu(device_type)
        if buffer_ptr is None:
            self._outputs[name] = _Output(OrtValue(None, declared=self._declared.get(name)), fixed=False)
            return
        if element_type is None or shape is None:
            raise errors.RemoteValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        self._outputs[name] = _Output(OrtValue(view_of_memory(element_type, shape, buffer_ptr)), fixed=True)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to the memory of a tensor, to which results are written."""
        holder = _ort_value(ortvalue)
        # Results can only be written to the memory of a dense numeric tensor. A result replaces a value of another
        # type.
        fixed = isinstance(holder.content, Typed) or (
            isinstance(holder.content, np.ndarray) and not holder.content.dtype.hasobject
        )
        self._outputs[name] = _Output(holder, fixed)

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_outputs(self) -> None:
        """Do nothing, because the outputs have already arrived when a run returns."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound outputs in the order of binding. Before the first run, an output that is not bound to
        memory has no value."""
        return [output.holder for output in self._outputs.values()]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """Return the same list as `get_outputs`, because this package has no class for a vector of native
        values."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs as numpy arrays; other types as lists, dicts, ``None`` or `SparseTensor`.

        Raise an error before the first run (ONNX Runtime crashes in this case).
        """
        for name, output in self._outputs.items():
            rule = self._output_rules.get(name)
            if output.holder.content is None and (rule is None or rule.required):
                raise errors.RemoteRuntimeError(
                    f"Output {name!r} has no value yet.", fix="Call run_with_iobinding first."
                )
        return [_copied(output.holder.content) for output in self._outputs.values()]

    # --- runs -----------------------------------------------------------------------------------------

    def run(self, run_options: Any = None, **limits: Any) -> None:
        """Run the session with the bound values. Every error is a `RuntimeError`, as in ONNX Runtime.

        Args:
            run_options: options of the run.
            limits: ``timeout``, ``retry`` and ``on_deadline`` of the session's `run`.
        """
        if not self._outputs:
            raise errors.RemoteRuntimeError(f"{_EXECUTION}At least one output should be requested.")
        try:
            for name, output in self._outputs.items():
                rule = self._output_rules.get(name)
                if output.fixed and rule is not None:
                    check_tensor(rule, output.holder.content)
            # Pass the holders of outputs with fixed memory. For every other output the run returns a new value,
            # which `_deliver` stores in the output's holder.
            held = [output.holder if output.fixed else None for output in self._outputs.values()]
            values = self.session.run_bound(list(self._outputs), self._inputs, held, run_options, **limits)
            self._deliver(values)
        except (errors.OrtError, errors.RemoteError) as error:
            raise _in_execution(error) from error

    def _deliver(self, values: Sequence[Any]) -> None:
        # Check all results before writing any, because no output may be changed if one result does not fit.
        pairs = list(zip(self._outputs.items(), values, strict=True))
        for (name, output), value in pairs:
            if output.fixed and value is not output.holder.content:
                _check_result(name, output.holder, value)
        for (_, output), value in pairs:
            if not output.fixed:
                output.holder.replace(value)
            elif value is not output.holder.content:
                output.holder.update_inplace(OrtValue(value))


def _ort_value(value: object) -> OrtValue:
    if not isinstance(value, OrtValue):
        raise errors.RemoteTypeError(
            f"An OrtValue is needed, not {with_article(type(value).__name__)}.",
            fix="qnnbridge.OrtValue.ortvalue_from_numpy(array)",
        )
    return value


def view_of_memory(element_type: Any, shape: Any, pointer: Any) -> Any:
    """Return a value that uses the memory at an address in this process. The memory must remain valid as long as
    the value exists."""
    element = element_from(element_type)
    if element is ElementType.STRING:
        raise errors.RemoteRuntimeError(_NO_STRINGS)
    dims = checked_shape(shape, element)
    try:
        # `operator.index` also accepts numpy integers and rejects floats.
        address = operator.index(pointer)
    except TypeError:
        raise errors.RemoteTypeError(f"buffer_ptr must be an int, not {pointer!r:.100}.") from None
    size = nbytes(element, dims)
    # For a value without bytes any address is valid, even 0.
    if size == 0:
        return typed_view(np.empty(0, np.uint8), element, dims)
    if address <= 0:
        raise errors.RemoteRuntimeError(
            f"buffer_ptr is {address}, which is not a valid address.",
            fix="Pass array.ctypes.data of a numpy array.",
        )
    # The array keeps the ctypes object alive, but not the memory, which the application must keep valid.
    memory = (ctypes.c_ubyte * size).from_address(address)
    raw = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
    return typed_view(raw, element, dims)


def _check_result(name: str, holder: OrtValue, value: Any) -> None:
    result = OrtValue(value)
    want, got = holder.shape(), result.shape()
    if holder.element_type() != result.element_type():
        raise errors.InvalidArgument(
            f"{INVALID_ARGUMENT}Unexpected output data type. Actual: ({holder.data_type()}) , expected: "
            f"({result.data_type()})"
        )
    if want != got:
        raise errors.InvalidArgument(
            f"{INVALID_ARGUMENT}The output OrtValue provided for output '{name}' has shape {_braces(want)} but the "
            f"computed output shape for this run is {_braces(got)}.",
            fix="Bind the output without memory (bind_output(name)) if its shape changes from run to run.",
        )
    memory = holder.content
    if not (memory.data if isinstance(memory, Typed) else memory).flags.writeable:
        raise errors.RemoteRuntimeError(
            f"The memory bound to output {name!r} is read-only.", fix="Bind a writable numpy array."
        )


def _braces(shape: Sequence[int]) -> str:
    return "{" + ",".join(map(str, shape)) + "}"


def _in_execution(error: errors.BridgeError) -> errors.RemoteRuntimeError:
    # Remove the prefix "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : ", which ONNX Runtime omits for a binding.
    text = error.message
    if text.startswith("[ONNXRuntimeError]"):
        # Insert the space that ONNX Runtime's message for a binding contains after "output name:".
        text = text.split(" : ", 3)[-1].replace("output name:", "output name: ")
    if not text.startswith(_EXECUTION):
        text = _EXECUTION + text
    wrapped = errors.RemoteRuntimeError(
        text,
        cause=error.cause,
        fix=error.fix,
        evidence=error.evidence,
        details={**error.details, "code": error.code},
    )
    wrapped.retry = error.retry
    return wrapped


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Typed):
        return as_numpy(value).copy()
    if isinstance(value, Sparse):
        return SparseTensor(value)
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


# --- the values of one bound run, in memory that is shared with the host ------------------------------------

# Kind codes (`dtype.kind`) of the numpy types that the host reads without conversion. Strings and objects are not
# included.
_KINDS: Final = "biufc"


class BoundValues:
    """Inputs and outputs of one bound run.

    Args:
        host: the session's host, which provides shared memory.
        inputs: values by name.
        outputs: values that receive the results; ``None`` for a new value.

    Attributes:
        feed: the inputs.
        out: the arrays to which the host must write the outputs.
    """

    def __init__(
        self, host: ArraySource, inputs: Mapping[str, OrtValue], outputs: Sequence[OrtValue | None]
    ) -> None:
        # Move the values before `feed` is created, because `move` replaces the array of a value.
        for value in (*inputs.values(), *outputs):
            if value is not None and _is_worth_sharing(value.content):
                value.move(lambda shape, dtype: allocate(host, shape, dtype, host_writes=True, reusable=True))
        self.feed = {name: value.content for name, value in inputs.items()}
        # The host writes only to arrays. Values of other types are replaced after the run.
        contents = [None if value is None else value.content for value in outputs]
        out = [one if one.__class__ is np.ndarray and one.flags.writeable else None for one in contents]
        # A run changes an output in place only if the same array object is bound as input and output, not if two
        # arrays merely overlap.
        fed = {id(array) for array in self.feed.values()}
        self._in_place = [
            value
            for value, array in zip(outputs, out, strict=True)
            if value is not None and array is not None and id(array) in fed and _is_shared(array)
        ]
        self.out = OutputPlacement(out, fresh="writable", in_place=bool(self._in_place))

    def lose(self, error: StateLost | DeadlineExceeded) -> None:
        """Mark the values that a run changes in place as lost, because the run failed or missed its deadline."""
        # A run that did not start has not changed any value.
        if error.details.get("state") != "not-started":
            lost = error if isinstance(error, StateLost) else still_changed(error)
            for value in self._in_place:
                value.lose(lost)


def _is_worth_sharing(content: Any) -> bool:
    if content.__class__ is not np.ndarray or content.nbytes < SHARED_BYTES:
        return False
    return content.dtype.kind in _KINDS and not _is_shared(content)


def _is_shared(array: Array) -> bool:
    base = array.base
    return (base.base if base.__class__ is np.ndarray else base).__class__ is SharedBlock


def lost_in_place(cause: str) -> StateLost:
    """Return the error for a run that was changing its inputs in place when its host ended."""
    return StateLost(
        "The host ended in a run that changes its inputs in place: their contents are lost.",
        cause=cause,
        fix="Write the values again (update_inplace) and repeat the run. With separate outputs, bound values "
        "survive the end of a host, and runs are repeated.",
    )


def still_changed(error: DeadlineExceeded) -> StateLost:
    """Return the error for values that a run was still changing in place at its deadline."""
    return StateLost(
        "The contents of the OrtValue are lost: a run that changes them in place did not end before its deadline.",
        cause=error.message,
        fix="Write the values again (update_inplace).",
    )
