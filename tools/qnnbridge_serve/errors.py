"""Answers to requests that cannot be served: status, text and headers.

This package raises `Refused` for faults of the request itself. `refusal_of` determines the status of every other
error. Texts never contain a stack trace or output of the host: evidence stays in the crash report on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_protocol import errors

# Value of the header Retry-After in seconds, for `Busy` and while the host is being restarted.
RETRY_AFTER_S = 1

# Header with the error code of docs/errors.md, for programs: KServe's error document has no field for it.
CODE_HEADER = "qnnbridge-error"


class Refused(Exception):
    """Error that is sent to the client as a status and a text.

    field: invalid field of the request's JSON, for OpenAI's interface. reason: error code, for OpenAI's interface.
    """

    def __init__(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        *,
        field: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(text)
        self.field = field
        self.reason = reason
        self.status = status
        self.text = text
        self.headers = dict(headers or {})


def wrong(text: str, field: str | None = None, code: str | None = None, status: int = 400) -> Refused:
    """Return the error for an invalid request. field: invalid field of its JSON. code: OpenAI's error code."""
    return Refused(status, text, field=field, reason=code)


# Status by type of error; the first match counts. All other errors are faults of the server: 500.
_STATUS: tuple[tuple[type[errors.BridgeError], int], ...] = (
    (errors.DeadlineExceeded, 504),
    (errors.Busy, 429),
    (errors.TooLarge, 413),
    (errors.Cancelled, 503),
    (errors.HostError, 503),
    (errors.ProtocolDesync, 503),
    # Subclasses of ModelError come before ModelError, because the first match counts.
    (errors.PromptRefused, 400),
    (errors.GenerationUnsupported, 400),
    (errors.ModelError, 503),
    (errors.DeviceReset, 503),
    (errors.InvalidArgument, 400),
    (errors.RemoteValueError, 400),
    (errors.RemoteTypeError, 400),
    (errors.OptionError, 400),
    (errors.NotImplemented, 400),
)

# Advice for a client after a timeout: the exception's own advice names an argument of a Python call.
_TIME_IS_OVER = (
    "Allow more time (the request's parameter timeout, in microseconds, at most the server's --timeout), "
    "or try again when the server is less busy."
)


def refusal_of(error: BaseException) -> Refused:
    """Return the answer to any error.

    For an unexpected error, the text contains only the name of the error's class; the caller logs the error.
    """
    if isinstance(error, Refused):
        return error
    if not isinstance(error, errors.BridgeError):
        return Refused(500, f"Unexpected {type(error).__name__} in qnnbridge serve; see the server's log.")
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {CODE_HEADER: error.code}
    if status == 429 or (status == 503 and error.retry == "safe"):
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, errors.DeadlineExceeded):
        error = error.copy()
        error.fix = _TIME_IS_OVER
    return Refused(status, error_text(error), headers)


def load_refused(name: str, error: errors.BridgeError) -> Refused:
    """Return the answer if a model cannot be loaded. The text does not reveal the path of the file."""
    headers = {CODE_HEADER: error.code}
    kept = "If an earlier version was loaded, it is still served."
    if isinstance(error, errors.NoSuchFile):
        return Refused(
            404,
            f"The model {name} cannot be loaded: its file cannot be read. {kept}\n"
            "Cause: The file was moved or deleted, or the server's user may not read it.\n"
            "Fix: Put the file back at its path, or start the server with the path of another file.",
            headers,
        )
    if isinstance(error, (errors.InvalidProtobuf, errors.InvalidGraph)):
        return Refused(
            400,
            f"The model {name} cannot be loaded: its file is not a valid ONNX model. {kept}\n"
            f"Cause: {error.cause or error.message}\n"
            "Fix: Replace the file and load the model again; qnnbridge inspect shows what a file contains.",
            headers,
        )
    return refusal_of(error)


def error_text(error: errors.BridgeError) -> str:
    """Return message, cause and fix on separate lines, without evidence."""
    lines = [error.message]
    if error.cause:
        lines.append(f"Cause: {error.cause}")
    if error.fix:
        lines.append(f"Fix: {error.fix}")
    return "\n".join(lines)
