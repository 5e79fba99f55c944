"""Find the free dimensions of a model's inputs, decide their sizes, and fix them in the `ModelProto`.

Axes with the same symbol (`batch`) must have the same size. Names that are not symbols are exempt from this rule:
one exporter uses "?" for every free axis.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qnnbridge_protocol.element_types import text_of
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo

Shapes = Mapping[str, Sequence[int | None]]
# Also matches expressions of symbols, such as `past + sequence`.
_SYMBOL = re.compile(r"[^\W\d][\w.\-+*/ ()]*")
_MEANINGLESS = frozenset({"none", "unk", "unknown", "dynamic", "n/a", "dim", "any"})


@dataclasses.dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of free dimensions (`--dim`), by dimension name, or by input and axis."""

    by_name: dict[str, int] = dataclasses.field(default_factory=dict)
    by_axis: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Dimensions:
        """Convert `{"batch": 1, "x:2": 48}`. A key is the name of a dimension, or of an input and an axis."""
        dimensions = cls()
        for name, size in sizes.items():
            axis = re.fullmatch(r"(.+):([0-9]{1,9})", name)
            if axis:
                dimensions.by_axis[axis[1], int(axis[2])] = size
            # Store the key as a dimension's name too, because a dimension may have a name like "x:0".
            dimensions.by_name[name] = size
        return dimensions

    def size_of(self, input_name: str, axis: int, declared: int | str | None) -> int | None:
        """Return the size of a dimension; None if it is not set."""
        if isinstance(declared, int) and declared >= 0:
            return declared
        if (input_name, axis) in self.by_axis:
            return self.by_axis[input_name, axis]
        return self.by_name.get(declared) if isinstance(declared, str) else None


def refuse_unknown_names(free: Mapping[tuple[str, int], str | None], dimensions: Dimensions) -> None:
    """Raise `OptionError` for a key that is neither a free dimension nor an input and a free axis.

    free: free dimensions by input and axis, with their symbols.
    """
    # A key like "x:0" is stored both as a name and as an axis, because it may also be the name of a dimension.
    names = {f"{name}:{axis}" for name, axis in free} | {name for name in free.values() if name}
    there = dict.fromkeys(name or f"{given}:{axis}" for (given, axis), name in free.items())
    for name in dimensions.by_name:
        if name not in names:
            raise OptionError(
                f'The model has no free dimension "{name}".',
                cause=f"Its free dimensions: {', '.join(there) or 'none'}.",
                fix="Give one of these names, or an input and its axis: --dim x:0=1." if free else "Omit --dim.",
            )


@dataclasses.dataclass(frozen=True, slots=True)
class FreeAxis:
    """A free dimension of an input. name: the dimension's symbol; None if it has none."""

    input: str
    axis: int
    name: str | None

    @property
    def option(self) -> str:
        """Name of the dimension in `--dim NAME=SIZE`: its symbol, or its input and axis such as `x:0`."""
        return self.name or f"{self.input}:{self.axis}"


def as_dimensions(sizes: Mapping[str, int] | Dimensions | None) -> Dimensions:
    """Convert `{"batch": 1, "x:2": 48}` as if it came from `--dim batch=1 --dim x:2=48`."""
    if isinstance(sizes, Dimensions):
        return sizes
    for name, size in (sizes or {}).items():
        # In Python `True` counts as the integer 1.
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise OptionError(f"{size!r} is not a valid size for {name!r}.", fix="Give positive integers.")
    return Dimensions.of(sizes or {})


def real_inputs(graph: Any) -> list[Any]:
    """Return the inputs that a caller must give, without those that have an initializer as default."""
    defaults = {initializer.name for initializer in graph.initializer}
    return [value for value in graph.input if value.name not in defaults]


def free_dimensions(graph: Any) -> list[FreeAxis]:
    found: list[FreeAxis] = []
    for value in real_inputs(graph):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if not _is_fixed(dimension):
                found.append(FreeAxis(value.name, axis, dimension.dim_param or None))
    return found


def declared(value: Any) -> NodeInfo:
    """Return the `NodeInfo` of an input or output, as a session of the model would report it."""
    kind = str(value.type.WhichOneof("value"))
    if value.type.HasField("tensor_type"):
        kind = f"tensor({text_of(value.type.tensor_type.elem_type) or 'undefined'})"
    return NodeInfo(value.name, kind, dims_of(value))


def dims_of(value: Any) -> tuple[int | str | None, ...] | None:
    """Return the declared shape: a number, a symbol or None for each axis; None without a declared shape."""
    if not has_shape(value):
        return None
    return tuple(
        dim.dim_value if _is_fixed(dim) else dim.dim_param or None for dim in value.type.tensor_type.shape.dim
    )


def no_input(name: str, inputs: Iterable[str]) -> OptionError:
    """Return the error for an input that the model does not have."""
    return OptionError(f'The model has no input "{name}".', fix=f"Its inputs: {', '.join(inputs) or 'none'}.")


def has_shape(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def fix(model: Any, dimensions: Dimensions) -> bool:
    """Set free dimensions to their sizes, in place. Return whether a dimension was set.

    A size by input and axis applies to that axis only, even if another axis has the same symbol (real models use
    "?" for two different axes); a size by symbol applies to every axis with that symbol.
    """
    free = free_dimensions(model.graph)
    refuse_unknown_names({(one.input, one.axis): one.name for one in free}, dimensions)
    if not free:
        return False
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    places = {(dimension.input, dimension.axis) for dimension in free}
    fixed = False
    # Set the sizes given by axis first. The dimension then loses its symbol, so that a size by symbol does not
    # change it again.
    for (name, axis), size in dimensions.by_axis.items():
        if (name, axis) in places:
            inputs[name][axis].Clear()
            inputs[name][axis].dim_value = size
            fixed = True
    for dimension in _all_dimensions(model.graph):
        size_by_name = dimensions.by_name.get(dimension.dim_param) if dimension.dim_param else None
        if size_by_name is not None:
            dimension.Clear()
            dimension.dim_value = size_by_name
            fixed = True
    return fixed


def forget_inferred(graph: Any) -> list[Any]:
    """Remove declared shapes of inner tensors and outputs, which may not match the sizes of the inputs any more.
    Later readers infer the shapes.

    Return the outputs that had a free axis.
    """
    del graph.value_info[:]
    free = []
    for value in graph.output:
        if has_shape(value):
            open_axes = [dim for dim in value.type.tensor_type.shape.dim if not dim.HasField("dim_value")]
            # Remove the symbol too: an input with the same symbol may have got a size.
            for dimension in open_axes:
                dimension.Clear()
            free += [value] if open_axes else []
    return free


def options_text(free: Sequence[FreeAxis], sizes: Mapping[tuple[str, int], int] | None = None) -> str:
    """Return the `--dim` options that fix free dimensions to the sizes in `sizes`.

    A dimension is named by input and axis, not by its symbol, if the symbol would need two different sizes or is a
    placeholder ("?") that several axes share.
    """
    known = sizes or {}
    by_name: dict[str, set[int]] = {}
    for dimension in free:
        size = known.get((dimension.input, dimension.axis))
        if dimension.name is not None and size is not None:
            by_name.setdefault(dimension.name, set()).add(size)
    options: dict[str, None] = {}
    names = Counter(dimension.name for dimension in free)
    for dimension in free:
        size = known.get((dimension.input, dimension.axis))
        name = dimension.name or ""
        ambiguous = len(by_name.get(name, ())) > 1 or (names[name] > 1 and not is_symbol(name))
        target = f"{dimension.input}:{dimension.axis}" if ambiguous else dimension.option
        options[f'--dim "{target}={"SIZE" if size is None else size}"'] = None
    return " ".join(options)


def _is_fixed(dimension: Any) -> bool:
    # some exporters write -1 for a free dimension
    return bool(dimension.HasField("dim_value") and dimension.dim_value >= 0)


def _all_dimensions(graph: Any) -> Iterator[Any]:
    # Imported late: commands parse their options with this module long before they load a model.
    from qnnbridge_host.graph.graphs import subgraphs

    for inner in subgraphs(graph):
        for value in [*inner.input, *inner.output, *inner.value_info]:
            if value.type.HasField("tensor_type"):
                yield from value.type.tensor_type.shape.dim


def is_symbol(name: str) -> bool:
    """Return whether a dimension's name is a symbol, so that all axes with this name have the same size."""
    return bool(_SYMBOL.fullmatch(name)) and name.lower() not in _MEANINGLESS


def options_of(graph: Any, decided: Dimensions) -> str:
    """Return the `--dim` options that fix the free dimensions of a graph to the decided sizes, or ""."""
    found = {
        (one.input, one.axis): decided.size_of(one.input, one.axis, one.name) for one in free_dimensions(graph)
    }
    known = {place: size for place, size in found.items() if size is not None}
    return options_text([one for one in free_dimensions(graph) if (one.input, one.axis) in known], known)


def decide(graph: Any, shapes: Shapes, dims: Dimensions) -> Dimensions:
    """Combine sizes of `--shape` and `--dim`. Raise `OptionError` if they contradict the model or each other."""
    inputs = {value.name: value for value in real_inputs(graph)}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise no_input(name, inputs)
        _refuse_other_rank(inputs[name], sizes)
    free = {(one.input, one.axis): one.name for one in free_dimensions(graph)}
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
                f'Axis {axis} of input "{value.name}" is {there} in the model; --shape gives {size}.',
                fix=f"Give {there}, or ? to keep {there}. To change a fixed size, export the model again.",
            )
        return
    if decided.by_axis.get(place, size) != size:
        raise OptionError(f'--shape and --dim give axis {axis} of input "{value.name}" different sizes.')
    symbol = free[place]
    # A size by input and axis overrides the model's symbol, so it need not equal the size of other axes with the
    # symbol.
    if symbol is not None and is_symbol(symbol) and place not in decided.by_axis:
        other, where = said.setdefault(symbol, (size, f'axis {axis} of input "{value.name}"'))
        if other != size:
            raise OptionError(
                f'Axis {axis} of input "{value.name}" would be {size}, but {where} is {other}.',
                cause=f'The model declares equal lengths: both axes have the symbol "{symbol}".',
                fix=f'Give both axes the same size. If the model is wrong: --dim "{value.name}:{axis}={size}".',
            )
        decided.by_name[symbol] = size
    decided.by_axis[place] = size


def _refuse_other_rank(value: Any, sizes: Sequence[int | None]) -> None:
    if not has_shape(value):
        raise OptionError(
            f'Input "{value.name}" has no declared shape, so its sizes cannot be set.',
            fix="Export the model again with the shapes of its inputs.",
        )
    rank = len(value.type.tensor_type.shape.dim)
    if rank != len(sizes):
        raise OptionError(
            f'Input "{value.name}" has {rank} dimensions, --shape gives {len(sizes)}.',
            fix=f"Give {rank} sizes; ? keeps an axis.",
        )
