"""The native classes of ONNX Runtime's bindings, which programs use through private attributes.

Examples are ``session._sess``, ``value._ortvalue`` and ``binding._iobinding``; the classes themselves are in
``onnxruntime.capi.onnxruntime_pybind11_state``. Each object is a view of an object of qnnbridge: nothing is copied,
and a program may use either object. `_attach` adds these attributes to qnnbridge's classes. A view is as
thread-safe as its object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qnnbridge._bindings import BINDINGS
from qnnbridge._io_binding import IOBinding, view_of_memory
from qnnbridge._options.providers import CPU_DEVICE, DeviceNumbers, refused_device
from qnnbridge._values.ort_value import OrtValue, SparseBlockSparseView, SparseCooView, SparseCsrView, SparseTensor
from qnnbridge.ort._environment import copy_tensors
from qnnbridge.ort._signatures import named, no_constructor
from qnnbridge_protocol.element_types import ElementType
from qnnbridge_protocol.errors import RemoteIndexError, RemoteRuntimeError, RemoteTypeError


def require_cpu_device(device: Any) -> None:
    """Raise an error if `device` is not the CPU."""
    numbers = getattr(device, "_ort_device", device)
    if not isinstance(numbers, DeviceNumbers):
        raise RemoteTypeError(
            f"incompatible function arguments: an {BINDINGS}.OrtDevice is needed, not {type(device).__name__}."
        )
    if numbers.device_type() != CPU_DEVICE:
        raise refused_device(f"type {numbers.device_type()}")


@no_constructor
@named("OrtValue")
class NativeOrtValue(OrtValue):
    """A value whose static factories take an ``OrtDevice`` of the bindings."""

    __slots__ = ()

    @classmethod
    def of(cls, value: OrtValue) -> NativeOrtValue:
        native = cls.__new__(cls)
        OrtValue.__init__(native, value)
        return native

    @staticmethod
    def ortvalue_from_numpy(data: Any, device: Any, /) -> NativeOrtValue:  # type: ignore[override]
        require_cpu_device(device)
        return NativeOrtValue.of(OrtValue.ortvalue_from_numpy(data))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Any, onnx_element_type: int, /) -> NativeOrtValue:
        return NativeOrtValue.of(OrtValue.ortvalue_from_numpy_with_onnx_type(data, onnx_element_type))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any, device: Any, /) -> NativeOrtValue:  # type: ignore[override]
        require_cpu_device(device)
        return NativeOrtValue.of(OrtValue.ortvalue_from_shape_and_type(shape, element_type))

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @staticmethod
    def ortvalue_from_shape_and_type_for_memory_info(
        shape: Sequence[int], element_type: Any, memory_info: Any, /
    ) -> NativeOrtValue:
        return NativeOrtValue.of(
            OrtValue.ortvalue_from_shape_and_type(shape, element_type, memory_info=memory_info)
        )

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: Any, /) -> NativeOrtValue:
        return NativeOrtValue.of(OrtValue(sparse_tensor.value))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> NativeOrtValue:
        """Return a value that shares the memory of a DLPack capsule.

        Args:
            is_bool_tensor: whether a capsule of type uint8 contains booleans. Only older releases of ONNX Runtime
                have this argument.
        """
        value = OrtValue.from_dlpack(data)
        # uint8 and bool have one byte per element, so a view of the same memory suffices.
        if is_bool_tensor:
            value = OrtValue(value.value.view(np.bool_))
        return NativeOrtValue.of(value)

    def to_dlpack(self) -> Any:
        return OrtValue.__dlpack__(self)

    def __dlpack__(self, stream: Any = None, **asked: Any) -> Any:
        return OrtValue.__dlpack__(self, stream=stream, **asked)

    def as_sparse_tensor(self) -> NativeSparseTensor:
        return NativeSparseTensor(OrtValue.as_sparse_tensor(self).value)

    def device_name(self) -> str:
        return "Cpu" if OrtValue.device_name(self) else ""

    def _is_webgpu_buffer(self) -> bool:
        return False


@named("SparseTensor")
class NativeSparseTensor(SparseTensor):
    """A sparse tensor whose views have the names that the bindings use."""

    __slots__ = ()

    @staticmethod
    def blocksparse_from_numpy(
        dense_shape: Sequence[int], values: Any, indices: Any, device: Any, /
    ) -> NativeSparseTensor:
        """Return a block-sparse tensor.

        Args:
            values: the first dimension is the index of the block, the others are the dimensions of a block.
            indices: an int32 array with two rows.
        """
        return NativeSparseTensor(SparseTensor.block_sparse(dense_shape, values, indices, device).value)

    def get_coo_data(self) -> SparseCooView:
        return self.as_coo_view()

    def get_csrc_data(self) -> SparseCsrView:
        return self.as_csrc_view()

    def get_blocksparse_data(self) -> SparseBlockSparseView:
        return self.as_blocksparse_view()

    @property
    def format(self) -> Any:
        return SparseTensor.format(self)

    def device_name(self) -> str:
        return "Cpu"


class OrtValueVector:
    """See ``onnxruntime.capi.onnxruntime_pybind11_state.OrtValueVector``. Only one thread at a time may use the
    object."""

    __slots__ = ("__weakref__", "_values")

    def __init__(self) -> None:
        self._values: list[NativeOrtValue] = []

    def push_back(self, value: Any, is_bool_tensor: bool = False, /) -> None:
        """Add a value, or the tensor of a DLPack capsule."""
        if not isinstance(value, OrtValue):
            # Compare the type's name, because `types.CapsuleType` exists only since Python 3.13.
            if type(value).__name__ != "PyCapsule":
                raise RemoteTypeError("from_dlpack expected a valid DLPack capsule named 'dltensor'")
            value = NativeOrtValue.from_dlpack(value, is_bool_tensor)
        self._values.append(NativeOrtValue.of(value))

    def push_back_batch(
        self,
        torch_tensors: Sequence[Any],
        data_ptrs: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[Any],
        /,
    ) -> None:
        """Add values that use memory of this process. `torch_tensors` own the memory, which must remain valid."""
        for pointer, element_type, shape, device in zip(data_ptrs, element_types, shapes, devices, strict=True):
            require_cpu_device(device)
            self.push_back(OrtValue(view_of_memory(element_type, shape, pointer)))

    def reserve(self, count: int, /) -> None:
        """Check the argument and do nothing else: the list grows as needed."""
        operator.index(count)

    def shrink_to_fit(self) -> None:
        """Do nothing: the list has no spare memory."""

    def dlpack_at(self, index: int, /) -> Any:
        return self[index].to_dlpack()

    def bool_tensor_indices(self) -> list[int]:
        """Return the indices of the boolean tensors. Exists in ONNX Runtime up to 1.30."""
        return [place for place, value in enumerate(self._values) if value.element_type() == ElementType.BOOL]

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """Return a DLPack capsule of each value, converted by `to_tensor` if given."""
        capsules = [value.to_dlpack() for value in self._values]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[NativeOrtValue]:
        return iter(self._values)

    def __getitem__(self, index: int) -> NativeOrtValue:
        try:
            return self._values[operator.index(index)]
        except IndexError:
            # The message of libstdc++ for std::out_of_range, which pybind11 converts to an IndexError.
            text = f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is {len(self)})"
            raise RemoteIndexError(text) from None


def vector_of(values: Iterable[OrtValue]) -> OrtValueVector:
    vector = OrtValueVector()
    for value in values:
        vector.push_back(value)
    return vector


@named("SessionIOBinding")
class NativeIOBinding(IOBinding):
    """A binding for a native session. Its ``bind_input`` takes an array, or a device and an address."""

    __slots__ = ()

    def __init__(self, session: Any) -> None:
        super().__init__(getattr(session, "session", session))

    @classmethod
    def of(cls, binding: IOBinding) -> NativeIOBinding:
        native = cls.__new__(cls)
        # Share the dicts of `binding`, so that values bound through one object are visible through the other.
        for name in IOBinding.__slots__:
            setattr(native, name, getattr(binding, name))
        return native

    def bind_input(self, name: str, *bound: Any) -> None:
        if len(bound) == 1:
            self.bind_cpu_input(name, bound[0])
            return
        device, element_type, shape, pointer = bound
        require_cpu_device(device)
        super().bind_input(name, "cpu", 0, element_type, shape, pointer)

    def bind_output(self, name: str, device: Any, *bound: Any) -> None:  # type: ignore[override]
        require_cpu_device(device)
        super().bind_output(name, "cpu", 0, *bound)

    def get_outputs(self) -> OrtValueVector:  # type: ignore[override]
        """Return the outputs as an `OrtValueVector`."""
        return vector_of(IOBinding.get_outputs(self))


@named("InferenceSession")
class NativeSession:
    """The session class of the bindings, of which ``session._sess`` is an instance.

    As in the bindings, `initialize_session` gets the providers and creates the session. Arguments of the class:
    options, model path or bytes, whether the model is a path, whether to read options from the model.
    """

    # The class `InferenceSession`. The module `ort._session` assigns it, because importing that module here would
    # be a circular import.
    make: ClassVar[Callable[..., Any]]

    def __init__(self, options: Any, model: Any, is_path: bool = True, read_config: bool = False, /) -> None:
        self._arguments = (options, model, read_config)
        self._made: Any = None

    @classmethod
    def of(cls, session: Any) -> NativeSession:
        native = cls.__new__(cls)
        native._made = session
        return native

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]], disabled: Any, /
    ) -> None:
        options, model, read_config = self._arguments
        self._made = self.make(
            model,
            options,
            list(providers) or None,
            list(provider_options) or None,
            disabled_optimizers=list(disabled),
            enable_fallback=0,
            read_config_from_model=int(read_config),
        )

    @property
    def session(self) -> Any:
        """The `InferenceSession` of qnnbridge. Before `initialize_session`, raise an error that is also a
        `RuntimeError`."""
        if self._made is None:
            raise RemoteRuntimeError(
                "Session was not initialized: call initialize_session(providers, provider_options, set()) first."
            )
        return self._made

    def __eq__(self, other: object) -> bool:
        # Make views of the same session equal: each access to `session._sess` creates a new view.
        return isinstance(other, NativeSession) and other._made is self._made

    def __hash__(self) -> int:
        return id(self._made)

    def run_with_ort_values(
        self, input_feed: Mapping[str, Any], output_names: Sequence[str], run_options: Any = None, /
    ) -> OrtValueVector:
        """Run the session. Unlike in `InferenceSession`, the feeds are the first argument."""
        return vector_of(self.session.run_with_ort_values(output_names, input_feed, run_options))

    def create_ortvalue_from_shape_and_type(self, shape: Any, element_type: Any, device: Any, /) -> NativeOrtValue:
        return NativeOrtValue.ortvalue_from_shape_and_type(shape, element_type, device)

    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type

    def is_webgpu_graph_capture_enabled(self) -> bool:
        """Return False, because the host has no WebGPU provider."""
        return False

    def webgpu_context_id(self) -> int:
        """Return -1, because there is no WebGPU context."""
        return -1

    def set_tuning_results(self, results: list[Any], error_on_invalid: bool = False, /) -> None:
        self.session.set_tuning_results(results, error_on_invalid=error_on_invalid)


# Create each member in a function: a lambda in the loops below would use the last name for all members.
def _forwarded(method: str, *, is_property: bool) -> Any:
    if is_property:
        return property(lambda self: getattr(self.session, method)())

    def call(self: Any, *arguments: Any) -> Any:
        return getattr(self.session, method)(*arguments)

    call.__name__ = call.__qualname__ = method
    return call


# Names of properties in the bindings, and the session's methods that return their values.
for _name, _method in {
    "session_options": "get_session_options",
    "inputs_meta": "get_inputs",
    "outputs_meta": "get_outputs",
    "overridable_initializers": "get_overridable_initializers",
    "model_meta": "get_modelmeta",
    "input_meminfos": "get_input_memory_infos",
    "output_meminfos": "get_output_memory_infos",
    "input_epdevices": "get_input_epdevices",
    "get_profiling_start_time_ns": "get_profiling_start_time_ns",
}.items():
    setattr(NativeSession, _name, _forwarded(_method, is_property=True))
for _name in (
    *("run", "run_async", "run_with_iobinding", "run_with_ortvaluevector", "end_profiling"),
    *("get_providers", "get_provider_options", "get_provider_graph_assignment_info"),
    *("get_tuning_results", "set_ep_dynamic_options", "release_captured_graph"),
):
    setattr(NativeSession, _name, _forwarded(_name, is_property=False))


@named("copy_tensors")
def copy_native_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any, /) -> None:
    """Copy the values of `src` to the values of `dst`, which have the same sizes."""
    copy_tensors(src, dst, stream)


def _attach() -> None:
    """Extend qnnbridge's classes by the private attributes that return native views."""
    members: dict[type, dict[str, Any]] = {
        OrtValue: {
            "_ortvalue": property(NativeOrtValue.of),
            "_get_c_value": lambda self: NativeOrtValue.of(self),
            "_numpy_obj": property(lambda self: self.value if isinstance(self.value, np.ndarray) else None),
            "_session": property(lambda _: None),
            "_is_webgpu_buffer": property(lambda _: False),
        },
        SparseTensor: {
            "_tensor": property(lambda self: NativeSparseTensor(self.value)),
            "_get_c_tensor": lambda self: NativeSparseTensor(self.value),
        },
        IOBinding: {
            "_iobinding": property(NativeIOBinding.of),
            "_session": property(lambda self: NativeSession.of(self.session)),
            "_numpy_obj_references": property(lambda self: {n: v.value for n, v in self._inputs.items()}),
            "_bound_inputs": property(lambda self: dict(self._inputs)),
            "_bound_outputs": property(lambda self: {n: o.holder for n, o in self._outputs.items()}),
            "_is_webgpu_session": False,
            "_is_webgpu_graph_capture_enabled": False,
        },
    }
    for cls, found in members.items():
        for name, member in found.items():
            # Do not replace members that the class itself defines, so that importing this module twice has no
            # effect.
            if name not in vars(cls):
                setattr(cls, name, member)
    # `IOBinding` itself has a method that returns a list, but programs for the bindings expect an `OrtValueVector`.
    IOBinding.get_outputs_as_ortvaluevector = NativeIOBinding.get_outputs  # type: ignore[method-assign,assignment]


_attach()
