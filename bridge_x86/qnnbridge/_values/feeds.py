"""Feeds and outputs of a run: the application's values for inputs (feeds), and its arrays for results (``out=``).

Feeds are checked and converted before anything is sent. A `FeedChecker` is created once per session, is immutable,
and may be used by any thread. Numpy arrays of the right type, the usual case, need a few dictionary look-ups and
comparisons per input; `fit` handles all other values. `fit` behaves like ONNX Runtime: lists become tensors of the
declared type, objects in string arrays are converted with ``str()``, a dict is a map, and errors have the same
class. In addition to ONNX Runtime, `fit` accepts `Typed` and ml_dtypes arrays, `SparseTensor`, and lists of dicts
for sequences of maps. Symbolic dimensions with the same name may have different sizes, as in ONNX Runtime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge._options.fields import checked_name, suggest
from qnnbridge._values.feed_rules import (
    INVALID_ARGUMENT,
    Array,
    FeedRule,
    Node,
    check_sparse,
    check_tensor,
    make_rule,
    missing,
    rule_of,
    shape_fits,
    unable,
    unsupported,
    wrong_element,
    wrong_kind,
)
from qnnbridge._values.ort_value import OrtValue, SparseTensor
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, ValueType, element_of
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.shown import with_article
from qnnbridge_protocol.tensors import Sparse, Typed, ml_dtype


def fit(rule: FeedRule, value: Any) -> Any:
    """Check `value` and convert it to the type that is sent. ``None`` remains ``None``."""
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
    # Python cannot iterate over a memoryview with several dimensions, or without dimensions.
    if hasattr(type(value), "__iter__") and not (isinstance(value, memoryview) and value.ndim != 1):
        return _from_iterable(rule, value)
    raise unable(rule, value)


def _fit_value(rule: FeedRule, value: Any) -> Any:
    """Check a value that is already a tensor, sparse tensor, sequence or map of ONNX."""
    if isinstance(value, np.ndarray):
        # Convert a subclass to a plain array, because the host does not support subclasses.
        array = np.asarray(value)
        # ONNX Runtime treats items of numpy's void type as strings of fixed length.
        if array.dtype.kind == "V" and rule.inner.element is ElementType.STRING:
            array = _void_texts(array)
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
    """Convert strings to the type that is sent. Like ONNX Runtime, convert each object of an object array with
    ``str()``."""
    if array.dtype.kind != "O":
        return array
    items = array.reshape(-1).tolist()
    # Send an array that contains only str objects unchanged. Convert a subclass of str like any other object.
    if set(map(type, items)) <= {str}:
        return array
    texts: Array = np.empty(array.shape, object)
    # `reshape` of a new array returns a view, so this assignment fills `texts` itself.
    texts.reshape(-1)[:] = [str(item) for item in items]
    return texts


# --- lists -----------------------------------------------------------------------------------------------


def _from_list(rule: FeedRule, items: list[Any]) -> Any:
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


def _array_of(rule: FeedRule, element: ElementType, items: list[Any]) -> Array:
    layout = LAYOUTS[element]
    # numpy lacks bfloat16 and float8, so use the types of ml_dtypes. Storing the list's values as integers of the
    # same size would change the values.
    dtype = layout.storage if layout.named else ml_dtype(element)
    if dtype is None:
        raise errors.RemoteRuntimeError(
            "Could not create tensor from given input list",
            cause=f"numpy has no type for {element.text}; ml_dtypes defines one, but is not installed.",
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


def _check_items(rule: FeedRule, items: list[Any], *, own_type: bool) -> None:
    """Check the items of a sequence.

    Args:
        rule: the rule of the input.
        items: the items.
        own_type: whether the sequence is an `OrtValue`. ONNX Runtime then reports the type of the whole sequence.
    """
    item_type = rule.inner.item
    if item_type is not None and item_type.kind == "map":
        for item in items:
            if not isinstance(item, dict):
                raise _not_dictionaries(rule)
        return
    item_rule_element = None if item_type is None else item_type.element
    for item in items:
        if isinstance(item, np.ndarray):
            element = element_of(item.dtype)
            if element is None:
                raise unsupported(rule, item)
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


def _void_texts(array: Array) -> Array:
    """Return the bytes of each item as a string, including zeros at the end, as in ONNX Runtime."""
    texts = np.empty(array.shape, object)
    texts.ravel()[:] = [item.tobytes().decode() for item in array.ravel()]
    return texts


# --- dicts and other iterables ---------------------------------------------------------------------------


def _checked_map(rule: FeedRule, value: dict[Any, Any]) -> dict[Any, Any]:
    if not value:
        raise errors.RemoteRuntimeError(
            "Size of dictionary is empty, unable to run the prediction.",
            cause=f"The dictionary was given for input {rule.name!r}.",
        )
    # Like ONNX Runtime, derive the key type from the first key. The errors below report this type.
    first = next(iter(value))
    given = ElementType.STRING if isinstance(first, str) else ElementType.INT64
    if given is ElementType.INT64 and not hasattr(first, "__float__"):
        raise errors.RemoteRuntimeError(
            f"Key type must be int or string (not {type(first)}) for input '{rule.name}'."
        )
    native = "string" if given is ElementType.STRING else "int64_t"
    fits = rule.inner.kind == "map" and rule.inner.key is given
    for key, item in value.items():
        if _key_kind(key) is not given or (given is ElementType.INT64 and not -(2**63) <= key < 2**63):
            raise errors.RemoteRuntimeError(
                f"Unexpected key type  {type(key)}, it cannot be linked to C type {native} for input "
                f"'{rule.name}'.",
                fix=f"The model takes {rule.declared}.",
            )
        takes = fits and _scalar_fits(rule, item)
        if not takes and not hasattr(item, "__float__"):
            raise errors.RemoteRuntimeError(
                f"Unexpected value type  {type(item)}, it cannot be linked to C type {native} for input "
                f"'{rule.name}'.",
                fix=f"The model takes {rule.declared}.",
            )
        if not takes:
            raise wrong_element(rule, f"(map({given.text},tensor(float)))", f"({rule.declared})")
    # A bool key counts as an int, but msgpack would send it as a bool.
    return {int(key): item for key, item in value.items()} if bool in map(type, value) else value


def _key_kind(key: object) -> ElementType | None:
    if isinstance(key, str):
        return ElementType.STRING
    return ElementType.INT64 if isinstance(key, (int, np.integer)) else None


def _scalar_fits(rule: FeedRule, item: object) -> bool:
    value_type = rule.inner.item
    if value_type is None or value_type.kind != "tensor":
        return True
    if value_type.element is ElementType.STRING:
        return isinstance(item, str)
    if isinstance(item, np.ndarray):
        return item.ndim == 0 and item.dtype.kind in "biuf"
    return isinstance(item, (int, float, np.number, np.bool_))


def _from_iterable(rule: FeedRule, value: Any) -> list[Any]:
    """Return the items of an iterable that is not a list. As in ONNX Runtime, the items must be dicts."""
    # Store the items, because a generator can only be read once, and errors also need the items.
    items = list(value)
    if items and isinstance(items[0], np.ndarray):
        raise errors.RemoteRuntimeError(
            f"Iterable of {type(items[0])} should be given as array for input '{rule.name}'.",
            fix="Pass a list." if rule.inner.kind == "sequence" else "Pass numpy.stack(...) of it.",
        )
    if not items:
        raise errors.RemoteRuntimeError(
            f"Input '{rule.name}' must not be empty.", fix=f"The model takes {rule.declared}."
        )
    if not all(isinstance(item, dict) for item in items):
        raise _not_dictionaries(rule, value)
    item = rule.inner.item
    if rule.inner.kind != "sequence" or item is None or item.kind != "map":
        key = _key_kind(next(iter(items[0]), 0)) or ElementType.INT64
        raise wrong_element(rule, f"(seq(map({key.text},tensor(float))))", f"({rule.declared})")
    return items


def _not_dictionaries(rule: FeedRule, value: object = None) -> errors.RemoteRuntimeError:
    return errors.RemoteRuntimeError(
        f"Input must be a list of dictionaries or a single numpy array for input '{rule.name}'.",
        cause=None if value is None else f"Got {with_article(type(value).__name__)}.",
        fix=f"The model takes {rule.declared}.",
    )


# Name, value and declared type of an input.
Feed = tuple[str, Any, ValueType]


class FeedChecker:
    """Check the feeds of a model.

    Args:
        inputs: the model's inputs.
        overridable: initializers that may be fed.
    """

    __slots__ = ("_required", "_required_names", "_rules")

    def __init__(self, inputs: Iterable[Node], overridable: Iterable[Node] = ()) -> None:
        self._rules: dict[str, FeedRule] = {}
        for nodes, optional in ((inputs, False), (overridable, True)):
            for node in nodes:
                # If an initializer is also an input, the input's rule applies.
                self._rules.setdefault(node.name, rule_of(node, optional))
        self._required_names = [rule.name for rule in self._rules.values() if rule.required]
        self._required = frozenset(self._required_names)

    def check(self, feeds: Mapping[str, Any]) -> list[Feed]:
        """Return the feeds, converted to the types that are sent to the host. ``None`` for a required input is
        kept; see `refuse_missing`."""
        # Search for missing inputs first, because ONNX Runtime reports a missing input before an invalid input.
        self.require_all(feeds)
        rules = self._rules
        out: list[Feed] = []
        for name, value in feeds.items():
            rule = rules.get(name)
            # Compare the dtypes by identity, because each built-in dtype of numpy is a single object.
            # `_check_carefully` also accepts other dtype objects that are equal.
            if rule is None or value.__class__ is not np.ndarray or value.dtype is not rule.dtype:
                return self._check_carefully(feeds)
            if value.shape != rule.exact and not shape_fits(rule, value.shape):
                return self._check_carefully(feeds)
            out.append((name, value, rule.declared))
        return out

    def require_all(self, feeds: Mapping[str, Any]) -> None:
        """Raise `RemoteValueError` if a required input is missing."""
        if not feeds.keys() >= self._required:
            raise self._missing(feeds)

    def _check_carefully(self, feeds: Mapping[str, Any]) -> list[Feed]:
        """Check the feeds in ONNX Runtime's order, so that the same error comes first if there are several.

        ONNX Runtime first converts all values, in the order of their names, and then compares them with the model,
        from the last name to the first.
        """
        named: dict[str, Any] = {}
        for given, value in feeds.items():
            # "x" and b"x" are the same input. Use the first value.
            named.setdefault(checked_name(given, "Input names"), value)
        out: dict[str, Feed] = {}
        refusal = None
        for name in sorted(named):
            value, rule = named[name], self._rules.get(name)
            if value is None:  # an application passes None for an input that it does not feed
                if rule is not None and rule.required:
                    out[name] = (name, None, rule.declared)
                continue
            try:
                if rule is None:
                    raise self._unknown(name, value)
                out[name] = (name, fit(rule, value), rule.declared)
            except errors.InvalidArgument as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return [out[name] for name in named if name in out]

    def refuse_missing(self, feeds: Iterable[Feed]) -> None:
        """Raise `Fail` if a required input is ``None``. ONNX Runtime detects this in the node that uses the
        input, but QNN does not detect it."""
        for name, value, _ in feeds:
            if value is None and self._rules[name].required:
                raise missing(self._rules[name])

    def complete(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feeds of a binding, with ``None`` for required inputs that have no value."""
        return {**dict.fromkeys(self._required_names), **feeds}

    def _missing(self, feeds: Mapping[str, Any]) -> errors.RemoteValueError:
        missing = [name for name in self._required_names if name not in feeds]
        extra = [str(name) for name in feeds if name not in self._rules]
        hints = [f"{name!r} is not an input." + suggest(name, missing) for name in extra]
        return errors.RemoteValueError(
            f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).", fix=" ".join(hints) or None
        )

    def _unknown(self, name: str, value: Any) -> errors.BridgeError:
        if isinstance(value, list):
            return errors.RemoteRuntimeError(
                f"Failed to find input with name: {name} in the model input def list",
                fix=f"The model's inputs are {', '.join(map(repr, self._rules)) or 'none'}.",
            )
        with contextlib.suppress(errors.InvalidArgument):
            # If the value cannot be converted, `fit` raises the error that ONNX Runtime raises first.
            fit(make_rule(name, "tensor(float)", ()), value)
        known = ", ".join(map(repr, self._rules))
        return errors.InvalidArgument(
            f"{INVALID_ARGUMENT}Invalid input name: {name}",
            fix=f"The model's inputs are {known or 'none'}.{suggest(name, self._rules)}",
        )


# --- outputs -----------------------------------------------------------------------------------------------

# Type of ``out=``: arrays in the order of the outputs, or by name.
Out = Sequence["Array | None"] | Mapping[str, "Array | None"]

# Function that removes the part of named outputs that results from padding.
Counted = Callable[[Sequence[str], Sequence[Any]], "list[Any]"]


def check_out(out: Out, names: Sequence[str]) -> list[Array | None]:
    """Convert ``out=`` to a list in the order of the outputs. `deliver` later compares types and shapes with the
    results."""
    if out.__class__ is not list and isinstance(out, Mapping):
        unknown = [str(name) for name in out if name not in names]
        if unknown:
            raise InvalidArgument(
                f"out= contains {', '.join(unknown)}, which is not a requested output.",
                fix=f"The outputs are {', '.join(names)}.",
            )
        out = [out.get(name) for name in names]
    arrays = list(out)
    if len(arrays) != len(names):
        raise InvalidArgument(
            f"out= has {len(arrays)} arrays for {len(names)} outputs.",
            fix="Give an array or None for each output.",
        )
    for index, array in enumerate(arrays):
        if array is not None and (not isinstance(array, np.ndarray) or not array.flags.writeable):
            raise InvalidArgument(f"The value of out= for {names[index]!r} is not a writable array.")
    return arrays


def deliver(values: list[Any], out: Sequence[Array | None]) -> list[Any]:
    """Copy results to the arrays of ``out=``, unless they are already there. Copy either all results or none."""
    to_copy = []
    for index, target in enumerate(out):
        value = values[index]
        if target is None or value is target:
            continue
        if value.__class__ is not np.ndarray or value.dtype != target.dtype or value.shape != target.shape:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise InvalidArgument(
                f"An array of out= is {target.dtype} {target.shape}, the output is {got}.",
                fix="Give an array of the output's type and shape, or None for this output.",
            )
        to_copy.append(index)
    for index in to_copy:
        target = out[index]
        assert target is not None
        np.copyto(target, values[index])
        values[index] = target
    return values


def protect(values: list[Any]) -> list[Any]:
    """Make the arrays in `values` read-only, and return the list."""
    for value in values:
        if isinstance(value, np.ndarray) and value.flags.writeable:
            value.flags.writeable = False
    return values
