"""Convert values from the wire or a document to the types that a dataclass declares for its fields. Refuse values
of other types.

The declared type is the annotation as a string, because evaluating annotations with `typing` would slow down the
start of the host. Pure functions; thread-safe.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from qnnbridge_protocol.errors import ProtocolDesync, desync

T = TypeVar("T")

# Function that gets a value and the name of its field, and returns the value for the record.
Reader = Callable[[Any, str], Any]

_SCALARS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "None": (type(None),),
}


def reader(declared: str, names: Mapping[str, Any]) -> Reader:
    """Return a reader for the type `declared`. `names` contains the classes and aliases that occur in the type."""
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
    if base in ("Mapping", "dict"):
        return _mapping(declared, reader(arguments[0], names), reader(arguments[1], names))
    if base == "tuple":
        return _sequence(declared, [reader(one, names) for one in arguments if one != "..."], "..." in arguments)
    known = names[base]
    if isinstance(known, types.GenericAlias):
        return reader(repr(known), names)
    if hasattr(known, "__args__"):  # accept any value of a Literal's type, since a newer peer may have more values
        return _scalar(declared, tuple({type(word) for word in known.__args__}))
    return getattr(known, "read", None) or functools.partial(read_record, known)


def read_record(kind: type[T], data: Any, field: str) -> T:
    """Convert the map `data` to the dataclass `kind`. `field` is the map's name in error messages.

    Unknown keys are ignored: a newer peer may send more.

    Raises:
        ProtocolDesync: the map does not have the declared fields and types. The error contains the name of the
            field.
    """
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        raise type_error(field, data, "a map")
    readers = _record_readers(kind)
    missing = [name for name, (_, required) in readers.items() if required and name not in data]
    if missing:
        raise desync(f"{field} has no {missing[0]}")
    given = {name: read(data[name], f"{field}.{name}") for name, (read, _) in readers.items() if name in data}
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise desync(f"{field} is not a valid {kind.__name__}: {error}") from None


def read_document(kind: type[T], data: Any, field: str) -> T:
    """Convert the contents of a file like `read_record`. Raise `ValueError` if the contents are invalid."""
    try:
        return read_record(kind, data, field)
    except ProtocolDesync as error:
        raise ValueError(error.message.partition(": ")[2].rstrip(".")) from None


_known_records: dict[type, dict[str, tuple[Reader, bool]]] = {}


def _record_readers(kind: type) -> dict[str, tuple[Reader, bool]]:
    """Return each field's reader and whether the field is required."""
    found = _known_records.get(kind)
    if found is None:
        names = vars(sys.modules[kind.__module__])
        missing = dataclasses.MISSING
        found = _known_records[kind] = {
            field.name: (
                reader(str(field.type), names),
                field.default is missing and field.default_factory is missing,
            )
            for field in dataclasses.fields(kind)
        }
    return found


_readers: dict[str, Reader] = {}


def field(header: Mapping[str, Any], name: str, declared: str, missing: Any = ...) -> Any:
    """Return a field of a request, checked against the declared type. If the field is absent, return `missing`, or
    raise an error if `missing` is not given."""
    if name not in header:
        if missing is ...:
            raise desync(f"{header.get('op', 'a header')} without {name}")
        return missing
    read = _readers.get(declared)
    if read is None:
        read = _readers[declared] = reader(declared, {})
    return read(header[name], name)


def type_error(field: str, value: Any, declared: str) -> Exception:
    """Return the error for a field whose value does not have the declared type."""
    return desync(f"{field} is {_kind(value)}, not {declared}")


def _scalar(declared: str, kinds: tuple[type, ...]) -> Reader:
    def read(value: Any, field: str) -> Any:
        # Compare exact types: a boolean is not a number.
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
    """Split the text at separators that are not inside brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == separator and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {repr(value)[:40]}"
