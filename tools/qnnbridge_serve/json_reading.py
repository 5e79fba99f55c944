"""Parse the JSON of requests in parts, and check the size of each part before creating objects.

A request of 16 MB can describe 800 MB of empty lists, and parsing it at once holds the GIL for seconds. So a
request is first split into the texts of its fields, without creating objects. The numbers of a tensor are counted
in their text, the count is compared with the tensor's shape, and the numbers are then converted to an array in
steps, between which other threads run.

NaN, Infinity and -Infinity are accepted although JSON does not have them, because clients and Triton send them.
msgspec refuses them, so it parses a copy of the text in which ordinary numbers of the same length replace them.
Pure functions; safe to call from any thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

from qnnbridge_serve.errors import Refused, wrong

# Limit of the JSON part. Larger tensors should be sent as binary data, which needs no parsing.
MAX_JSON_BYTES: Final = 64 * 1024**2
# Limit of a field that does not contain a tensor: id, shape, parameters.
MAX_FIELD_BYTES: Final = 1024**2
# Maximum number of fields in all objects of a request together. In memory, a field takes ten times its JSON text.
MAX_FIELDS: Final = 400_000
# Maximum number of strings in a request. Splitting the text at quotation marks creates an object for each string.
MAX_TEXTS: Final = 1_000_000
# Length of the JSON text that is converted to numbers in one step, which takes a few milliseconds. The numbers need
# at most 16 times as much memory.
STEP_BYTES: Final = 2 * 1024**2
# Maximum memory of a list, of an entry of a list and of an object, in addition to their text.
_LIST_BYTES, _ENTRY_BYTES, _OBJECT_BYTES = 128, 40, 256

_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")
# Bytes that `bytes.translate` deletes from a JSON text, so that only brackets and commas are left. This creates no
# objects.
_NO_SKELETON: Final = bytes(set(range(256)) - set(b"[],"))

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_FLOATS: Final = msgspec.json.Decoder(list[float])
_INTEGERS: Final = msgspec.json.Decoder(list[int])
_TRUTHS: Final = msgspec.json.Decoder(list[bool | int])

# JSON text that stands for a missing field.
NULL: Final = b"null"

# Function that is called with the size of an array or of strings before their creation. It raises `Refused` or
# `Busy`.
Take = Callable[[int], None]
# Function that is called between steps. It raises an error after the deadline.
Check = Callable[[], object]


# --- fields -----------------------------------------------------------------------------------------------------


class _Document(msgspec.Struct):
    inputs: list[dict[str, Raw]] | msgspec.UnsetType | None = msgspec.UNSET
    outputs: list[dict[str, Raw]] | msgspec.UnsetType | None = msgspec.UNSET
    parameters: Raw | msgspec.UnsetType = msgspec.UNSET
    id: Raw | msgspec.UnsetType = msgspec.UNSET


_DOCUMENT: Final = msgspec.json.Decoder(_Document)

Fields = dict[str, bytes]


class RequestFields(NamedTuple):
    """Fields of a request, as JSON texts. Unknown fields are ignored.

    inputs, outputs: entries of these arrays; ``None`` if missing. own: the request's other known fields.
    """

    inputs: list[Fields] | None
    outputs: list[Fields] | None
    own: Fields


def read_fields(part: memoryview) -> RequestFields:
    """Split a request into the texts of its fields. Raise `Refused` if it is invalid or too large."""
    if len(part) > MAX_JSON_BYTES:
        raise Refused(
            413,
            f"The JSON part has {len(part)} bytes, more than {MAX_JSON_BYTES}. "
            "Send large tensors as binary data (binary_data_size).",
        )
    # If the JSON part is the whole body, do not copy it.
    whole = part.obj
    data = whole if isinstance(whole, bytes) and len(whole) == len(part) else bytes(part)
    # Count quotation marks only in long data: a string has two of them and, with its comma, at least three
    # characters.
    if len(data) > 3 * MAX_TEXTS and data.count(b'"') > 2 * MAX_TEXTS:
        raise Refused(
            413,
            f"The JSON part has more than {MAX_TEXTS} texts. Send many texts as binary data (binary_data_size).",
        )
    try:
        return _read_fields(data)
    except msgspec.DecodeError as error:
        # Search for NaN and Infinity only after an error: few requests contain them, and the search reads the whole
        # text.
        if not _has_words(data):
            raise wrong(f"The JSON cannot be read: {_words_of(error)}.") from None
    try:
        return _read_fields(data, _without_words(data))
    except msgspec.DecodeError as error:
        raise wrong(f"The JSON cannot be read: {_words_of(error)}.") from None


def _read_fields(data: bytes, readable: bytes | None = None) -> RequestFields:
    """Read `readable`, and take the texts of the fields from `data`.

    readable: a copy of `data` of the same length, with numbers instead of NaN and Infinity; default: `data` itself.
    """
    # The number of colons is an upper bound of the number of fields, since strings may contain colons. Count
    # exactly only if it exceeds the limit.
    colons = data.count(b":")
    objects = data.count(b"{") if len(data) > 3 * MAX_FIELDS else 0
    if max(colons, objects) > MAX_FIELDS and max(_outside(data, b":"), _outside(data, b"{")) > MAX_FIELDS:
        raise wrong("The request has too many fields.")
    try:
        document = _DOCUMENT.decode(readable or data)
    except msgspec.ValidationError as error:
        place = re.search(r"`\$\.(inputs|outputs)(\[)?", str(error))
        if place is None:
            raise wrong("The request is not a JSON object.") from None
        name, within = place.groups()
        text = f"An {name[:-1]} is not a JSON object." if within else f'"{name}" is not an array.'
        raise wrong(text) from None
    except RecursionError:
        raise wrong("The JSON is nested too deep.") from None
    except UnicodeDecodeError:
        raise wrong("The JSON cannot be read: a name is not valid UTF-8.") from None
    text_of = bytes if readable is None else _Places(data, readable).text_of
    names = 0
    given: dict[str, list[Fields] | None] = {"inputs": None, "outputs": None}
    own: Fields = {}
    for name in document.__struct_fields__:
        value = getattr(document, name)
        names += value is not msgspec.UNSET
        if isinstance(value, list):
            given[name] = [{key: text_of(raw) for key, raw in entry.items()} for entry in value]
        elif isinstance(value, Raw):
            own[name] = text_of(value)
    found = RequestFields(**given, own=own)
    # Refuse duplicate names, of which msgspec silently uses the last.
    _refuse_twins(readable or data, colons, names, found)
    return found


class _Places:
    """Find the original text of a field that was parsed in a copy of the request.

    msgspec's `Raw` is a view of the copy. The original text is at the same position of the request.
    """

    def __init__(self, data: bytes, readable: bytes) -> None:
        self._data = data
        self._readable = readable
        self._begin = self._address(readable)

    def text_of(self, raw: Raw) -> bytes:
        size = len(memoryview(raw))
        begin = self._address(raw) - self._begin
        if not 0 <= begin <= begin + size <= len(self._data):
            raise AssertionError("msgspec returned a field that is outside of the request's text")
        return self._data[begin : begin + size]

    @staticmethod
    def _address(data: bytes | Raw) -> int:
        return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _refuse_twins(data: bytes, colons: int, names: int, found: RequestFields) -> None:
    """Refuse objects with duplicate names, of which msgspec silently uses the last.

    A colon follows each name. So if no name is a duplicate, the number of colons outside of the fields' values
    equals the number of names that were read.

    Args:
        data: the text of the request.
        colons: number of colons in `data`.
        names: number of fields of the request itself.
        found: the fields that were read.
    """
    entries = [*(found.inputs or ()), *(found.outputs or ())]
    values = [value for fields in (*entries, found.own) for value in fields.values()]
    names += sum(map(len, entries))
    if colons - sum(value.count(b":") for value in values if b":" in value) == names:
        return
    # The number of colons also differs if names or ignored fields contain colons. So count exactly: without colons
    # in strings, and with the names of ignored fields.
    others = {name: raw for name, raw in _OBJECT.decode(data).items() if name not in _Document.__struct_fields__}
    inside = sum(_outside(bytes(value), b":") for value in (*values, *others.values()))
    if _outside(data, b":") - inside != names + len(others):
        raise wrong("An object of the request contains a name twice.")


def read_value(data: bytes, what: str) -> Any:
    """Return a small JSON value as a Python object. Raise `Refused` if it is invalid or too large."""
    if len(data) > MAX_FIELD_BYTES:
        raise wrong(f"{what} is too large.")
    return read_document(data)


def read_document(data: bytes) -> Any:
    """Return a JSON document as a Python object. Raise `Refused` if it is invalid."""
    try:
        return json.loads(data, object_pairs_hook=_without_twins)
    except RecursionError:
        raise wrong("The JSON is nested too deep.") from None
    except ValueError as error:
        # For more than 4300 digits, `int` raises a plain ValueError, which only its message distinguishes from
        # others.
        text = "a number has too many digits" if "integer string conversion" in str(error) else str(error)
        raise wrong(f"The JSON cannot be read: {text}.") from None


def weight_of(data: bytes) -> int:
    """Return an upper bound, in bytes, of the memory of the objects that `read_document` creates from the text."""
    inside, _ = _between_texts(data)
    return (
        len(data)
        + _LIST_BYTES * inside.count(b"[")
        + _OBJECT_BYTES * inside.count(b"{")
        + _ENTRY_BYTES * inside.count(b",")
    )


def _has_words(data: bytes) -> bool:
    return b"NaN" in data or b"Infinity" in data


def _without_words(data: bytes) -> bytes:
    """Return a copy with numbers of the same length and sign instead of NaN and Infinity, in strings as well."""
    # Any numbers of the same length will do: the original text at the same position is used (`_Places`).
    return data.replace(b"NaN", b"7e7").replace(b"Infinity", b"7.000000")


def _outside(data: bytes, sign: bytes) -> int:
    """Return how often the character `sign` occurs outside of strings."""
    return _between_texts(data)[0].count(sign)


def _between_texts(data: bytes, check: Check = lambda: None) -> tuple[bytes, int]:
    """Return everything outside of strings, and the number of quotation marks that begin or end a string.

    A regular expression would take ten times as long, hold the GIL, and need memory for each escape.
    """
    between: list[bytes] = []
    signs = at = 0
    while at < len(data):
        check()
        part = data[at : at + STEP_BYTES]
        if at + STEP_BYTES < len(data) and (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1]  # do not split an escape sequence
        at += len(part)
        # Without escapes, the quotation marks alternately begin and end a string.
        parts = part.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        # Keep every second part, which is outside of strings. The quotation marks of earlier steps determine
        # whether the first part is outside.
        between.append(b"".join(parts[signs % 2 :: 2]))
        signs += len(parts) - 1
    return b"".join(between), signs


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object contains a name twice")
    return found


def _words_of(error: msgspec.DecodeError) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return "its end is missing, or a string contains an unpaired surrogate" if "truncated" in text else text


# --- tensors ----------------------------------------------------------------------------------------------------

Array = np.ndarray[Any, np.dtype[Any]]


def read_numbers(
    data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, take: Take, check: Check
) -> Array:
    """Return the numbers of a JSON array as a flat array of type `dtype`: floats, integers or bool.

    Args:
        data: text of the array, flat or nested according to the shape.
        shape: shape that the request declares.
        dtype: type of the result.
        where: name of the input, with which error messages begin.
        take: reserves memory.
        check: raises an error after the deadline.
    """
    words = {"f": "numbers", "b": "true and false"}.get(dtype.kind, "integers")
    if b'"' in data or b"{" in data:
        others = "strings" if b'"' in data else "objects"
        raise wrong(f"{where}: data must contain only {words}, but contains {others}.")
    count = math.prod(shape)
    # Compare the text with the shape first, so that a wrong shape is refused before memory is allocated.
    _check_form(data, shape, count, where)
    # Reserve the memory before the array is created, so that a request above the limit is refused.
    take(count * dtype.itemsize)
    array: Array = np.empty(count, dtype)
    # The nesting has been checked, so the inner brackets are not needed any more.
    flat = data if data.find(b"[", 1) < 0 else b"[%b]" % data.translate(None, b"[]")
    if not count and not flat[1:-1].strip(b"," + _SPACE):
        return array
    at = 0
    for text in _steps(flat):
        check()
        numbers = _step(text, dtype, words, where)
        # Check again, so that a wrong count of the commas can never cause a write beyond the end of the array.
        if len(numbers) > count - at:
            at += len(numbers)
            break
        _put(array[at : at + len(numbers)], numbers, where)
        at += len(numbers)
    if at != count:
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, but data has a different number.")
    return array


def read_texts(
    data: bytes, shape: tuple[int, ...], where: str, take: Take, check: Check = lambda: None
) -> list[str]:
    """Return the texts of a JSON array, flat or nested according to the shape, as a flat list."""
    count = math.prod(shape)
    rest, signs = _between_texts(data, check)
    texts = signs // 2
    if rest.translate(None, b"[]," + _SPACE):
        others = [
            name
            for word, name in (*_OTHERS[:2], (rb"[0-9]", "numbers"), *_OTHERS[3:], (rb"{", "objects"))
            if re.search(word, rest)
        ]
        raise wrong(f"{where}: data must contain only strings, but contains {', '.join(others)}.")
    if texts != count:
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, but data has {texts}.")
    _check_form(rest, shape, count, where)
    # Reserve 64 bytes for each text in addition to its characters: the object and its entry in the list.
    take(count * 64 + len(data))
    check()
    try:
        level: list[Any] = msgspec.json.decode(data)
    except UnicodeDecodeError:
        raise wrong(f"{where}: a string is not valid UTF-8.") from None
    except msgspec.DecodeError:
        raise wrong(f"{where}: an unpaired surrogate is not valid UTF-8.") from None
    # The nesting has been checked: if the first entry is a list, all entries are.
    while level and isinstance(level[0], list):
        level = [item for part in level for item in part]
    return level


def _check_form(data: bytes, shape: tuple[int, ...], count: int, where: str) -> None:
    """Raise `Refused` unless the brackets and commas form a flat array of `count` values or one of this shape."""
    if data.find(b"[", 1) < 0 and _commas(data) == max(0, count - 1):
        return
    found = data.translate(None, _NO_SKELETON)
    # Ignore the dimensions after a 0: an empty JSON list contains no further lists.
    written = shape[: shape.index(0) + 1] if 0 in shape else shape
    size = 0  # number of brackets and commas in the JSON text of this shape
    for length in reversed(written):
        size = 2 + max(0, length - 1) + length * size
    # Build the expected brackets only if the lengths are equal: the result is then only as long as `found`, and
    # each intermediate text is shorter.
    if shape and len(found) == size:
        form = b""
        for length in reversed(written):
            form = b"[" + (form + b",") * (length - 1) + (form if length else b"") + b"]"
        if form == found:
            return
    if found[1:-1].count(b",") == len(found) - 2:
        given = len(found) - 1 if data.translate(None, b"[]" + _SPACE) else 0
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, but data has {given}.")
    raise wrong(f"{where}: the nesting of data does not match its shape {list(shape)}.")


def _commas(data: bytes) -> int:
    # Count with numpy: bytes.count takes eight times as long, and holds the GIL.
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _COMMA))


def _steps(flat: bytes) -> Iterator[bytes]:
    """Yield the array in parts. Each part is the JSON text of an array with some of the numbers."""
    at, last = 1, len(flat) - 1
    while at < last:
        # Split at a comma, so that no number is split.
        end = flat.find(b",", at + STEP_BYTES)
        end = last if end < 0 else end
        yield flat if (at, end) == (1, last) else b"[%b]" % flat[at:end]
        at = end + 1


def _step(text: bytes, dtype: np.dtype[Any], words: str, where: str) -> list[Any]:
    """Return the numbers of a part of the JSON array. Raise `Refused` for other values."""
    decoder = _FLOATS if dtype.kind == "f" else _TRUTHS if dtype.kind == "b" else _INTEGERS
    try:
        if dtype.kind == "f" and _has_words(text):
            return _with_words(text)
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):
            raise wrong(
                f"{where}: a number is too large for the datatype ({_SORTS.get(dtype.kind, 'an integer')})."
            ) from None
    except (msgspec.DecodeError, ValueError):
        pass
    kinds = _OTHERS[:2] if dtype.kind == "f" else _OTHERS
    others = [name for word, name in kinds if re.search(word, text)]
    raise wrong(f"{where}: data must contain only {words}, but contains {', '.join(others) or 'other values'}.")


def _with_words(text: bytes) -> list[float]:
    """Return the numbers of an array that contains NaN or Infinity.

    Raise `ValueError` or an error of the decoder.
    """
    numbers = np.array(_FLOATS.decode(_without_words(text)), np.float64)
    signs = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(signs == _COMMA)
    for word, value, before in ((b"NaN", math.nan, b"[,"), (b"Infinity", math.inf, b"[,-")):
        # Search for a single letter of the word: the array could be decoded, so "a" occurs only in NaN, and "I"
        # only in Infinity.
        letter = b"a" if value != value else b"I"
        begins = np.flatnonzero(signs == ord(letter)) - word.index(letter)
        for neighbours, allowed in ((begins - 1, before), (begins + len(word), b",]")):
            if not np.isin(signs[neighbours], np.frombuffer(allowed + _SPACE, np.uint8)).all():
                raise ValueError("NaN or Infinity is part of a number")
        places = np.searchsorted(commas, begins)
        # Take the sign from the number that replaced NaN or Infinity.
        numbers[places] = np.copysign(value, numbers[places])
    return list(numbers.tolist())


_SORTS: Final = {"f": "a floating point number", "b": "true or false"}
_OTHERS: Final = (
    (rb"null", "null"),
    (rb"true|false", "true or false"),
    (rb"[0-9][.eE]", "fractions"),
    (rb"NaN|Infinity", "NaN or Infinity"),
)


def _put(target: Array, numbers: list[Any], where: str) -> None:
    dtype = target.dtype
    if dtype.kind == "b":
        if not set(numbers) <= {False, True}:
            raise wrong(f"{where}: a BOOL is true or false, or 0 or 1.")
        target[:] = numbers
        return
    if dtype.kind == "f":
        try:
            # Raise an error for numbers too large for FP32: by default, numpy stores infinity and at most warns.
            with np.errstate(over="raise"):
                target[:] = np.fromiter(numbers, np.float64, len(numbers))
        except FloatingPointError:
            raise wrong(f"{where}: a number is too large for FP32.") from None
        return
    limits = np.iinfo(dtype)
    # Check for negative numbers first: numpy before 2.0 converts them to large unsigned numbers without an error.
    wide: type[np.uint64 | np.int64] = np.uint64 if limits.max > np.iinfo(np.int64).max else np.int64
    try:
        if wide is np.uint64 and numbers and min(numbers) < 0:
            raise OverflowError
        array = np.fromiter(numbers, wide, len(numbers))
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise OverflowError
    except OverflowError:
        raise wrong(f"{where}: a number is not between {limits.min} and {limits.max}.") from None
    target[:] = array
