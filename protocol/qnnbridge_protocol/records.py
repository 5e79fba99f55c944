"""`NamedTuple` for classes that the host imports before its first session.

Type checkers treat such a class like `typing.NamedTuple`. `typing` compiles each annotation of a field, which takes
0.1 to 0.2 ms per class; `dataclasses` generates methods, which takes 0.5 ms. So neither module is imported before
HELLO.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleMeta(type):
        """Create a tuple class from the annotations in the body of a class."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.pop("__annotations__"))
            defaults = [body.pop(field) for field in fields if field in body]
            base = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            body["__slots__"] = ()
            return type(name, (base,), body)

    class NamedTuple(metaclass=_NamedTupleMeta):
        """Base class that works like `typing.NamedTuple`: fields with types in the class body, fields with
        defaults last, methods."""
