"""The inner classes of ONNX Runtime's bindings, which programs find behind underscores: ``session._sess``,
``value._ortvalue``, ``binding._iobinding``, and in ``onnxruntime.capi.onnxruntime_pybind11_state``.

They are views of the objects of this side: nothing is copied, and either of the two may be used. `attach` gives the
classes of the bridge the members that lead here. Thread-safety is that of the object behind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from qnnbridge._io_binding import IOBinding, view_of_memory
from qnnbridge._ort_value import OrtValue, SparseBlockSparseView, SparseCooView, SparseCsrView, SparseTensor
from qnnbridge._providers import CPU_DEVICE, DeviceNumbers, refused_device
from qnnbridge.ort._environment import copy_tensors
from qnnbridge_protocol.element_types import ElementType
from qnnbridge_protocol.errors import RemoteIndexError, RemoteRuntimeError, RemoteTypeError

T = TypeVar("T")


def named(name: str) -> Callable[[T], T]:
    """Decorates a class or a function that has another name in ONNX Runtime."""

    def rename(cls: Any) -> Any:
        cls.__name__ = cls.__qualname__ = name
        return cls

    return rename


def require_cpu_device(device: Any) -> None:
    """Pass for a device that is the CPU."""
    numbers = getattr(device, "_ort_device", device)
    if not isinstance(numbers, DeviceNumbers):
        raise RemoteTypeError(
            "incompatible function arguments: an onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice is needed, "
            f"not {type(device).__name__}."
        )
    if numbers.device_type() != CPU_DEVICE:
        raise refused_device(f"type {numbers.device_type()}")


@named("OrtValue")
class NativeOrtValue(OrtValue):
    """A value, with static factories that take an ``OrtDevice`` of the bindings."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError("onnxruntime.capi.onnxruntime_pybind11_state.OrtValue: No constructor defined!")

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
        """is_bool_tensor: what older releases took, for a capsule that calls truth values uint8."""
        value = OrtValue.from_dlpack(data)
        # Both types have one byte, so a view of the same memory does.
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
    """A sparse tensor, with the views under the names that the bindings have for them."""

    __slots__ = ()

    @staticmethod
    def blocksparse_from_numpy(
        dense_shape: Sequence[int], values: Any, indices: Any, device: Any, /
    ) -> NativeSparseTensor:
        """values: one dimension for the block and more for its contents; indices: int32, two rows."""
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
    """See ``onnxruntime.capi.onnxruntime_pybind11_state.OrtValueVector``. Belongs to one thread at a time."""

    __slots__ = ("__weakref__", "_values")

    def __init__(self) -> None:
        self._values: list[NativeOrtValue] = []

    def push_back(self, value: Any, is_bool_tensor: bool = False, /) -> None:
        """Add a value, or the tensor of a DLPack capsule."""
        if not isinstance(value, OrtValue):
            # Python has no name for the type of capsules before `types.CapsuleType` of 3.13.
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
        """Values on memory of this process, which `torch_tensors` own and which must stay valid."""
        for pointer, element_type, shape, device in zip(data_ptrs, element_types, shapes, devices, strict=True):
            require_cpu_device(device)
            self.push_back(OrtValue(view_of_memory(element_type, shape, pointer)))

    def reserve(self, count: int, /) -> None:
        """Nothing to do: the row grows by itself."""
        operator.index(count)

    def shrink_to_fit(self) -> None:
        """Nothing to do."""

    def dlpack_at(self, index: int, /) -> Any:
        return self[index].to_dlpack()

    def bool_tensor_indices(self) -> list[int]:
        """Which of the values hold truth values. Up to 1.30."""
        return [place for place, value in enumerate(self._values) if value.element_type() == ElementType.BOOL]

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """A DLPack capsule of each value, or what `to_tensor` makes of it."""
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
            # The text of libstdc++ for std::out_of_range, of which pybind11 makes an IndexError.
            text = f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is {len(self)})"
            raise RemoteIndexError(text) from None


def vector_of(values: Iterable[OrtValue]) -> OrtValueVector:
    vector = OrtValueVector()
    for value in values:
        vector.push_back(value)
    return vector


@named("SessionIOBinding")
class NativeIOBinding(IOBinding):
    """A binding, made from a native session; ``bind_input`` takes an array, or a device and an address."""

    __slots__ = ()

    def __init__(self, session: Any) -> None:
        super().__init__(getattr(session, "session", session))

    @classmethod
    def of(cls, binding: IOBinding) -> NativeIOBinding:
        native = cls.__new__(cls)
        # Both objects then share the same dicts: what one binds the other sees.
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
        """The outputs, in a row."""
        return vector_of(IOBinding.get_outputs(self))


@named("InferenceSession")
class NativeSession:
    """A session of the bindings: ``(options, path or bytes, is it a path, read options from the model)``.

    It is made when `initialize_session` names the providers, as there. ``session._sess`` is one.
    """

    # The class of sessions; set where that is.
    # Assigned by `ort._session`, which imports this module: an import here would be a circle.
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
        """The session of the bridge. Raises an error that is also a `RuntimeError` before there is one."""
        if self._made is None:
            raise RemoteRuntimeError(
                "Session was not initialized: call initialize_session(providers, provider_options, set()) first."
            )
        return self._made

    def __eq__(self, other: object) -> bool:
        # `session._sess` is a new view at each access, and a program may compare two of them.
        return isinstance(other, NativeSession) and other._made is self._made

    def __hash__(self) -> int:
        return id(self._made)

    def run_with_ort_values(
        self, input_feed: Mapping[str, Any], output_names: Sequence[str], run_options: Any = None, /
    ) -> OrtValueVector:
        """Feeds come first here."""
        return vector_of(self.session.run_with_ort_values(output_names, input_feed, run_options))

    def create_ortvalue_from_shape_and_type(self, shape: Any, element_type: Any, device: Any, /) -> NativeOrtValue:
        return NativeOrtValue.ortvalue_from_shape_and_type(shape, element_type, device)

    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type

    def is_webgpu_graph_capture_enabled(self) -> bool:
        """No provider of the host is WebGPU."""
        return False

    def webgpu_context_id(self) -> int:
        """-1: none."""
        return -1

    def set_tuning_results(self, results: list[Any], error_on_invalid: bool = False, /) -> None:
        self.session.set_tuning_results(results, error_on_invalid=error_on_invalid)


# A function, so that each member keeps its own name: a lambda in the loops below would see the last one.
def _forwarded(method: str, *, is_property: bool) -> Any:
    if is_property:
        return property(lambda self: getattr(self.session, method)())

    def call(self: Any, *arguments: Any) -> Any:
        return getattr(self.session, method)(*arguments)

    call.__name__ = call.__qualname__ = method
    return call


# The bindings' name, and the method of the session that answers it.
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
    """Copy values into others of the same size."""
    copy_tensors(src, dst, stream)


def _attach() -> None:
    """The members of the bridge's classes that lead to the inner ones."""
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
            # Members of the class itself win; importing the module twice changes nothing.
            if name not in vars(cls):
                setattr(cls, name, member)
    # Without the bindings to be like, this one gives a list.
    IOBinding.get_outputs_as_ortvaluevector = NativeIOBinding.get_outputs  # type: ignore[method-assign,assignment]


_attach()
