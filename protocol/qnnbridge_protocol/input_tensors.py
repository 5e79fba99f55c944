"""Tensors for constant inputs of a model, and the command options that set such constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_protocol.elements import LAYOUTS, ElementType, from_ort_type
from qnnbridge_protocol.errors import NotImplemented as UnknownType
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.input_constants import MOST_SHOWN, number_text, numbers_in, shape_of, text_of
from qnnbridge_protocol.shell import shell_word


def options_text(constants: Mapping[str, Any]) -> str:
    """Return the options of a command for these constants, each preceded by a space."""
    return "".join(f" --constant {shell_word(f'{name}={text_of(one)}')}" for name, one in constants.items())


def resolved(constant: Any, dims: Sequence[int | str | None] | None, sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of an input with concrete sizes for its dimensions.

    A free dimension gets its size from `sizes`, else from the constant if it has the same rank; otherwise the size
    is 1.
    """
    known, own = dims or (), shape_of(constant)
    free = own if len(own) == len(known) else [1] * len(known)
    return [
        dim if isinstance(dim, int) else sizes.get(str(dim), size) for dim, size in zip(known, free, strict=True)
    ]


def array_of(constant: Any, name: str, type_text: str, shape: Sequence[int]) -> Any:
    """Return the tensor of a constant input.

    A number is repeated for all elements. A flat list has the elements in the order of the tensor. Nested lists
    must have the shape of the input.

    Args:
        constant: a result of `plain`.
        type_text: type of the input in ONNX Runtime's notation: `tensor(int64)`.
        shape: shape of the input.

    Raises:
        OptionError: the constant does not fit the input.
    """
    element = _element(name, type_text)
    dtype = _dtype(name, element)
    numbers, own = list(numbers_in(constant)), shape_of(constant)
    count = math.prod(shape)
    if own and own != tuple(shape) and not (len(own) == 1 and len(numbers) == count):
        of_input = f"has the shape {_shape_text(shape)}" if shape else "is a single number"
        raise OptionError(
            f'The constant for input "{name}" has the shape {_shape_text(own)}, and the input {of_input}.',
            fix=f"Give {_form(name, count)}{', or one number for all elements' if count > 1 else ''}.",
        )
    made = np.empty(len(numbers), dtype)
    for place, number in enumerate(numbers):
        made[place] = _converted(name, element, dtype, number)
    return (made if own else np.repeat(made, count)).reshape(tuple(shape))


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _form(name: str, count: int) -> str:
    """Return a description of how to give the numbers of an input, with an example."""
    if count == 1:
        return f"one number: --constant {name}=V"
    if count > MOST_SHOWN:
        return f"{count} numbers, separated by commas: --constant {name}=V,V,..."
    example = ",".join(["V"] * count)
    return f'{count} numbers: --constant {name}={example} or fix={{"constants": {{"{name}": [{example}]}}}}'


def _element(name: str, type_text: str) -> ElementType:
    try:
        kind = from_ort_type(type_text)
    except UnknownType:
        kind = None
    element = kind.element if kind is not None and kind.kind == "tensor" else None
    if element in (None, ElementType.STRING, ElementType.COMPLEX64, ElementType.COMPLEX128):
        raise OptionError(
            f'Input "{name}" cannot become a constant: it is {type_text}.',
            cause="Constants are numbers and tensors of numbers.",
            fix="Remove it from the constants.",
        )
    assert element is not None
    return element


def _dtype(name: str, element: ElementType) -> Any:
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
    """Convert a number to the element type. Raise `OptionError` if the type cannot represent the number."""
    whole = element.text == "bool" or element.text.lstrip("u").startswith("int")
    finite = math.isfinite(number)
    given = int(number) if whole and finite and number == int(number) else number
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(given).astype(dtype)
        back = float(made) if not whole else int(made)
        # Integers must be represented exactly. Floats are rounded, but must not become infinite.
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
        f'The constant for input "{name}" has the value {number_text(number)}, which its type {element.text} '
        "cannot represent.",
        fix=fix,
    )
