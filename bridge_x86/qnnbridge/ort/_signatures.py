"""Functions and objects of ONNX Runtime's bindings, by their recorded signatures (`qnnbridge._bindings`).

A function decorated with `bound` accepts and converts the same argument types as a function of the bindings, and
raises the same `TypeError` for others. A class decorated with `remote` gets the methods of an object in the host.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from qnnbridge._bindings import BINDINGS, SIGNATURES, refused
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_protocol.errors import RemoteTypeError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
T = TypeVar("T")

# `int` in an annotation stands for a C int, which has 32 bits.
Int64 = Annotated[int, 64]


def named(name: str) -> Callable[[T], T]:
    """Decorate a class or a function to set its name to the name in ONNX Runtime."""

    def rename(value: Any) -> Any:
        value.__name__ = value.__qualname__ = name
        return value

    return rename


def no_constructor(cls: C) -> C:
    """Decorate a class that only the bindings create, so that calling the class raises the error of the
    bindings."""

    def init(self: Any, *_: Any) -> None:
        raise RemoteTypeError(f"{BINDINGS}.{cls.__name__}: No constructor defined!")

    cls.__init__ = init  # type: ignore[misc]
    return cls


def bound(name: str) -> Callable[[F], F]:
    """Decorate a function to accept and convert its arguments as the function `name` of the bindings does.

    The function's annotations determine the types, since the recorded signature does not show whether None is
    accepted. Wrong arguments raise pybind11's `TypeError`; other errors get notes as in `as_ort_raises`.
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function)
        run = as_ort_raises(function)

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            # Evaluate the annotations at the first call, because their classes may be defined after the function.
            hints = typing.get_type_hints(function, include_extras=True)
            try:
                arguments = parameters.bind(*given, **named)
                for key, value in arguments.arguments.items():
                    arguments.arguments[key] = _converted(value, hints.get(key, Any))
            except (TypeError, ValueError, OverflowError):
                raise refused(name, *given, **named) from None
            arguments.apply_defaults()
            return run(*arguments.args, **arguments.kwargs)

        return call  # type: ignore[return-value]

    return decorate


# Names of arguments that are paths. The host has another working folder, so relative paths are made absolute here.
_FOLDERS: Final = ("source_dir", "base_dir")


def remote(kind: str) -> Callable[[C], C]:
    """Decorate a class: all methods of the bindings' class `kind` call the host's object in the attribute
    `_object`.

    Methods that the class itself defines are kept. Arguments and results of the added methods are plain values.
    """

    def decorate(cls: C) -> C:
        for name in SIGNATURES:
            owner, _, method = name.partition(".")
            if owner == kind and method not in vars(cls):
                setattr(cls, method, _remote_method(name))
        return cls

    return decorate


def _remote_method(name: str) -> Callable[..., Any]:
    cls, _, operation = name.partition(".")
    names: dict[str, Any] = {}
    # A recorded signature is Python source code. Its annotations are not evaluated.
    text = SIGNATURES[name].replace(f"self: C.{cls}", "self")
    exec(f"def {operation}{text}: ...", names)  # noqa: S102 - text of this package
    shape = names[operation]
    keys = list(inspect.signature(shape).parameters)[1:]

    @functools.wraps(shape)
    def method(self: Any, *values: Any) -> Any:
        plain = [absolute(one) if key in _FOLDERS else one for key, one in zip(keys, values, strict=True)]
        return self._object.call(operation, {"positional": plain, "named": {}}).result

    method.__qualname__ = name
    return bound(name)(method)


def absolute(path: Any) -> Any:
    return os.path.abspath(path) if isinstance(path, str) and path else path


def _converted(value: Any, hint: Any) -> Any:
    """Convert an argument like pybind11. Raise `TypeError` or `ValueError` if pybind11 would not accept it."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (Any, object):
        return value
    if kind in (typing.Union, types.UnionType):  # "X | None" is the only union type in these annotations
        return None if value is None else _converted(value, inner[0])
    if kind is str:
        return _text(value)
    if kind in (int, Annotated):
        return _number(value, inner[1] if inner else 32)
    if kind is memoryview:
        return memoryview(value)
    # pybind11 accepts all objects that define a truth value.
    if kind is bool and (value is None or hasattr(type(value), "__bool__")):
        return bool(value)
    if kind is Sequence and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_converted(one, inner[0]) for one in value]
    if kind is Mapping and isinstance(value, Mapping):
        return {_converted(key, inner[0]): _converted(one, inner[1]) for key, one in value.items()}
    if not isinstance(value, kind):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="surrogateescape")
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises UnicodeEncodeError, a ValueError, for surrogates
    return value


def _number(value: Any, bits: int) -> int:
    if isinstance(value, (float, str, bytes)):
        raise TypeError
    number = int(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise OverflowError
    return number
