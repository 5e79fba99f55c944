"""Shape buckets: a model with free dimensions, compiled for a few fixed sizes, used as if it took any size.

Theory of operation. When the session is made, the model's description becomes a `BucketPlan`: which input axes are
free, by which name, and which sizes each gets. The smallest variant is made at once, all others with the first
call that needs them. How the outputs' sizes follow from those of the inputs is what the model declares, else what
the model gives when it is run on the CPU with its sizes left free. Such runs also find which padding leaves the
results as they are, where the application says nothing of it.

A call takes one of these ways:

    sizes of the inputs --> fit a variant     --> pad, run, cut the outputs back
                        --> windows (chunk=)  --> windows that overlap, not padded along that axis, joined
                        --> too large, split= --> parts along one axis, each a call, joined
                        --> too large         --> refused, or the model on the CPU (overflow="cpu")

Invariant: an output is cut only where its size is known to follow from the inputs, and every result is compared
with that expectation; another size is an error, never a wrong cut. Padding is another matter: whether it changes
the values depends on the model, so it is tried against the CPU and what it changes is reported (`PaddingCheck`).

Each variant is an ordinary session: deaths, repetition and the cache are its own business.

`session.BucketedSession` puts the parts together: the arguments, the `plan` of free dimensions, one call cut
into parts or windows (`batches`), one session per bucket (`variants`), and what padding changes (`padding`).
`InferenceSession` makes one if it is given ``buckets=``. Imports the root modules of the bridge and the protocol.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_protocol.errors import OptionError

# --- the arguments of a session with buckets, checked without the model ------------------------------------

# The stride of most models for pictures: that many sizes in a row show all of its rounding.
MAX_DENOMINATOR: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """``(factor * symbol + offset) // divisor``."""

    symbol: str
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    @property
    def is_identity(self) -> bool:
        return (self.factor, self.offset, self.divisor) == (1, 0, 1)

    def size(self, of_symbol: int) -> int:
        """The dimension; never below 0."""
        return max(0, (self.factor * of_symbol + self.offset) // self.divisor)

    def __str__(self) -> str:
        text = self.symbol if self.factor == 1 else f"{self.factor} * {self.symbol}"
        if self.offset:
            text += f" {'+' if self.offset > 0 else '-'} {abs(self.offset)}"
        if self.divisor == 1:
            return text
        return f"{text} // {self.divisor}" if text == self.symbol else f"({text}) // {self.divisor}"


def parse(text: str) -> Relation:
    """A relation as an application writes it. Raises `OptionError` for anything else."""
    try:
        relation = _as_relation(ast.parse(text.strip(), mode="eval").body)
    # `ast.parse` raises ValueError for a NUL, and the last two for deep nesting.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        relation = None
    if relation is None or relation.factor < 1:
        raise OptionError(
            f"{text!r} does not say how a dimension of an output follows from a size.",
            fix="Write the name of the dimension, alone or with whole numbers: 'seq', '2 * seq', 'seq + 1', "
            "'(seq + 3) // 4'.",
        )
    return relation


def fit(
    symbol: str, observed: Mapping[int, int], divisors: Iterable[int] = range(1, MAX_DENOMINATOR + 1)
) -> Relation | None:
    """The simplest relation that gives each observed dimension for its size; ``None`` if there is none.

    Simplest: the first of `divisors`, then the offset nearest to 0. A constant is none.
    """
    sizes = sorted(observed)
    if len(sizes) < 2:
        return None
    low, high = sizes[0], sizes[-1]
    rise, run = observed[high] - observed[low], high - low
    if rise <= 0:
        return None
    for divisor in divisors:
        # Rounding down moves each of both ends by less than one.
        nearest = round(rise * divisor / run)
        for factor in (nearest, nearest - 1, nearest + 1):
            offsets = offsets_of(factor, divisor, observed)
            if factor > 0 and offsets:
                return Relation(symbol, factor, min(offsets, key=lambda offset: (abs(offset), offset)), divisor)
    return None


def offsets_of(factor: int, divisor: int, observed: Mapping[int, int]) -> range:
    """The offsets with which all of it is right."""
    # out == (factor * size + offset) // divisor means
    #     divisor * out <= factor * size + offset <= divisor * out + divisor - 1
    # so each observation allows `divisor` offsets in a row. What all of them allow is left.
    least = max(divisor * out - factor * size for size, out in observed.items())
    most = min(divisor * out - factor * size for size, out in observed.items()) + divisor - 1
    return range(least, most + 1)


def _as_relation(node: ast.expr) -> Relation | None:
    if isinstance(node, ast.Name):
        return Relation(node.id)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = node.left, node.right
    if isinstance(node.op, (ast.Mult, ast.Add)) and _number(left) is not None:
        left, right = right, left
    inner, number = _as_relation(left), _number(right)
    # Only the last step may divide: a `Relation` has no form for `seq // 2 + 1`.
    if inner is None or number is None or inner.divisor != 1:
        return None
    if isinstance(node.op, ast.Mult):
        return dataclasses.replace(inner, factor=inner.factor * number, offset=inner.offset * number)
    if isinstance(node.op, ast.Add):
        return dataclasses.replace(inner, offset=inner.offset + number)
    if isinstance(node.op, ast.Sub):
        return dataclasses.replace(inner, offset=inner.offset - number)
    if isinstance(node.op, ast.FloorDiv) and number > 0:
        return dataclasses.replace(inner, divisor=number)
    return None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


Overflow = Literal["error", "cpu"]
Buckets = Mapping[str, "int | Iterable[int]"] | Sequence[Mapping[str, int]]
Pad = Mapping[str, Any]
Cut = Mapping[str, Sequence["int | str | None"]]

# QNN's sizes have 32 bits.
MAX_SIZE: Final = 2**31 - 1
# A larger number is a mistake: each is compiled for itself.
MAX_VARIANTS: Final = 1024

# In the name of a dimension whose rows are independent of each other.
_BATCH: Final = "batch"

_EXAMPLE: Final = "buckets={'seq': [16, 32, 64, 128]}"
_EXAMPLE_PAIRS: Final = "buckets=[{'text': 16, 'frames': 64}, {'text': 32, 'frames': 128}]"


@dataclasses.dataclass(frozen=True, slots=True)
class BucketArguments:
    """sizes: of each symbol, in rising order. split: symbols of which a larger size is done in several parts.

    pad: input -> what it is padded with, or one value for all (`pad_all`). cut: output -> a relation per
    dimension, ``None`` for one that is left as it is. chunk: the symbol that is done in overlapping windows, with
    how far the model looks (``None``: it is measured). only: the combinations of sizes that count; default all.
    decided: `pad` is what the session decided, so that nothing of it was said by the application.
    """

    sizes: Mapping[str, tuple[int, ...]]
    split: frozenset[str] = frozenset()
    pad: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pad_all: Any = None
    cut: Mapping[str, tuple[Relation | None, ...]] = dataclasses.field(default_factory=dict)
    overflow: Overflow = "error"
    chunk: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    only: frozenset[tuple[int, ...]] | None = None
    decided: bool = False


def make_arguments(
    buckets: Any,
    pad: Any = None,
    cut: Any = None,
    split: Any = None,
    overflow: Any = "error",
    chunk: Any = None,
) -> BucketArguments:
    """Raises `OptionError` for what cannot be meant, with what to do."""
    buckets, only = _listed(buckets)
    if not isinstance(buckets, Mapping) or not buckets:
        raise OptionError(f"buckets={buckets!r} names no dimension.", fix=f"Give names and sizes: {_EXAMPLE}.")
    sizes = {_symbol(name): _sizes(name, given) for name, given in buckets.items()}
    count = math.prod(map(len, sizes.values())) if only is None else len(only)
    if count > MAX_VARIANTS:
        raise OptionError(
            f"These buckets make {count} variants of the model, each of which is compiled for itself.",
            fix=f"Give fewer sizes; {MAX_VARIANTS} variants are the most.",
        )
    if overflow not in ("error", "cpu"):
        raise OptionError(f"overflow={overflow!r} is not known.", fix="Give 'error' or 'cpu'.")
    values, for_all = _pad(pad)
    chunked = _chunk(chunk, sizes)
    return BucketArguments(
        sizes, _split(split, sizes, chunked), values, for_all, _cut(cut), overflow, chunked, only
    )


def _listed(buckets: Any) -> tuple[Any, frozenset[tuple[int, ...]] | None]:
    """Chosen combinations, ``[{"text": 16, "frames": 64}, ...]``: sizes of each name, and which of them count."""
    if not isinstance(buckets, (list, tuple)):
        return buckets, None
    if not buckets or not all(isinstance(one, Mapping) and one for one in buckets):
        raise OptionError(f"buckets={buckets!r:.100} names no dimension.", fix=f"{_EXAMPLE}, or {_EXAMPLE_PAIRS}.")
    names = list(buckets[0])
    if any(set(one) != set(names) for one in buckets):
        raise OptionError("buckets: the maps of the list name different dimensions.", fix=f"Like {_EXAMPLE_PAIRS}.")
    only = frozenset(tuple(_size(name, one[name]) for name in names) for one in buckets)
    return {name: [one[name] for one in buckets] for name in names}, only


def _chunk(chunk: Any, sizes: Mapping[str, Any]) -> dict[str, int | None]:
    if chunk is None:
        return {}
    given = {chunk: None} if isinstance(chunk, str) else chunk
    if not isinstance(given, Mapping) or len(given) != 1:
        raise OptionError(
            f"chunk={chunk!r:.100} does not name one dimension.",
            fix="Give its name: chunk='frames'; or with how far the model looks: chunk={'frames': 32}.",
        )
    ((name, context),) = given.items()
    _check_known("chunk", name, sizes)
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 0):
        raise OptionError(
            f"chunk: {context!r:.60} is no number of steps.", fix="Give 0 or more, or the name alone."
        )
    return {name: context}


def _check_known(option: str, name: object, sizes: Mapping[str, Any]) -> None:
    if name not in sizes:
        raise OptionError(
            f"{option}: {name!r} has no buckets.", fix=f"Give a name out of buckets: {', '.join(sizes)}."
        )


def _symbol(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise OptionError(
            f"buckets: {name!r} is no name of a dimension.", fix=f"Give names as the model has them: {_EXAMPLE}."
        )
    return name


def _sizes(name: str, given: object) -> tuple[int, ...]:
    # These can be iterated as well, over characters and keys.
    if isinstance(given, (str, bytes, Mapping)):
        raise _no_size(name, given)
    if isinstance(given, Iterable):
        found = sorted({_size(name, one) for one in given})
        if not found:
            raise OptionError(f"buckets: {name!r} has no size.", fix=f"Give at least one: {_EXAMPLE}.")
        return tuple(found)
    return (_size(name, given),)


def _size(name: str, given: Any) -> int:
    if isinstance(given, (bool, float)):
        raise _no_size(name, given)
    try:
        size = operator.index(given)
    except TypeError:
        raise _no_size(name, given) from None
    if not 0 < size <= MAX_SIZE:
        raise _no_size(name, given)
    return size


def sizes_text(sizes: Mapping[str, int]) -> str:
    """How messages call a variant."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _no_size(name: str, given: object) -> OptionError:
    return OptionError(
        f"buckets: {given!r:.100} is no size for the dimension {name!r}.",
        fix=f"Give whole numbers from 1 on: {_EXAMPLE}.",
    )


def _split(split: Any, sizes: Mapping[str, tuple[int, ...]], chunk: Mapping[str, Any]) -> frozenset[str]:
    """Unless the application says it: what is called a batch. Parts of anything else give other answers than the
    whole, without any error, so a guess must not be bolder than that."""
    if split is None:
        return frozenset(name for name in sizes if _BATCH in name.lower() and name not in chunk)
    names = [split] if isinstance(split, str) else list(split) if isinstance(split, Iterable) else [split]
    for name in names:
        _check_known("split", name, sizes)
    return frozenset(names)


def _pad(pad: Any) -> tuple[dict[str, Any], Any]:
    if pad is None:
        return {}, None
    if isinstance(pad, Mapping):
        return dict(pad), None
    if isinstance(pad, (bool, int, float, str)) or getattr(pad, "shape", None) == ():
        return {}, pad
    raise OptionError(
        f"pad={pad!r:.100} is neither a value nor values for inputs.",
        fix="Give what the inputs are padded with: pad={'input_ids': 0, 'attention_mask': 0}, or pad=0 for all.",
    )


def _cut(cut: Any) -> dict[str, tuple[Relation | None, ...]]:
    if cut is None:
        return {}
    if not isinstance(cut, Mapping):
        raise OptionError(f"cut={cut!r:.100} names no output.", fix="Give cut={'logits': [None, 'seq', None]}.")
    found: dict[str, tuple[Relation | None, ...]] = {}
    for name, dims in cut.items():
        if isinstance(dims, (str, bytes)) or not isinstance(dims, Iterable):
            raise OptionError(
                f"cut: {dims!r:.100} is not a list of the dimensions of the output {name!r}.",
                fix="Give one entry for each: cut={'logits': [None, 'seq', None]}.",
            )
        found[name] = tuple(_dimension(name, dim) for dim in dims)
    return found


def _dimension(name: str, dim: Any) -> Relation | None:
    if dim is None or (isinstance(dim, int) and not isinstance(dim, bool)):
        return None  # a fixed size is left as it is, too
    if isinstance(dim, str):
        return parse(dim)
    raise OptionError(
        f"cut: {dim!r:.100} is no dimension of the output {name!r}.",
        fix="Give a name ('seq'), an expression ('2 * seq'), or None for one that is left as it is.",
    )
