"""Typed attributes of `SessionOptions` and `RunOptions`, and the argument checks of their methods.

A field converts what is assigned exactly as ONNX Runtime's native classes do (their rules were measured, not read:
``None`` is a false boolean, ``1.0`` is a true one and no number, bytes are UTF-8 text, an enumeration takes no
plain number) and refuses the rest with an error that is also a `TypeError`. Values live in the instance's
``_values``; a field that was never assigned is absent there. Pure checks, no locks: assigning one attribute is
one dictionary store.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, TypeVar, overload

from qnnbridge._suggestions import suggest
from qnnbridge_protocol import errors

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
