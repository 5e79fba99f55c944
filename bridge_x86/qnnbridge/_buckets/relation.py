"""How a dimension of an output follows from the size of a symbol: ``seq``, ``2 * seq``, ``(seq + 3) // 4``.

Pure functions on immutable data; any thread.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Final

from qnnbridge_protocol.errors import OptionError

# The stride of most models for pictures. For more the application has to say it: it takes too many runs to see.
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
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        relation = None
    if relation is None or relation.factor < 1:
        raise OptionError(
            f"{text!r} does not say how a dimension of an output follows from a size.",
            fix="Write the name of the dimension, alone or with whole numbers: 'seq', '2 * seq', 'seq + 1', "
            "'(seq + 3) // 4'.",
        )
    return relation


def fit(symbol: str, observed: Mapping[int, int]) -> Relation | None:
    """The simplest relation that gives each observed dimension for its size; ``None`` if there is none.

    Simplest: the smallest divisor, then the offset nearest to 0. A constant is none.
    """
    sizes = sorted(observed)
    if len(sizes) < 2:
        return None
    low, high = sizes[0], sizes[-1]
    rise, run = observed[high] - observed[low], high - low
    if rise <= 0:
        return None
    for divisor in range(1, MAX_DENOMINATOR + 1):
        # Rounding down moves each of both ends by less than one.
        nearest = round(rise * divisor / run)
        for factor in (nearest, nearest - 1, nearest + 1):
            offsets = _offsets(factor, divisor, observed)
            if factor > 0 and offsets:
                return Relation(symbol, factor, min(offsets, key=lambda offset: (abs(offset), offset)), divisor)
    return None


def _offsets(factor: int, divisor: int, observed: Mapping[int, int]) -> range:
    """The offsets with which all of it is right."""
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
