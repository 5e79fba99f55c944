"""Check pictures and sound before onnxruntime-genai decodes them.

Outside of Windows, the JPEG decoder of onnxruntime-genai crashes the process for a damaged header and for every
file that is neither PNG nor JPEG, and waits forever for the rest of a truncated file (0.18.0). So the segments of a
JPEG are checked here as libjpeg reads them, except for the compressed data, where libjpeg tolerates every error.
The PNG decoder reports errors. Sound is checked for its format and for its size when decoded.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_protocol.errors import PromptRefused

# Maximum number of pixels of a picture, and of its width or height. onnxruntime-genai 0.18 has the same limits;
# older releases have no limits.
MOST_PIXELS: Final = 100_000_000
LONGEST_SIDE: Final = 16_384
# A progressive JPEG has about ten scans. Each scan can take as long as the whole picture.
MOST_SCANS: Final = 100
# Maximum number of segments and tables of a JPEG. Cameras write a few hundred at most.
MOST_PARTS: Final = 5_000
# Maximum number of samples of all channels together: an hour and a half of mono at 48 kHz, or 1 GiB when decoded.
MOST_SAMPLES: Final = 2**28
# Maximum number of samples per byte of an MP3, reached by MPEG-2 with 24,000 samples/s at 8 kbit/s.
_MP3_SAMPLES: Final = 24

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
# End of the compressed data of a scan: a marker, but not a stuffed byte, a restart marker or fill bytes. The
# pattern has no repetition, which would make the search quadratic.
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_FRAMES: Final = frozenset((0xC0, 0xC1, 0xC2))
_PASSED_OVER: Final = frozenset((0xDC, 0xFE, *range(0xE0, 0xF0)))


class _Damaged(Exception):
    """Error with the reason why a JPEG must not be decoded."""


def check_picture(data: bytes, number: int) -> None:
    """Raise `PromptRefused` unless `data` is a PNG or JPEG that can be decoded safely.

    number: number of the picture for messages, counted from 1.
    """
    if data.startswith(_PNG):
        if data[12:16] != b"IHDR" or len(data) < 33:
            raise _refused(number, "Its header is damaged.")
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data.startswith(_JPEG):
        try:
            width, height = _Jpeg(data).check()
        except _Damaged as damaged:
            raise _refused(number, f"The JPEG is damaged or of an unsupported type: {damaged}.") from None
    else:
        raise PromptRefused(
            f"Picture {number} is neither PNG nor JPEG.",
            cause="onnxruntime-genai decodes these two on every system.",
            fix="Convert it to PNG.",
            details={"picture": number},
        )
    if not (0 < width <= LONGEST_SIDE and 0 < height <= LONGEST_SIDE and width * height <= MOST_PIXELS):
        raise PromptRefused(
            f"Picture {number} has {width} x {height} pixels.",
            cause=f"At most {MOST_PIXELS:,} pixels are allowed, and at most {LONGEST_SIDE:,} in a row or column.",
            fix="Make the picture smaller: models scale pictures down in any case.",
            details={"picture": number, "width": width, "height": height},
        )


def check_sound(data: bytes, number: int) -> None:
    """Raise `PromptRefused` unless `data` is WAV, FLAC or MP3 and not too long.

    number: number of the recording for messages, counted from 1.
    """
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        samples = len(data)  # an upper limit: a sample has at least one byte
    elif data.startswith(b"fLaC"):
        # Number of channels minus 1 in 3 bits, sample size in 5 bits, number of samples of one channel in 36 bits.
        head = int.from_bytes(data[18:26], "big")
        samples = (head & (1 << 36) - 1) * ((head >> 41 & 7) + 1)
        # Refuse a file whose header lacks the number of samples: even a small file may contain hours of silence,
        # which onnxruntime-genai would decode.
        if len(data) < 42 or not samples:
            raise _no_sound(number, "The header of a FLAC has no number of samples.", "Record or convert it again.")
    elif data.startswith(b"ID3") or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        samples = len(data) * _MP3_SAMPLES
    else:
        raise _no_sound(number, "The file is neither WAV nor FLAC nor MP3.", "Convert it to WAV.")
    if samples > MOST_SAMPLES:
        raise _no_sound(
            number, f"The file may have {samples:,} samples; {MOST_SAMPLES:,} are allowed.", "Cut it into parts."
        )


class _Jpeg:
    """Checker of the segments of a JPEG file. It reads segments like libjpeg, and skips the compressed data.

    Raises `_Damaged`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size: tuple[int, int] | None = None
        self._progressive = False
        # For each component id: product of the horizontal and vertical sampling factors, and its quantisation
        # table.
        self._components: dict[int, tuple[int, int]] = {}
        self._quantisation: set[int] = set()
        # Class (0 for DC, 1 for AC) and number of each Huffman table.
        self._huffman: set[tuple[int, int]] = set()
        self._parts = 0

    def check(self) -> tuple[int, int]:
        """Check the file, and return the width and height of the picture."""
        scans = 0
        for marker, body in self._segments():
            if marker in _FRAMES:
                self._frame(body, progressive=marker == 0xC2)
            elif marker == 0xC4:
                self._huffman_tables(body)
            elif marker == 0xDB:
                self._quantisation_tables(body)
            elif marker == 0xDA:
                scans += 1
                self._scan(body)
                _require(scans <= MOST_SCANS, f"it has more than {MOST_SCANS} scans")
            elif marker == 0xDD:
                _require(len(body) == 2, "its restart interval is invalid")
            else:
                _require(marker in _PASSED_OVER, f"its segment {marker:02X} has a type that cannot be decoded")
        _require(scans > 0 and self._size is not None, "it has no picture")
        assert self._size is not None
        return self._size

    def _segments(self) -> Iterator[tuple[int, bytes]]:
        """Yield marker and contents of each segment up to the end of the picture."""
        data, at = self._data, 2
        while True:
            start = at
            while data[at : at + 1] == b"\xff":
                at += 1
            _require(at > start and at < len(data), "it is cut off")
            marker = data[at]
            at += 1
            if marker == 0xD9:
                return
            size = int.from_bytes(data[at : at + 2], "big")
            _require(
                marker > 0xBF and not 0xD0 <= marker <= 0xD8, f"its segment {marker:02X} is in a wrong position"
            )
            _require(size >= 2 and at + size <= len(data), "it is cut off")
            self._count()
            yield marker, data[at + 2 : at + size]
            at += size
            if marker == 0xDA:
                found = _MARKER.search(data, at)
                _require(found is not None, "it is cut off")
                assert found is not None
                at = found.start()

    def _frame(self, body: bytes, *, progressive: bool) -> None:
        _require(self._size is None, "it has two pictures")
        _require(len(body) >= 6 and len(body) == 6 + 3 * body[5], "its frame header is invalid")
        _require(body[0] == 8 and body[5] in (1, 3, 4), "its sample depth or number of components is not supported")
        self._size = int.from_bytes(body[3:5], "big"), int.from_bytes(body[1:3], "big")
        _require(min(self._size) > 0, "it has no pixels")
        self._progressive = progressive
        for at in range(6, len(body), 3):
            across, down = body[at + 1] >> 4, body[at + 1] & 15
            # A sampling factor of three makes libjpeg wait forever, and no program writes such pictures.
            fits = across in (1, 2, 4) and down in (1, 2, 4) and body[at] not in self._components
            _require(fits, "the sampling factors of its components are invalid")
            self._components[body[at]] = across * down, body[at + 2]

    def _huffman_tables(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            self._count()
            kind, number, counts = body[at] >> 4, body[at] & 15, body[at + 1 : at + 17]
            total = sum(counts)
            symbols = body[at + 17 : at + 17 + total]
            valid = kind < 2 and number < 4 and len(counts) == 16 and total <= 256 and len(symbols) == total
            _require(valid and (kind or all(symbol <= 15 for symbol in symbols)), "a Huffman table is invalid")
            code = 0
            for bits, count in enumerate(counts, 1):
                code += count
                # A code that consists of ones only is not allowed.
                _require(not count or code < 1 << bits, "a Huffman table is invalid")
                code <<= 1
            self._huffman.add((kind, number))
            at += 17 + total

    def _quantisation_tables(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            self._count()
            wide, number = body[at] >> 4, body[at] & 15
            size = 128 if wide else 64
            _require(wide < 2 and number < 4 and at + 1 + size <= len(body), "a quantisation table is invalid")
            self._quantisation.add(number)
            at += 1 + size

    def _count(self) -> None:
        """Count a segment or table. A file full of them would keep the host busy for minutes."""
        self._parts += 1
        _require(self._parts <= MOST_PARTS, f"it has more than {MOST_PARTS} segments and tables")

    def _scan(self, body: bytes) -> None:
        count = body[0] if body else 0
        _require(
            self._size is not None and 1 <= count <= 4 and len(body) == 4 + 2 * count, "a scan header is invalid"
        )
        chosen = [(body[at], body[at + 1] >> 4, body[at + 1] & 15) for at in range(1, 1 + 2 * count, 2)]
        _require(len({one for one, _, _ in chosen}) == count, "a scan header is invalid")
        first, last, high, low = body[-3], body[-2], body[-1] >> 4, body[-1] & 15
        if self._progressive:
            # A scan contains either the first coefficient of several components, or further coefficients of one
            # component. A refinement scan adds one bit, so its two bit positions differ by one.
            fits = last == 0 if first == 0 else first <= last <= 63 and count == 1
            _require(fits and low <= 13 and (high == 0 or high == low + 1), "a scan header is invalid")
        blocks = 0
        for component, direct, alternating in chosen:
            _require(component in self._components, "a scan header is invalid")
            sampling, quantisation = self._components[component]
            blocks += sampling
            _require(quantisation in self._quantisation, "a quantisation table is missing")
            wanted = {(0, direct), (1, alternating)}
            if self._progressive:
                wanted = {(1, alternating)} if first else set() if high else {(0, direct)}
            _require(wanted <= self._huffman, "a Huffman table is missing")
        _require(count == 1 or blocks <= 10, "a scan has more than 10 blocks in an MCU")


def _require(fits: Any, what: str) -> None:
    if not fits:
        raise _Damaged(what)


def _refused(number: int, cause: str) -> PromptRefused:
    return PromptRefused(
        f"Picture {number} cannot be decoded.",
        cause=cause,
        fix="Copy the picture again, or open and save the picture with another program.",
        details={"picture": number},
    )


def _no_sound(number: int, cause: str, fix: str) -> PromptRefused:
    return PromptRefused(f"Sound {number} cannot be decoded.", cause=cause, fix=fix, details={"sound": number})
