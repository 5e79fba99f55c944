"""`OrtValue`, a value of any ONNX type in this process's memory, and `SparseTensor`, with ONNX Runtime's methods.

An `OrtValue` refers to one value of `qnnbridge_protocol.values`. A contiguous native numpy array is not copied, so
that writing to the array (or `update_inplace`) changes the input of the next run, as in ONNX Runtime. Only memory
of the CPU is supported: see `_options.providers`. There are no locks: if an application writes to a value while it
is sent, the host may receive a mixture of old and new contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from qnnbridge._options.fields import OrtSparseFormat
from qnnbridge._options.providers import CPU_DEVICE, DeviceNumbers, OrtDevice, refused_device, require_cpu
from qnnbridge._values.feed_rules import NO_STRINGS, checked_shape, element_from, unsupported_dtype
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import (
    LAYOUTS,
    ElementType,
    ValueType,
    element_of,
    from_ort_type,
    nbytes,
    numpy_dtype,
)
from qnnbridge_protocol.shown import with_article
from qnnbridge_protocol.tensors import Format, Sparse, Typed

Array = np.ndarray[Any, np.dtype[Any]]

_ONLY_TENSORS = "Only OrtValues that are Tensors are currently supported"
_REFUSED_ELEMENTS = frozenset({ElementType.STRING, ElementType.COMPLEX64, ElementType.COMPLEX128})


class OrtValue:
    """A value of any ONNX type. The methods ``ortvalue_from_...`` create values; sessions and bindings return
    values.

    Two values are never equal, as in ONNX Runtime; compare the results of `numpy` instead.
    """

    __slots__ = ("__weakref__", "_declared", "_held", "_lost", "_ours")

    def __init__(
        self, ortvalue: Any, numpy_obj: Any = None, session: Any = None, *, declared: str | None = None
    ) -> None:
        """Create a value.

        Args:
            ortvalue: see `qnnbridge_protocol.values`; the contents of another `OrtValue` are shared.
            numpy_obj: not used.
            session: not used.
            declared: the type in the model, for values that do not contain their type (empty sequences, maps, empty
                optionals).
        """
        # Use the contents of the other `OrtValue`, so that a change in place affects both objects, as in ONNX
        # Runtime.
        if isinstance(ortvalue, OrtValue):
            ortvalue, declared = ortvalue.value, declared or ortvalue._declared
        if not (ortvalue is None or isinstance(ortvalue, (np.ndarray, Typed, Sparse, list, dict))):
            raise errors.RemoteValueError(
                "`Provided ortvalue` needs to be of type `onnxruntime.capi.onnxruntime_pybind11_state.OrtValue`",
                fix="OrtValue.ortvalue_from_numpy(array)",
            )
        self._held: Any = ortvalue
        self._declared = declared
        # Whether qnnbridge has allocated the memory, and no array or address of it was passed to other code.
        self._ours = False
        self._lost: errors.BridgeError | None = None

    @property
    def content(self) -> Any:
        """The same object as `value`. Only for code of qnnbridge that passes neither the array nor its address to
        the application."""
        if self._lost is not None:
            raise self._lost.copy()
        return self._held

    @property
    def value(self) -> Any:
        """Value as it is sent to the host: a numpy array, `Typed`, `Sparse`, list, dict or ``None``."""
        self._ours = False
        return self.content

    def replace(self, value: Any) -> None:
        """Set the contents of an output to a value that qnnbridge has created. Arrays that the application already
        has do not change."""
        self._held, self._lost, self._ours = value, None, True

    def lose(self, error: errors.BridgeError) -> None:
        """Mark the contents as undefined: each use raises `error` until new contents are written."""
        self._lost = error

    def move(self, allocate: Callable[[tuple[int, ...], np.dtype[Any]], Array | None]) -> None:
        """Move a numpy tensor to memory from `allocate`, if only qnnbridge refers to the old memory.

        Other code with an array or an address of the old memory would not see later contents. Counting references
        would not find such code, because an address that was passed to C is not a reference.
        """
        # `_ours` is false after an array or an address was returned. The tensor must then remain in its memory.
        if self._lost is not None or not self._ours:
            return
        memory = allocate(self._held.shape, self._held.dtype)
        if memory is not None:
            np.copyto(memory, self._held)
            self._held = memory

    # --- creation ----------------------------------------------------------------------------------------

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Create a tensor that uses the array's memory. If the array is not contiguous or not native, copy it."""
        require_cpu(device_type)
        if not isinstance(numpy_obj, np.ndarray):
            raise errors.RemoteRuntimeError(NO_STRINGS, cause=f"Got {with_article(type(numpy_obj).__name__)}.")
        element = element_of(numpy_obj.dtype)
        if element is None or element in _REFUSED_ELEMENTS:
            raise unsupported_dtype(numpy_obj.dtype)
        if not LAYOUTS[element].named:
            return cls(Typed.of(numpy_obj))
        return cls(_plain(numpy_obj))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Create a tensor that uses the array's memory, interpreted as another type of the same size.

        For types smaller than a byte, pass an array with the tensor's shape whose first bytes contain the packed
        elements.
        """
        if not isinstance(data, np.ndarray):
            raise errors.RemoteTypeError(f"data must be a numpy array, not {type(data).__name__}.")
        if not isinstance(onnx_element_type, (int, np.integer)):
            raise errors.RemoteTypeError(f"onnx_element_type must be an int, not {onnx_element_type!r:.100}.")
        element = element_from(int(onnx_element_type))
        if element is ElementType.STRING:
            raise errors.RemoteRuntimeError(NO_STRINGS)
        item_bytes = (LAYOUTS[element].bits + 7) // 8
        if data.dtype.hasobject or data.dtype.itemsize != item_bytes:
            raise errors.RemoteRuntimeError(
                f"Items size in the incoming array: {data.dtype.itemsize} specified by onnxtype: {item_bytes}"
            )
        # Use the bits without conversion.
        raw = np.ndarray((data.nbytes,), np.uint8, _plain(data))
        return cls(typed_view(raw, element, data.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: object = None,
    ) -> OrtValue:
        """Create a tensor of zeros.

        Args:
            shape: shape of the tensor.
            element_type: a numpy type, or the number of an ONNX type.
            device_type: only the CPU.
            device_id: not used.
            vendor_id: not used.
            memory_info: not supported.
        """
        if memory_info is not None:
            raise errors.RemoteRuntimeError(
                "memory_info cannot be used through qnnbridge.",
                cause="memory_info selects an allocator of ONNX Runtime, which is not in this process.",
                fix="Omit memory_info: the value is then in this process's memory.",
            )
        require_cpu(device_type)
        element = element_from(element_type)
        if element in _REFUSED_ELEMENTS:
            raise unsupported_dtype(numpy_dtype(element))
        dims = checked_shape(shape, element)
        made = cls(None)
        # `replace` marks the memory as allocated by qnnbridge, so that `move` may move the tensor.
        made.replace(typed_view(np.zeros(nbytes(element, dims), np.uint8), element, dims))
        return made

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        return cls(sparse_tensor.value)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Create a tensor that uses the memory of a CPU tensor with DLPack support, or of a raw capsule."""
        if isinstance(data, OrtValue):
            return cls.ortvalue_from_numpy(data._dense())
        if isinstance(data, np.ndarray):
            array: Array = data  # `np.from_dlpack` of numpy before 2.1 would return a read-only array
        else:
            array = np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data))
        if getattr(getattr(data, "dtype", None), "name", str(getattr(data, "dtype", ""))) in _BOOLS:
            array = array.view(np.bool_)  # older versions of DLPack have no bool and report uint8
        # ONNX Runtime also refuses such an array, with this message.
        if not array.flags.c_contiguous:
            raise errors.RemoteRuntimeError("ORT only supports contiguous tensor for now.")
        return cls.ortvalue_from_numpy(array)

    # --- properties --------------------------------------------------------------------------------------

    def data_type(self) -> str:
        """Return the type in ONNX Runtime's notation: ``tensor(float)``, ``seq(tensor(int64))``."""
        kind = self._kind()
        if kind is None:
            raise errors.RemoteRuntimeError(
                "This OrtValue has neither a value nor a type.",
                cause="The OrtValue is an output of a binding that has not run yet.",
                fix="Run the session first; has_value() returns whether a value exists.",
            )
        return str(kind)

    def element_type(self) -> int:
        """Return the ONNX number of the elements of a tensor, or of the tensors of a sequence."""
        kind = self._kind()
        while kind is not None and kind.kind in ("sequence", "optional"):
            kind = kind.item
        if kind is None or kind.element is None:
            raise errors.RemoteRuntimeError("Tensor proto_type is unavailable for this value.")
        return int(kind.element)

    def shape(self) -> list[int]:
        if isinstance(self.content, Sparse):
            return list(self.content.dense_shape)
        if isinstance(self.content, (np.ndarray, Typed)):
            return list(self.content.shape)
        raise errors.RemoteRuntimeError("Only OrtValues that are Tensors/SpareTensors are currently supported")

    def device_name(self) -> str:
        if isinstance(self.content, (np.ndarray, Typed, Sparse)):
            return "cpu"
        raise errors.RemoteRuntimeError("Only OrtValues that are Tensors/SparseTensors are currently supported")

    def has_value(self) -> bool:
        return self.content is not None

    def is_tensor(self) -> bool:
        kind = self._kind()
        if kind is not None and kind.kind == "optional":
            kind = kind.item
        return kind is not None and kind.kind == "tensor"

    def is_sparse_tensor(self) -> bool:
        return isinstance(self.content, Sparse)

    def is_tensor_sequence(self) -> bool:
        kind = self._kind()
        return kind is not None and kind.kind == "sequence" and kind.item is not None and kind.item.kind == "tensor"

    def tensor_size_in_bytes(self) -> int:
        if isinstance(self.content, (np.ndarray, Typed)):
            return self.content.nbytes
        raise errors.RemoteRuntimeError(_ONLY_TENSORS)

    def data_ptr(self) -> int:
        """Return the address of the first element in this process, 0 for an empty tensor."""
        raw = self._memory()
        self._ours = False
        return int(raw.ctypes.data) if raw.size else 0

    # --- conversion --------------------------------------------------------------------------------------

    def numpy(self) -> Array:
        """Return a numpy array that uses the tensor's memory (for strings: a copy; for types smaller than a byte:
        an unpacked copy).

        float8e4m3fn is returned as its bits (uint8), as in ONNX Runtime. Other types that numpy does not have are
        returned as ml_dtypes arrays if ml_dtypes is installed, otherwise as bits; ONNX Runtime raises an error for
        them.
        """
        self._ours = False
        if isinstance(self.content, Typed):
            return as_numpy(self.content)
        if isinstance(self.content, np.ndarray):
            return self.content.copy() if self.content.dtype.hasobject else self.content.view(np.ndarray)
        raise errors.RemoteRuntimeError("Only OrtValues that are Tensors are convertible to Numpy objects")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if copy is not None:
            return np.array(array, dtype=dtype, copy=copy)
        return array if dtype is None else np.asarray(array, dtype=dtype)

    def as_sparse_tensor(self) -> SparseTensor:
        if not isinstance(self.content, Sparse):
            raise errors.RemoteRuntimeError("This OrtValue does not contain SparseTensor. Check data_type() value.")
        return SparseTensor(self.content)

    def __dlpack__(self, *, stream: Any = None, **asked: Any) -> Any:
        """Return a capsule with the tensor's memory. `asked` contains arguments of newer consumers
        (``max_version``, ``copy``)."""
        try:
            return self._dense().__dlpack__(**asked)
        except TypeError:  # numpy before 2.1 accepts none of these arguments
            return self._dense().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        self._memory()
        # DLPack's number for the CPU (kDLCPU), and the number of the only CPU device.
        return (1, 0)

    def update_inplace(self, data: Array | OrtValue | None = None, *, np_arr: Array | None = None) -> None:
        """Copy the bytes of `data` to the tensor's memory, without conversion. Number and size of the elements must
        match.

        Args:
            data: an array or another value.
            np_arr: name of the parameter `data` in older releases.
        """
        # Clear the error first, because `_memory` would raise it. Restore the error if the update fails.
        lost, self._lost = self._lost, None
        try:
            self._overwrite(np_arr if data is None else data)
        except BaseException:
            self._lost = lost
            raise

    def _overwrite(self, data: Array | OrtValue | None) -> None:
        if isinstance(data, OrtValue):
            if self._memory().dtype.hasobject or data._memory().dtype.hasobject:
                raise errors.RemoteRuntimeError("Inplace update of string tensors is not supported")
            if data._memory().nbytes != self._memory().nbytes:
                raise errors.RemoteRuntimeError("The source and destination OrtValues must have the same size")
            source = np.asarray(data._memory())
        elif isinstance(data, np.ndarray):
            source = np.ascontiguousarray(data)
        else:
            raise errors.RemoteTypeError("data must be a numpy.ndarray or an OrtValue.")
        target = self._memory()
        # The bytes of strings, dates or structures must not be interpreted as numbers.
        if target.dtype.hasobject or source.dtype.kind in "OSTUMm" or source.dtype.names:
            raise errors.RemoteRuntimeError(
                "Inplace update of OrtValues is currently only supported from non-string numpy arrays"
            )
        if source.nbytes != target.nbytes:
            raise errors.RemoteRuntimeError(
                "The input size of numpy arrays does not match the size of the OrtValue.",
                cause=f"{source.nbytes} bytes ({source.dtype}) for {target.nbytes} bytes ({self.data_type()}).",
            )
        if not target.flags.writeable:
            raise errors.RemoteRuntimeError(
                "The memory of this OrtValue is read-only.", fix="Create it from a writable numpy array."
            )
        _as_bytes(target)[:] = _as_bytes(source)

    # --- implementation ----------------------------------------------------------------------------------

    def _kind(self) -> ValueType | None:
        value = self.content
        if isinstance(value, np.ndarray):
            element = element_of(value.dtype)
            return None if element is None else ValueType("tensor", element=element)
        if isinstance(value, Typed):
            return ValueType("tensor", element=value.element_type)
        if isinstance(value, Sparse):
            return from_ort_type(sparse_type(value))
        declared = None if self._declared is None else from_ort_type(self._declared)
        if value is not None and declared is not None and declared.kind == "optional":
            declared = declared.item
        if declared is None and isinstance(value, list) and value:
            return ValueType("sequence", item=OrtValue(value[0])._kind())
        return declared

    def _memory(self) -> Array:
        if isinstance(self.content, Typed):
            return self.content.data
        if isinstance(self.content, np.ndarray):
            return self.content
        raise errors.RemoteRuntimeError(_ONLY_TENSORS)

    def _dense(self) -> Array:
        self._ours = False
        if isinstance(self.content, Typed):
            raise errors.RemoteRuntimeError(
                f"DLPack has no type for {self.content.element_type.text}.", fix="Use numpy() instead."
            )
        if self._memory().dtype.hasobject:
            raise errors.RemoteRuntimeError("Unexpected data type of 8", cause="DLPack has no strings.")
        return self._memory()


class _Capsule:
    """Wrapper for a raw DLPack capsule, which numpy accepts only inside an object."""

    def __init__(self, capsule: Any) -> None:
        if type(capsule).__name__ != "PyCapsule":
            raise errors.RemoteTypeError(
                "from_dlpack expected a valid DLPack capsule named 'dltensor'",
                cause=f"Got {with_article(type(capsule).__name__)} without __dlpack__.",
            )
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


_BOOLS = ("bool", "bool_", "torch.bool")


def as_numpy(value: Typed) -> Array:
    """Return the array that an application receives for a type that numpy does not have."""
    if value.element_type is ElementType.FLOAT8E4M3FN:
        # Return the bits of a float8e4m3fn tensor, as ONNX Runtime does. For all other types that numpy lacks, ONNX
        # Runtime raises an error.
        return value.data.reshape(value.shape)
    return value.numpy()


def typed_view(raw: Array, element: ElementType, shape: Sequence[int]) -> Array | Typed:
    """Return a tensor that uses the memory of a ``uint8`` array, which has at least as many bytes as needed."""
    layout, dims = LAYOUTS[element], tuple(shape)
    data = raw[: nbytes(element, dims)]
    if layout.packed:
        return Typed(data, element, dims)
    array = np.ndarray(dims, layout.storage.newbyteorder("="), data)
    return array if layout.named else Typed(array, element, dims)


def _plain(array: Array) -> Array:
    """Return a new array with the same memory if the array is contiguous and native, otherwise a copy. Never return
    the array itself, because the application could change its shape, type and strides."""
    plain: Array = np.asarray(array)
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    own: Array = plain.view() if plain.flags.c_contiguous else plain.copy(order="C")
    return own


def _as_bytes(array: Array) -> Array:
    # Do not use `view`: numpy does not allow another item size for an array without dimensions.
    raw: Array = np.ndarray((array.nbytes,), np.uint8, array)
    return raw


def to_application(value: Any) -> Any:
    """Convert a value for the application: `Typed` to an array, `Sparse` to a `SparseTensor`. Return other values
    unchanged."""
    kind = type(value)
    if kind is Typed:
        return as_numpy(value)
    if kind is Sparse:
        return SparseTensor(value)
    if kind is list:
        return [to_application(item) for item in value]
    return value


# --- sparse values: COO, CSR and blocks ---------------------------------------------------------------------

_FORMATS = {
    "coo": OrtSparseFormat.ORT_SPARSE_COO,
    "csr": OrtSparseFormat.ORT_SPARSE_CSRC,
    "block": OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE,
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseCooView:
    """Indices of a tensor in COO format."""

    _indices: Array

    def indices(self) -> Array:
        """Return positions in the flattened tensor (one dimension) or coordinates (two); read-only."""
        return _read_only(self._indices)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseCsrView:
    """Indices of a matrix in CSR format."""

    _inner: Array
    _outer: Array

    def inner(self) -> Array:
        """Return the column of each value; read-only."""
        return _read_only(self._inner)

    def outer(self) -> Array:
        """Return the index of the first value of each row; read-only."""
        return _read_only(self._outer)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseBlockSparseView:
    """Indices of a tensor in block-sparse format."""

    _indices: Array

    def indices(self) -> Array:
        """Return the row and column of each block, counted in blocks: int32, of shape (2, blocks); read-only."""
        return _read_only(self._indices)


class SparseTensor:
    """A sparse tensor on the CPU."""

    __slots__ = ("_sparse",)

    def __init__(self, sparse_tensor: Sparse) -> None:
        if not isinstance(sparse_tensor, Sparse):
            raise errors.RemoteValueError(
                "`Provided object` needs to be of type `onnxruntime.capi.onnxruntime_pybind11_state.SparseTensor`",
                fix="Use sparse_coo_from_numpy or sparse_csr_from_numpy.",
            )
        self._sparse = sparse_tensor

    @property
    def value(self) -> Sparse:
        """Value in the type that is sent to the host."""
        return self._sparse

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """Create a tensor from one position per value in the flattened tensor, or from coordinates. Coordinates may
        be a flat array with twice as many numbers as values, as in ONNX Runtime.
        """
        values = _values(values, ort_device)
        indices = _indices(coo_indices)
        stored, given = values.shape[0], indices.size
        if given == stored and indices.ndim <= 1:
            indices = indices.reshape(stored)
        elif given == 2 * stored:
            indices = indices.reshape(stored, 2)
        else:
            raise errors.RemoteRuntimeError(
                f"Index size: {given} must be equal to or twice the values size: {stored}"
            )
        return cls(_sparse(values, dense_shape, "coo", (indices,)))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Create a CSR matrix from the column of each value and the offset of each row; the last offset is the
        number of values."""
        values = _values(values, ort_device)
        return cls(_sparse(values, dense_shape, "csr", (_indices(inner_indices), _indices(outer_indices))))

    @classmethod
    def block_sparse(
        cls, dense_shape: Sequence[int], values: Array, indices: Array, ort_device: OrtDevice | DeviceNumbers
    ) -> SparseTensor:
        """Create a tensor from blocks (three dimensions or more) and their positions (int32, two rows)."""
        values = _values(values, ort_device, blocks=True)
        if values.dtype.kind in "OUS":
            raise errors.RemoteRuntimeError(f"Unsupported values data type: {values.dtype.num}")
        return cls(_sparse(values, dense_shape, "block", (np.ascontiguousarray(indices, dtype=np.int32),)))

    def values(self) -> Array:
        """Return the array of values, read-only; for strings, return a copy."""
        values = self._sparse.values
        return values.copy() if values.dtype.kind == "O" else _read_only(values)

    def as_coo_view(self) -> SparseCooView:
        if self._sparse.format != "coo":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain COO format")
        return SparseCooView(self._sparse.indices[0])

    def as_csrc_view(self) -> SparseCsrView:
        if self._sparse.format != "csr":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain CSR(C) format")
        return SparseCsrView(*self._sparse.indices)

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        if self._sparse.format != "block":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain BlockSparse format")
        return SparseBlockSparseView(self._sparse.indices[0])

    def to_cuda(self, ort_device: OrtDevice) -> NoReturn:
        raise errors.RemoteRuntimeError(
            "Cuda is not available in this build", fix="Sparse tensors stay on the CPU."
        )

    def format(self) -> OrtSparseFormat:
        return _FORMATS[self._sparse.format]

    def dense_shape(self) -> list[int]:
        return list(self._sparse.dense_shape)

    def data_type(self) -> str:
        """Return the type in ONNX Runtime's notation, such as ``sparse_tensor(float)``."""
        return sparse_type(self._sparse)

    def device_name(self) -> str:
        return "cpu"


def sparse_type(value: Sparse) -> str:
    """Return the type of a sparse value in ONNX Runtime's notation."""
    element = element_of(value.values.dtype)
    if element is None:
        raise errors.RemoteRuntimeError(f"Numpy_type {value.values.dtype.num} can't be converted to MLDataType.")
    return f"sparse_tensor({element.text})"


def _values(values: Any, device: OrtDevice | DeviceNumbers, *, blocks: bool = False) -> Array:
    if not isinstance(device, (OrtDevice, DeviceNumbers)):
        raise errors.RemoteTypeError(
            f"ort_device must be an OrtDevice, not {type(device).__name__}.", fix="OrtDevice.make('cpu', 0)"
        )
    if device.device_type() != CPU_DEVICE:
        raise refused_device(f"type {device.device_type()}")
    if not isinstance(values, np.ndarray):
        raise errors.RemoteTypeError(f"values must be a numpy array, not {type(values).__name__}.")
    if values.ndim != 1 and not blocks:
        raise errors.RemoteRuntimeError(f"Expecting values 1-D numpy values array. Got dims: {values.ndim}")
    if not values.flags.c_contiguous:
        raise errors.RemoteRuntimeError("Require contiguous numpy array of values")
    given: Array = values.astype(object) if values.dtype.kind == "U" else values
    return given


def _read_only(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view


def _indices(indices: Any) -> Array:
    return np.ascontiguousarray(indices, dtype=np.int64)


def _sparse(values: Array, dense_shape: Any, kind: Format, indices: tuple[Array, ...]) -> Sparse:
    if isinstance(dense_shape, (str, bytes)) or not hasattr(dense_shape, "__iter__"):
        raise errors.RemoteTypeError(f"dense_shape must be a sequence of int, not {dense_shape!r:.100}.")
    try:
        return Sparse(values, tuple(dense_shape), kind, indices)
    except errors.InvalidArgument as error:
        raise errors.RemoteRuntimeError(error.message, cause=error.cause, fix=error.fix) from None
