"""What is fed to an input and is not simply the right numpy array: made into a value, or refused.

The slow half of `feeds`. Follows ONNX Runtime: lists become tensors of the declared type, objects in string
arrays become their ``str()``, a dict is a map, and what it refuses is refused with the same class. More is accepted
in three places: `Typed` and ml_dtypes arrays, `SparseTensor`, lists of dicts for sequences of maps. Pure functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge._feed_rules import (
    Array,
    Rule,
    check_sparse,
    check_tensor,
    unable,
    unsupported,
    wrong_element,
    wrong_kind,
)
from qnnbridge._ort_value import OrtValue
from qnnbridge._sparse_tensor import SparseTensor
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, element_of
from qnnbridge_protocol.sparse import Sparse
from qnnbridge_protocol.typed import Typed, ml_dtype


def fit(rule: Rule, value: Any) -> Any:
    """The value that travels for `value`, checked. ``None`` stays ``None``."""
    if isinstance(value, OrtValue):
        return _fit_value(rule, value.value)
    if isinstance(value, SparseTensor):
        value = value.value
    if value is None or isinstance(value, (np.ndarray, Typed, Sparse)):
        return _fit_value(rule, value)
    if isinstance(value, list):
        return _from_list(rule, value)
    if isinstance(value, dict):
        return _checked_map(rule, value)
    if hasattr(type(value), "__iter__"):
        return _from_iterable(rule, value)
    raise unable(rule, value)


def _fit_value(rule: Rule, value: Any) -> Any:
    """For values that have a type of their own."""
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        check_tensor(rule, array)
        return _texts(array) if rule.inner.element is ElementType.STRING else array
    if isinstance(value, Typed):
        check_tensor(rule, value)
    elif isinstance(value, Sparse):
        check_sparse(rule, value)
    elif isinstance(value, list):
        if rule.inner.kind != "sequence":
            raise wrong_kind(rule, "a tensor sequence")
        _check_items(rule, value, own_type=True)
    elif isinstance(value, dict):
        _checked_map(rule, value)
    return value


def _texts(array: Array) -> Array:
    """Strings as they travel. ONNX Runtime takes any object in an array of objects, as its ``str()``."""
    if array.dtype.kind != "O":
        return array
    items = array.reshape(-1).tolist()
    if set(map(type, items)) <= {str}:
        return array
    texts: Array = np.empty(array.shape, object)
    texts.reshape(-1)[:] = [str(item) for item in items]
    return texts


# --- lists -----------------------------------------------------------------------------------------------


def _from_list(rule: Rule, items: list[Any]) -> Any:
    if rule.inner.kind == "sequence":
        _check_items(rule, items, own_type=False)
        return items
    if rule.inner.kind != "tensor" or rule.inner.element is None:
        raise errors.RemoteRuntimeError(
            "The graph is missing type information needed to construct the ORT tensor",
            cause=f"A list was given for input {rule.name!r}, which takes {rule.declared}.",
        )
    array = _array_of(rule, rule.inner.element, items)
    check_tensor(rule, array)
    return _texts(array)


def _array_of(rule: Rule, element: ElementType, items: list[Any]) -> Array:
    layout = LAYOUTS[element]
    dtype = layout.storage if layout.named else ml_dtype(element)
    if dtype is None:
        raise errors.RemoteRuntimeError(
            "Could not create tensor from given input list",
            cause=f"numpy has no type for {element.text}, and ml_dtypes, which has, is not installed.",
            fix="Install ml_dtypes.",
        )
    try:
        array: Array = np.array(items, dtype=dtype)
        return array
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.RemoteRuntimeError(
            "Could not create tensor from given input list",
            cause=f"Input {rule.name!r} takes {rule.declared}: {error}",
            fix="Pass a numpy array of that type.",
        ) from None


def _check_items(rule: Rule, items: list[Any], *, own_type: bool) -> None:
    """The members of a sequence. own_type: it came as an `OrtValue`, whose type ONNX Runtime checks as a whole."""
    item_type = rule.inner.item
    if item_type is not None and item_type.kind == "map":
        for item in items:
            if not isinstance(item, dict):
                raise _not_dictionaries(rule)
        return
    item_rule_element = None if item_type is None else item_type.element
    for item in items:
        if isinstance(item, np.ndarray):
            element = _element(rule, item)
        elif isinstance(item, Typed):
            element = item.element_type
        else:
            raise errors.RemoteRuntimeError(
                "CreateSequenceOfTensors: Input is not a tensor",
                cause=f"Input {rule.name!r} takes {rule.declared}; a member is of type {type(item).__name__}.",
                fix="Pass a list of numpy arrays.",
            )
        if element is not item_rule_element:
            if own_type:
                expected = "?" if item_rule_element is None else item_rule_element.text
                raise wrong_element(rule, f"seq({element.text})", f"seq({expected})")
            raise errors.RemoteRuntimeError(
                "TensorSeq: tensor to be added has a different data type.",
                cause=f"Input {rule.name!r} takes {rule.declared}; a member is tensor({element.text}).",
            )


def _element(rule: Rule, array: Array) -> ElementType:
    element = element_of(array.dtype)
    if element is None:
        raise unsupported(rule, array)
    return element


# --- dicts and other iterables ---------------------------------------------------------------------------


def _checked_map(rule: Rule, value: dict[Any, Any]) -> dict[Any, Any]:
    if not value:
        raise errors.RemoteRuntimeError(
            "Size of dictionary is empty, unable to run the prediction.", cause=f"It is for input {rule.name!r}."
        )
    first = next(iter(value))
    given = _key_kind(first)
    if given is None:
        raise errors.RemoteRuntimeError(
            f"Key type must be int or string (not {type(first)}) for input '{rule.name}'."
        )
    if rule.inner.kind != "map" or rule.inner.key is not given:
        item = rule.inner.item if rule.inner.kind == "map" else None
        raise wrong_element(rule, f"(map({given.text},{item or 'tensor(float)'}))", f"({rule.inner})")
    for key, item in value.items():
        if _key_kind(key) is not given:
            raise errors.RemoteRuntimeError(
                f"Unexpected key type  {type(key)}, it cannot be linked to the keys of the map for input "
                f"'{rule.name}'.",
                fix=f"The model takes {rule.declared}.",
            )
        if not _scalar_fits(rule, item):
            raise errors.RemoteRuntimeError(
                f"Unexpected value type  {type(item)} in the map for input '{rule.name}'.",
                fix=f"The model takes {rule.declared}.",
            )
    return value


def _key_kind(key: object) -> ElementType | None:
    if isinstance(key, str):
        return ElementType.STRING
    return ElementType.INT64 if isinstance(key, (int, np.integer)) else None


def _scalar_fits(rule: Rule, item: object) -> bool:
    value_type = rule.inner.item
    if value_type is None or value_type.kind != "tensor":
        return True
    if value_type.element is ElementType.STRING:
        return isinstance(item, str)
    if isinstance(item, np.ndarray):
        return item.ndim == 0 and item.dtype.kind in "biuf"
    return isinstance(item, (int, float, np.number, np.bool_))


def _from_iterable(rule: Rule, value: Any) -> list[Any]:
    """ONNX Runtime takes an iterable that is no list only for dictionaries."""
    items = list(value)
    if items and isinstance(items[0], np.ndarray):
        raise errors.RemoteRuntimeError(
            f"Iterable of {type(items[0])} should be given as array for input '{rule.name}'.",
            fix="Pass a list." if rule.inner.kind == "sequence" else "Pass numpy.stack(...) of it.",
        )
    if not items or not all(isinstance(item, dict) for item in items):
        raise _not_dictionaries(rule, value)
    item = rule.inner.item
    if rule.inner.kind != "sequence" or item is None or item.kind != "map":
        key = _key_kind(next(iter(items[0]), 0)) or ElementType.INT64
        raise wrong_element(rule, f"(seq(map({key.text},tensor(float))))", f"({rule.inner})")
    return items


def _not_dictionaries(rule: Rule, value: object = None) -> errors.RemoteRuntimeError:
    return errors.RemoteRuntimeError(
        f"Input must be a list of dictionaries or a single numpy array for input '{rule.name}'.",
        cause=None if value is None else f"Got a {type(value).__name__}.",
        fix=f"The model takes {rule.declared}.",
    )
