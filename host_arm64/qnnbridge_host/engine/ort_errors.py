"""Turns what ONNX Runtime and Python raise into the project's errors, by a closed table.

ONNX Runtime's classes keep their name and text; builtin exceptions become the matching ``Remote...Error``. A text
that is known to mislead gets a cause and a fix beside it (`ort_hints`). Whether an error is a reset of the NPU is
decided here, and only here: ``details["npu_reset"]``. Pure functions; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qnnbridge_host.engine.ort_hints import Circumstances, hint
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import BridgeError, OrtError, RemoteError

# ``OrtErrorCode`` -> class. A plugin can return a number that an older ONNX Runtime has no class for.
_BY_NUMBER: Mapping[int, type[OrtError]] = {
    1: errors.Fail,
    2: errors.InvalidArgument,
    3: errors.NoSuchFile,
    4: errors.NoModel,
    5: errors.EngineError,
    6: errors.RuntimeException,
    7: errors.InvalidProtobuf,
    8: errors.ModelLoaded,
    9: errors.NotImplemented,
    10: errors.InvalidGraph,
    11: errors.EPFail,
    12: errors.ModelLoadCanceled,
    13: errors.ModelRequiresCompilation,
    14: errors.NotFound,
    15: errors.DeviceReset,
}

# Order counts: a UnicodeDecodeError is a ValueError, a NotImplementedError is a RuntimeError.
_BUILTINS: tuple[tuple[type[Exception], type[RemoteError]], ...] = (
    (KeyError, errors.RemoteKeyError),
    (IndexError, errors.RemoteIndexError),
    (MemoryError, errors.RemoteMemoryError),
    (OSError, errors.RemoteOSError),
    (ValueError, errors.RemoteValueError),
    (TypeError, errors.RemoteTypeError),
    (RuntimeError, errors.RemoteRuntimeError),
)

_PREFIX = re.compile(r"\[ONNXRuntimeError\] : (\d+) : ")
_QNN_CODE = re.compile(r"\b[Cc]ode: (\d+)")
# ONNX Runtime prints QNN's whole number; the upper bits are internal to QNN.
_QNN_CODE_MASK = 0xFFFF

# QNN_COMMON_ERROR_SYSTEM_COMMUNICATION: the NPU restarted; it can be used again.
QNN_COMMUNICATION = 1007

# QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL: it cannot, from this process.
QNN_COMMUNICATION_FATAL = 1011

_RESET_TEXT = "SSR detected"
_CPU_FALLBACK_DISABLED = "fallback to CPU EP has been explicitly disabled"


def translate(error: Exception, circumstances: Circumstances | None = None) -> BridgeError:
    """The project's error for any exception that a call into ONNX Runtime raised."""
    if isinstance(error, BridgeError):
        return error
    text = str(error)
    cls = _class_of(error, text)
    cause, fix = hint(text, circumstances or Circumstances())
    return cls(text, cause=cause, fix=fix, details={"type": type(error).__name__, **details_of(cls, text)})


def is_cpu_fallback_refusal(error: Exception) -> bool:
    """Whether this is ONNX Runtime's one text for "some node is not on the provider that was asked for"."""
    return _CPU_FALLBACK_DISABLED in str(error)


def _class_of(error: Exception, text: str) -> type[OrtError] | type[RemoteError]:
    if type(error).__module__.startswith("onnxruntime"):
        known = errors.ORT_ERRORS.get(type(error).__name__)
        if known is not None:
            return known
    match = _PREFIX.match(text)
    if match and type(error) is RuntimeError:
        known = _BY_NUMBER.get(int(match[1]))
        if known is not None:
            return known
    for builtin, remote in _BUILTINS:
        if isinstance(error, builtin):
            return remote
    return RemoteError


def details_of(cls: type[BridgeError], text: str) -> dict[str, Any]:
    """What ONNX Runtime's text says to a program: ``ort_code``, ``qnn_code``, ``npu_reset``.

    Which class carries a reset differs between releases: `DeviceReset` since onnxruntime 1.28, before it
    `EngineError`, or `EPFail` with one of two codes.
    """
    details: dict[str, Any] = {}
    prefix = _PREFIX.search(text)
    if prefix:
        details["ort_code"] = int(prefix[1])
    code = _QNN_CODE.search(text)
    if code:
        details["qnn_code"] = int(code[1]) & _QNN_CODE_MASK
    by_text = details.get("qnn_code") in (QNN_COMMUNICATION, QNN_COMMUNICATION_FATAL) or _RESET_TEXT in text
    if issubclass(cls, (errors.DeviceReset, errors.EngineError)) or (issubclass(cls, OrtError) and by_text):
        details["npu_reset"] = True
    return details
