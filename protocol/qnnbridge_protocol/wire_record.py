"""The base of all records that travel: frozen dataclasses that turn into a map of msgpack types and back.

Unknown keys are ignored (a newer peer), wrong types raise `TypeError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T", bound="Record")


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(**_declared: bool) -> Callable[[type], type]:
        """A dataclass that writes no code of its own: `Record` has it."""
        return dataclasses.dataclass(init=False, repr=False, eq=False)


@record(frozen=True, repr=False, eq=False)
class Record:
    """What `dataclasses` would write for each class is here once: writing it takes the host 10 ms of its start."""

    if not TYPE_CHECKING:

        def __init__(self, *values: Any, **named: Any) -> None:
            fields = dataclasses.fields(self)
            given = dict(zip((field.name for field in fields), values, strict=False)) | named
            wrong = len(given) < len(values) + len(named) or not given.keys() <= self.__dataclass_fields__.keys()
            for field in fields:
                if field.name in given:
                    value = given[field.name]
                elif field.default_factory is not dataclasses.MISSING:
                    value = field.default_factory()
                else:
                    value = field.default
                wrong |= value is dataclasses.MISSING
                object.__setattr__(self, field.name, value)
            if wrong:
                names = ", ".join(field.name for field in fields)
                raise TypeError(f"{type(self).__name__} takes {names}; got {len(values)} and {sorted(named)}")
            self.__post_init__()

        def __post_init__(self) -> None:
            """For classes that check or convert what they are given."""

        def __setattr__(self, name: str, value: object) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        told = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
        return f"{type(self).__qualname__}({told})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            out[field.name] = _plain(getattr(self, field.name))
        return out

    @classmethod
    def from_wire(cls: type[T], data: Mapping[str, Any]) -> T:
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(data, Mapping):
            raise TypeError(f"no map of a {cls.__name__}: {type(data).__name__}")
        return cls(**{k: v for k, v in data.items() if k in known})

    def check(self, **types: type | tuple[type, ...]) -> None:
        """Raises `TypeError` unless each named field has one of its types; a boolean is no number."""
        for name, expected in types.items():
            value = getattr(self, name)
            kinds = expected if isinstance(expected, tuple) else (expected,)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise TypeError(f"{name} of a {type(self).__name__} is {type(value).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_wire()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


__all__ = ["Record", "record"]
