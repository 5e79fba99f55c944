"""Reads a value from the wire as the type that a record declares for the field, and refuses anything else.

The declaration is the annotation's text: importing `typing`'s resolution would cost the host a part of its start.
Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge_protocol.frames import desync

# Given the value and the name of its field; gives the value that the record keeps.
Reader = Callable[[Any, str], Any]

_SCALARS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "None": (type(None),),
}


def reader(declared: str, names: Mapping[str, Any]) -> Reader:
    """A reader for the type that is written as `declared`; `names` has the classes and aliases in it."""
    declared = declared.strip()
    choices = _split(declared, "|")
    if len(choices) > 1:
        return _any_of(declared, choices, names)
    if declared == "Any":
        return lambda value, field: value
    if declared in _SCALARS:
        return _scalar(declared, _SCALARS[declared])
    base, bracket, inner = declared.partition("[")
    arguments = _split(inner.removesuffix("]"), ",") if bracket else []
    if base == "Mapping":
        return _mapping(declared, reader(arguments[0], names), reader(arguments[1], names))
    if base == "tuple":
        return _sequence(declared, [reader(one, names) for one in arguments if one != "..."], "..." in arguments)
    known = names[base]
    if hasattr(known, "__args__"):  # a Literal: the reader of the field handles the words of a newer peer
        return _scalar(declared, tuple({type(word) for word in known.__args__}))
    read: Reader = known.read
    return read


_readers: dict[str, Reader] = {}


def field(header: Mapping[str, Any], name: str, declared: str, missing: Any = ...) -> Any:
    """A field of a request, as the type that its table declares. missing: its default, if it has one."""
    if name not in header:
        if missing is ...:
            raise desync(f"{header.get('op', 'a header')} without {name}")
        return missing
    read = _readers.get(declared)
    if read is None:
        read = _readers[declared] = reader(declared, {})
    return read(header[name], name)


def type_error(field: str, value: Any, declared: str) -> Exception:
    """The error for a field that has another type than its table says."""
    return desync(f"{field} is {_kind(value)}, not {declared}")


def _scalar(declared: str, kinds: tuple[type, ...]) -> Reader:
    def read(value: Any, field: str) -> Any:
        # By the exact type: a boolean is no number.
        if type(value) not in kinds:
            raise type_error(field, value, declared)
        return value

    return read


def _any_of(declared: str, choices: list[str], names: Mapping[str, Any]) -> Reader:
    flat = [_SCALARS[one] for one in choices if one in _SCALARS]
    scalars = tuple(kind for kinds in flat for kind in kinds)
    others = [reader(one, names) for one in choices if one not in _SCALARS]

    def read(value: Any, field: str) -> Any:
        if type(value) in scalars:
            return value
        if not others:
            raise type_error(field, value, declared)
        return others[0](value, field)

    return read


def _mapping(declared: str, read_key: Reader, read_value: Reader) -> Reader:
    def read(value: Any, field: str) -> Any:
        if not isinstance(value, Mapping):
            raise type_error(field, value, declared)
        return {
            read_key(key, f"a key of {field}"): read_value(item, f"{field}[{key!r}]") for key, item in value.items()
        }

    return read


def _sequence(declared: str, readers: list[Reader], endless: bool) -> Reader:
    def read(value: Any, field: str) -> Any:
        if type(value) not in (list, tuple):
            raise type_error(field, value, declared)
        if endless:
            return tuple(readers[0](item, f"{field}[{at}]") for at, item in enumerate(value))
        if len(value) != len(readers):
            raise desync(f"{field} has {len(value)} items, not {len(readers)}")
        return tuple(one(item, f"{field}[{at}]") for at, (one, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _split(text: str, separator: str) -> list[str]:
    """Parts of the text between separators that are not inside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == separator and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {repr(value)[:40]}"


__all__ = ["Reader", "field", "reader", "type_error"]
