"""What `--shape` and `--dim` say together, held against the model: one size for each axis, or an error.

Axes that share a symbol (`batch`) must agree. Names that are no symbols ("?", which one exporter gives to every
free axis) mean nothing and are not held to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.models.shared import shapes as model_shapes

Shapes = Mapping[str, Sequence[int | None]]

_SYMBOL = re.compile(r"[^\W\d][\w.\-+*/ ()]*")
_MEANINGLESS = frozenset({"none", "unk", "unknown", "dynamic", "n/a", "dim", "any"})


def read_shapes(texts: Iterable[str]) -> dict[str, list[int | None]]:
    """`x=1,3,48,192`; `?` for an axis that stays as it is. `x=` is the shape of a scalar."""
    read: dict[str, list[int | None]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        words = re.split(r"[,x]", sizes) if sizes else []
        if not equals or not name or not all(word == "?" or _is_size(word) for word in words):
            raise OptionError(
                f'--shape "{text}" is not of the form INPUT=SIZE,SIZE,... with sizes of at least 1.',
                fix="Name the input and all of its sizes: --shape x=1,3,48,192. ? leaves an axis as it is.",
            )
        if name in read:
            raise OptionError(f'--shape names "{name}" twice.', fix="Give each input one shape.")
        read[name] = [None if word == "?" else int(word) for word in words]
    return read


def read_constants(texts: Iterable[str]) -> dict[str, float]:
    """`sr=16000`: an input and the number that it always is."""
    read: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float({"true": "1", "false": "0"}.get(number.lower(), number))
        except ValueError:
            value = None
        if not equals or not name or value is None or name in read:
            raise OptionError(
                f'--constant "{text}" is not of the form INPUT=NUMBER, or names an input twice.',
                fix="For example --constant sr=16000.",
            )
        read[name] = value
    return read


def is_symbol(name: str) -> bool:
    """Whether a dimension's name says that all axes of this name are equally long."""
    return bool(_SYMBOL.fullmatch(name)) and name.lower() not in _MEANINGLESS


def decide(graph: Any, shapes: Shapes, dims: Dimensions) -> Dimensions:
    """All sizes as `--dim` would have given them. Raises `OptionError` for what contradicts the model or itself."""
    inputs = {value.name: value for value in model_shapes.real_inputs(graph)}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise OptionError(
                f'The model has no input "{name}".', fix=f"Its inputs: {', '.join(inputs) or 'none'}."
            )
        _refuse_other_rank(inputs[name], sizes)
    free = {(one.input, one.axis): one.name for one in model_shapes.free_dimensions(graph)}
    decided = Dimensions(dict(dims.by_name), dict(dims.by_axis))
    said: dict[str, tuple[int, str]] = {
        symbol: (size, f'--dim "{symbol}"') for symbol, size in dims.by_name.items() if symbol in free.values()
    }
    for name, sizes in shapes.items():
        for axis, size in enumerate(sizes):
            if size is not None:
                _decide_axis(decided, said, free, inputs[name], axis, size)
    return decided


def _decide_axis(
    decided: Dimensions,
    said: dict[str, tuple[int, str]],
    free: Mapping[tuple[str, int], str | None],
    value: Any,
    axis: int,
    size: int,
) -> None:
    place = (value.name, axis)
    if place not in free:
        there = value.type.tensor_type.shape.dim[axis].dim_value
        if there != size:
            raise OptionError(
                f'Axis {axis} of input "{value.name}" is {there} in the model; --shape says {size}.',
                fix=f"Give {there}, or ? to leave it. A fixed size cannot be changed: export the model again.",
            )
        return
    if decided.by_axis.get(place, size) != size:
        raise OptionError(f'--shape and --dim give axis {axis} of input "{value.name}" different sizes.')
    symbol = free[place]
    if symbol is not None and is_symbol(symbol) and place not in decided.by_axis:
        other, where = said.setdefault(symbol, (size, f'axis {axis} of input "{value.name}"'))
        if other != size:
            raise OptionError(
                f'Axis {axis} of input "{value.name}" would be {size}, but {where} is {other}.',
                cause=f'The model says that they are equally long: both are named "{symbol}".',
                fix=f'Give both the same size. If the names are wrong: --dim "{value.name}:{axis}={size}".',
            )
        decided.by_name[symbol] = size
    decided.by_axis[place] = size


def _refuse_other_rank(value: Any, sizes: Sequence[int | None]) -> None:
    if not model_shapes.has_shape(value):
        raise OptionError(
            f'Input "{value.name}" has no declared shape, so its sizes cannot be set.',
            fix="Export the model again with the shapes of its inputs.",
        )
    rank = len(value.type.tensor_type.shape.dim)
    if rank != len(sizes):
        raise OptionError(
            f'Input "{value.name}" has {rank} dimensions, --shape gives {len(sizes)}.',
            fix=f"Give {rank} sizes; ? leaves an axis as it is.",
        )


def _is_size(word: str) -> bool:
    return word.isascii() and word.isdigit() and int(word) > 0
