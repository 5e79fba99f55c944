"""The free dimensions of a model, and the sizes that are compiled for each of them. Pure functions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qnnbridge._buckets import BucketArguments, sizes_text
from qnnbridge._options.fields import suggest
from qnnbridge._values.feed_rules import Array, FeedRule, rule_of
from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import CompiledModelRefused, OptionError
from qnnbridge_protocol.input_tensors import array_of, resolved
from qnnbridge_protocol.model_records import ModelDescription
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.specs import FixSpec, NodeInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._session import SessionRecipe


@dataclasses.dataclass(frozen=True, slots=True)
class BucketAxis:
    """One free axis of one input. `symbol` is its name in the model, or ``None``."""

    input: str
    axis: int
    symbol: str | None

    @property
    def place(self) -> str:
        """The axis as ``input:axis``, the notation in ``--dim`` and ``buckets``."""
        return f"{self.input}:{self.axis}"

    @property
    def option(self) -> str:
        """Name for ``--dim`` and ``buckets``: the name in the model if it is unique. Paddle's exporter uses the
        name "?" for all axes of unknown size."""
        return self.place if self.symbol in (None, "", "?") else self.symbol

    def __str__(self) -> str:
        name = f"{self.symbol!r}" if self.symbol is not None else "without a name"
        return f"{name} (input {self.input!r}, axis {self.axis})"


def free_dimensions(inputs: Sequence[NodeInfo]) -> tuple[BucketAxis, ...]:
    """Return the free dimensions in the order of inputs and axes."""
    return tuple(
        BucketAxis(node.name, axis, dim if isinstance(dim, str) else None)
        for node in inputs
        for axis, dim in enumerate(node.shape or ())
        if not isinstance(dim, int)
    )


def name_axes(
    recipe: SessionRecipe, inputs: Sequence[NodeInfo], names: Iterable[str]
) -> tuple[SessionRecipe, tuple[NodeInfo, ...]]:
    """Name axes in the recipe and in the inputs. Each string in `names` has the form ``input:axis``, and becomes
    the name of that axis.

    ONNX Runtime can fix only dimensions that have a name in the model, so unnamed axes are fixed in a rewritten
    copy of the model.
    """
    wanted = frozenset(names)

    def named(node: NodeInfo) -> NodeInfo:
        places = [(dim, f"{node.name}:{axis}") for axis, dim in enumerate(node.shape or ())]
        if not any(place in wanted for _, place in places):
            return node
        dims = tuple(place if place in wanted and not isinstance(dim, int) else dim for dim, place in places)
        return dataclasses.replace(node, shape=dims)

    found = tuple(map(named, inputs))
    # If no axis is renamed, return the recipe unchanged, so that the key of its cache entry stays the same.
    if found == tuple(inputs):
        return recipe, found
    fix = recipe.spec.fix
    # A named axis needs the rewrite `fixed-shapes`, so allow this rewrite even if rewrites are disabled, or are
    # applied only after QNN has refused the model.
    if fix is None or fix.when == "refused":
        fix = FixSpec()
    elif fix.when == "never":
        fix = FixSpec(only=("fixed-shapes",))
    spec = dataclasses.replace(recipe.spec, fix=fix)
    return dataclasses.replace(recipe, spec=spec), found


# Configuration entries that make the QNN provider write a compiled model.
_WRITES_A_FILE = ("ep.context_enable", "ep.share_ep_contexts", "ep.stop_share_ep_contexts")

# Value of `pad=` that requests padding with copies of the last row.
EDGE: Final = "edge"

# Sizes of a call or a variant: one for each free dimension, in the order of `BucketPlan.symbols`.
Sizes = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PaddedInput:
    """An input that has free dimensions.

    Attributes:
        axes: for each free axis, the index of its dimension in `BucketPlan.symbols`.
        value: padding value in the input's element type; ``None``: repeat the last row, for an input whose free
            dimensions are all split or chunked.
        edge: whether to repeat the last row in all axes.
    """

    name: str
    axes: Mapping[int, int]
    value: Array | None
    edge: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class BucketPlan:
    """Buckets and padding of the free dimensions `symbols`. `split`, `chunk` and `fixed` are indices in `symbols`.

    Attributes:
        buckets: sizes of each free dimension, in ascending order.
        split: dimensions along which a call that is too large is divided into parts.
        inputs: inputs that have a free dimension, by name.
        chunk: dimension that is processed in overlapping windows.
        only: combinations that become variants; ``None`` for all.
        fixed: dimensions with a single size and no padding. A call with any other size is refused.
    """

    symbols: tuple[str, ...]
    buckets: tuple[tuple[int, ...], ...]
    split: frozenset[int]
    inputs: Mapping[str, PaddedInput]
    chunk: int | None = None
    only: frozenset[Sizes] | None = None
    fixed: frozenset[int] = frozenset()

    @property
    def unpadded(self) -> frozenset[int]:
        """Indices of the dimensions that need no padding value."""
        return self.split | self.fixed

    def variants(self) -> Iterator[Sizes]:
        """Return all variants, the smallest first."""
        found = itertools.product(*self.buckets) if self.only is None else self.only
        # Sort by the product of the sizes, so that the first variant that fits needs the least computation.
        return iter(sorted(found, key=lambda sizes: (math.prod(sizes), sizes)))

    def smallest(self) -> Sizes:
        return next(self.variants())

    def largest(self) -> Sizes:
        return list(self.variants())[-1]

    def named(self, sizes: Sizes) -> dict[str, int]:
        return dict(zip(self.symbols, sizes, strict=True))

    def text(self, sizes: Sizes) -> str:
        """Return the sizes of a variant for messages."""
        return sizes_text(self.named(sizes))


def make_plan(arguments: BucketArguments, model: ModelDescription, label: str) -> BucketPlan:
    """Create the plan from the arguments and the model's inputs.

    Raises:
        OptionError: the arguments do not fit the model.
        CompiledModelRefused: the model is compiled.
    """
    if not model.readable:
        raise OptionError(
            f"The inputs of {label} cannot be read, so it cannot have buckets.", fix="Give the original ONNX model."
        )
    if model.model.compiled:
        raise CompiledModelRefused(
            f"{label} is a compiled model and cannot have buckets.",
            cause="The sizes were fixed when the model was compiled.",
            fix="Give the original model; the cache stores the compiled model of each bucket.",
        )
    if nameless := [node.name for node in model.inputs if node.shape is None and "tensor" in node.type]:
        raise OptionError(
            f"Input {nameless[0]!r} of {label} has no shape in the model, so it cannot have buckets.",
            fix="Export the model with shapes whose free dimensions have names.",
        )
    free = free_dimensions(model.inputs)
    symbols = tuple(arguments.sizes)
    _check_symbols(symbols, free, label)
    rules = {node.name: rule_of(node) for node in model.inputs}
    for name in arguments.pad:
        if name not in rules:
            raise OptionError(
                f"pad: {label} has no input {name!r}.",
                fix=f"Its inputs are {', '.join(map(repr, rules))}.{suggest(str(name), rules)}",
            )
    split = frozenset(symbols.index(name) for name in arguments.split)
    given_by_user = not arguments.decided
    padded = {
        dim.symbol
        for dim in free
        if given_by_user and (arguments.pad_all is not None or dim.input in arguments.pad)
    }
    fixed = frozenset(
        number
        for number, (name, sizes) in enumerate(arguments.sizes.items())
        if len(sizes) == 1 and number not in split and name not in padded and name not in arguments.chunk
    )
    whole_rows = split | fixed | {symbols.index(name) for name in arguments.chunk}
    # A dimension is a batch only if it is the first axis of every input that has it.
    batches = {dim.symbol for dim in free} - {dim.symbol for dim in free if dim.axis}
    inputs = {}
    for name, rule in rules.items():
        axes = {dim.axis: symbols.index(dim.symbol) for dim in free if dim.input == name and dim.symbol in symbols}
        if axes:
            needed = tuple(dict.fromkeys(symbols[number] for number in axes.values() if number not in whole_rows))
            given = arguments.pad.get(name, arguments.pad_all)
            # For an input of strings, "edge" is an ordinary padding value.
            edge = isinstance(given, str) and given == EDGE and rule.inner.element is not ElementType.STRING
            value = None if edge else _pad_value(given, rule, needed, batches)
            inputs[name] = PaddedInput(name, axes, value, edge)
        elif name in arguments.pad:
            raise OptionError(
                f"pad: input {name!r} is never padded: it has none of the dimensions {', '.join(symbols)}.",
                fix=f"Remove the entry: pad applies to {', '.join(map(repr, inputs)) or 'other inputs'}.",
            )
    chunked = next((symbols.index(name) for name in arguments.chunk), None)
    return BucketPlan(symbols, tuple(arguments.sizes.values()), split, inputs, chunked, arguments.only, fixed)


def without_constants(spec: SessionSpec, model: ModelDescription) -> tuple[dict[str, Any], ModelDescription]:
    """Return the values of the inputs that `fix` turns into constants, and the model's description without these
    inputs."""
    constants = spec.fix.constants if spec.fix is not None else {}
    values: dict[str, Any] = {}
    for node in model.inputs:
        if node.name in constants:
            sizes = resolved(constants[node.name], node.shape, spec.free_dimensions_by_name)
            values[node.name] = array_of(constants[node.name], node.name, node.type, sizes)
    inputs = tuple(node for node in model.inputs if node.name not in constants)
    return values, dataclasses.replace(model, inputs=inputs)


def dimensions_left(plan: BucketPlan, model: ModelDescription, fixed: Mapping[str, int]) -> tuple[BucketAxis, ...]:
    """Return the dimensions that neither the buckets nor the session's overrides fix. QNN refuses a model with
    such dimensions."""
    known = {*plan.symbols, *fixed}
    return tuple(dim for dim in free_dimensions(model.inputs) if dim.symbol not in known)


def refuse_dimensions_left(left: tuple[BucketAxis, ...], label: str) -> OptionError:
    names = list(dict.fromkeys(dim.symbol for dim in left if dim.symbol is not None))
    nameless = [dim for dim in left if dim.symbol is None]
    each = [next(dim for dim in left if dim.symbol == name) for name in names]
    each += nameless
    shown = listed([str(dim) for dim in each], 5)
    fixes = []
    if names:
        fixes.append(
            f"Give sizes for {'this dimension' if len(names) == 1 else 'these dimensions'}, too: "
            f"buckets={{{names[0]!r}: 1, ...}}, or "
            f"SessionOptions.add_free_dimension_override_by_name({names[0]!r}, 1)."
        )
    if nameless:
        fixes.append(
            f"Refer to a dimension without a name by its input and axis: buckets={{{nameless[0].place!r}: 1, ...}}."
        )
    fixes.append("fallback='cpu' runs the nodes that depend on free dimensions on the CPU.")
    return OptionError(
        f"{label} would still have free dimensions: {shown}.",
        cause="QNN accepts only models whose sizes are all fixed.",
        fix=" ".join(fixes),
    )


def check_overrides(plan: BucketPlan, fixed: Mapping[str, int]) -> None:
    for name in plan.symbols:
        if name in fixed:
            raise OptionError(
                f"The dimension {name!r} has buckets, but the session options fix it to {fixed[name]}.",
                fix="Remove either the buckets or the override.",
            )


def check_options(options: Mapping[str, Any], entries: Mapping[str, str]) -> None:
    """Raise `OptionError` for options with which several variants would write the same file."""
    asked = [key for key in _WRITES_A_FILE if entries.get(key, "0") not in ("", "0")]
    if options.get("optimized_model_filepath"):
        asked.append("optimized_model_filepath")
    if asked:
        raise OptionError(
            f"{asked[0]} cannot be combined with buckets.",
            cause="Each bucket is a separate session, and all of them would write the same file.",
            fix="Remove the option: the cache stores the compiled model of each bucket. To ship compiled models, "
            "compile one for "
            "each size (qnnbridge.compile).",
        )


def _check_symbols(symbols: tuple[str, ...], free: tuple[BucketAxis, ...], label: str) -> None:
    known = list(dict.fromkeys(dim.symbol for dim in free if dim.symbol is not None))
    for name in symbols:
        if name not in known:
            nameless = [dim.place for dim in free if dim.symbol is None]
            raise OptionError(
                f"buckets: no input of {label} has a dimension {name!r}.",
                cause=f"Dimensions without a name: {', '.join(nameless)} (input:axis)." if nameless else None,
                fix=(
                    f"The free dimensions are {', '.join(map(repr, known + nameless))}.{_meant(name, known)}"
                    if free
                    else "The model has no free dimension, so buckets are not needed."
                ),
            )


def _meant(name: str, known: list[str]) -> str:
    """Return a sentence that suggests a name, for example `seq` if the caller wrote `sequence`."""
    longer = [one for one in known if len(one) > 2 and name.startswith(one)]
    shorter = [one for one in known if len(name) > 2 and one.startswith(name)]
    return suggest(name, known) or (f" Did you mean {(longer + shorter)[0]!r}?" if longer + shorter else "")


def _pad_value(value: Any, rule: FeedRule, needed: tuple[str, ...], batches: set[str | None]) -> Array | None:
    """Return the padding value as an array without dimensions.

    Args:
        needed: dimensions that need a padding value.
        batches: dimensions that may be a batch.

    Raises:
        OptionError: the value is missing or does not fit the input's type.
    """
    if rule.inner.kind != "tensor" or (rule.dtype is None and rule.inner.element is not ElementType.STRING):
        raise OptionError(
            f"Input {rule.name!r} is {rule.declared}, which cannot be padded.",
            fix="Remove the buckets: only tensors of numpy's types can be padded.",
        )
    if value is None:
        if not needed:
            return None
        shown = list(map(repr, needed))
        raise OptionError(
            f"pad: no value is given for padding input {rule.name!r} along {' and '.join(shown)}.",
            cause="The value depends on the model: for token ids the id of the padding token (often 0), for a "
            "mask 0.",
            fix=f"Give pad={{{rule.name!r}: 0, ...}}, or pad=0 for all inputs; verify_padding() checks "
            "the value. A dimension with a single size needs no padding, but then no other size is accepted."
            + "".join(
                f" If {name!r} is a batch of independent rows, use split={name!r}, which needs no padding value."
                for name in needed[:1]
                if name in batches
            ),
        )
    assert rule.inner.element is not None
    return _converted(value, rule, LAYOUTS[rule.inner.element].storage)


def _converted(value: Any, rule: FeedRule, dtype: np.dtype[Any]) -> Array:
    wrong = OptionError(
        f"pad: {value!r:.60} is not a value for input {rule.name!r}, which is {rule.declared}.",
        fix="Give a value that the type can represent exactly."
        if dtype.kind != "O"
        else "Give a string, for example ''.",
    )
    if dtype.kind == "O":
        if not isinstance(value, str):
            raise wrong
        return np.array(value, object)
    try:
        given = np.asarray(value)
        if given.shape != () or not _same_kind(given, dtype):
            raise wrong
        with np.errstate(all="ignore"):
            converted = given.astype(dtype)
            # Allow rounding for float types (0.1), but not for integer types.
            if dtype.kind in "iu" and not (np.isfinite(given) and float(converted) == float(given)):
                raise wrong
            if dtype.kind == "f" and np.isfinite(given) and not np.isfinite(converted):
                raise wrong
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    return converted


def _same_kind(given: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a value fits the input's type: a number for numbers; a boolean, 0 or 1 for booleans."""
    if dtype.kind == "b":
        return given.dtype.kind == "b" or (given.dtype.kind in "iu" and int(given) in (0, 1))
    return given.dtype.kind in "iuf" and dtype.kind in "iuf"
