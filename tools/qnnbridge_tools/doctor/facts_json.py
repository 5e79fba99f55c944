"""Facts as JSON and back: the classes of `facts` are the schema. Unknown names are passed over, missing ones get
their default, so that a doctor reads the snapshots of older and newer ones."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar, Union

from qnnbridge_tools.doctor.facts import Facts

T = TypeVar("T")
_KNOWN_HINTS: dict[type[Any], dict[str, Any]] = {}


class NotFacts(ValueError):
    """The document is not what the classes say. The text names the place."""


def encode(value: Any) -> Any:
    """A value of `facts` in JSON's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode_facts(document: Any) -> Facts:
    return decode(Facts, document, "facts")


def decode(kind: type[T], document: Any, place: str) -> T:
    """Raises `NotFacts`."""
    return typing.cast(T, _decode(kind, document, place))


def _decode(kind: Any, document: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if document is None and type(None) in arguments:
            return None
        kind = next(argument for argument in arguments if argument is not type(None))
        return _decode(kind, document, place)
    if origin is tuple:
        if not isinstance(document, list):
            raise NotFacts(f"{place} is no list.")
        return tuple(_decode(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(document))
    if origin is dict:
        if not isinstance(document, dict):
            raise NotFacts(f"{place} is no object.")
        return {str(key): _decode(arguments[1], item, f"{place}.{key}") for key, item in document.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_object(typing.cast(type[Any], kind), document, place)
    if kind is float and isinstance(document, int) and not isinstance(document, bool):
        return float(document)
    if not isinstance(document, kind) or (kind is int and isinstance(document, bool)):
        raise NotFacts(f"{place} is {document!r} and not of type {kind.__name__}.")
    return document


def _decode_object(kind: type[Any], document: Any, place: str) -> Any:
    if not isinstance(document, dict):
        raise NotFacts(f"{place} is no object.")
    values = {
        name: _decode(hint, document[name], f"{place}.{name}")
        for name, hint in _hints(kind).items()
        if name in document
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise NotFacts(f"{place}: {error}.") from None


def _hints(kind: type[Any]) -> dict[str, Any]:
    if kind not in _KNOWN_HINTS:
        hints = typing.get_type_hints(kind)
        _KNOWN_HINTS[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _KNOWN_HINTS[kind]
