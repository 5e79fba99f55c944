"""ONNX Runtime's enumerations, the typed fields of its options classes, and suggestions for mistyped names."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, overload

from qnnbridge_protocol import errors
from qnnbridge_protocol.shown import closest, with_article


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` with a leading space, or an empty string if no name is similar."""
    close = closest(name, known)
    return f" Did you mean {close!r}?" if close else ""


class _Members:
    """The value of ``cls.__members__``, which is a new dict at each access."""

    def __get__(self, _: Any, owner: Any) -> dict[str, Any]:
        return dict(owner._by_name)


class _NativeEnum:
    """An enumeration like those of ONNX Runtime's bindings, which are neither an `enum.Enum` nor an `int`.

    A member is equal to its number and has the number's hash. Every number in the range is a valid value; its name
    is "???" if no member has this number. ``strict``: values are only equal to values of the same class.
    """

    _number: int
    _by_name: ClassVar[dict[str, Any]] = {}
    _strict = False
    _signed = False
    __members__ = _Members()

    def __init_subclass__(cls, strict: bool = False, signed: bool = False) -> None:
        cls._strict, cls._signed = strict, signed
        numbers = {name: number for name, number in vars(cls).items() if type(number) is int}
        if not numbers:
            return
        cls._by_name = {name: cls(number) for name, number in numbers.items()}
        for name, member in cls._by_name.items():
            setattr(cls, name, member)
        # pybind11's enumerations have this attribute, which applications may read.
        setattr(cls, "__entries", {name: (member, None) for name, member in cls._by_name.items()})
        cls.__doc__ = "\n\n".join(["Members:", *(f"  {name}" for name in cls._by_name)])

    def __init__(self, value: Any) -> None:
        number = int(value) if hasattr(value, "__index__") or hasattr(value, "__int__") else None
        least, most = (-(1 << 31), (1 << 31) - 1) if self._signed else (0, (1 << 32) - 1)
        if number is None or isinstance(value, float) or not least <= number <= most:
            where = f"{type(self).__module__}.{type(self).__name__}"
            raise errors.RemoteTypeError(
                "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
                f"    1. {where}(value: typing.SupportsInt | typing.SupportsIndex)\n\nInvoked with: {value!r:.100}"
            )
        object.__setattr__(self, "_number", number)

    @property
    def name(self) -> str:
        return next((name for name, member in self._by_name.items() if member._number == self._number), "???")

    @property
    def value(self) -> int:
        return self._number

    def __setattr__(self, name: str, _: Any) -> None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if self._strict:
            return type(other) is type(self) and other.value == self.value
        return bool(self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __getstate__(self) -> int:
        return self.value

    def __setstate__(self, state: int) -> None:
        object.__setattr__(self, "_number", state)


def _arithmetic(name: str, strict: bool = False) -> Callable[..., Any]:
    operation = getattr(int, name)

    def method(self: Any, *other: Any) -> Any:
        if strict and type(other[0]) is not type(self):
            raise errors.RemoteTypeError("Expected an enumeration of matching type!")
        return operation(self.value, *map(int, other))

    return method


class _NativeFlags(_NativeEnum):
    """Flags that can be ordered, and whose combinations are plain numbers."""


for _name in ["and", "or", "xor", "rand", "ror", "rxor", "lt", "le", "gt", "ge", "invert"]:
    setattr(_NativeFlags, f"__{_name}__", _arithmetic(f"__{_name}__"))

if TYPE_CHECKING:  # for type checkers the members are members of Python's enumerations

    class _OrtEnum(enum.IntEnum):
        def __init_subclass__(cls, strict: bool = False, signed: bool = False) -> None: ...

    class _OrtFlags(enum.IntFlag):
        def __init_subclass__(cls, strict: bool = False, signed: bool = False) -> None: ...
else:
    _OrtEnum, _OrtFlags = _NativeEnum, _NativeFlags


class GraphOptimizationLevel(_OrtEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_OrtEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_OrtEnum, strict=True, signed=True):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_OrtEnum, signed=True):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_OrtEnum, signed=True):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    # CPU and CPU_OUTPUT have the same number, as in ONNX Runtime.
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(_OrtEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


# These numbers differ from those of `OrtHardwareDeviceType`: here 2 means FPGA, there it means NPU.
class OrtMemoryInfoDeviceType(_OrtEnum):
    CPU = 0
    GPU = 1
    NPU = 3
    FPGA = 2


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
    PRESERVE = 0
    DENSE = 1


class OrtCompileApiFlags(_OrtFlags):
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ArenaExtendStrategy(_OrtEnum, strict=True, signed=True):
    kNextPowerOfTwo = 0  # noqa: N815 - ONNX Runtime's own names
    kSameAsRequested = 1  # noqa: N815


for _name in ["lt", "le", "gt", "ge"]:
    setattr(ArenaExtendStrategy, f"__{_name}__", _arithmetic(f"__{_name}__", strict=True))


class OrtCompiledModelCompatibility(_OrtEnum):
    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(_OrtFlags, signed=True):
    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -(1 << 31)


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
    """Descriptor of one option. `convert` is a function that returns the value to store or raises
    `RemoteTypeError`."""

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
    """Base class of `SessionOptions` and `RunOptions`. Unknown attributes raise an error with a suggestion."""

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self) -> None:
        self._values = {}

    @classmethod
    def fields(cls) -> dict[str, Field[Any]]:
        return {name: field for name, field in vars(cls).items() if isinstance(field, Field)}

    def changed_fields(self) -> dict[str, Any]:
        """Return the names and values of the fields that do not have their default values."""
        fields = self.fields()
        # Iterate over a copy, because another thread may assign a field meanwhile.
        return {name: value for name, value in self._values.copy().items() if value != fields[name].default}

    def take_fields(self, source: object) -> None:
        """Copy the fields of another options object, of this class or onnxruntime's class. Attributes that an
        older onnxruntime does not have keep their defaults."""
        for name, field in self.fields().items():
            value = getattr(source, name, field.default)
            if value != field.default:
                setattr(self, name, value)

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
        # Do not pass `name=` and `obj=`, because with them Python's traceback would add another suggestion.
        raise AttributeError(f"{cls!r} object has no attribute {name!r}.{suggest(name, public)}") from None

    def __reduce__(self) -> NoReturn:
        # Refuse to pickle or copy options, as ONNX Runtime does: a copy would silently share or drop callbacks and
        # tensors.
        raise TypeError(f"cannot pickle or copy {type(self).__name__!r} object")


def as_bool(name: str, value: Any) -> bool:
    # As in pybind11, None means False, and any object with `__bool__` is accepted.
    if value is None:
        return False
    if not hasattr(type(value), "__bool__"):
        raise wrong_type(name, value, "True or False")
    try:
        return bool(value)
    except (TypeError, ValueError):  # `bool` fails for an array with several elements
        raise wrong_type(name, value, "True or False") from None


def as_int64(name: str, value: Any, bits: int = 64) -> int:
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


def as_int32(name: str, value: Any) -> int:
    return as_int64(name, value, bits=32)


def as_text(name: str, value: Any) -> str:
    # pybind11 also accepts bytes for a std::string of C++.
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
        error.fix = "ONNX Runtime does not accept path objects here: pass os.fspath(path)."
    raise error


E = TypeVar("E", bound=enum.IntEnum)


def as_enum(cls: type[E]) -> Callable[[str, Any], E]:
    """Return a converter that accepts a value of this class or of ONNX Runtime's class with the same name, but
    not a number."""

    def convert(name: str, value: Any) -> E:
        if isinstance(value, cls):
            return value
        if type(value).__name__ == cls.__name__ and type(value).__module__.startswith("onnxruntime."):
            try:
                return cls(int(value))
            except (TypeError, ValueError):
                pass
        error = wrong_type(name, value, with_article(cls.__name__))
        members = cls.__members__.values()
        names = [
            f"{cls.__name__}.{member.name}" for member in members if isinstance(value, int) and value == int(member)
        ]
        error.fix = f"Write {names[0]}." if names else f"One of: {', '.join(cls.__members__)}."
        raise error

    return convert


def as_buffer(name: str, value: Any) -> memoryview:
    """Return the bytes of an object that supports the buffer protocol."""
    try:
        return memoryview(value).cast("B")
    except TypeError:
        raise wrong_type(name, value, "bytes or an array in C order") from None


def checked_name(name: object, what: str) -> str:
    """Return the name of an input or output as a string. Decode bytes as UTF-8, as in ONNX Runtime. Raise
    `RemoteTypeError` for other types."""
    if isinstance(name, (bytes, bytearray)):
        name = name.decode()
    if not isinstance(name, str):
        raise errors.RemoteTypeError(f"{what} must be str, not {name!r:.100} ({type(name).__name__}).")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise errors.RemoteTypeError(
                f"{what} must be text, but {name!r:.100} contains an unpaired surrogate."
            ) from None
    return name


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
    "ArenaExtendStrategy",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "ModelPackageWriteMode",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtCompiledModelCompatibility",
    "OrtDeviceEpIncompatibilityReason",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
]
