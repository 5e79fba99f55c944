"""Rules for the values of one input or output of a model, and the errors for invalid values with ONNX Runtime's
messages.

The functions are pure, the rules are immutable, and any thread may use them. For the same mistake, errors have the
same class and message as in ONNX Runtime, which the tests compare; only the ``fix`` is added.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, ValueType, element_of, from_ort_type, measure
from qnnbridge_protocol.tensors import Sparse, Typed

Role = Literal["input", "output"]
Array = np.ndarray[Any, np.dtype[Any]]

INVALID_ARGUMENT = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : "

# Element types that have a number in ONNX Runtime, but that ONNX Runtime does not support for tensors.
_COMPLEX = frozenset({ElementType.COMPLEX64, ElementType.COMPLEX128})

# Number of each category of values in ONNX Runtime's messages (its enumeration ONNXType).
_KIND_NUMBERS = {"map": 1, "tensor": 2, "sequence": 3, "sparse": 4, "optional": 5}


@dataclasses.dataclass(frozen=True, slots=True)
class FeedRule:
    """Types and shapes that one input accepts.

    Attributes:
        name: name of the input.
        declared: the type declared by the model.
        inner: `declared` without ``optional``.
        dtype: the only numpy dtype that fits a tensor; ``None`` if dtype objects cannot be compared by identity
            (strings, types without a numpy name), or if the input is not a tensor.
        shape: the size of each dimension; ``None`` for a free dimension. The whole attribute is ``None`` if every
            shape is valid. This includes declared scalars, because ONNX Runtime does not distinguish a scalar from
            an unknown shape.
        exact: `shape` if no dimension is free, else ``None``.
        fixed: positions and sizes of the dimensions that are not free.
        required: whether the input must be fed.
        role: word for the value in error messages, "input" or "output".
    """

    name: str
    declared: ValueType
    inner: ValueType
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...] | None
    exact: tuple[int, ...] | None
    fixed: tuple[tuple[int, int], ...]
    required: bool
    role: Role = "input"


@functools.lru_cache(maxsize=4096)
def make_rule(
    name: str, type_text: str, dims: tuple[int | str | None, ...], overridable: bool = False, role: Role = "input"
) -> FeedRule:
    """Return the rule for an input or output with this declaration. Raise `errors.NotImplemented` for an unknown
    type."""
    declared = from_ort_type(type_text)
    inner = declared.item if declared.kind == "optional" and declared.item is not None else declared
    dtype = None
    if inner.kind == "tensor" and inner.element not in (None, ElementType.STRING):
        layout = LAYOUTS[inner.element]
        dtype = layout.storage if layout.named else None
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in dims) or None
    fixed = tuple((index, dim) for index, dim in enumerate(shape or ()) if dim is not None)
    return FeedRule(
        name=name,
        declared=declared,
        inner=inner,
        dtype=dtype,
        shape=shape,
        exact=tuple(dim for _, dim in fixed) if shape is not None and len(fixed) == len(shape) else None,
        fixed=fixed,
        required=declared.kind != "optional" and not overridable,
        role=role,
    )


class Node(Protocol):
    """Interface of an input or output of a model file or session, such as `NodeInfo` and `NodeArg`."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Any: ...


def rule_of(node: Node, overridable: bool = False, role: Role = "input") -> FeedRule:
    """Return the rule for an input or output of a model file or session."""
    return make_rule(node.name, node.type, tuple(node.shape or ()), overridable, role)


def shape_fits(rule: FeedRule, shape: Sequence[int]) -> bool:
    """Return whether a tensor with this shape may be fed. Dimensions with the same name may have different
    sizes; the model itself checks them."""
    want = rule.shape
    if want is None:
        return True
    if len(want) != len(shape):
        return False
    # Use a loop, because the check runs in every call, and all() with a generator takes three times as long.
    for index, dim in rule.fixed:  # noqa: SIM110
        if shape[index] != dim:
            return False
    return True


def check_shape(rule: FeedRule, shape: Sequence[int]) -> None:
    if shape_fits(rule, shape):
        return
    want = rule.shape or ()
    shown = tuple("?" if dim is None else dim for dim in want)
    if len(want) != len(shape):
        raise errors.InvalidArgument(
            f"{INVALID_ARGUMENT}Invalid rank for {rule.role}: {rule.name} Got: {len(shape)} Expected: {len(want)} "
            "Please fix either the inputs/outputs or the model.",
            fix=f"The shape given is {tuple(shape)}; the model takes {_shape_text(shown)}.",
        )
    wrong = "".join(
        f"\n index: {index} Got: {got} Expected: {w}"
        for index, (w, got) in enumerate(zip(want, shape, strict=True))
        if w is not None and w != got
    )
    raise errors.InvalidArgument(
        f"{INVALID_ARGUMENT}Got invalid dimensions for {rule.role}: {rule.name} for the following indices{wrong}"
        "\n Please fix either the inputs/outputs or the model.",
        fix=f"The shape given is {tuple(shape)}; the model takes {_shape_text(shown)}.",
    )


def check_tensor(rule: FeedRule, value: Array | Typed) -> None:
    """Check the numpy type, then the category of the value, the element type and the shape, in ONNX Runtime's
    order."""
    element = element_of(value.dtype) if isinstance(value, np.ndarray) else value.element_type
    if element is None and isinstance(value, np.ndarray) and value.dtype.kind == "V":
        element = ElementType.STRING  # ONNX Runtime treats structured arrays as strings
    if element is None or (element in _COMPLEX and element is not rule.inner.element):
        raise unsupported(rule, value)
    if rule.inner.kind != "tensor":
        raise wrong_kind(rule, "a tensor")
    if element is not rule.inner.element:
        raise wrong_element(rule, f"tensor({element.text})", f"tensor({_element_text(rule)})")
    check_shape(rule, value.shape)


def check_sparse(rule: FeedRule, value: Sparse) -> None:
    if rule.inner.kind != "sparse":
        raise wrong_kind(rule, "a sparse tensor")
    element = element_of(value.values.dtype)
    if element is not rule.inner.element:
        given = value.values.dtype if element is None else element.text
        raise wrong_element(rule, f"sparse_tensor({given})", str(rule.inner))
    check_shape(rule, value.dense_shape)


# --- errors ----------------------------------------------------------------------------------------------


def wrong_kind(rule: FeedRule, given: str) -> errors.InvalidArgument:
    number = _KIND_NUMBERS[rule.declared.kind]
    return errors.InvalidArgument(
        f"{INVALID_ARGUMENT}{rule.role} with name: '{rule.name}' expected to be of type: {number} but received "
        f"{given}",
        fix=f"The model takes {rule.declared}.",
    )


def wrong_element(rule: FeedRule, actual: str, expected: str) -> errors.InvalidArgument:
    fix = f"{rule.role.capitalize()} {rule.name!r} is {rule.declared}."
    if rule.dtype is not None:
        fix += f" Convert the array: value.astype(numpy.{rule.dtype.name})."
    return errors.InvalidArgument(
        f"{INVALID_ARGUMENT}Unexpected {rule.role} data type. Actual: ({actual}) , expected: ({expected})",
        fix=fix,
    )


def unsupported(rule: FeedRule, value: Array | Typed) -> errors.RemoteRuntimeError:
    """Return the error for a numpy type that ONNX does not have, or that ONNX Runtime never accepts."""
    dtype = value.dtype if isinstance(value, np.ndarray) else value.data.dtype
    return errors.RemoteRuntimeError(
        f"Numpy_type {dtype.num} can't be converted to MLDataType.",
        cause=f"The array for input {rule.name!r} is of dtype {dtype}.",
        fix=f"The model takes {rule.declared}.",
    )


def missing(rule: FeedRule) -> errors.Fail:
    """Return the error for a required input that is ``None``. ONNX Runtime leaves this check to the node that uses
    the input, and not every node checks it."""
    return errors.Fail(
        f"[ONNXRuntimeError] : 1 : FAIL : Missing Input: {rule.name}",
        cause=f"None was given for input {rule.name!r}, which is not optional.",
        fix=f"The model takes {rule.declared}: pass a {_python_form(rule)}.",
    )


def unable(rule: FeedRule, value: object) -> errors.RemoteRuntimeError:
    """Return the error for an object that cannot be converted to an ONNX value."""
    return errors.RemoteRuntimeError(
        f"Unable to handle object of type {type(value)}",
        cause=f"It was given for input {rule.name!r}.",
        fix=f"The model takes {rule.declared}: pass a {_python_form(rule)}.",
    )


def _python_form(rule: FeedRule) -> str:
    kinds = {"tensor": "numpy array", "sparse": "SparseTensor", "sequence": "list of numpy arrays", "map": "dict"}
    return kinds.get(rule.inner.kind, "value of that type")


def _element_text(rule: FeedRule) -> str:
    text = rule.inner.element.text if rule.inner.element is not None else "?"
    # ONNX Runtime uses this spelling of the type only in this message.
    return f"Float8{text[6:].upper()}" if text.startswith("float8") else text


def _shape_text(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


# --- element types and shapes that an application passes -------------------------------------------------------

NO_STRINGS = "Creation of OrtValues is currently only supported from non-string numpy arrays"
# Kinds of numpy types for which ONNX Runtime's error contains the number of the unsupported type.
_NUMBERED_KINDS = "fc"


def element_from(element_type: Any) -> ElementType:
    """Return the element type for an ONNX number or for any value that numpy accepts as a dtype."""
    if isinstance(element_type, int):
        return _element(element_type)
    try:
        dtype = np.dtype(element_type)
    except TypeError:
        raise errors.RemoteRuntimeError(
            "Not a valid numpy type", cause=f"Got {element_type!r:.100}.", fix="numpy.float32, for one."
        ) from None
    element = element_of(dtype)
    if element is None:
        raise unsupported_dtype(dtype)
    return element


def _element(number: Any) -> ElementType:
    try:
        element = ElementType(int(number))
    except ValueError:
        element = None
    # ONNX Runtime does not support 6-bit floats and complex numbers.
    if element is None or element.name.startswith(("COMPLEX", "FLOAT6")):
        raise errors.RemoteRuntimeError(
            f"tensor type {int(number)} is not supported", fix="See onnx.TensorProto.DataType for the numbers."
        )
    return element


def checked_shape(shape: Any, element: ElementType) -> tuple[int, ...]:
    """Return the shape as a tuple. Raise ONNX Runtime's errors for an impossible shape."""
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        raise errors.RemoteTypeError(f"The shape must be a sequence of int, not {shape!r:.100}.")
    try:
        dims = tuple(dim.__index__() for dim in shape)
    except AttributeError:
        raise errors.RemoteTypeError(f"The shape must be a sequence of int, not {shape!r:.100}.") from None
    try:
        measure(LAYOUTS[element].bits, dims)
    except ValueError as error:
        raise errors.RemoteRuntimeError(f"Invalid tensor shape {list(dims)}", cause=str(error)) from None
    return dims


def unsupported_dtype(dtype: np.dtype[Any]) -> errors.RemoteRuntimeError:
    """Return ONNX Runtime's error for a numpy type that it does not accept."""
    if dtype.kind in _NUMBERED_KINDS:
        return errors.RemoteRuntimeError(f"Numpy_type {dtype.num} can't be converted to MLDataType.")
    return errors.RemoteRuntimeError(NO_STRINGS, cause=f"The dtype is {dtype}.")
