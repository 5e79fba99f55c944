"""`NamedTuple` for what the host imports on the way to its first session.

To type checkers it is `typing.NamedTuple`, and so it is to every user of such a class. `typing` compiles each
annotation of a field, which takes 0.1 to 0.2 ms a class; `dataclasses` writes methods, which takes 0.5 ms. Neither
module is imported before HELLO.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleMeta(type):
        """Makes a tuple's class of the annotations in the body of a class."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.pop("__annotations__"))
            defaults = [body.pop(field) for field in fields if field in body]
            base = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            body["__slots__"] = ()
            return type(name, (base,), body)

    class NamedTuple(metaclass=_NamedTupleMeta):
        """As in `typing`: fields with their types in the body, defaults last, and methods."""
