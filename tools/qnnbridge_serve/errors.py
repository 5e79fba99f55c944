"""The answers to requests that cannot be served: status, text, headers.

`Refused` is what this package raises for faults of the request itself; every other error gets its status here. The
words never hold a stack trace or the host's output: evidence stays with the crash report on this machine. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_protocol import errors

# For Busy, and for a host that is being started again.
RETRY_AFTER_S = 1

# Names the error of the tree in docs/errors.md, for programs: the body has KServe's one field only.
CODE_HEADER = "qnnbridge-error"


class Refused(Exception):
    """A request that is answered with a status and a sentence.

    field: of the request's JSON, for OpenAI's interface. reason: a word for programs, likewise.
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
    """A fault of the request. field, code: for OpenAI's interface."""
    return Refused(status, text, field=field, reason=code)


# The first that fits. What is not here is a fault of this side: 500.
_STATUS: tuple[tuple[type[errors.BridgeError], int], ...] = (
    (errors.DeadlineExceeded, 504),
    (errors.Busy, 429),
    (errors.TooLarge, 413),
    (errors.Cancelled, 503),
    (errors.HostError, 503),
    (errors.ProtocolDesync, 503),
    # These two are kinds of ModelError as well, so they stand before it.
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

# The advice of the library is an option of a Python call, which an HTTP client does not make.
_TIME_IS_OVER = (
    "Grant more time (the request's parameter timeout, in microseconds; the server's limit is its --timeout), "
    "or ask again when there is less to do."
)


def refusal_of(error: BaseException) -> Refused:
    """The answer for any error. Unexpected ones are named by their class; the caller logs them."""
    if isinstance(error, Refused):
        return error
    if not isinstance(error, errors.BridgeError):
        return Refused(500, f"Unexpected {type(error).__name__} in qnnbridge serve; its log has the details.")
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {CODE_HEADER: error.code}
    if status == 429 or (status == 503 and error.retry == "safe"):
        headers["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, errors.DeadlineExceeded):
        error = error.copy()
        error.fix = _TIME_IS_OVER
    return Refused(status, in_words(error), headers)


def load_refused(name: str, error: errors.BridgeError) -> Refused:
    """The answer when a model of this server cannot be loaded. It does not say where the file lies."""
    headers = {CODE_HEADER: error.code}
    kept = "What was loaded before, if anything was, is served on."
    if isinstance(error, errors.NoSuchFile):
        return Refused(
            404,
            f"The model {name} cannot be loaded: its file cannot be read. {kept}\n"
            "Cause: It was moved, deleted, or is not this user's to read.\n"
            "Fix: Put it back where the server was started with it, or start the server with another one.",
            headers,
        )
    if isinstance(error, (errors.InvalidProtobuf, errors.InvalidGraph)):
        return Refused(
            400,
            f"The model {name} cannot be loaded: its file is no valid ONNX model. {kept}\n"
            f"Cause: {error.cause or error.message}\n"
            "Fix: Write the file again and load it again; qnnbridge inspect says what is in it.",
            headers,
        )
    return refusal_of(error)


def in_words(error: errors.BridgeError) -> str:
    """Message, cause and fix, on one line each; no evidence."""
    lines = [error.message]
    if error.cause:
        lines.append(f"Cause: {error.cause}")
    if error.fix:
        lines.append(f"Fix: {error.fix}")
    return "\n".join(lines)
