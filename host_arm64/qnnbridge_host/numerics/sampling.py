"""Generate inputs for a model: the same seed gives the same values, and free dimensions get sizes that work.

Sizes are found by trying: running the model shows whether it accepts 1, 64 or 224. Values are valid for nearly all
models: floats in 0..1, wide integers 0 or 1 (they are usually indices, masks or lengths), integers of up to 8 bits
over their whole range (they are usually quantised data). The second part generates inputs that resemble real ones,
such as images and masks. All functions are pure.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_protocol import elements, tensors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import BridgeError, OptionError, OrtError
from qnnbridge_protocol.shown import with_article

# Range of the bit patterns of numbers in 0..1. The bit patterns of positive numbers increase with the number.
_CODES: Mapping[ElementType, tuple[int, int]] = {
    ElementType.FLOAT8E4M3FN: (0, 0x38),
    ElementType.FLOAT8E4M3FNUZ: (0, 0x40),
    ElementType.FLOAT8E5M2: (0, 0x3C),
    ElementType.FLOAT8E5M2FNUZ: (0, 0x40),
    ElementType.FLOAT8E8M0: (119, 127),  # this format lacks zero and sign: use 2**-8 to 2**-1
    ElementType.FLOAT6E2M3: (0, 0x08),
    ElementType.FLOAT6E3M2: (0, 0x0C),
    ElementType.FLOAT4E2M1: (0, 0x02),
    ElementType.UINT4: (0, 16),
    ElementType.INT4: (0, 16),
    ElementType.UINT2: (0, 4),
    ElementType.INT2: (0, 4),
}
_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


class DeclaredInput(Protocol):
    """An input as returned by `InferenceSession.get_inputs`."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None] | None: ...


def full_shape(name: str, declared: Sequence[int | str | None] | None, dimensions: Dimensions) -> tuple[int, ...]:
    """Return the declared shape with sizes for all free dimensions. Raise `OptionError` if a size is missing."""
    if declared is None:
        raise OptionError(
            f'Input "{name}" has no declared shape, so no values can be generated.',
            fix=f"Give a file: --input {name}=FILE.npy.",
        )
    sizes = [dimensions.size_of(name, axis, dim) for axis, dim in enumerate(declared)]
    if None in sizes:
        free = [
            f"{name}:{axis}" if dim is None or isinstance(dim, int) else str(dim)
            for axis, (dim, size) in enumerate(zip(declared, sizes, strict=True))
            if size is None
        ]
        free = list(dict.fromkeys(free))
        raise OptionError(
            f'Input "{name}" has free dimensions: {", ".join(free)}.',
            cause="Values can be generated only if all sizes are known.",
            fix=" ".join(f'--dim "{dim}=SIZE"' for dim in free),
        )
    return tuple(size for size in sizes if size is not None)


def random_value(
    name: str, type_text: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any] | tensors.Typed:
    """Generate a tensor of the declared type and shape."""
    declared = elements.from_ort_type(type_text)
    if declared.kind != "tensor" or declared.element is None:
        raise OptionError(
            f'Values of type {type_text} cannot be generated (input "{name}").',
            fix="Run this model from Python with qnnbridge.InferenceSession, which takes lists and maps.",
        )
    # Check the size before numpy allocates the tensor: `nbytes` raises an error for a size that cannot be computed.
    elements.nbytes(ElementType.UINT8 if declared.element is ElementType.STRING else declared.element, shape)
    try:
        return _tensor(declared.element, shape, rng)
    except (MemoryError, ValueError) as error:
        raise OptionError(f'Input "{name}" of shape {shape} does not fit in memory.', cause=str(error)) from None


def _tensor(
    element: ElementType, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, Any] | tensors.Typed:
    dtype = elements.numpy_dtype(element)
    if element is ElementType.STRING:
        return np.asarray(rng.choice(_WORDS, size=shape), dtype=object)
    if element is ElementType.BFLOAT16:
        # A bfloat16 is the upper half of a float's bits.
        upper_half = rng.random(shape, dtype=np.float32).view(np.uint32) >> 16
        return tensors.Typed(upper_half.astype(dtype), element, shape)
    if element in _CODES:
        low, high = _CODES[element]
        codes = rng.integers(low, high, size=shape, dtype=np.uint8)
        layout = elements.LAYOUTS[element]
        return tensors.Typed(tensors.pack(codes, layout.bits) if layout.packed else codes, element, shape)
    if dtype.kind == "c":
        return np.asarray(rng.random(shape) + 1j * rng.random(shape)).astype(dtype)
    if dtype.kind == "f":
        return np.asarray(rng.random(shape)).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        return rng.integers(0, 256, size=shape, dtype=np.uint8).view(dtype)
    return rng.integers(0, 2, size=shape, dtype=np.int64).astype(dtype)


# Sizes to try for free dimensions. The first dimension is the batch: 1, unless no other dimension is free.
TRIED_SIZES = (64, 1, 16, 224, 128, 2, 32, 48, 640)
# Factor and offset that turn values in 0..1 into the values of each sample: an image, values with both signs,
# silence.
_SPREADS = ((1.0, 0.0), (4.0, -2.0), (0.0, 0.0))

# Range of generated quantised values of 16 and 32 bits.
_MOST_STEPS: Final = 2000

Feeds = dict[str, Any]


class NotMade(Exception):
    """No sample can be generated; the message is the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Generated samples that the model has accepted.

    Args:
        feeds: the inputs of each sample.
        sizes: sizes of the free dimensions, by `--dim` name.
    """

    feeds: tuple[Feeds, ...]
    sizes: Mapping[str, int]


def make_samples(
    declared: Sequence[DeclaredInput],
    *,
    seed: int,
    accepts: Callable[[Feeds], object],
    quantised: frozenset[str] = frozenset(),
) -> Samples:
    """Generate three samples that a model accepts.

    Args:
        declared: the model's inputs.
        seed: seed of the values.
        accepts: runs a sample, and raises `OrtError` if the model refuses it.
        quantised: as in `InputKnowledge`.

    Raises:
        NotMade: no sample is accepted; the message fits after "could not be compared: ".
    """
    refuse_unmakeable(declared)
    reason = ""
    for sizes in _candidates(declared):
        try:
            # Use separate random streams, so that the values of a sample do not depend on the number of samples.
            feeds = [
                _sample(declared, sizes, np.random.default_rng([seed, n]), spread, quantised)
                for n, spread in enumerate(_SPREADS)
            ]
            accepts(feeds[0])
        except OrtError as error:
            # Keep the reason for the first sizes. Later sizes may fail just because the model does not accept them.
            reason = reason or (error.cause or error.message)
        except BridgeError as error:
            raise NotMade(error.message) from None
        else:
            return Samples(tuple(feeds), sizes)
    raise NotMade(f"the CPU provider cannot run the model on made-up inputs ({reason[:300]})")


def random_samples(declared: Sequence[DeclaredInput], count: int, seed: int) -> Iterator[Feeds]:
    """Yield `count` samples with values in 0..1 for inputs of fixed sizes."""
    for number in range(count):
        yield _sample(declared, {}, np.random.default_rng([seed, number]), _SPREADS[0])


def refuse_unmakeable(declared: Sequence[DeclaredInput]) -> None:
    """Raise `NotMade` for an input for which no array can be generated."""
    for node in declared:
        try:
            kind = elements.from_ort_type(node.type)
        except BridgeError:
            raise NotMade(f'values of type {node.type} (input "{node.name}") cannot be generated') from None
        if kind.kind != "tensor":
            raise NotMade(f'input "{node.name}" is {with_article(kind.kind)}, for which no values can be generated')
        if kind.element is None or not elements.LAYOUTS[kind.element].named:
            raise NotMade(f'input "{node.name}" is of a type that numpy does not have ({node.type})')
        if node.shape is None:
            raise NotMade(f'input "{node.name}" has no declared shape')


def _candidates(declared: Sequence[DeclaredInput]) -> Iterator[dict[str, int]]:
    first: set[str] = set()
    other: dict[str, None] = {}
    for node in declared:
        for axis, dimension in enumerate(node.shape or ()):
            if isinstance(dimension, int) and dimension >= 0:
                continue
            option = dimension if isinstance(dimension, str) else f"{node.name}:{axis}"
            if axis == 0:
                first.add(option)
            else:
                other[option] = None
    if not other:
        yield dict.fromkeys(sorted(first), 1)
    for size in TRIED_SIZES if other or first else ():
        yield {**dict.fromkeys(sorted(first), 1 if other else size), **dict.fromkeys(other, size)}


def _sample(
    declared: Sequence[DeclaredInput],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    spread: tuple[float, float],
    quantised: frozenset[str] = frozenset(),
) -> Feeds:
    dimensions = Dimensions(by_name=dict(sizes))
    for option, size in sizes.items():
        name, colon, axis = option.rpartition(":")
        if colon and axis.isdecimal():
            dimensions.by_axis[name, int(axis)] = size
    feeds: Feeds = {}
    for node in declared:
        value = random_value(node.name, node.type, full_shape(node.name, node.shape, dimensions), rng)
        if not isinstance(value, np.ndarray):
            raise OptionError(f"values of type {node.type} cannot be given to ONNX Runtime from Python")
        if value.dtype.kind == "f":
            value = np.asarray(value * value.dtype.type(spread[0]) + value.dtype.type(spread[1]), value.dtype)
        feeds[node.name] = _steps(value, rng) if node.name in quantised else value
    return feeds


def _steps(value: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return quantised values of the same type and shape; their range exceeds 8 bits if the type is wider."""
    if value.dtype.kind not in "iu" or value.dtype.itemsize == 1:
        return value  # values of 8 bits cover the range of their type already
    low = 0 if value.dtype.kind == "u" else -_MOST_STEPS
    return rng.integers(low, _MOST_STEPS, size=value.shape, endpoint=True).astype(value.dtype)


# --- realistic inputs ------------------------------------------------------------------------------------
# Realistic values, depending on the kind of input. Noise in 0..1 shows little: token ids of 0 and 1 use two rows of
# an embedding, a mask of random zeros hides the masked values, and a detector finds nothing in noise. The kind of
# an input follows from the graph (the size of the table that is indexed, the quantisation range), from the type,
# and from the input's name.

Array = npt.NDArray[Any]
Spread = Callable[[tuple[int, ...], np.random.Generator], Array]

_SAMPLE_RATE: Final = 16000
_WIDE_BYTES: Final = 4
# Magnitude up to which float inputs are ordinary. Normally distributed inputs rarely exceed it.
_REACH: Final = 6.0
# Minimum length of an axis that gets a pattern.
_LEAST_AXIS: Final = 8
# Operators that keep the values of a token, a mask or an image, and only change type or shape.
_THROUGH: Final = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice"}
)
# Operators that return a table with as many rows as their input.
_TABLES: Final = frozenset({"Cast", "Identity", "DequantizeLinear"})

# Use the first pattern that matches: token_type_ids are segments and position_ids are positions, although both
# names also match the pattern for ids.
_NAMES: Final[Sequence[tuple[str, re.Pattern[str]]]] = (
    ("mask", re.compile(r"mask|attention(?!s)|valid|padding", re.IGNORECASE)),
    ("segment", re.compile(r"token_?type|segment|lang_?id|speaker|spk|sid$", re.IGNORECASE)),
    ("position", re.compile(r"position|pos_?ids?", re.IGNORECASE)),
    ("rate", re.compile(r"^sr$|sampl\w*_?rate|frame_?rate", re.IGNORECASE)),
    ("length", re.compile(r"len(gth)?s?$|_len|num_frames|^n_", re.IGNORECASE)),
    ("ids", re.compile(r"(^|_|\.)ids?$|token|vocab", re.IGNORECASE)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class InputKnowledge:
    """Facts about a model's inputs from its graph.

    Args:
        rows: number of rows of the table that an input indexes, by the input's name; valid ids are smaller.
        ranges: smallest and largest value that a quantised input can represent.
        quantised: integer inputs that are dequantised: their values are signed numbers, not indices.
    """

    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    quantised: frozenset[str] = frozenset()


NOTHING_KNOWN: Final = InputKnowledge()


@dataclasses.dataclass(frozen=True, slots=True)
class NamedFeeds:
    """A set of inputs and its name in messages."""

    name: str
    feeds: Feeds


def knowledge_of(model: Any) -> InputKnowledge:
    """Collect the facts from a `ModelProto`, whose weights need not be loaded."""
    from onnx import numpy_helper

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    origin = {value.name: value.name for value in graph.input if value.name not in tensors}
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    rows: dict[str, int] = {}
    ranges: dict[str, tuple[float, float]] = {}
    quantised: set[str] = set()
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in origin:
            quantised.add(origin[node.input[0]])
        if node.op_type in _THROUGH and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in _TABLES and node.input and node.input[0] in tables:
            tables[node.output[0]] = tables[node.input[0]]
        elif node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tables[node.output[0]] = tuple(node.attribute[0].t.dims)
        elif node.op_type == "Gather" and node.input[1] in origin and node.input[0] in tables:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            dims = tables[node.input[0]]
            name = origin[node.input[1]]
            if -len(dims) <= axis < len(dims):
                # An input may index two tables, so an id must be valid in the smaller table.
                rows[name] = min(rows.get(name, dims[axis]), dims[axis])
        elif node.op_type == "QuantizeLinear" and node.input[0] in origin and len(node.input) > 2:
            scale, zero = (tensors.get(name) for name in node.input[1:3])
            # Skip external data, which is not read here, and several scales along an axis, which have no common
            # range.
            if scale is None or zero is None or scale.external_data or math.prod(scale.dims) != 1:
                continue
            step, shift = numpy_helper.to_array(scale).reshape(()), numpy_helper.to_array(zero).reshape(())
            if shift.dtype.kind in "iu":
                limits = np.iinfo(shift.dtype)
                low, high = ((edge - int(shift)) * float(step) for edge in (int(limits.min), int(limits.max)))
                ranges[origin[node.input[0]]] = (low, high)
    return InputKnowledge(rows, ranges, frozenset(quantised))


def knowledge_in(source: str | os.PathLike[str] | bytes | memoryview) -> InputKnowledge:
    """Collect the facts from a model file or its bytes; none if onnx is missing or cannot read the model."""
    try:
        import onnx

        if isinstance(source, (bytes, memoryview)):
            return knowledge_of(onnx.load_model_from_string(bytes(source)))
        return knowledge_of(onnx.load(os.fspath(source), load_external_data=False))
    except Exception:  # noqa: BLE001 - protobuf's errors; inputs can be generated without knowledge
        return NOTHING_KNOWN


def ordinary_inputs(
    declared: Sequence[DeclaredInput], knowledge: InputKnowledge = NOTHING_KNOWN, seed: int = 0
) -> list[NamedFeeds]:
    """Generate three sets: values in 0..1, of both signs, zeros. Raise `NotMade` if values cannot be generated."""
    refuse_unmakeable(declared)
    made = [_made(declared, knowledge, seed, number, name) for number, name in enumerate(_ORDINARY)]
    if any(value.dtype.kind == "f" for value in made[0].feeds.values()):
        return made
    return [NamedFeeds(f"set {number}", one.feeds) for number, one in enumerate(made, 1)]


def codes(declared: Sequence[DeclaredInput], knowledge: InputKnowledge = NOTHING_KNOWN) -> frozenset[str]:
    """Return the names of inputs that are ids, masks, positions or lengths.

    In practice their values are never negative and never exceed the rows of a table.
    """
    return frozenset(node.name for node in declared if node.name in knowledge.rows or _kind_of(node.name))


def masks_as_used(feeds: Feeds) -> Feeds:
    """Return the inputs, with each mask replaced by a typical mask (ones, then zeros). Masks are recognised by
    name.
    """
    return {name: _mask(value) if _kind_of(name) == "mask" else value for name, value in feeds.items()}


def _mask(value: Array) -> Array:
    made = np.ones_like(value)
    if value.ndim and value.shape[-1] > 2:
        made[..., -(value.shape[-1] // 3) :] = 0
    return made


def made_up(declared: Sequence[DeclaredInput], seed: int) -> Feeds:
    """Generate one set of inputs of fixed sizes: ids, masks and lengths for inputs whose names suggest these, other
    values in 0..1.

    Raises:
        NotMade: no values can be generated for an input.
    """
    try:
        return ordinary_inputs(declared, seed=seed)[0].feeds
    except BridgeError as error:
        raise NotMade(error.message) from None


def further_inputs(
    declared: Sequence[DeclaredInput], knowledge: InputKnowledge = NOTHING_KNOWN, seed: int = 0
) -> Iterator[NamedFeeds]:
    """Yield further sets of inputs, for a model whose results for the ordinary sets are not conclusive."""
    refuse_unmakeable(declared)
    for number, name in enumerate(_FURTHER, len(_ORDINARY)):
        if name != _QUANTISED or knowledge.ranges:
            yield _made(declared, knowledge, seed, number, name)


def is_guess(feeds: Feeds, knowledge: InputKnowledge = NOTHING_KNOWN) -> bool:
    """Return whether a float input is unusually large (above `_REACH`) although the model's valid range is unknown.

    Such inputs can show that a model is right, but not that it is wrong, because float16 overflows above 65504.
    """
    return any(
        value.dtype.kind == "f" and value.size > 0 and float(np.abs(value).max()) > _REACH
        for name, value in feeds.items()
        if name not in knowledge.ranges
    )


def varied(feeds: Feeds, knowledge: InputKnowledge, rng: np.random.Generator) -> Feeds:
    """Return the inputs with a random pattern added to the floats. Used to search for inputs that change the
    results.
    """
    changed: Feeds = {}
    for name, value in feeds.items():
        if value.dtype.kind != "f" or not value.size:
            changed[name] = value
            continue
        low, high = knowledge.ranges.get(name, (float(value.min()), float(value.max())))
        reach = max(high - low, 1.0) * float(rng.choice([0.3, 1.0, 3.0]))
        pattern = _picture(value.shape, rng) if rng.random() < 0.5 else rng.standard_normal(value.shape)
        changed[name] = np.asarray(value + reach * pattern * rng.choice([-1.0, 1.0])).astype(value.dtype)
    return changed


def _made(
    declared: Sequence[DeclaredInput], knowledge: InputKnowledge, seed: int, number: int, name: str
) -> NamedFeeds:
    # Separate random streams: omitting a set does not change the values of the others.
    rng = np.random.default_rng([seed, number])
    spread = {**_ORDINARY, **_FURTHER}[name]
    longest = max(
        (size for node in declared for size in (node.shape or ())[1:] if isinstance(size, int)), default=1
    )
    feeds: Feeds = {}
    for node in declared:
        shape = full_shape(node.name, node.shape, Dimensions())
        value = random_value(node.name, node.type, shape, rng)
        assert isinstance(value, np.ndarray), node.type  # `refuse_unmakeable` has refused these inputs
        feeds[node.name] = _filled(node.name, value, _kind_of(node.name), spread, knowledge, longest, rng)
    return NamedFeeds(name, feeds)


def _kind_of(name: str) -> str:
    return next((kind for kind, pattern in _NAMES if pattern.search(name)), "")


def _filled(
    name: str,
    value: Array,
    kind: str,
    spread: Spread,
    knowledge: InputKnowledge,
    longest: int,
    rng: np.random.Generator,
) -> Array:
    """Return typical values for an input of the given kind. `value` is random, with the right type and shape."""
    if name in knowledge.quantised:
        return _steps(value, rng)
    if kind == "mask" and value.dtype.kind in "fiub":
        return np.ones_like(value)
    if value.dtype.kind in "iu" and value.dtype.itemsize >= _WIDE_BYTES:
        if name in knowledge.rows:
            return rng.integers(0, max(1, knowledge.rows[name]), size=value.shape).astype(value.dtype)
        if kind == "segment":
            return np.zeros_like(value)
        if kind == "position" and value.ndim:
            return np.broadcast_to(np.arange(value.shape[-1]), value.shape).astype(value.dtype)
        if kind in ("rate", "length"):
            return np.full_like(value, _SAMPLE_RATE if kind == "rate" else longest)
        return np.ones_like(value) if spread is _ones else value
    if value.dtype.kind == "f":
        low, high = knowledge.ranges.get(name, (0.0, 1.0)) if spread is _of_range else (0.0, 1.0)
        filled = spread(value.shape, rng) * (high - low) + low
        return np.asarray(filled).astype(value.dtype)
    if value.dtype.kind in "iu" and spread in (_picture, _bright_picture):
        limits = np.iinfo(value.dtype)
        return np.asarray(_picture(value.shape, rng) * (limits.max - limits.min) + limits.min).astype(value.dtype)
    return value


# --- patterns of float values ----------------------------------------------------------------------------


def _between(low: float, high: float) -> Spread:
    return lambda shape, rng: np.asarray(rng.random(shape) * (high - low) + low)


def _of_range(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return values in 0..1, to be scaled to the input's quantisation range."""
    return np.asarray(rng.random(shape))


def _normal(times: float) -> Spread:
    return lambda shape, rng: np.asarray(rng.standard_normal(shape) * times)


def _picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return waves along each axis with a bright field and strokes: edges, surfaces and text-like structure."""
    drawn = np.full(shape, 0.5)
    long_axes = [axis for axis, size in enumerate(shape) if size >= _LEAST_AXIS]
    for axis, size in enumerate(shape):
        if size > 1:
            wave = np.sin(2 * np.pi * (rng.integers(1, 4) * np.arange(size) / size + rng.random()))
            drawn = drawn + 0.25 * wave.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    if long_axes:
        field = [slice(size // 4, size - size // 4) if size >= _LEAST_AXIS else slice(None) for size in shape]
        drawn[tuple(field)] = 0.95
        strokes = list(field)
        strokes[long_axes[-1]] = slice(shape[long_axes[-1]] // 4, shape[long_axes[-1]] * 3 // 4, 4)
        drawn[tuple(strokes)] = 0.05
    return np.asarray(np.clip(drawn, 0.0, 1.0))


def _bright_picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return _picture(shape, rng) * 255.0


def _ones(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return ones, even for integers, because a divisor must not be zero."""
    return np.ones(shape)


def _tone(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a voice-like tone along the last axis: harmonics of a low pitch with an envelope."""
    size = shape[-1] if shape else 1
    time = np.arange(size)
    # At 16 kHz this is 80 to 240 Hz, the pitch of voices.
    pitch = 0.005 + 0.01 * rng.random()
    waves = np.asarray(sum(np.sin(2 * np.pi * pitch * k * time + rng.random() * 6) / k for k in range(1, 9)))
    envelope = 0.2 + 0.8 * np.sin(np.pi * time / max(1, size)) ** 2
    tone = 0.3 * waves * envelope
    return np.asarray(tone * (0.5 + 0.5 * rng.random((*shape[:-1], 1))) if shape else tone[0])


_ORDINARY: Final[Mapping[str, Spread]] = {
    "values in 0..1": _between(0.0, 1.0),
    "values with both signs": _between(-2.0, 2.0),
    "zeros": _between(0.0, 0.0),
}
# Number of sets of inputs that are used for every model.
ORDINARY: Final = len(_ORDINARY)
_QUANTISED: Final = "the range that it is quantised to"
_FURTHER: Final[Mapping[str, Spread]] = {
    _QUANTISED: _of_range,
    "a pattern in 0..1": _picture,
    "a pattern in 0..255": _bright_picture,
    "a pattern in -1..1": lambda shape, rng: _picture(shape, rng) * 2.0 - 1.0,
    "a tone": _tone,
    "normal values": _normal(1.0),
    "normal values, times 10": _normal(10.0),
    "values in 0..255": _between(0.0, 255.0),
    "ones": _ones,
}
