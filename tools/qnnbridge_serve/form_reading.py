"""Parse multipart/form-data as it arrives: text fields are kept in memory, the file is written to disk."""

from __future__ import annotations

import tempfile
from typing import IO, Any, Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from qnnbridge_serve.errors import Refused, wrong

# Maximum size of all parts except the file, including the headers of all parts.
MOST_TEXT_BYTES: Final = 64 * 1024
MOST_PARTS: Final = 64


def boundary_of(content_type: str | None) -> bytes:
    """Return the boundary of a Content-Type. Raise `Refused` if the Content-Type is not multipart/form-data."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        given = (content_type or "missing").partition(";")[0][:80]
        raise wrong(f"Content-Type must be multipart/form-data, but is {given}.", status=415)
    boundary: bytes | None = options.get(b"boundary")
    if not boundary:
        raise wrong("Content-Type: multipart/form-data has no boundary.")
    return boundary


class FormReader:
    """Parser of a form. Pass its bytes to `write`, then call `end`. `close` removes the file. One thread at a time.

    Attributes:
        texts: texts of the fields, by name without [].
        file: the file, positioned at its beginning after `end`; ``None`` without a file.
        file_bytes: size of the file.

    Args:
        boundary: boundary of the Content-Type.
        file_field: name of the field that contains the file.
    """

    def __init__(self, boundary: bytes, file_field: str) -> None:
        self.texts: dict[str, list[str]] = {}
        self.file: IO[bytes] | None = None
        self.file_bytes = 0
        self._file_field = file_field
        self._held = 0
        self._parts = 0
        self._whole = False
        self._head = {b"": b""}
        self._field = b""
        self._value = b""
        self._name: str | None = None
        self._text = bytearray()
        callbacks: Any = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_field,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise _unreadable(str(error)) from None

    def write(self, data: bytes) -> None:
        """Parse further bytes of the form. Raise `Refused` if they are invalid."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _unreadable(str(error)) from None

    def end(self) -> None:
        """Finish the form. Raise `Refused` if its end is missing."""
        if not self._whole:
            raise _unreadable("its end is missing")
        if self.file is not None:
            self.file.seek(0)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    # --- callbacks of the parser ---

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > MOST_TEXT_BYTES:
            raise wrong(
                f"Together, the fields other than {self._file_field} exceed {MOST_TEXT_BYTES} bytes.", status=413
            )

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise wrong(f"The form has more than {MOST_PARTS} fields.")
        self._head, self._field, self._value, self._text = {}, b"", b"", bytearray()

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._hold(end - start)
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._hold(end - start)
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._head[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def _end_head(self) -> None:
        kind, options = parse_options_header(self._head.get(b"content-disposition", b"").decode("latin-1"))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise _unreadable("a part of it has no name")
        # OpenAI's library sends lists as fields with the name NAME[].
        try:
            # python_multipart decodes the name's bytes as latin-1 and encodes them again, so `name` is what the
            # client sent.
            self._name = name.decode("utf-8").removesuffix("[]")
        except UnicodeDecodeError:
            raise _unreadable("the name of a field is not valid UTF-8") from None
        if self._name == self._file_field:
            if self.file is not None:
                raise wrong(f"{self._file_field} is given twice.", self._file_field)
            # Use a file without a name: the system deletes it even if the process crashes.
            self.file = tempfile.TemporaryFile(prefix="qnnbridge-")  # noqa: SIM115 - closed by `close`

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != self._file_field or self.file is None:
            self._hold(end - start)
            self._text += data[start:end]
            return
        self.file_bytes += end - start
        try:
            self.file.write(memoryview(data)[start:end])
        except OSError as error:
            raise Refused(503, f"The server cannot store the file at the moment: {error.strerror}.") from None

    def _end_part(self) -> None:
        if self._name is None or self._name == self._file_field:
            return
        try:
            text = self._text.decode()
        except UnicodeDecodeError:
            raise wrong(f"{self._name[:80]} is not valid UTF-8.", self._name[:80]) from None
        self.texts.setdefault(self._name, []).append(text)

    def _end(self) -> None:
        self._whole = True


def _unreadable(why: str) -> Refused:
    return wrong(f"The form cannot be read: {why.rstrip('.')[:200]}.")
