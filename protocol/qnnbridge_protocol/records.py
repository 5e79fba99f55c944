"""Named tuples for what is imported before HELLO.

`typing` and `dataclasses` take the host longer to import than everything that HELLO needs together (measured: 8 and
20 ms of 14 for an interpreter that does nothing). Modules on that path write

::

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from typing import NamedTuple
    else:
        from qnnbridge_protocol.records import NamedTuple

which type checkers take for `typing.NamedTuple`, and which is the same to every user of the class.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _NamedTupleMeta(type):
    """Makes a tuple's class of the annotations in the body of a class."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = tuple(body.pop("__annotations__"))
        defaults = [body.pop(field) for field in fields if field in body]
        base = namedtuple(name, fields, defaults=defaults, module=body["__module__"])  # type: ignore[misc]
        body["__slots__"] = ()
        return type(name, (base,), body)


class NamedTuple(metaclass=_NamedTupleMeta):
    """As in `typing`: fields with their types in the body, defaults last, and methods."""
