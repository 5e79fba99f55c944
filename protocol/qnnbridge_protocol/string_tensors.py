"""String tensors as two buffers: where each string ends, and all strings in UTF-8, one after the other.

Pure functions. The first buffer holds n + 1 ``uint32`` numbers for n strings: zero, then the end of each; the last
one is the size of the second buffer. Every string is valid UTF-8 by itself, so lone surrogates cannot travel.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from qnnbridge_protocol import errors

Array = np.ndarray[Any, np.dtype[Any]]

# All strings of one tensor together, as UTF-8.
MAX_TEXT_BYTES = 2**32 - 1

_OFFSET = np.dtype("<u4")


def encode_strings(array: Array) -> tuple[Array, Array]:
    """The two buffers of an array of ``str`` (dtype object, U or T) or of UTF-8 bytes (dtype S)."""
    texts = _texts(array)
    try:
        joined = "".join(texts)
        blob = joined.encode()
        if len(blob) == len(joined):
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        else:
            lengths = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    except (TypeError, UnicodeEncodeError):
        raise _refused(texts) from None
    if len(blob) > MAX_TEXT_BYTES:
        raise errors.InvalidArgument(
            f"The strings of one tensor are {len(blob)} bytes; at most {MAX_TEXT_BYTES} can be sent.",
            fix="Send them in several calls.",
        )
    offsets = np.zeros(len(texts) + 1, _OFFSET)
    offsets[1:] = np.cumsum(lengths)
    return offsets.view(np.uint8), np.frombuffer(blob, np.uint8)


def _texts(array: Array) -> list[Any]:
    if array.dtype.kind == "S":
        try:
            return [item.decode() for item in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise errors.InvalidArgument(
                "An array of bytes can stand for strings only if each item is UTF-8.",
                cause=str(error),
                fix="Decode the bytes with their real encoding and pass an array of str.",
            ) from None
    try:
        texts: list[Any] = array.reshape(-1).tolist()
    except (ValueError, SystemError) as error:  # a U array may hold numbers beyond Unicode; numpy's class varies
        raise errors.InvalidArgument("The array holds text that is not Unicode.", cause=str(error)) from None
    return texts


def _refused(texts: list[Any]) -> errors.InvalidArgument:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return errors.InvalidArgument(
                f"Element {index} of a string tensor is {type(text).__name__}, not str.",
                cause="An array of dtype object is a tensor of strings to ONNX, and all its elements must be str.",
                fix="Convert the elements with str(), or give the array a numeric dtype if numbers are meant.",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return errors.InvalidArgument(
                f"Element {index} of a string tensor cannot be written as UTF-8.",
                cause=str(error),
                fix="Remove lone surrogates; text.encode(errors='surrogateescape') gives the bytes back.",
            )
    return errors.InvalidArgument("A string tensor holds text that cannot be written as UTF-8.")


def decode_strings(offsets: Array, blob: Array, count: int) -> list[str]:
    """The strings; `ValueError` (also as `UnicodeDecodeError`) where the buffers are not what they should be."""
    if offsets.nbytes != (count + 1) * _OFFSET.itemsize:
        raise ValueError(f"{offsets.nbytes} bytes of offsets for {count} strings")
    ends = np.ndarray((count + 1,), _OFFSET, offsets)
    if ends[0] != 0 or ends[-1] != blob.nbytes or bool((ends[1:] < ends[:-1]).any()):
        raise ValueError("string offsets do not rise from 0 to the size of the text")
    raw = bytes(blob)
    edges = ends.tolist()
    pairs = itertools.pairwise(edges)
    if raw.isascii():
        text = raw.decode("ascii")
        return [text[start:end] for start, end in pairs]
    return [raw[start:end].decode() for start, end in pairs]
