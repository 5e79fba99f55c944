"""JSON of requests, read in parts: no text becomes objects before its size is known to be what the request says.

A request of 16 MB can describe 800 MB of empty lists, and reading it in one go keeps Python's lock for seconds. So
a request is cut into the texts of its fields first, which makes no objects. The numbers of a tensor are counted in
their text, compared with the tensor's shape, and then become an array in steps, between which other threads run.

NaN, Infinity and -Infinity, which JSON does not have, are understood: clients send them, and Triton does. msgspec
refuses them, so it reads a copy that has ordinary numbers of the same length in their places. Pure; any thread.
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

# Larger numbers of a tensor belong in binary data, which takes no time to read.
MAX_JSON_BYTES: Final = 64 * 1024**2
# Of a field that holds no tensor: id, shape, parameters.
MAX_FIELD_BYTES: Final = 1024**2
# Of all objects of a request together; a text of names alone would be ten times as large in memory.
MAX_FIELDS: Final = 400_000
# Each becomes an object where texts are separated from what is between them.
MAX_TEXTS: Final = 1_000_000
# Text that becomes numbers at a time: some milliseconds, and at most 16 times as many bytes.
STEP_BYTES: Final = 2 * 1024**2
# What a list, an entry of it and an object take at most, beside their text.
_LIST_BYTES, _ENTRY_BYTES, _OBJECT_BYTES = 128, 40, 256

_SPACE: Final = b" \t\r\n"
_COMMA: Final = ord(",")
# For `bytes.translate`, which removes these at the speed of memory and makes no object.
_NO_SKELETON: Final = bytes(set(range(256)) - set(b"[],"))

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_FLOATS: Final = msgspec.json.Decoder(list[float])
_INTEGERS: Final = msgspec.json.Decoder(list[int])
_TRUTHS: Final = msgspec.json.Decoder(list[bool | int])

# A field that is not there.
NULL: Final = b"null"

# Called with the bytes of an array or of texts before they are made. Raises `Refused` or `Busy`.
Take = Callable[[int], None]
# Called between steps. Raises when the time is over.
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
    """The fields of a request, as their texts; others are passed over. inputs, outputs: ``None`` without them.

    own: the other ones that a request may have.
    """

    inputs: list[Fields] | None
    outputs: list[Fields] | None
    own: Fields


def read_fields(part: memoryview) -> RequestFields:
    """Raises `Refused`."""
    if len(part) > MAX_JSON_BYTES:
        raise Refused(
            413,
            f"The JSON part has {len(part)} bytes, more than {MAX_JSON_BYTES}. "
            "Send large tensors as binary data (binary_data_size).",
        )
    # The whole body is decoded without a copy where the JSON is all of it.
    whole = part.obj
    data = whole if isinstance(whole, bytes) and len(whole) == len(part) else bytes(part)
    # Each text has at least three signs.
    if len(data) > 3 * MAX_TEXTS and data.count(b'"') > 2 * MAX_TEXTS:
        raise Refused(
            413, f"The JSON part has more than {MAX_TEXTS} texts. Send many as binary data (binary_data_size)."
        )
    try:
        return _read_fields(data)
    except msgspec.DecodeError as error:
        # Only now: nearly all requests have none, and looking for them costs a pass over the text.
        if not _has_words(data):
            raise wrong(f"The JSON cannot be read: {_words_of(error)}.") from None
    try:
        return _read_fields(data, _without_words(data))
    except msgspec.DecodeError as error:
        raise wrong(f"The JSON cannot be read: {_words_of(error)}.") from None


def _read_fields(data: bytes, readable: bytes | None = None) -> RequestFields:
    """readable: the same, where it has to be read in another form; of the same length."""
    # Colons in texts count, too, so this is an upper limit; the exact count is made only beyond it.
    colons = data.count(b":")
    objects = data.count(b"{") if len(data) > 3 * MAX_FIELDS else 0
    if max(colons, objects) > MAX_FIELDS and max(_outside(data, b":"), _outside(data, b"{")) > MAX_FIELDS:
        raise wrong("The request has too many fields.")
    try:
        document = _DOCUMENT.decode(readable or data)
    except msgspec.ValidationError as error:
        place = re.search(r"`\$\.(inputs|outputs)(\[)?", str(error))
        if place is None:
            raise wrong("The request is no JSON object.") from None
        name, within = place.groups()
        text = f"An {name[:-1]} is no JSON object." if within else f'"{name}" is no array.'
        raise wrong(text) from None
    except RecursionError:
        raise wrong("The JSON is nested too deep.") from None
    except UnicodeDecodeError:
        raise wrong("The JSON cannot be read: a name is not in UTF-8.") from None
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
    # msgspec takes the last of two equal names and says nothing.
    _refuse_twins(readable or data, colons, names, found)
    return found


class _Places:
    """Finds the text of a field that was read in a copy of the request: a `Raw` is a view of what was decoded."""

    def __init__(self, data: bytes, readable: bytes) -> None:
        self._data = data
        self._readable = readable
        self._begin = self._address(readable)

    def text_of(self, raw: Raw) -> bytes:
        size = len(memoryview(raw))
        begin = self._address(raw) - self._begin
        if not 0 <= begin <= begin + size <= len(self._data):
            raise AssertionError("a field of a request is not where it was read")
        return self._data[begin : begin + size]

    @staticmethod
    def _address(data: bytes | Raw) -> int:
        return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _refuse_twins(data: bytes, colons: int, names: int, found: RequestFields) -> None:
    """The last one of two would win, and the other might be the one that was meant.

    Each name has its colon. Without twins there are as many names as colons that no value has.

    Args:
        names: Of the fields of the request itself.
    """
    entries = [*(found.inputs or ()), *(found.outputs or ())]
    values = [value for fields in (*entries, found.own) for value in fields.values()]
    names += sum(map(len, entries))
    if colons - sum(value.count(b":") for value in values if b":" in value) == names:
        return
    # Names that have a colon themselves, or fields that were passed over.
    others = {name: raw for name, raw in _OBJECT.decode(data).items() if name not in _Document.__struct_fields__}
    inside = sum(_outside(bytes(value), b":") for value in (*values, *others.values()))
    if _outside(data, b":") - inside != names + len(others):
        raise wrong("An object of the request has a name twice.")


def read_value(data: bytes, what: str) -> Any:
    """Any small value, as Python has it. Raises `Refused`."""
    if len(data) > MAX_FIELD_BYTES:
        raise wrong(f"{what} is too large.")
    return read_document(data)


def read_document(data: bytes) -> Any:
    """A whole document, as Python has it. Raises `Refused`."""
    try:
        return json.loads(data, object_pairs_hook=_without_twins)
    except RecursionError:
        raise wrong("The JSON is nested too deep.") from None
    except ValueError as error:
        # From 4301 digits on `int` raises a plain ValueError, which is known by its text alone.
        text = "a number has too many digits" if "integer string conversion" in str(error) else str(error)
        raise wrong(f"The JSON cannot be read: {text}.") from None


def weight_of(data: bytes) -> int:
    """The most bytes that `read_document` makes of it."""
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
    """Of the same length, with the sign of each. What stands in texts is changed, too."""
    # Any numbers would do: the true text is read again from the same place (`_Places`).
    return data.replace(b"NaN", b"7e7").replace(b"Infinity", b"7.000000")


def _outside(data: bytes, sign: bytes) -> int:
    """How often the sign stands outside of texts."""
    return _between_texts(data)[0].count(sign)


def _between_texts(data: bytes, check: Check = lambda: None) -> tuple[bytes, int]:
    """What stands between the texts, and how many signs begin or end one.

    Without a regular expression, which takes ten times as long, keeps Python's lock, and memory for each escape.
    """
    between: list[bytes] = []
    signs = at = 0
    while at < len(data):
        check()
        part = data[at : at + STEP_BYTES]
        if at + STEP_BYTES < len(data) and (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1]  # an escape is not cut
        at += len(part)
        # Escapes are removed first; what is left of quotation marks begins or ends a text, in turns.
        parts = part.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        # Every second part is outside of texts; which one is first depends on the steps before.
        between.append(b"".join(parts[signs % 2 :: 2]))
        signs += len(parts) - 1
    return b"".join(between), signs


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _words_of(error: msgspec.DecodeError) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return "its end is missing, or a text has half a surrogate pair" if "truncated" in text else text


# --- tensors ----------------------------------------------------------------------------------------------------

Array = np.ndarray[Any, np.dtype[Any]]


def read_numbers(
    data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, take: Take, check: Check
) -> Array:
    """The numbers of an array as a flat array of this type: floats, integers or bool.

    Args:
        data: The text of an array, flat or nested as the shape says.
    """
    words = {"f": "numbers", "b": "true and false"}.get(dtype.kind, "integers")
    if b'"' in data or b"{" in data:
        others = "texts" if b'"' in data else "objects"
        raise wrong(f"{where}: data must be {words}; it has {others}, too.")
    count = math.prod(shape)
    # Counted in the text, before anything is made of it: a wrong shape costs no memory.
    _check_form(data, shape, count, where)
    # Before the array is made: a request beyond the limit is refused first.
    take(count * dtype.itemsize)
    array: Array = np.empty(count, dtype)
    # The form has been checked, so the inner brackets say nothing more.
    flat = data if data.find(b"[", 1) < 0 else b"[%b]" % data.translate(None, b"[]")
    if not count and not flat[1:-1].strip(b"," + _SPACE):
        return array
    at = 0
    for text in _steps(flat):
        check()
        numbers = _step(text, dtype, words, where)
        # More numbers than commas promised cannot be; the array must not be written past its end in any case.
        if len(numbers) > count - at:
            at += len(numbers)
            break
        _put(array[at : at + len(numbers)], numbers, where)
        at += len(numbers)
    if at != count:
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, and data has another number.")
    return array


def read_texts(
    data: bytes, shape: tuple[int, ...], where: str, take: Take, check: Check = lambda: None
) -> list[str]:
    """The texts of an array, flat or nested as the shape says."""
    count = math.prod(shape)
    rest, signs = _between_texts(data, check)
    texts = signs // 2
    if rest.translate(None, b"[]," + _SPACE):
        others = [
            name
            for word, name in (*_OTHERS[:2], (rb"[0-9]", "numbers"), *_OTHERS[3:], (rb"{", "objects"))
            if re.search(word, rest)
        ]
        raise wrong(f"{where}: data must be texts; it has {', '.join(others)}, too.")
    if texts != count:
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, and data has {texts}.")
    _check_form(rest, shape, count, where)
    # 64 bytes for each text beside its characters: the object and its place in the list.
    take(count * 64 + len(data))
    check()
    try:
        level: list[Any] = msgspec.json.decode(data)
    except UnicodeDecodeError:
        raise wrong(f"{where}: a text is not in UTF-8.") from None
    except msgspec.DecodeError:
        raise wrong(f"{where}: half a surrogate pair is no text in UTF-8.") from None
    # The form has been checked: where the first entry is a list, all entries are.
    while level and isinstance(level[0], list):
        level = [item for part in level for item in part]
    return level


def _check_form(data: bytes, shape: tuple[int, ...], count: int, where: str) -> None:
    """Whether the brackets and commas are those of a flat array of this many values, or of the shape."""
    if data.find(b"[", 1) < 0 and _commas(data) == max(0, count - 1):
        return
    found = data.translate(None, _NO_SKELETON)
    # Sizes behind a zero have no text: the lists that would hold them do not exist.
    written = shape[: shape.index(0) + 1] if 0 in shape else shape
    size = 0  # of the form that the shape asks for
    for length in reversed(written):
        size = 2 + max(0, length - 1) + length * size
    # Made only where it is as long as what came. All sizes but the last are positive here, so no step of making it
    # takes more memory than the text of the request.
    if shape and len(found) == size:
        form = b""
        for length in reversed(written):
            form = b"[" + (form + b",") * (length - 1) + (form if length else b"") + b"]"
        if form == found:
            return
    if found[1:-1].count(b",") == len(found) - 2:
        given = len(found) - 1 if data.translate(None, b"[]" + _SPACE) else 0
        raise wrong(f"{where}: its shape {list(shape)} has {count} elements, and data has {given}.")
    raise wrong(f"{where}: data is nested, and not as its shape {list(shape)} says.")


def _commas(data: bytes) -> int:
    # bytes.count takes eight times as long, and keeps Python's lock.
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _COMMA))


def _steps(flat: bytes) -> Iterator[bytes]:
    """Arrays of some of the numbers of this one."""
    at, last = 1, len(flat) - 1
    while at < last:
        # Cut at a comma, so that no number is divided.
        end = flat.find(b",", at + STEP_BYTES)
        end = last if end < 0 else end
        yield flat if (at, end) == (1, last) else b"[%b]" % flat[at:end]
        at = end + 1


def _step(text: bytes, dtype: np.dtype[Any], words: str, where: str) -> list[Any]:
    """The numbers of an array."""
    decoder = _FLOATS if dtype.kind == "f" else _TRUTHS if dtype.kind == "b" else _INTEGERS
    try:
        if dtype.kind == "f" and _has_words(text):
            return _with_words(text)
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        if "out of range" in str(error):
            raise wrong(f"{where}: a number is too large for {_SORTS.get(dtype.kind, 'an integer')}.") from None
    except (msgspec.DecodeError, ValueError):
        pass
    kinds = _OTHERS[:2] if dtype.kind == "f" else _OTHERS
    others = [name for word, name in kinds if re.search(word, text)]
    raise wrong(f"{where}: data must be {words}; it has {', '.join(others) or 'other values'}, too.")


def _with_words(text: bytes) -> list[float]:
    """The numbers of an array with NaN or Infinity among them. Raises `ValueError` and the decoder's errors."""
    numbers = np.array(_FLOATS.decode(_without_words(text)), np.float64)
    signs = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(signs == _COMMA)
    for word, value, before in ((b"NaN", math.nan, b"[,"), (b"Infinity", math.inf, b"[,-")):
        # The array was read: letters stand in these words only, and an "a" or "I" in one of them only.
        letter = b"a" if value != value else b"I"
        begins = np.flatnonzero(signs == ord(letter)) - word.index(letter)
        for neighbours, allowed in ((begins - 1, before), (begins + len(word), b",]")):
            if not np.isin(signs[neighbours], np.frombuffer(allowed + _SPACE, np.uint8)).all():
                raise ValueError("a word is part of a number")
        places = np.searchsorted(commas, begins)
        # The number that stood in for the word has kept its sign.
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
            # numpy would store an infinity for what FP32 cannot hold, with a warning at most.
            with np.errstate(over="raise"):
                target[:] = np.fromiter(numbers, np.float64, len(numbers))
        except FloatingPointError:
            raise wrong(f"{where}: a number is too large for FP32.") from None
        return
    limits = np.iinfo(dtype)
    # numpy before 2.0 makes large unsigned numbers of negative ones.
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
