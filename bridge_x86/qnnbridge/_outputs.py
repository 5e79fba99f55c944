"""Where the outputs of a run go: the arrays that an application gives with ``out=``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_protocol.errors import InvalidArgument

Array = np.ndarray[Any, np.dtype[Any]]

# Type of ``out=``: arrays in the order of the outputs, or by name.
Out = Sequence["Array | None"] | Mapping[str, "Array | None"]

# What is left of outputs, by names, without what follows from padding.
Counted = Callable[[Sequence[str], Sequence[Any]], "list[Any]"]


def check_out(out: Out, names: Sequence[str]) -> list[Array | None]:
    """``out=`` as a list in the order of the outputs. Types and shapes are those of the results: see `deliver`."""
    if out.__class__ is not list and isinstance(out, Mapping):
        unknown = [str(name) for name in out if name not in names]
        if unknown:
            raise InvalidArgument(
                f"out= names {', '.join(unknown)}, which is not asked for.",
                fix=f"The outputs are {', '.join(names)}.",
            )
        out = [out.get(name) for name in names]
    arrays = list(out)
    if len(arrays) != len(names):
        raise InvalidArgument(
            f"out= has {len(arrays)} arrays for {len(names)} outputs.", fix="Give one for each, or None."
        )
    for name, array in zip(names, arrays, strict=True):
        if array is not None and (not isinstance(array, np.ndarray) or not array.flags.writeable):
            raise InvalidArgument(f"What out= has for {name!r} is no array that can be written to.")
    return arrays


def deliver(values: Sequence[Any], out: Sequence[Array | None]) -> list[Any]:
    """Copy results into the arrays of ``out=``, unless they are there already. All of them, or none."""
    for value, target in zip(values, out, strict=True):
        if target is None or value is target:
            continue
        if value.__class__ is not np.ndarray or value.dtype != target.dtype or value.shape != target.shape:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise InvalidArgument(
                f"An array of out= is {target.dtype} {target.shape}, the output is {got}.",
                fix="Give an array of the output's type and shape, or None for this output.",
            )
    results: list[Any] = []
    for value, target in zip(values, out, strict=True):
        if target is not None and value is not target:
            np.copyto(target, value)
        results.append(value if target is None else target)
    return results
