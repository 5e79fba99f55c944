"""Constant values for inputs of a model: numbers and small tensors, as `fix=` and `--constant` accept them.

A constant is a number, or nested lists of numbers with equal lengths, as they are sent to the host. `plain`
converts a value of the application to a constant; `input_tensors` converts a constant to the tensor of an input.
Pure functions without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Maximum number of numbers in all constants of a model. A header of 1 MiB has room for twenty times as many.
MOST_NUMBERS = 4096
# The values of an input with at most this number of elements may be sizes. Images and sentences have more elements.
MOST_SIZES = 16
# Values to try, in this order, for all elements of an input whose values may be sizes. A message suggests the first
# value with which the model runs.
EXAMPLE_SIZES = (64, 8, 2, 1)
# Maximum number of dimensions of a constant. A header contains it as nested lists, whose depth is limited.
_MOST_DIMENSIONS = 6
# Maximum number of values of a constant that a message shows.
MOST_SHOWN = 8
# Whole numbers below this limit are shown without a decimal point: floats represent them exactly, and longer
# integers are hard to read.
_DIGITS_OF_FLOATS = 1e15
# Integers that msgpack can represent.
_INTEGERS = range(-(2**63), 2**64)


def plain(value: Any) -> Any:
    """Convert a value to a constant: a number, or nested lists of numbers with equal lengths in each dimension.

    Args:
        value: a number, a list, a tuple, or an object with `tolist`, such as an array.

    Raises:
        TypeError: an element is not a number.
        ValueError: the lists differ in length, are nested too deep, or contain more than `MOST_NUMBERS` numbers.
    """
    if hasattr(value, "tolist"):
        # Check the size before `tolist`, which would convert a whole image to a list.
        _check_count(math.prod(getattr(value, "shape", ())))
        value = value.tolist()
    made = _plain(value, _MOST_DIMENSIONS)
    shape_of(made)
    _check_count(count_of(made))
    return made


def plain_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values for inputs of a model to constants, by input. Raise the same errors as `plain`."""
    made = {str(name): plain(value) for name, value in constants.items()}
    _check_count(sum(map(count_of, made.values())))
    return made


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > MOST_NUMBERS:
            raise ValueError(f"a constant has at most {_MOST_DIMENSIONS} dimensions and {MOST_NUMBERS:,} numbers")
        return [_plain(one, depth - 1) for one in value]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} is not a number")
    # Convert an integer to a float if the conversion is exact, as in earlier releases: the hashes of options must
    # not change.
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf
    if exact == value or not isinstance(value, int):
        return exact
    if value not in _INTEGERS:
        raise ValueError(f"{value:.3e} is too large" if abs(value) < 10**300 else "a number is too large")
    return value


def _check_count(count: int) -> None:
    if count > MOST_NUMBERS:
        raise ValueError(f"{count:,} numbers are too many for constants of a model: at most {MOST_NUMBERS:,}")


def numbers_in(constant: Any) -> Iterator[int | float]:
    """Yield the numbers of a constant in the order of a tensor's elements."""
    if isinstance(constant, list):
        for one in constant:
            yield from numbers_in(one)
    else:
        yield constant


def count_of(constant: Any) -> int:
    """Return the number of elements of a constant."""
    return sum(1 for _ in numbers_in(constant))


def shape_of(constant: Any) -> tuple[int, ...]:
    """Return the shape of a constant. Raise `ValueError` if its lists differ in length."""
    if not isinstance(constant, list):
        return ()
    inner = {shape_of(one) for one in constant}
    if len(inner) > 1:
        raise ValueError("the lists of a constant differ in length")
    return (len(constant), *(inner.pop() if inner else ()))


def text_of(constant: Any) -> str:
    """Return a constant in the format of `--constant`: `480,640`. The numbers are exact, the dimensions are
    omitted."""
    return ",".join(map(number_text, numbers_in(constant)))


def shown(constant: Any) -> str:
    """Return a constant as text for a message. A long constant is cut off after its first numbers."""
    numbers = [number_text(one) for _, one in zip(range(MOST_SHOWN), numbers_in(constant), strict=False)]
    more = count_of(constant) - len(numbers)
    return ",".join(numbers) + (f",... ({more} more)" if more else "")


def number_text(number: float) -> str:
    whole = isinstance(number, int) or (number.is_integer() and abs(number) < _DIGITS_OF_FLOATS)
    return str(int(number)) if whole else repr(number)
