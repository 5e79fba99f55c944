"""All errors that the application's side and the host raise, with stable codes.

::

    BridgeError
    ├── HostError                    the host process
    │   ├── HostStartFailed          it did not start
    │   │   ├── HostNotFound         no interpreter that could be the host
    │   │   ├── HandshakeFailed      it started and did not send HELLO
    │   │   └── VersionMismatch      no common protocol version
    │   ├── HostCrashed              it ended while work was under way
    │   ├── WorkerDied               the process that compiles for the host ended while it was needed
    │   ├── HostHung                 it neither ended nor answered
    │   ├── BreakerOpen              it crashed repeatedly; no new start for now
    │   ├── StateLost                objects in it are gone and cannot be created again
    │   ├── ForkedClient             this process is a fork of the process that owns the host
    │   └── Closed                   the host or the session was closed by its owner
    ├── WireError                    the byte stream
    │   ├── ProtocolDesync           the peer sent what the protocol forbids
    │   └── TooLarge                 a message over the agreed limits (nothing was sent)
    ├── CallError                    one call
    │   ├── DeadlineExceeded         also a TimeoutError; ``state`` is the state of the work
    │   ├── Cancelled
    │   ├── Busy                     more calls in flight than agreed
    │   ├── CallBackFailed           a function of the application that the host called returned no usable value
    │   └── UnknownOperation         the host is older than this client
    ├── OptionError                  also a ValueError: an unknown option or an invalid value
    ├── ModelError                   one model
    │   ├── PlacementRefused         nodes would run on the CPU and the session is strict
    │   ├── ProviderUnavailable      the requested provider cannot be used on this host
    │   ├── ModelChanged             the file has changed since the session was created
    │   ├── ModelQuarantined         the model crashed the host too often
    │   ├── CompiledModelRefused     a compiled model where only an original one is possible
    │   ├── ContextUnusable          a compiled model that cannot run here, or whose files are incomplete
    │   ├── PullFailed               a model could not be downloaded from a model hub
    │   ├── CompileFailed            compiling for QNN did not produce a usable result
    │   ├── NumbersDiffer            the results differ from those of the CPU
    │   └── GenerationError          generation of text; also a RuntimeError
    │       ├── GenerationFolderInvalid  the model's folder lacks a file, or one is damaged
    │       ├── NativeCodeRefused        a file of the folder would load native code or write files
    │       ├── GenerationUnsupported    the model or this onnxruntime-genai does not support the request
    │       └── PromptRefused            the prompt is empty, too long, or has no tokens of the model
    ├── OrtError                     what ONNX Runtime raised: its fifteen classes by their own names
    │   └── DeviceReset, EPFail, EngineError, Fail, InvalidArgument, InvalidGraph, InvalidProtobuf,
    │       ModelLoadCanceled, ModelLoaded, ModelRequiresCompilation, NoModel, NoSuchFile, NotFound,
    │       NotImplemented, RuntimeException
    └── RemoteError                  a Python exception of the host, also an instance of its builtin class
        ├── RemoteValueError, RemoteTypeError, RemoteRuntimeError, RemoteKeyError, RemoteIndexError,
        │   RemoteMemoryError
        └── RemoteOSError
            └── RemoteFileNotFoundError

An error is sent as a map (`to_wire`) and restored with a fixed table of classes (`from_wire`): a class name from
the wire is never imported. This module imports no large modules, so that it works in a partly broken installation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qnnbridge_protocol.limits import EVIDENCE_BYTES
from qnnbridge_protocol.visible import quoted, visible_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Literal

    Retry = Literal["safe", "unsafe", "pointless"]


class BridgeError(Exception):
    """Base class of all errors of qnnbridge.

    Attributes:
        message: what happened, in one sentence.
        cause: why it happened, as far as known; ``None`` if the message is sufficient.
        fix: what the reader can do about the error.
        evidence: lines that prove the cause (log lines, exit codes), for people.
        details: facts for programs (numbers, names, paths), of types that msgpack supports.
        retry: whether repeating the same call may succeed.
    """

    # Stable code: programs, messages on the wire and pickled errors identify a class by its code, never by its
    # name.
    code: ClassVar[str] = "bridge.Error"
    # Default of the class. An instance may have another value: "pointless" for a crash that a restart cannot
    # prevent.
    retry: Retry = "unsafe"
    # Whether `str` of the error is only the message, without cause and fix; see `speak_like_onnxruntime`.
    _brief: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        cause: str | None = None,
        fix: str | None = None,
        evidence: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.fix = fix
        self.evidence: tuple[str, ...] = tuple(evidence)
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        if self._brief:
            return self.message
        if not (self.cause or self.evidence or self.fix):
            # Messages of ONNX Runtime are kept unchanged, including line feeds, because programs compare them.
            return visible_lines(self.message)
        return self.shown()

    def shown(self) -> str:
        """Return the text for a terminal or a log. Names in the text are escaped, so that no name looks like a line
        of the report."""
        lines = [quoted(self.message)]
        if self.cause:
            lines.append(f"  Cause: {quoted(self.cause)}")
        lines.extend(f"  Evidence: {quoted(line)}" for line in self.evidence)
        if self.fix:
            lines.append(f"  Fix: {quoted(self.fix)}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Return the lines of the traceback for IPython, which calls this method."""
        from qnnbridge_protocol.shown import notebook_traceback

        return notebook_traceback(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the code instead of the class, because the classes that `as_onnxruntime` raises exist in one
        # process only.
        return (from_wire, (self.to_wire(),))

    def copy(self) -> BridgeError:
        """Return a copy of the error without the traceback, which keeps frames alive."""
        return from_wire(self.to_wire())

    def to_wire(self) -> dict[str, Any]:
        """Return the error as a map of msgpack types."""
        return {
            "code": self.code,
            "message": self.message,
            "cause": self.cause,
            "fix": self.fix,
            "evidence": list(self.evidence),
            "details": self.details,
            # Send the field only if it differs from the code's default, because older peers do not have the field.
            **({} if self.retry == type(self).retry else {"retry": self.retry}),
        }


# --- the host process ------------------------------------------------------------------------------


class HostError(BridgeError):
    code = "host.Error"


class HostStartFailed(HostError):
    code = "host.StartFailed"
    retry: Retry = "safe"


class HostNotFound(HostStartFailed):
    code = "host.NotFound"
    retry: Retry = "pointless"


class HandshakeFailed(HostStartFailed):
    code = "host.HandshakeFailed"
    retry: Retry = "safe"


class VersionMismatch(HostStartFailed):
    code = "host.VersionMismatch"
    retry: Retry = "pointless"


class HostCrashed(HostError):
    """The host process ended while it was needed. ``details`` contains the crash report (see `docs/errors.md`)."""

    code = "host.Crashed"
    retry: Retry = "safe"


class WorkerDied(HostError):
    """The process that compiles for the host ended while it was needed. The application converts this error to
    `HostCrashed`.

    ``details``: ``exit_code`` (raw, 32 bits), ``phase``, ``label`` and ``fingerprint`` of the model, ``versions``.
    """

    code = "host.WorkerDied"
    retry: Retry = "safe"


class HostHung(HostError):
    code = "host.Hung"
    retry: Retry = "safe"


class BreakerOpen(HostError):
    code = "host.BreakerOpen"
    retry: Retry = "safe"


class StateLost(HostError):
    code = "host.StateLost"
    retry: Retry = "pointless"


class ForkedClient(HostError):
    code = "host.ForkedClient"
    retry: Retry = "pointless"


class Closed(HostError):
    code = "host.Closed"
    retry: Retry = "pointless"


# --- the byte stream ------------------------------------------------------------------------------------


class WireError(BridgeError):
    code = "wire.Error"


class ProtocolDesync(WireError):
    code = "wire.Desync"
    retry: Retry = "safe"


def desync(reason: str, data: bytes | bytearray | memoryview = b"") -> ProtocolDesync:
    """Return the error for a stream that violates the protocol, with the bytes that show the violation."""
    head = bytes(data[:EVIDENCE_BYTES])
    return ProtocolDesync(
        f"The other side violated the protocol: {reason}.",
        cause="The two sides are different builds, or another program writes to the same pipe.",
        fix="Install the same qnnbridge version on both sides. If another program wrote to the pipe, the "
        "evidence contains its text.",
        evidence=[f"next bytes: {head.hex(' ', 4)}", f"as text: {_printable(head)}"] if head else (),
        details={"bytes": head},
    )


def _printable(data: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 else "." for b in data)


class TooLarge(WireError):
    code = "wire.TooLarge"
    retry: Retry = "pointless"


# --- one call -------------------------------------------------------------------------------------------


class CallError(BridgeError):
    code = "call.Error"


class DeadlineExceeded(CallError, TimeoutError):
    """The deadline expired. ``details["state"]`` is the state of the work: "not-started", "stopped", "finished" or
    "still-running"."""

    code = "call.DeadlineExceeded"

    @property
    def state(self) -> str:
        # If the details contain no state, the work counts as still running.
        return str(self.details.get("state", "still-running"))


def late_behind_compiler(label: str) -> DeadlineExceeded:
    """Return the error for a deadline that expired while another process compiled the model."""
    return DeadlineExceeded(
        f"The timeout expired while another process was compiling {label}.",
        fix="Use a longer timeout (timeout=). The model is compiled once; later loads take milliseconds.",
        details={"state": "not-started", "model": label},
    )


def late_compilation(label: str, budget_s: float | None, state: str = "stopped") -> DeadlineExceeded:
    """Return the error for a deadline that expired before the compilation was complete.

    Args:
        budget_s: the time allowed, in seconds.
        state: "stopped", or "not-started" if the compilation had not begun.
    """
    return DeadlineExceeded(
        f"{label} was not compiled {'in time' if budget_s is None else f'within {budget_s:g} s'}; the compiler was "
        "terminated.",
        cause="Compiling takes from a second to many minutes, and only ending the process interrupts it.",
        fix="Use a longer timeout (timeout=, --timeout), or none to wait as long as it takes.",
        details={"state": state, "model": label},
    )


def late_validation(label: str, **details: Any) -> DeadlineExceeded:
    """Return the error for a deadline that expired between the compilation and the end of its validation."""
    return DeadlineExceeded(
        f"{label} was compiled, but the timeout expired before the result was compared with the CPU.",
        cause="The timeout covers compilation and comparison; for a large model, the CPU's run takes longest.",
        fix="Use a longer timeout (timeout=, --timeout), or skip the comparison (validate=False, --no-validate); "
        "nothing was written.",
        details={"state": "stopped", **details, "model": label},
    )


class Cancelled(CallError):
    code = "call.Cancelled"


class Busy(CallError):
    code = "call.Busy"
    retry: Retry = "safe"


class CallBackFailed(CallError):
    """A function of the application failed. ``details["reason"]`` is "raised" (an exception), "nonsense" (an
    unusable result), "late" (a timeout), "reentered" (it called the waiting host) or "unavailable" (this host calls
    no functions)."""

    code = "call.CallBackFailed"
    retry: Retry = "pointless"


class UnknownOperation(CallError):
    code = "call.UnknownOperation"
    retry: Retry = "pointless"


class OptionError(BridgeError, ValueError):
    code = "option.Invalid"
    retry: Retry = "pointless"


# --- one model ------------------------------------------------------------------------------------------


class ModelError(BridgeError):
    code = "model.Error"


class PlacementRefused(ModelError):
    code = "model.PlacementRefused"
    retry: Retry = "pointless"


class ProviderUnavailable(ModelError):
    code = "model.ProviderUnavailable"
    retry: Retry = "pointless"


class ModelChanged(ModelError):
    code = "model.Changed"
    retry: Retry = "pointless"


class ModelQuarantined(ModelError):
    code = "model.Quarantined"
    retry: Retry = "pointless"


class CompiledModelRefused(ModelError):
    """An operation that needs an original model got a compiled (EPContext) model, whose weights are inside an
    opaque blob."""

    code = "model.CompiledRefused"
    retry: Retry = "pointless"


class ContextUnusable(ModelError):
    """A compiled model cannot be loaded: its blob is missing, damaged, or belongs to another model, chip or SDK."""

    code = "model.ContextUnusable"
    retry: Retry = "pointless"


class PullFailed(ModelError):
    """A download failed. ``details["reason"]`` is "network", "offline" (the network is forbidden), "gated" (terms
    are not accepted), "refused" (by the hub or a proxy), "limited" (too many requests), "damaged", "disk" (too
    little space), "rights" (a folder is not writable), "busy" (another process uses the model) or "packages" (some
    are missing)."""

    code = "model.PullFailed"
    retry: Retry = "safe"


class CompileFailed(ModelError):
    """Compilation ended without a usable model: QNN accepted no node, the results were wrong, or the compiler
    failed."""

    code = "model.CompileFailed"
    retry: Retry = "unsafe"


class NumbersDiffer(ModelError):
    """A session's results differ from the CPU's results. ``details["numbers"]`` contains the report."""

    code = "model.NumbersDiffer"
    retry: Retry = "pointless"


class GenerationError(ModelError, RuntimeError):
    """An error of onnxruntime-genai, which itself raises RuntimeError."""

    code = "generation.Error"


class GenerationFolderInvalid(GenerationError):
    code = "generation.FolderInvalid"
    retry: Retry = "pointless"


class NativeCodeRefused(GenerationError):
    """A model's folder sets an option that the caller must allow explicitly (`allow_native`)."""

    code = "generation.NativeCodeRefused"
    retry: Retry = "pointless"


class GenerationUnsupported(GenerationError):
    code = "generation.Unsupported"
    retry: Retry = "pointless"


class PromptRefused(GenerationError):
    code = "generation.PromptRefused"
    retry: Retry = "pointless"


# --- errors of ONNX Runtime ---------------------------------------------------------------------------


class OrtError(BridgeError):
    """An error of ONNX Runtime. The subclass has the same name as ONNX Runtime's class."""

    code = "ort.Error"


class DeviceReset(OrtError):
    code = "ort.DeviceReset"
    retry: Retry = "safe"


class EPFail(OrtError):
    code = "ort.EPFail"


class EngineError(OrtError):
    code = "ort.EngineError"
    retry: Retry = "safe"


class Fail(OrtError):
    code = "ort.Fail"


class InvalidArgument(OrtError):
    code = "ort.InvalidArgument"
    retry: Retry = "pointless"


class InvalidGraph(OrtError):
    code = "ort.InvalidGraph"
    retry: Retry = "pointless"


class InvalidProtobuf(OrtError):
    code = "ort.InvalidProtobuf"
    retry: Retry = "pointless"


class ModelLoadCanceled(OrtError):
    code = "ort.ModelLoadCanceled"


class ModelLoaded(OrtError):
    code = "ort.ModelLoaded"


class ModelRequiresCompilation(OrtError):
    code = "ort.ModelRequiresCompilation"
    retry: Retry = "pointless"


class NoModel(OrtError):
    code = "ort.NoModel"


class NoSuchFile(OrtError):
    code = "ort.NoSuchFile"
    retry: Retry = "pointless"


class NotFound(OrtError):
    code = "ort.NotFound"


class NotImplemented(OrtError):  # noqa: A001 - ONNX Runtime's own name
    code = "ort.NotImplemented"
    retry: Retry = "pointless"


class RuntimeException(OrtError):
    code = "ort.RuntimeException"


# --- Python exceptions of the host ----------------------------------------------------------------------


class RemoteError(BridgeError):
    """A Python exception in the host for which this module has no separate class. ``details["type"]`` is the
    exception's class."""

    code = "py.Exception"


class RemoteValueError(RemoteError, ValueError):
    code = "py.ValueError"


class RemoteTypeError(RemoteError, TypeError):
    code = "py.TypeError"


class RemoteRuntimeError(RemoteError, RuntimeError):
    code = "py.RuntimeError"


# BridgeError must be the first base class: `KeyError.__str__` returns the repr of its argument, without cause and
# fix.
class RemoteKeyError(RemoteError, KeyError):
    code = "py.KeyError"


class RemoteIndexError(RemoteError, IndexError):
    code = "py.IndexError"


class RemoteMemoryError(RemoteError, MemoryError):
    code = "py.MemoryError"


class RemoteOSError(RemoteError, OSError):
    code = "py.OSError"


class RemoteFileNotFoundError(RemoteOSError, FileNotFoundError):
    code = "py.FileNotFoundError"


def _tree(root: type[BridgeError]) -> list[type[BridgeError]]:
    return [root] + [cls for child in root.__subclasses__() for cls in _tree(child)]


# All errors that are accepted from the wire, by code. The table is built after the last class, so that subclasses
# in other modules are never created from the wire.
BY_CODE: Mapping[str, type[BridgeError]] = {cls.code: cls for cls in _tree(BridgeError)}

# Name of ONNX Runtime's exception class -> class of this module.
ORT_ERRORS: Mapping[str, type[OrtError]] = {
    cls.__name__: cls for cls in _tree(OrtError) if issubclass(cls, OrtError) and cls is not OrtError
}


def speak_like_onnxruntime() -> None:
    """From now on in this process, limit the text of ONNX Runtime's errors to ONNX Runtime's message."""
    OrtError._brief = RemoteError._brief = True


def from_wire(data: Mapping[str, Any]) -> BridgeError:
    """Return the error from a map of `to_wire`. An unknown code becomes a `BridgeError` that keeps the code."""
    code = str(data.get("code", ""))
    details, evidence = data.get("details"), data.get("evidence")
    # Convert the fields without checks: an error about the fields would hide the error that the response reports.
    cls = BY_CODE.get(code)
    error = (cls or BridgeError)(
        str(data.get("message", "")),
        cause=_text(data.get("cause")),
        fix=_text(data.get("fix")),
        evidence=[str(line) for line in evidence] if isinstance(evidence, (list, tuple)) else (),
        details=details if isinstance(details, Mapping) else None,
    )
    if cls is None:
        error.details["code"] = code
    if (retry := data.get("retry")) in ("safe", "unsafe", "pointless"):
        error.retry = retry
    return error


def _text(value: object) -> str | None:
    return None if value is None else str(value)
