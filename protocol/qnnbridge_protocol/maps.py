"""Maps as a few arrays: the keys as one, the scalar values as one, however many maps there are.

Pure functions, used by the encoder. ONNX Runtime knows maps from ``int64`` or strings to ``int64``, ``float``,
``double`` or strings, and its Python shows all of these as Python scalars; so a map's numbers travel as `INT64`,
`FLOAT` or `DOUBLE` and come out as ``int`` and ``float``, whatever scalar class they had.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType

Array = np.ndarray[Any, np.dtype[Any]]
Rows = list[dict[Any, Any]]

SCALAR_ELEMENTS = frozenset({ElementType.INT64, ElementType.FLOAT, ElementType.DOUBLE, ElementType.STRING})
KEY_ELEMENTS = frozenset({ElementType.INT64, ElementType.STRING})


def keys_array(keys: Iterable[Any], declared: ElementType | None) -> Array:
    """Keys as an ``int64`` or object array of one dimension. `declared` decides only for no keys at all."""
    listed = list(keys)
    kinds = {_kind(cls) for cls in set(map(type, listed))}
    if kinds == {"int"}:
        return _integers(listed)
    if kinds == {"str"} or (not kinds and declared is not ElementType.INT64):
        return np.array(listed, dtype=object)
    if not kinds:
        return np.empty(0, np.int64)
    raise errors.InvalidArgument(
        f"The keys of a map must be all int or all str, not {_class_names(listed)}.",
        fix="Use the key type that the model declares: int64 or string.",
    )


def scalars_array(values: Iterable[Any], declared: ElementType | None) -> Array | None:
    """Scalar values as an array of one dimension; ``None`` if they are not scalars but values of their own.

    `declared` settles what Python's types leave open: ``float`` is `DOUBLE` unless `FLOAT` is declared, and an
    ``int`` among floats or for a declared float is taken as a float, as ONNX Runtime does.
    """
    listed = list(values)
    kinds = {_kind(cls) for cls in set(map(type, listed))}
    if "other" in kinds:
        if len(kinds) == 1:
            return None
    elif kinds == {"str"} or (not kinds and declared is ElementType.STRING):
        return np.array(listed, dtype=object)
    elif kinds <= {"int", "float"}:
        floats = declared in (ElementType.FLOAT, ElementType.DOUBLE)
        if kinds == {"int"} and not floats:
            return _integers(listed)
        if floats or kinds == {"float"}:
            return _floats(listed, np.float32 if declared is ElementType.FLOAT else np.float64)
        if not kinds:
            return np.empty(0, np.int64 if declared is ElementType.INT64 else np.float64)
    raise errors.InvalidArgument(
        f"The values of a map must be all int, all float or all str, not {_class_names(listed)}.",
        cause="These are the scalars that ONNX Runtime takes in a map, and a map holds one type.",
        fix="Convert the values, for example with float().",
    )


def one_key_list(rows: Rows) -> bool:
    """All maps have the same keys in the same order, and at least one."""
    first = list(rows[0])
    return bool(first) and all(list(row) == first for row in rows)


def flat_keys(rows: Rows) -> Iterable[Any]:
    return chain.from_iterable(rows)


def flat_values(rows: Rows) -> Iterable[Any]:
    return chain.from_iterable(row.values() for row in rows)


def _kind(cls: type[Any]) -> str:
    if issubclass(cls, str):
        return "str"
    if issubclass(cls, (bool, np.bool_)):
        return "bool"
    if issubclass(cls, (int, np.integer)) and not issubclass(cls, np.timedelta64):
        return "int"
    if issubclass(cls, float) or (issubclass(cls, np.floating) and np.dtype(cls).itemsize < 8):
        return "float"  # np.float64 is a float; a long double does not fit in one
    return "other"


def _integers(values: list[Any]) -> Array:
    try:
        if set(map(type, values)) != {int}:  # numpy wraps an np.uint64 that does not fit, but refuses such an int
            values = [int(value) for value in values]
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise errors.InvalidArgument("An integer of a map does not fit int64.", cause=str(error)) from None


def _floats(values: list[Any], dtype: type[np.floating[Any]]) -> Array:
    try:
        with np.errstate(over="ignore"):  # too large for a float is infinite, as in ONNX Runtime
            return np.array(values, dtype=np.float64).astype(dtype, copy=False)
    except OverflowError as error:
        raise errors.InvalidArgument("An integer of a map does not fit a float.", cause=str(error)) from None


def _class_names(values: list[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))
