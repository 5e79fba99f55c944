"""All errors of qnnbridge, and their relation to the classes of a real onnxruntime.

The module `qnnbridge_protocol.errors` shows the tree of classes. If the application has imported onnxruntime, an
error of ONNX Runtime in the host is raised here as an instance of both classes (`as_onnxruntime`), so that
``except`` clauses written for onnxruntime work. This module never imports onnxruntime.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from qnnbridge_protocol.errors import (
    BreakerOpen,
    BridgeError,
    Busy,
    CallBackFailed,
    CallError,
    Cancelled,
    Closed,
    CompiledModelRefused,
    CompileFailed,
    ContextUnusable,
    DeadlineExceeded,
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    ForkedClient,
    GenerationError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    HandshakeFailed,
    HostCrashed,
    HostError,
    HostHung,
    HostNotFound,
    HostStartFailed,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelChanged,
    ModelError,
    ModelLoadCanceled,
    ModelLoaded,
    ModelQuarantined,
    ModelRequiresCompilation,
    NativeCodeRefused,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,  # noqa: A004 - ONNX Runtime's own name
    NumbersDiffer,
    OptionError,
    OrtError,
    PlacementRefused,
    PromptRefused,
    ProtocolDesync,
    ProviderUnavailable,
    PullFailed,
    RemoteError,
    RemoteFileNotFoundError,
    RemoteIndexError,
    RemoteKeyError,
    RemoteMemoryError,
    RemoteOSError,
    RemoteRuntimeError,
    RemoteTypeError,
    RemoteValueError,
    RuntimeException,
    StateLost,
    TooLarge,
    UnknownOperation,
    VersionMismatch,
    WireError,
    WorkerDied,
)

__all__ = [
    "BreakerOpen",
    "BridgeError",
    "Busy",
    "CallBackFailed",
    "CallError",
    "Cancelled",
    "Closed",
    "CompileFailed",
    "CompiledModelRefused",
    "ContextUnusable",
    "DeadlineExceeded",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "ForkedClient",
    "GenerationError",
    "GenerationFolderInvalid",
    "GenerationUnsupported",
    "HandshakeFailed",
    "HostCrashed",
    "HostError",
    "HostHung",
    "HostNotFound",
    "HostStartFailed",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelChanged",
    "ModelError",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelQuarantined",
    "ModelRequiresCompilation",
    "NativeCodeRefused",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "NumbersDiffer",
    "OptionError",
    "OrtError",
    "PlacementRefused",
    "PromptRefused",
    "ProtocolDesync",
    "ProviderUnavailable",
    "PullFailed",
    "RemoteError",
    "RemoteFileNotFoundError",
    "RemoteIndexError",
    "RemoteKeyError",
    "RemoteMemoryError",
    "RemoteOSError",
    "RemoteRuntimeError",
    "RemoteTypeError",
    "RemoteValueError",
    "RuntimeException",
    "StateLost",
    "TooLarge",
    "UnknownOperation",
    "VersionMismatch",
    "WireError",
    "WorkerDied",
    "as_onnxruntime",
]

_ORT_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"


def as_onnxruntime(error: BridgeError) -> BridgeError:
    """Return the error to raise in the application.

    If the application has imported onnxruntime, and onnxruntime has a class with the same name, return an error
    that is also an instance of that class; otherwise return `error` itself. Unpickling returns an instance of this
    package's class only.
    """
    module = sys.modules.get(_ORT_MODULE)
    if module is None or not isinstance(error, OrtError):
        return error
    cls = _both(type(error), module)
    if cls is type(error):
        return error
    twin: BridgeError = cls.__new__(cls, *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)  # also copies the notes
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


_twins: dict[tuple[str, int], type[OrtError]] = {}
# Combined classes; key: name of this package's class, `id` of onnxruntime's class. Each pair is combined only
# once, so that `type(e) is type(f)` is true. If two threads create the same class at once, setdefault keeps one.


def _both(cls: type[OrtError], module: ModuleType) -> type[OrtError]:
    theirs: Any = getattr(module, cls.__name__, None)
    if not (isinstance(theirs, type) and issubclass(theirs, Exception)) or issubclass(cls, theirs):
        return cls
    key = (cls.__name__, id(theirs))
    found = _twins.get(key)
    if found is None:
        body = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        found = _twins.setdefault(key, type(cls.__name__, (cls, theirs), body))
    return found
