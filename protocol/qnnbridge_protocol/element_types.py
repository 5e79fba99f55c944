"""Numbers of the ONNX element types. This module does not need numpy, so that a model's types can be read
without it."""

from __future__ import annotations

import enum


class ElementType(enum.IntEnum):
    """Element type of a tensor, by its number in ONNX."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @property
    def text(self) -> str:
        """Name in ONNX Runtime's notation of types, for example ``float`` in ``tensor(float)``."""
        return self.name.lower()


_TEXTS = {element.value: element.text for element in ElementType}


def text_of(number: int | None) -> str:
    """Return the name of an element type by its number; '' for an unknown number."""
    return "" if number is None else _TEXTS.get(number, "")
