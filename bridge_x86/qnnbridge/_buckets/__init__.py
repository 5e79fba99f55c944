"""Shape buckets: a model with free dimensions is compiled for a few fixed sizes and accepts calls of any size.

Overview. When the session is created, a `BucketPlan` is derived from the model's description: the free axes of the
inputs, their names, and the sizes to compile. A *variant* is the model with one combination of these sizes. The
smallest variant is created immediately, each other variant with the first call that needs it. The relation between
the sizes of outputs and inputs comes from the model's declarations; if they are missing, the session runs the model
on the CPU with several sizes to find the relation. If the application does not specify padding values, the session
also uses such runs to find values that do not change the results.

A call takes one of these paths:

    sizes of the inputs --> fit a variant     --> pad, run, remove the padding from the outputs
                        --> windows (chunk=)  --> overlapping windows, not padded along that axis, joined
                        --> too large, split= --> parts along one axis, each a call, joined
                        --> too large         --> refused, or the model on the CPU (overflow="cpu")

Invariant: padding is cut from an output only if the relation of the output's size to the inputs is known. The shape
of every result is compared with the expected shape, and an unexpected size raises an error. Whether padding changes
the values depends on the model, so padded results are compared with the CPU's results, and differences are reported
(`PaddingCheck`).

Each variant is an ordinary session, which handles crashes, retries and the cache by itself.

`session.BucketedRunner` combines the parts: the arguments, the `plan` of free dimensions, splitting one call into
parts or windows (`batches`), whether a batch may be divided (`rows`), one session per bucket (`variants`), and
the effect of padding (`padding`). `InferenceSession` creates a `BucketedRunner` for ``buckets=``.
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

# Largest divisor that the first search for a relation tries. The total stride of most image models is not larger.
# The session runs the model with this many consecutive sizes to observe how an output size is rounded.
MAX_DENOMINATOR: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """Formula for the size of an output dimension: ``(factor * symbol + offset) // divisor``. `symbol` is the name
    of a free dimension of the inputs."""

    symbol: str
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    @property
    def is_identity(self) -> bool:
        return (self.factor, self.offset, self.divisor) == (1, 0, 1)

    def size(self, of_symbol: int) -> int:
        """Return the size of the output dimension, at least 0, if the free dimension has the size `of_symbol`."""
        return max(0, (self.factor * of_symbol + self.offset) // self.divisor)

    def __str__(self) -> str:
        text = self.symbol if self.factor == 1 else f"{self.factor} * {self.symbol}"
        if self.offset:
            text += f" {'+' if self.offset > 0 else '-'} {abs(self.offset)}"
        if self.divisor == 1:
            return text
        return f"{text} // {self.divisor}" if text == self.symbol else f"({text}) // {self.divisor}"


def parse(text: str) -> Relation:
    """Parse a relation in the notation of the argument `cut`. Raise `OptionError` if it is invalid."""
    try:
        relation = _as_relation(ast.parse(text.strip(), mode="eval").body)
    # `ast.parse` raises ValueError for a NUL character, and RecursionError or MemoryError for deep nesting.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        relation = None
    if relation is None or relation.factor < 1:
        raise OptionError(
            f"{text!r} is not a valid formula for the size of an output dimension.",
            fix="Give the name of an input dimension, or a formula with whole numbers: "
            "'seq', '2 * seq', 'seq + 1', '(seq + 3) // 4'.",
        )
    return relation


def fit(
    symbol: str, observed: Mapping[int, int], divisors: Iterable[int] = range(1, MAX_DENOMINATOR + 1)
) -> Relation | None:
    """Return the simplest relation that fits all observations, or ``None`` if none fits.

    The simplest relation is the one whose divisor comes first in `divisors` and, for this divisor, whose offset is
    nearest to 0. No relation is returned for an output size that does not change.

    Args:
        observed: map from the size of the free dimension to the size of the output dimension.
    """
    sizes = sorted(observed)
    if len(sizes) < 2:
        return None
    low, high = sizes[0], sizes[-1]
    rise, run = observed[high] - observed[low], high - low
    if rise <= 0:
        return None
    for divisor in divisors:
        # Output sizes are rounded down, so the factor differs from `rise * divisor / run` by at most 1.
        nearest = round(rise * divisor / run)
        for factor in (nearest, nearest - 1, nearest + 1):
            offsets = offsets_of(factor, divisor, observed)
            if factor > 0 and offsets:
                return Relation(symbol, factor, min(offsets, key=lambda offset: (abs(offset), offset)), divisor)
    return None


def offsets_of(factor: int, divisor: int, observed: Mapping[int, int]) -> range:
    """Return the offsets with which a relation of this factor and divisor fits all observations."""
    # out == (factor * size + offset) // divisor means
    #     divisor * out <= factor * size + offset <= divisor * out + divisor - 1
    # so each observation allows `divisor` consecutive offsets. The result is their intersection.
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
    # Only the last operation may be a division: `2 * (seq // 2)`, for example, has no equivalent `Relation`.
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

# QNN stores sizes in 32 bits.
MAX_SIZE: Final = 2**31 - 1
# Maximum number of variants. Each is compiled separately, so a larger number is probably a mistake.
MAX_VARIANTS: Final = 1024

# If the name of a dimension contains this word, its rows are assumed to be independent of each other.
_BATCH: Final = "batch"

_EXAMPLE: Final = "buckets={'seq': [16, 32, 64, 128]}"
_EXAMPLE_PAIRS: Final = "buckets=[{'text': 16, 'frames': 64}, {'text': 32, 'frames': 128}]"


@dataclasses.dataclass(frozen=True, slots=True)
class BucketArguments:
    """Checked arguments of a session with buckets.

    Attributes:
        sizes: the sizes of each free dimension, in ascending order.
        split: dimensions along which a call that is too large is divided into parts.
        pad: padding value by input. `pad_all` is the value for all other inputs.
        cut: for each output one relation per dimension; ``None`` for a dimension that is not cut.
        chunk: the dimension that is processed in overlapping windows, and over how many steps an input influences
            outputs (``None``: measure it).
        only: combinations of sizes that become variants; ``None`` for all.
        decided: whether the session chose the padding, because the application did not specify it.
        by_name: whether `split` follows from the names of dimensions, because the application did not specify it.
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
    by_name: bool = False


def make_arguments(
    buckets: Any,
    pad: Any = None,
    cut: Any = None,
    split: Any = None,
    overflow: Any = "error",
    chunk: Any = None,
) -> BucketArguments:
    """Check the arguments of the application. Raise `OptionError` for an invalid argument."""
    buckets, only = _listed(buckets)
    if not isinstance(buckets, Mapping) or not buckets:
        raise OptionError(f"buckets={buckets!r} contains no dimension.", fix=f"Give names and sizes: {_EXAMPLE}.")
    sizes = {_symbol(name): _sizes(name, given) for name, given in buckets.items()}
    count = math.prod(map(len, sizes.values())) if only is None else len(only)
    if count > MAX_VARIANTS:
        raise OptionError(
            f"These buckets require {count} variants of the model, and each variant is compiled separately.",
            fix=f"Give fewer sizes; at most {MAX_VARIANTS} variants are allowed.",
        )
    if overflow not in ("error", "cpu"):
        raise OptionError(f"overflow={overflow!r} is not a valid value.", fix="Give 'error' or 'cpu'.")
    values, for_all = _pad(pad)
    chunked = _chunk(chunk, sizes)
    splits = _split(split, sizes, chunked)
    return BucketArguments(
        sizes, splits, values, for_all, _cut(cut), overflow, chunked, only, by_name=split is None
    )


def _listed(buckets: Any) -> tuple[Any, frozenset[tuple[int, ...]] | None]:
    """Convert a list of combinations, ``[{"text": 16, "frames": 64}, ...]``, to sizes by dimension name.

    Return the sizes and the combinations. If `buckets` is not a list of maps, return it unchanged with ``None``,
    which stands for all combinations.
    """
    if not isinstance(buckets, (list, tuple)):
        return buckets, None
    if not buckets or not all(isinstance(one, Mapping) and one for one in buckets):
        raise OptionError(
            f"buckets={buckets!r:.100} contains no dimension.", fix=f"Give {_EXAMPLE}, or {_EXAMPLE_PAIRS}."
        )
    names = list(buckets[0])
    if any(set(one) != set(names) for one in buckets):
        raise OptionError(
            "buckets: the maps in the list contain different dimensions.",
            fix=f"Give the same names in each map: {_EXAMPLE_PAIRS}.",
        )
    only = frozenset(tuple(_size(name, one[name]) for name in names) for one in buckets)
    return {name: [one[name] for one in buckets] for name in names}, only


def _chunk(chunk: Any, sizes: Mapping[str, Any]) -> dict[str, int | None]:
    if chunk is None:
        return {}
    given = {chunk: None} if isinstance(chunk, str) else chunk
    if not isinstance(given, Mapping) or len(given) != 1:
        raise OptionError(
            f"chunk={chunk!r:.100} is not a dimension.",
            fix="Give the name of a dimension: chunk='frames'. "
            "To also set the model's context to 32 steps: chunk={'frames': 32}.",
        )
    ((name, context),) = given.items()
    _check_known("chunk", name, sizes)
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 0):
        raise OptionError(
            f"chunk: {context!r:.60} is not a number of steps.",
            fix="Give 0 or more, or only the name of the dimension.",
        )
    return {name: context}


def _check_known(option: str, name: object, sizes: Mapping[str, Any]) -> None:
    if name not in sizes:
        raise OptionError(
            f"{option}: {name!r} has no buckets.", fix=f"Give a dimension that has buckets: {', '.join(sizes)}."
        )


def _symbol(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise OptionError(
            f"buckets: {name!r} is not the name of a dimension.", fix=f"Give names of the model: {_EXAMPLE}."
        )
    return name


def _sizes(name: str, given: object) -> tuple[int, ...]:
    # Strings, bytes and maps are iterable, too, but are not lists of sizes.
    if isinstance(given, (str, bytes, Mapping)):
        raise _no_size(name, given)
    if isinstance(given, Iterable):
        found = sorted({_size(name, one) for one in given})
        if not found:
            raise OptionError(
                f"buckets: no size is given for {name!r}.", fix=f"Give at least one size: {_EXAMPLE}."
            )
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
    """Return the sizes of a variant for messages: ``seq=16, batch=1``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _no_size(name: str, given: object) -> OptionError:
    return OptionError(
        f"buckets: {given!r:.100} is not a size for the dimension {name!r}.",
        fix=f"Give positive whole numbers: {_EXAMPLE}.",
    )


def _split(split: Any, sizes: Mapping[str, tuple[int, ...]], chunk: Mapping[str, Any]) -> frozenset[str]:
    """Return the dimensions to split; by default all dimensions whose name contains "batch".

    Splitting along any other dimension can change the results without an error, so no other default is safe.
    """
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
        f"pad={pad!r:.100} is neither a padding value nor a map from inputs to padding values.",
        fix="Give a value for each input: pad={'input_ids': 0, 'attention_mask': 0}, or pad=0 for all inputs.",
    )


def _cut(cut: Any) -> dict[str, tuple[Relation | None, ...]]:
    if cut is None:
        return {}
    if not isinstance(cut, Mapping):
        raise OptionError(f"cut={cut!r:.100} contains no output.", fix="Give cut={'logits': [None, 'seq', None]}.")
    found: dict[str, tuple[Relation | None, ...]] = {}
    for name, dims in cut.items():
        if isinstance(dims, (str, bytes)) or not isinstance(dims, Iterable):
            raise OptionError(
                f"cut: {dims!r:.100} is not a list of the dimensions of the output {name!r}.",
                fix="Give one entry for each dimension: cut={'logits': [None, 'seq', None]}.",
            )
        found[name] = tuple(_dimension(name, dim) for dim in dims)
    return found


def _dimension(name: str, dim: Any) -> Relation | None:
    if dim is None or (isinstance(dim, int) and not isinstance(dim, bool)):
        return None  # a number stands for a dimension of fixed size, which need not be cut
    if isinstance(dim, str):
        return parse(dim)
    raise OptionError(
        f"cut: {dim!r:.100} is not a dimension of the output {name!r}.",
        fix="Give a name ('seq'), an expression ('2 * seq'), or None for a dimension that is not cut.",
    )
