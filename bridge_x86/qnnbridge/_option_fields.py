"""ONNX Runtime's enumerations, the typed fields of its options classes, and did-you-mean for mistyped names."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NoReturn, TypeVar, overload

from qnnbridge_protocol import errors


def suggest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with a leading blank, or nothing."""
    import difflib  # with heapq: for mistakes only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


class _OrtEnum(enum.IntEnum):
    __str__ = enum.Enum.__str__
    __format__ = enum.Enum.__format__  # an IntEnum would format as its number


class GraphOptimizationLevel(_OrtEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_OrtEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_OrtEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_OrtEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_OrtEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(_OrtEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(_OrtEnum):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(_OrtEnum):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(_OrtEnum):
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(_OrtEnum):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class ModelPackageWriteMode(_OrtEnum):
    """Since ONNX Runtime 1.32."""

    PRESERVE = 0
    DENSE = 1


class OrtCompileApiFlags(enum.IntFlag):
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtDeviceVendorId(enum.IntEnum):
    """PCI vendor numbers of devices."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


T = TypeVar("T")


class Field(Generic[T]):
    """One attribute. `convert` returns the value to keep or raises `RemoteTypeError`."""

    def __init__(self, default: T, convert: Callable[[str, Any], T], doc: str) -> None:
        self.default = default
        self.convert = convert
        self.__doc__ = doc
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Field[T]: ...
    @overload
    def __get__(self, instance: HasFields, owner: type) -> T: ...
    def __get__(self, instance: HasFields | None, owner: type) -> Field[T] | T:
        if instance is None:
            return self
        value: T = instance._values.get(self.name, self.default)
        return value

    def __set__(self, instance: HasFields, value: Any) -> None:
        instance._values[self.name] = self.convert(self.name, value)


class HasFields:
    """Base of the two option classes: unknown attributes are refused with a suggestion."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self) -> None:
        self._values = {}

    @classmethod
    def fields(cls) -> dict[str, Field[Any]]:
        return {name: field for name, field in vars(cls).items() if isinstance(field, Field)}

    def changed_fields(self) -> dict[str, Any]:
        """Fields whose value is not the default."""
        fields = self.fields()
        # A copy first: another thread may assign meanwhile.
        return {name: value for name, value in self._values.copy().items() if value != fields[name].default}

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            self._unknown(name)

    def __getattr__(self, name: str) -> NoReturn:
        self._unknown(name)

    def _unknown(self, name: str) -> NoReturn:
        cls = type(self).__name__
        public = [n for n in dir(type(self)) if not n.startswith("_")]
        # Without name= and obj=: with them Python's traceback would add a second suggestion of its own.
        raise AttributeError(f"{cls!r} object has no attribute {name!r}.{suggest(name, public)}") from None

    def __reduce__(self) -> NoReturn:
        # As ONNX Runtime's: a copy that silently shared or dropped callbacks and tensors would be worse.
        raise TypeError(f"cannot pickle or copy {type(self).__name__!r} object")


def as_bool(name: str, value: Any) -> bool:
    if value is None:
        return False
    if not hasattr(type(value), "__bool__"):
        raise wrong_type(name, value, "True or False")
    try:
        return bool(value)
    except (TypeError, ValueError):  # an array of several elements
        raise wrong_type(name, value, "True or False") from None


def as_int32(name: str, value: Any) -> int:
    return _as_int(name, value, 32)


def as_int64(name: str, value: Any) -> int:
    return _as_int(name, value, 64)


def _as_int(name: str, value: Any, bits: int) -> int:
    kind = type(value)
    if isinstance(value, float) or not (hasattr(kind, "__index__") or hasattr(kind, "__int__")):
        raise wrong_type(name, value, "a whole number")
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong_type(name, value, "a whole number") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise wrong_type(name, value, f"a whole number that fits {bits} bits")
    return number


def as_text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise wrong_type(name, value, "text that can be written as UTF-8") from None
        return str(value)
    error = wrong_type(name, value, "a str")
    if isinstance(value, os.PathLike):
        error.fix = "ONNX Runtime takes no path objects here: pass os.fspath(path)."
    raise error


E = TypeVar("E", bound=enum.IntEnum)


def as_enum(cls: type[E]) -> Callable[[str, Any], E]:
    """Accepts the class itself and ONNX Runtime's own of the same name, but no plain number."""

    def convert(name: str, value: Any) -> E:
        if isinstance(value, cls):
            return value
        if type(value).__name__ == cls.__name__ and type(value).__module__.startswith("onnxruntime."):
            try:
                return cls(int(value))
            except ValueError:
                pass
        error = wrong_type(name, value, f"a {cls.__name__}")
        names = [f"{cls.__name__}.{member.name}" for member in cls if isinstance(value, int) and member == value]
        error.fix = f"Write {names[0]}." if names else f"One of: {', '.join(cls.__members__)}."
        raise error

    return convert


def as_text_mapping(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict of str to str")
    out: dict[str, str] = {}
    for key, item in value.items():
        if not isinstance(item, (str, bytes)):
            error = wrong_type(f"{name}[{key!r}]", item, "a str")
            error.fix = f"ONNX Runtime takes option values as text: write {str(item)!r}."
            raise error
        out[as_text(f"key of {name}", key)] = as_text(f"{name}[{key!r}]", item)
    return out


def wrong_type(name: str, value: Any, wanted: str) -> errors.RemoteTypeError:
    return errors.RemoteTypeError(f"{name} must be {wanted}, not {value!r:.100} ({type(value).__name__}).")


__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "ModelPackageWriteMode",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
]
