"""Values that inputs of a model get for good: numbers and small tensors, as `fix=` and `--constant` take them.

A constant is a number, or lists of numbers of equal lengths, which travel as they are. `plain` makes one of what an
application gives, `array_of` makes the tensor that it means for an input. Pure functions; numpy is loaded for a
tensor alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shell import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qnnbridge_protocol.elements import ElementType

# Of all constants of a model together. A header of 1 MiB has room for twenty times as many.
MOST_NUMBERS = 4096
# Elements of an input that may hold sizes. An image or a sentence holds none.
MOST_SIZES = 16
# Tried as all elements of such an input, one after the other. The first with which the model runs is the example.
EXAMPLE_SIZES = (64, 8, 2, 1)
# Dimensions of one constant: as deep as headers may be nested, with room for what is around it.
_MOST_DIMENSIONS = 6
# Numbers of a constant that a message shows.
_SHOWN = 8
# Integers up to here are floats exactly, and longer ones read badly.
_DIGITS_OF_FLOATS = 1e15
# What msgpack carries.
_INTEGERS = range(-(2**63), 2**64)


def plain(value: Any) -> Any:
    """Return a constant as it travels: a number, or nested lists of numbers, equally long in each dimension.

    value: a number, a list, a tuple, or anything with `tolist`, such as an array.

    Raises:
        TypeError: something in it is no number.
        ValueError: the lists differ in length, are nested too deep, or hold more than `MOST_NUMBERS`.
    """
    if hasattr(value, "tolist"):
        # Before `tolist`, which would make a list of a whole image.
        _check_count(math.prod(getattr(value, "shape", ())))
        value = value.tolist()
    made = _plain(value, _MOST_DIMENSIONS)
    shape_of(made)
    _check_count(count_of(made))
    return made


def plain_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of a model by input, as they travel. Raises `TypeError` and `ValueError` as `plain`."""
    made = {str(name): plain(value) for name, value in constants.items()}
    _check_count(sum(map(count_of, made.values())))
    return made


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > MOST_NUMBERS:
            raise ValueError(f"a constant has at most {_MOST_DIMENSIONS} dimensions and {MOST_NUMBERS:,} numbers")
        return [_plain(one, depth - 1) for one in value]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} is no number")
    # As a float where that is exact: options with such numbers keep the hashes that they have had.
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
    """Yield the numbers of a constant, in the order of a tensor."""
    if isinstance(constant, list):
        for one in constant:
            yield from numbers_in(one)
    else:
        yield constant


def count_of(constant: Any) -> int:
    """Return how many numbers a constant has."""
    return sum(1 for _ in numbers_in(constant))


def shape_of(constant: Any) -> tuple[int, ...]:
    """Return the sizes of a constant. Raises `ValueError` where its lists differ in length."""
    if not isinstance(constant, list):
        return ()
    inner = {shape_of(one) for one in constant}
    if len(inner) > 1:
        raise ValueError("the lists of a constant differ in length")
    return (len(constant), *(inner.pop() if inner else ()))


def text_of(constant: Any) -> str:
    """Return a constant as `--constant` takes it: `480,640`. The numbers are exact, the dimensions are left out."""
    return ",".join(map(_number_text, numbers_in(constant)))


def shown(constant: Any) -> str:
    """Return a constant for a message, which shows the first numbers of a long one."""
    numbers = [_number_text(one) for _, one in zip(range(_SHOWN), numbers_in(constant), strict=False)]
    more = count_of(constant) - len(numbers)
    return ",".join(numbers) + (f",... ({more} more)" if more else "")


def _number_text(number: float) -> str:
    whole = isinstance(number, int) or (number.is_integer() and abs(number) < _DIGITS_OF_FLOATS)
    return str(int(number)) if whole else repr(number)


def options_text(constants: Mapping[str, Any]) -> str:
    """Return the options of a command for these constants, each behind a space."""
    return "".join(f" --constant {shell_word(f'{name}={text_of(one)}')}" for name, one in constants.items())


# --- the tensor of an input ------------------------------------------------------------------------------


def resolved(constant: Any, dims: Sequence[int | str | None] | None, sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of an input with these dimensions.

    Free dimensions get their size in `sizes`, else that of a constant with as many dimensions, else 1.
    """
    known, own = dims or (), shape_of(constant)
    free = own if len(own) == len(known) else [1] * len(known)
    return [
        dim if isinstance(dim, int) else sizes.get(str(dim), size) for dim, size in zip(known, free, strict=True)
    ]


def array_of(constant: Any, name: str, type_text: str, shape: Sequence[int]) -> Any:
    """Return the tensor that an input is from now on.

    A number is repeated for all elements. A list of numbers gives them in the order of the tensor. Nested lists
    need the shape of the input.

    Args:
        constant: as `plain` returns it.
        type_text: of the input, as ONNX Runtime writes it: `tensor(int64)`.
        shape: of the input.

    Raises:
        OptionError: the constant does not fit the input.
    """
    import numpy as np

    element = _element(name, type_text)
    dtype = _dtype(name, element)
    numbers, own = list(numbers_in(constant)), shape_of(constant)
    count = math.prod(shape)
    if own and own != tuple(shape) and not (len(own) == 1 and len(numbers) == count):
        of_input = f"has the shape {_shape_text(shape)}" if shape else "is a single number"
        raise OptionError(
            f'The constant for input "{name}" has the shape {_shape_text(own)}, and the input {of_input}.',
            fix=f"Give {_form(name, count)}{', or one number for all of them' if count > 1 else ''}.",
        )
    made = np.empty(len(numbers), dtype)
    for place, number in enumerate(numbers):
        made[place] = _converted(name, element, dtype, number)
    return (made if own else np.repeat(made, count)).reshape(tuple(shape))


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _form(name: str, count: int) -> str:
    """Return how the numbers of an input are given: their count, and an example."""
    if count == 1:
        return f"one number: --constant {name}=V"
    if count > _SHOWN:
        return f"{count} numbers with commas: --constant {name}=V,V,..."
    example = ",".join(["V"] * count)
    return f'{count} numbers: --constant {name}={example} or fix={{"constants": {{"{name}": [{example}]}}}}'


def _element(name: str, type_text: str) -> ElementType:
    from qnnbridge_protocol.elements import ElementType, from_ort_type
    from qnnbridge_protocol.errors import NotImplemented as Unknown

    try:
        kind = from_ort_type(type_text)
    except Unknown:
        kind = None
    element = kind.element if kind is not None and kind.kind == "tensor" else None
    if element in (None, ElementType.STRING, ElementType.COMPLEX64, ElementType.COMPLEX128):
        raise OptionError(
            f'Input "{name}" cannot become a constant: it is {type_text}.',
            cause="Constants are numbers and tensors of numbers.",
            fix="Leave it out of the constants.",
        )
    assert element is not None
    return element


def _dtype(name: str, element: ElementType) -> Any:
    from qnnbridge_protocol.elements import LAYOUTS

    layout = LAYOUTS[element]
    if layout.named:
        return layout.storage
    try:
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        return getattr(ml_dtypes, str(layout.ml_name))
    except (ImportError, AttributeError):
        raise OptionError(
            f'Input "{name}" cannot become a constant here: numpy has no {element.text}.',
            cause="The package ml_dtypes, which has this type, is missing in this Python or is too old.",
            fix="pip install --upgrade ml_dtypes",
        ) from None


def _converted(name: str, element: ElementType, dtype: Any, number: float) -> Any:
    """Return the element for a number. Raises `OptionError` for a number that its type does not have."""
    import numpy as np

    whole = element.text == "bool" or element.text.lstrip("u").startswith("int")
    finite = math.isfinite(number)
    given = int(number) if whole and finite and number == int(number) else number
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(given).astype(dtype)
        back = float(made) if not whole else int(made)
        # Integers as they are; floats are rounded, and must not become infinite by it.
        good = finite and back == given if whole else math.isfinite(back) or not finite
    except (OverflowError, ValueError, TypeError):
        good = False
    if good:
        return made
    if element.text == "bool":
        fix = "Give true or false (1 or 0)."
    elif whole:
        fix = f"Give a whole number in the range of {element.text}."
    else:
        fix = f"Give a number in the range of {element.text}, or inf."
    raise OptionError(
        f'The constant for input "{name}" has the value {_number_text(number)}, which its type {element.text} '
        "cannot hold.",
        fix=fix,
    )
