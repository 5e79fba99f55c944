"""QNN error codes and the few FastRPC codes that reach a log, as data, with the look-up.

Only the low 16 bits of a QNN error are its code; the library keeps internal flags above them and ONNX Runtime
prints the whole number (``Code: 216172828125104107`` is 1003). The names were read from the QNN 2.40 core API.
Frozen rows, no state.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCode:
    number: int
    name: str
    meaning: str
    advice: str = ""


_TARGET = "Name the target chip (provider option soc_model, 60 for X Elite); change the operator or its data type."
_ONE_SET = (
    "Use one set of QNN libraries: remove QNN SDK folders from PATH, ADSP_LIBRARY_PATH and backend_path, "
    "reinstall onnxruntime-qnn."
)
_REBUILD = "Compile the context binary again, with these versions and for this chip."
_SKEL = (
    "Check the NPU driver; put the package folder first in ADSP_LIBRARY_PATH; keep the skel file and its .cat "
    "together and unmodified."
)

# One row, as few lines as it needs.
# fmt: off
QNN_CODES: Final[tuple[QnnCode, ...]] = (
    QnnCode(1000, "QNN_COMMON_ERROR_NOT_SUPPORTED",
        "not implemented here (old library, user driver, simulator)"),
    QnnCode(1002, "QNN_COMMON_ERROR_MEM_ALLOC",
        "an allocation failed; while finalizing a graph it nearly always means that an operator cannot be "
        "placed on this target", _TARGET),
    QnnCode(1003, "QNN_COMMON_ERROR_SYSTEM", "a call of the system or the driver failed",
        "Restart the host; compile in another process than the one that runs."),
    QnnCode(1004, "QNN_COMMON_ERROR_INVALID_ARGUMENT", "bad argument"),
    QnnCode(1005, "QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED", "calls in the wrong order"),
    QnnCode(1006, "QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED", "no QNN on this platform"),
    QnnCode(1007, "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION", "the NPU was reset (SSR: its subsystem restarted)",
        "Make the session again; it can recover."),
    QnnCode(1008, "QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES", "stub, skel and backend come from different SDKs",
        _ONE_SET),
    QnnCode(1009, "QNN_COMMON_ERROR_LOADING_BINARIES", "the same library was loaded twice in one process",
        _ONE_SET),
    QnnCode(1010, "QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE", "resources are used up", "Keep fewer sessions."),
    QnnCode(1011, "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL", "the NPU is gone for good in this process",
        "Restart the host; if that does not help, the machine."),
    QnnCode(1100, "QNN_COMMON_ERROR_GENERAL", "unclassified, for instance a Gather index out of range",
        "Check the values of index inputs; QNN prints its own reason before this one."),
    QnnCode(2000, "QNN_PROPERTY_ERROR_UNKNOWN_KEY", "unknown property"),
    QnnCode(3000, "QNN_OP_PACKAGE_ERROR_LIBRARY_ALREADY_INITIALIZED", "operator package initialized twice"),
    QnnCode(3001, "QNN_OP_PACKAGE_ERROR_LIBRARY_NOT_INITIALIZED", "operator package not initialized"),
    QnnCode(3002, "QNN_OP_PACKAGE_ERROR_INVALID_HANDLE", "bad handle of an operator package"),
    QnnCode(3100, "QNN_OP_PACKAGE_ERROR_INVALID_INFRASTRUCTURE", "bad infrastructure object"),
    QnnCode(3101, "QNN_OP_PACKAGE_ERROR_INVALID_INFO", "bad description of an operator package"),
    QnnCode(3110, "QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE",
        "the backend refuses this operator, data type or rank on this target (or the whole driver path is "
        "missing)", _TARGET),
    QnnCode(4000, "QNN_BACKEND_ERROR_CANNOT_INITIALIZE", "the backend cannot start: no NPU driver, or no NPU",
        _SKEL),
    QnnCode(4002, "QNN_BACKEND_ERROR_TERMINATE_FAILED", "the backend did not shut down"),
    QnnCode(4003, "QNN_BACKEND_ERROR_NOT_SUPPORTED", "the backend lacks the function"),
    QnnCode(4004, "QNN_BACKEND_ERROR_INVALID_ARGUMENT", "bad argument"),
    QnnCode(4005, "QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND", "operator package missing"),
    QnnCode(4006, "QNN_BACKEND_ERROR_OP_PACKAGE_IF_PROVIDER_NOT_FOUND",
        "operator package without interface provider"),
    QnnCode(4007, "QNN_BACKEND_ERROR_OP_PACKAGE_REGISTRATION_FAILED",
        "operator package could not be registered"),
    QnnCode(4008, "QNN_BACKEND_ERROR_OP_PACKAGE_UNSUPPORTED_VERSION",
        "interface version of the operator package"),
    QnnCode(4009, "QNN_BACKEND_ERROR_OP_PACKAGE_DUPLICATE", "operator registered twice"),
    QnnCode(4010, "QNN_BACKEND_ERROR_INCONSISTENT_CONFIG", "inconsistent backend configuration"),
    QnnCode(4011, "QNN_BACKEND_ERROR_INVALID_HANDLE", "bad backend handle"),
    QnnCode(4012, "QNN_BACKEND_ERROR_INVALID_CONFIG", "bad backend configuration"),
    QnnCode(4013, "QNN_BACKEND_ERROR_OP_PACKAGE_LOAD_FROM_BUFFER_FAILED",
        "operator package in memory not loadable"),
    QnnCode(5000, "QNN_CONTEXT_ERROR_INVALID_ARGUMENT",
        "bad argument for a context (also: the context binary is of a newer version than the library)",
        _REBUILD),
    QnnCode(5001, "QNN_CONTEXT_ERROR_CTX_DOES_NOT_EXIST", "no such context"),
    QnnCode(5002, "QNN_CONTEXT_ERROR_INVALID_HANDLE", "bad context handle"),
    QnnCode(5003, "QNN_CONTEXT_ERROR_NOT_FINALIZED", "context not finalized"),
    QnnCode(5004, "QNN_CONTEXT_ERROR_BINARY_VERSION",
        "the context binary was made with an incompatible version", _REBUILD),
    QnnCode(5005, "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY",
        "the context binary is damaged or made for another chip", _REBUILD),
    QnnCode(5006, "QNN_CONTEXT_ERROR_GET_BINARY_SIZE_FAILED",
        "the size of the context binary could not be read"),
    QnnCode(5007, "QNN_CONTEXT_ERROR_GET_BINARY_FAILED", "the context could not be serialized"),
    QnnCode(5008, "QNN_CONTEXT_ERROR_BINARY_CONFIGURATION", "bad configuration in the context binary",
        _REBUILD),
    QnnCode(5009, "QNN_CONTEXT_ERROR_SET_PROFILE", "profile not set"),
    QnnCode(5010, "QNN_CONTEXT_ERROR_INVALID_CONFIG", "bad context configuration"),
    QnnCode(5011, "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL", "the context binary would run, but not at its best",
        _REBUILD),
    QnnCode(5012, "QNN_CONTEXT_ERROR_ABORTED", "aborted by a signal"),
    QnnCode(5013, "QNN_CONTEXT_ERROR_TIMED_OUT", "timed out by a signal"),
    QnnCode(5014, "QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER", "buffer not from the backend"),
    QnnCode(6000, "QNN_GRAPH_ERROR_INVALID_ARGUMENT", "bad argument for a graph"),
    QnnCode(6001, "QNN_GRAPH_ERROR_INVALID_HANDLE",
        "bad graph handle (the graph's name is not in the context binary)", _REBUILD),
    QnnCode(6002, "QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST", "no such graph in the context binary", _REBUILD),
    QnnCode(6003, "QNN_GRAPH_ERROR_INVALID_NAME",
        "bad or duplicate graph name (also after a refused graph option such as vtcm_mb)",
        "Check the HTP graph options, vtcm_mb first."),
    QnnCode(6004, "QNN_GRAPH_ERROR_INVALID_TENSOR", "bad tensor"),
    QnnCode(6005, "QNN_GRAPH_ERROR_INVALID_OP_CONFIG", "bad operator configuration"),
    QnnCode(6006, "QNN_GRAPH_ERROR_SET_PROFILE", "profile not set"),
    QnnCode(6007, "QNN_GRAPH_ERROR_UNCONNECTED_NODE", "a node comes before its inputs"),
    QnnCode(6020, "QNN_GRAPH_ERROR_CREATE_FAILED", "the graph could not be made"),
    QnnCode(6021, "QNN_GRAPH_ERROR_OPTIMIZATION_FAILED", "the graph could not be optimized"),
    QnnCode(6022, "QNN_GRAPH_ERROR_FINALIZE_FAILED", "the graph could not be finalized", _TARGET),
    QnnCode(6023, "QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED", "run before it was finalized"),
    QnnCode(6024, "QNN_GRAPH_ERROR_GRAPH_FINALIZED", "changed after it was finalized"),
    QnnCode(6025, "QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL", "the queue of asynchronous runs is full"),
    QnnCode(6030, "QNN_GRAPH_ERROR_SIGNAL_IN_USE", "signal in use"),
    QnnCode(6031, "QNN_GRAPH_ERROR_ABORTED", "aborted by a signal"),
    QnnCode(6032, "QNN_GRAPH_ERROR_PROFILE_IN_USE", "profile in use"),
    QnnCode(6033, "QNN_GRAPH_ERROR_TIMED_OUT", "timed out by a signal"),
    QnnCode(6034, "QNN_GRAPH_ERROR_SUBGRAPH", "not allowed on a subgraph"),
    QnnCode(6035, "QNN_GRAPH_ERROR_DISABLED", "graph disabled"),
    QnnCode(6036, "QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE", "dynamic shape",
        "Fix every dimension of the model's inputs."),
    QnnCode(6037, "QNN_GRAPH_ERROR_TENSOR_SPARSITY", "sparse tensor"),
    QnnCode(6038, "QNN_GRAPH_ERROR_EARLY_TERMINATION", "ended early"),
    QnnCode(6039, "QNN_GRAPH_ERROR_INVALID_CONTEXT", "bad context"),
    QnnCode(6040, "QNN_GRAPH_ERROR_CYCLE_DETECTED", "the graph has a cycle"),
    QnnCode(7001, "QNN_TENSOR_ERROR_INVALID_HANDLE", "bad tensor handle"),
    QnnCode(7002, "QNN_TENSOR_ERROR_DOES_NOT_EXIST", "no such tensor"),
    QnnCode(7003, "QNN_TENSOR_ERROR_ALREADY_EXISTS", "duplicate tensor"),
    QnnCode(7004, "QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM", "bad tensor parameter"),
    QnnCode(7005, "QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM", "tensor parameter not supported"),
    QnnCode(7006, "QNN_TENSOR_ERROR_NAME_HASH_COLLISION", "two tensor names collide"),
    QnnCode(7007, "QNN_TENSOR_ERROR_INCOMPATIBLE_TENSOR_UPDATE", "tensor update refused"),
    QnnCode(8000, "QNN_MEM_ERROR_INVALID_ARGUMENT", "bad argument for memory"),
    QnnCode(8001, "QNN_MEM_ERROR_INVALID_HANDLE", "bad memory handle"),
    QnnCode(8002, "QNN_MEM_ERROR_ALREADY_REGISTERED", "memory registered twice"),
    QnnCode(8003, "QNN_MEM_ERROR_MAPPING", "memory could not be mapped",
        "Keep fewer sessions; restart the host."),
    QnnCode(8004, "QNN_MEM_ERROR_INVALID_SHAPE", "shape breaks the rules of this memory"),
    QnnCode(8005, "QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE", "memory type not supported"),
    QnnCode(9000, "QNN_SIGNAL_ERROR_SIGNAL_IN_USE", "signal in use"),
    QnnCode(9001, "QNN_SIGNAL_ERROR_SIGNAL_IDLE", "signal idle"),
    QnnCode(9002, "QNN_SIGNAL_ERROR_INVALID_ARGUMENT", "bad signal configuration"),
    QnnCode(9003, "QNN_SIGNAL_ERROR_INVALID_HANDLE", "bad signal handle"),
    QnnCode(9004, "QNN_SIGNAL_ERROR_TIMEOUT", "timed out"),
    QnnCode(9005, "QNN_SIGNAL_ERROR_INCOMPATIBLE_SIGNAL_TYPE", "wrong type of signal"),
    QnnCode(10000, "QNN_ERROR_INVALID_ARGUMENT", "bad argument"),
    QnnCode(10001, "QNN_ERROR_INVALID_ERROR_HANDLE", "unknown error handle"),
    QnnCode(11002, "QNN_LOG_ERROR_INITIALIZATION", "logging could not start"),
    QnnCode(11003, "QNN_LOG_ERROR_INVALID_ARGUMENT", "bad argument for logging"),
    QnnCode(11004, "QNN_LOG_ERROR_INVALID_HANDLE", "bad log handle"),
    QnnCode(12000, "QNN_PROFILE_ERROR_INVALID_HANDLE", "bad profile handle"),
    QnnCode(12001, "QNN_PROFILE_ERROR_HANDLE_IN_USE", "profile in use"),
    QnnCode(12002, "QNN_PROFILE_ERROR_INCOMPATIBLE_EVENT", "event does not fit this interface"),
    QnnCode(14000, "QNN_DEVICE_ERROR_INVALID_HANDLE", "bad device handle"),
    QnnCode(14001, "QNN_DEVICE_ERROR_INVALID_CONFIG",
        "the device configuration is refused: unknown chip or architecture, or the skel library was not "
        "found or is not signed", "Check soc_model and htp_arch. " + _SKEL),
    QnnCode(14002, "QNN_DEVICE_ERROR_HARDWARE_UNAVAILABLE", "no usable NPU", _SKEL),
    QnnCode(14003, "QNN_DEVICE_ERROR_ASSOCIATED_TO_CONTEXT", "the device still has a context"),
    QnnCode(14004, "QNN_DEVICE_ERROR_ACCESS_DENIED", "access to the NPU was denied", _SKEL),
)

FASTRPC_CODES: Final[tuple[QnnCode, ...]] = (
    QnnCode(0x80000406, "FastRPC 0x80000406",
        "the library for the NPU side (skel) was not found or not loaded", _SKEL),
    QnnCode(0x72, "FastRPC 0x72", "the NPU driver refused the session", "Update or repair the NPU driver."),
    QnnCode(0x43, "FastRPC 0x43", "the NPU driver refused the session", "Update or repair the NPU driver."),
)
# fmt: on

_BY_NUMBER: Final = {row.number: row for row in QNN_CODES}
_BY_NAME: Final = {row.name: row for row in QNN_CODES}
_FASTRPC: Final = {row.number: row for row in FASTRPC_CODES}
_NAME = re.compile(r"\bQNN_[A-Z]+(?:_[A-Z]+)*_?ERROR_[A-Z_]+\b")
# A number of 64 bits has up to 20 digits.
_CODE = re.compile(r"\b[Cc]ode:? *(\d{4,20})\b")


def by_number(number: int) -> QnnCode | None:
    """The code of an error number as QNN or ONNX Runtime print it (internal upper bits are ignored)."""
    return _BY_NUMBER.get(number & 0xFFFF)


def by_name(name: str) -> QnnCode | None:
    return _BY_NAME.get(name.upper())


def fastrpc(number: int) -> QnnCode | None:
    return _FASTRPC.get(number & 0xFFFFFFFF)


def find(text: str) -> QnnCode | None:
    """The first QNN error that a log line or message names, by name before number."""
    for match in _NAME.finditer(text):
        row = by_name(match.group())
        if row is not None:
            return row
    for match in _CODE.finditer(text):
        row = by_number(int(match.group(1)))
        if row is not None:
            return row
    return None
