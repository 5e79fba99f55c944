"""QNN's error codes, and lines of the logs of QNN and ONNX Runtime, as data: pattern, cause, fix.

Only the low 16 bits of a QNN error are its code. The upper bits are internal flags of the library, and ONNX Runtime
prints the whole number (``Code: 216172828125104107`` is 1003). The names were read from the QNN 2.40 core API.

The patterns come from logs of provoked errors of onnxruntime-qnn 2.6 and 2.7. Patterns of messages that only a real
NPU prints come from the texts inside the libraries of these wheels. The first rule that matches a line explains it,
so special cases come first. `ort_log` applies the rules.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

# --- QNN's error codes, and the few FastRPC codes that reach a log ---


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCode:
    number: int
    name: str
    meaning: str
    advice: str = ""


# The advice on soc_model is for logs of other programs: sessions of qnnbridge always set the chip.
_CODE_TARGET = (
    "Change the operator or its data type: `qnnbridge analyze MODEL` looks for it, or leave it to the CPU with "
    'fallback="cpu". A program without qnnbridge has to set the chip (soc_model, 60 for X Elite).'
)
_CODE_ONE_SET = (
    "Use one set of QNN libraries: remove QNN SDK folders from PATH, ADSP_LIBRARY_PATH and backend_path, "
    "reinstall onnxruntime-qnn."
)
_CODE_REBUILD = "Compile the context binary again, with these versions and for this chip."
_CODE_SKEL = (
    "Check the NPU driver; put the package folder first in ADSP_LIBRARY_PATH; keep the skel file and its .cat "
    "together and unmodified."
)

# The formatter would use more lines per row.
# fmt: off
QNN_CODES: Final[tuple[QnnCode, ...]] = (
    QnnCode(1000, "QNN_COMMON_ERROR_NOT_SUPPORTED",
        "not implemented here (old library, user driver, simulator)"),
    QnnCode(1002, "QNN_COMMON_ERROR_MEM_ALLOC",
        "an allocation failed; while finalizing a graph it nearly always means that an operator cannot be "
        "placed on this target", _CODE_TARGET),
    QnnCode(1003, "QNN_COMMON_ERROR_SYSTEM", "a call of the system or the driver failed",
        "Restart the host; compile in another process than the one that runs."),
    QnnCode(1004, "QNN_COMMON_ERROR_INVALID_ARGUMENT", "bad argument"),
    QnnCode(1005, "QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED", "calls in the wrong order"),
    QnnCode(1006, "QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED", "no QNN on this platform"),
    QnnCode(1007, "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION", "the NPU was reset (SSR: its subsystem restarted)",
        "Create the session again; the NPU can recover."),
    QnnCode(1008, "QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES", "stub, skel and backend come from different SDKs",
        _CODE_ONE_SET),
    QnnCode(1009, "QNN_COMMON_ERROR_LOADING_BINARIES", "the same library was loaded twice in one process",
        _CODE_ONE_SET),
    QnnCode(1010, "QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE", "resources are used up", "Keep fewer sessions."),
    QnnCode(1011, "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL", "this process has lost the NPU permanently",
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
        "missing)", _CODE_TARGET),
    QnnCode(4000, "QNN_BACKEND_ERROR_CANNOT_INITIALIZE", "the backend cannot start: no NPU driver, or no NPU",
        _CODE_SKEL),
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
        _CODE_REBUILD),
    QnnCode(5001, "QNN_CONTEXT_ERROR_CTX_DOES_NOT_EXIST", "no such context"),
    QnnCode(5002, "QNN_CONTEXT_ERROR_INVALID_HANDLE", "bad context handle"),
    QnnCode(5003, "QNN_CONTEXT_ERROR_NOT_FINALIZED", "context not finalized"),
    QnnCode(5004, "QNN_CONTEXT_ERROR_BINARY_VERSION",
        "the context binary was made with an incompatible version", _CODE_REBUILD),
    QnnCode(5005, "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY",
        "the context binary is damaged or made for another chip", _CODE_REBUILD),
    QnnCode(5006, "QNN_CONTEXT_ERROR_GET_BINARY_SIZE_FAILED",
        "the size of the context binary could not be read"),
    QnnCode(5007, "QNN_CONTEXT_ERROR_GET_BINARY_FAILED", "the context could not be serialized"),
    QnnCode(5008, "QNN_CONTEXT_ERROR_BINARY_CONFIGURATION", "bad configuration in the context binary",
        _CODE_REBUILD),
    QnnCode(5009, "QNN_CONTEXT_ERROR_SET_PROFILE", "profile not set"),
    QnnCode(5010, "QNN_CONTEXT_ERROR_INVALID_CONFIG", "bad context configuration"),
    QnnCode(5011, "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL", "the context binary can run, but not optimally",
        _CODE_REBUILD),
    QnnCode(5012, "QNN_CONTEXT_ERROR_ABORTED", "aborted by a signal"),
    QnnCode(5013, "QNN_CONTEXT_ERROR_TIMED_OUT", "timed out by a signal"),
    QnnCode(5014, "QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER", "buffer not from the backend"),
    QnnCode(6000, "QNN_GRAPH_ERROR_INVALID_ARGUMENT", "bad argument for a graph"),
    QnnCode(6001, "QNN_GRAPH_ERROR_INVALID_HANDLE",
        "bad graph handle (the graph's name is not in the context binary)", _CODE_REBUILD),
    QnnCode(6002, "QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST", "no such graph in the context binary", _CODE_REBUILD),
    QnnCode(6003, "QNN_GRAPH_ERROR_INVALID_NAME",
        "bad or duplicate graph name (also after a refused graph option such as vtcm_mb)",
        "Check the HTP graph options, vtcm_mb first."),
    QnnCode(6004, "QNN_GRAPH_ERROR_INVALID_TENSOR", "bad tensor"),
    QnnCode(6005, "QNN_GRAPH_ERROR_INVALID_OP_CONFIG", "bad operator configuration"),
    QnnCode(6006, "QNN_GRAPH_ERROR_SET_PROFILE", "profile not set"),
    QnnCode(6007, "QNN_GRAPH_ERROR_UNCONNECTED_NODE", "a node comes before its inputs"),
    QnnCode(6020, "QNN_GRAPH_ERROR_CREATE_FAILED", "the graph could not be made"),
    QnnCode(6021, "QNN_GRAPH_ERROR_OPTIMIZATION_FAILED", "the graph could not be optimized"),
    QnnCode(6022, "QNN_GRAPH_ERROR_FINALIZE_FAILED", "the graph could not be finalized", _CODE_TARGET),
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
        "found or is not signed", "Check soc_model and htp_arch. " + _CODE_SKEL),
    QnnCode(14002, "QNN_DEVICE_ERROR_HARDWARE_UNAVAILABLE", "no usable NPU", _CODE_SKEL),
    QnnCode(14003, "QNN_DEVICE_ERROR_ASSOCIATED_TO_CONTEXT", "the device still has a context"),
    QnnCode(14004, "QNN_DEVICE_ERROR_ACCESS_DENIED", "access to the NPU was denied", _CODE_SKEL),
)

FASTRPC_CODES: Final[tuple[QnnCode, ...]] = (
    QnnCode(0x80000406, "FastRPC 0x80000406",
        "the library for the NPU side (skel) was not found or not loaded", _CODE_SKEL),
    QnnCode(0x72, "FastRPC 0x72", "the NPU driver refused the session", "Update or repair the NPU driver."),
    QnnCode(0x43, "FastRPC 0x43", "the NPU driver refused the session", "Update or repair the NPU driver."),
)
# fmt: on

_BY_NUMBER: Final = {row.number: row for row in QNN_CODES}
_BY_NAME: Final = {row.name: row for row in QNN_CODES}
_FASTRPC: Final = {row.number: row for row in FASTRPC_CODES}
_QNN_NAME = re.compile(r"\bQNN_[A-Z]+(?:_[A-Z]+)*_?ERROR_[A-Z_]+\b")
# A 64-bit number has up to 20 digits.
_QNN_NUMBER = re.compile(r"\b[Cc]ode:? *(\d{4,20})\b")


def qnn_code(number: int) -> QnnCode | None:
    """Return the row for an error number as QNN or ONNX Runtime prints it; ignore the internal upper bits."""
    return _BY_NUMBER.get(number & 0xFFFF)


def qnn_code_named(name: str) -> QnnCode | None:
    return _BY_NAME.get(name.upper())


def fastrpc(number: int) -> QnnCode | None:
    return _FASTRPC.get(number & 0xFFFFFFFF)


def find_qnn_code(text: str) -> QnnCode | None:
    """Return the first QNN error in a log line or message. Names of errors take precedence over numbers."""
    for match in _QNN_NAME.finditer(text):
        row = qnn_code_named(match.group())
        if row is not None:
            return row
    for match in _QNN_NUMBER.finditer(text):
        row = qnn_code(int(match.group(1)))
        if row is not None:
            return row
    return None


# --- lines ---

# Weight of a rule: the line has exactly one cause.
PROOF: Final = 90
# Weight of a rule: the line nearly always has this cause.
STRONG: Final = 70
# Weight of a rule: the line shows what failed, but there are several possible causes.
SYMPTOM: Final = 40
# Weight of a rule: the line may have nothing to do with the failure.
HINT: Final = 15


@dataclasses.dataclass(frozen=True, slots=True)
class LogRule:
    """Pattern of a log line, and its explanation.

    Attributes:
        pattern: searched in a line without its time stamp. Its named groups can be used in `cause` and `fix`; a
            group ``qnn`` (name or number of a QNN error) also defines ``{meaning}`` and ``{advice}``. It is
            compiled at its first use, because most processes never need it.
        setup: whether the line shows that QNN did not start at all, which explains every node that is not on QNN.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    weight: int = PROOF
    setup: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LogFinding:
    """A rule that matched. `evidence` contains the matched lines, shortened and without time stamps."""

    rule: str
    cause: str
    fix: str
    weight: int
    evidence: tuple[str, ...] = ()
    setup: bool = False


def render(matched: LogRule, match: re.Match[str], evidence: str) -> LogFinding:
    """Return the finding for a line, with the matched groups put into the rule's texts."""
    words = {key: value.strip() for key, value in match.groupdict(default="").items()}
    if "qnn" in words:
        text = words["qnn"]
        row = qnn_code(int(text)) if text.isdigit() else qnn_code_named(text)
        words |= (
            {"qnn": text, "meaning": "a QNN error without a description", "advice": ""}
            if row is None
            else {"qnn": f"{row.name} ({row.number})", "meaning": row.meaning, "advice": row.advice}
        )
    cause = matched.cause.format(**words)
    # `{advice}` may be empty; without `strip`, a fix of blanks would count as a fix.
    return LogFinding(
        matched.name, cause, matched.fix.format(**words).strip(), matched.weight, (evidence,), matched.setup
    )


ONE_SET = (
    "Use one set of QNN libraries: leave out backend_path, remove QNN SDK folders from PATH and "
    "ADSP_LIBRARY_PATH, reinstall onnxruntime-qnn."
)
_REINSTALL = "Reinstall onnxruntime-qnn in the host's interpreter (pip install --force-reinstall onnxruntime-qnn)."
_DRIVER = "Install or update the NPU driver (Windows Update, or the machine's maker); then try `qnnbridge demo`."
_SKEL = (
    "Put the package folder first in ADSP_LIBRARY_PATH; keep the skel file and its .cat together and unmodified. "
    + _DRIVER
)

# fmt: off
BACKEND: Final[tuple[LogRule, ...]] = (
    LogRule("backend.library-of-wheel",
        r"(?P<lib>lib(?:c\+\+|c\+\+abi|unwind)[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which the QNN libraries need. It is in the wheel's folder onnxruntime_qnn.libs.",
        _REINSTALL, setup=True),
    LogRule("backend.libatomic", r"(?P<lib>libatomic[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which libQnnSystem needs; without it no EPContext model can be read or written.",
        "Install it (Debian and Ubuntu: apt install libatomic1).", setup=True),
    LogRule("backend.fastrpc",
        r"libcdsprpc[\w.]*: cannot open shared object file|Unable to get the handle to libcdsprpc\.dll|"
        r"Failed to (?:get symbol|load library).*(?:rpcmem|cdsprpc)",
        "libcdsprpc, through which QNN uses the NPU, is missing: the NPU driver is not installed or not visible.",
        _DRIVER, setup=True),
    LogRule("backend.file-missing",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): cannot open shared object file",
        "The QNN backend library {file} does not exist.",
        "Leave out the provider option backend_path, or correct it. QnnCpu is no longer part of the wheel.",
        setup=True),
    LogRule("backend.none-for-device", r"Could not determine default backend path for device",
        "The QNN backend library for this device (libQnnHtp.so or QnnHtp.dll for an NPU and for the simulator) is "
        "missing from the folder of onnxruntime-qnn.", _REINSTALL, setup=True),
    LogRule("backend.wrong-machine",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): (?:wrong|invalid) ELF ",
        "The QNN backend library {file} is damaged or made for another machine.", _REINSTALL, setup=True),
    LogRule("backend.not-loaded", r"SetupBackend failed Unable to load backend, error: *(?P<why>.+)",
        "The QNN backend library could not be loaded ({why}): it is missing, or something that it needs is.",
        "Leave out the provider option backend_path, or correct it. " + _REINSTALL, STRONG, setup=True),
    LogRule("backend.other-version", r"Unable to find a valid interface for (?P<file>.+)",
        "{file} is of another (older) QNN version than the execution provider.", ONE_SET, setup=True),
    LogRule("backend.mixed",
        r"(?P<part>Stub|Skel|Prepare) lib id mismatch:.*expected \((?P<want>.*?)\), detected \((?P<found>.*?)\)",
        "The QNN libraries are from different versions: the {part} library is {found}, {want} was expected.",
        ONE_SET, setup=True),
    LogRule("backend.mixed", r"Failed to retrieve skel build id: err: 1008|INCOMPATIBLE_BINARIES",
        "The QNN libraries (backend, stub, skel) are from different versions.", ONE_SET, setup=True),
    LogRule("backend.skel", r"qnn_open failed,? (?P<code>0x[0-9a-fA-F]+)",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver ({code}).",
        _SKEL, STRONG, setup=True),
    LogRule("backend.skel", r"Failed to load skel, error|Failed to retrieve skel load status",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver.", _SKEL,
        STRONG, setup=True),
    LogRule("backend.stub",
        r"Failed in loading stub|Failed to load (?:stub lib|HTP user driver)|DriverLibLoader Failed loading",
        "The library that talks to the NPU driver (stub) could not be loaded.", _REINSTALL + " " + _DRIVER,
        STRONG, setup=True),
    LogRule("backend.process-name", r"FastRPC process/executable name exceeds supported length",
        "The NPU driver refuses processes with such a long path.", "Use an interpreter with a shorter path.",
        setup=True),
    LogRule("backend.user-driver", r"fell back to HTP user-driver \(HNRD\) path|Switching to user driver path",
        "Parts of the wheel (Prepare, Stub or Skel) are missing next to the backend, so QNN uses the driver's own "
        "runtime, which supports fewer operators.", _REINSTALL, SYMPTOM),
    LogRule("backend.unsigned-session",
        r"createUnsignedPD (?:failed|unable|unsigned PD interface not supported)|create unsigned PD failed",
        "The NPU driver refused the process a session on the NPU.", _DRIVER, STRONG, setup=True),
    LogRule("backend.device-id", r"Could not find device with ID = (?P<id>\S+)",
        "There is no QNN device with the number {id}.", "Leave out the provider option device_id.", setup=True),
    LogRule("backend.priority", r"context priority: (?P<value>\S+) not valid",
        "qnn_context_priority is {value!r}, which QNN does not support; it then refuses to start.",
        "Use low, normal, normal_high or high.", setup=True),
    LogRule("backend.priority", r"SetupBackend failed Invalid Qnn context priority",
        "qnn_context_priority has a value that QNN does not support.", "Use low, normal, normal_high or high.",
        STRONG, setup=True),
    LogRule("backend.device-config", r"Failed to create device\. Error: (?P<qnn>QNN_\w+)",
        "QNN refused the device: {meaning} [{qnn}].", "{advice}", STRONG, setup=True),
    LogRule("backend.soc", r"Unknown config socModel", "QNN does not support this soc_model.",
        "Give the number of a chip that this SDK supports (60 is X Elite), or leave the option out on an NPU.",
        setup=True),
    LogRule("backend.refused", r"QNN SetupBackend failed (?P<why>.*Error: (?P<qnn>QNN_\w+).*)",
        "QNN did not start: {meaning} [{qnn}].", "{advice}", STRONG, setup=True),
    LogRule("backend.refused", r"QNN SetupBackend failed (?P<why>.+)", "QNN did not start: {why}",
        "Check the provider options; `qnnbridge demo` shows whether QNN works here without any.", SYMPTOM,
        setup=True),
)
# fmt: on

# fmt: off
OPTIONS: Final[tuple[LogRule, ...]] = (
    LogRule("option.fp16-needs-chip", r"FP16 precision mode is enabled but soc_model is not specified",
        "enable_htp_fp16_precision=1 needs soc_model.", "Set soc_model too (60 for X Elite)."),
    LogRule("option.backend-twice", r"Only one of 'backend_type' and 'backend_path' should be set",
        "backend_type and backend_path were both given.", "Leave one of them out."),
    LogRule("option.unknown-exception", r"Unknown exception occurred while creating QNN EP",
        "A provider option has a value that QNN cannot read (a number was expected: device_id, vtcm_mb, "
        "rpc_control_latency) or that this machine cannot do: enable_htp_shared_memory_allocator needs libcdsprpc.",
        "Leave out the provider options that are not needed.", STRONG),
    LogRule("option.profiling-file", r"Need to specify a CSV file via provider option profiling_file_path",
        "profiling_level needs a file to write to.", "Set the provider option profiling_file_path too."),
    LogRule("option.ignored",
        r"Profiling level not valid|[Pp]erformance mode not valid|Invalid HTP architecture: (?P<value>\S+)",
        "A provider option had a value that QNN does not support; QNN ignored it.",
        "Correct profiling_level, htp_performance_mode or htp_arch.", HINT),
)
# fmt: on

# fmt: off
INSTALLATION: Final[tuple[LogRule, ...]] = (
    LogRule("install.ort-too-old", r"QNN EP requires ORT >= (?P<need>\S+) .*Host ORT is (?P<have>\S+)",
        "This onnxruntime-qnn needs onnxruntime {need} or newer; the host has {have}.",
        "Upgrade onnxruntime in the host's interpreter."),
    LogRule("install.ort-too-new", r"invalid ort_version_supported=",
        "This onnxruntime-qnn is too old for the host's onnxruntime.",
        "Upgrade onnxruntime-qnn in the host's interpreter."),
    LogRule("install.no-device", r"Must provide one or more OrtEpDevice instances",
        "No QNN device was found: there is no NPU, its driver is missing, or the versions of onnxruntime and "
        "onnxruntime-qnn do not fit.", _DRIVER, STRONG),
    LogRule("install.not-a-provider", r"undefined symbol: CreateEpFactories",
        "The file that was registered is a QNN backend, not the execution provider.",
        "Register the library that onnxruntime_qnn.get_library_path() returns."),
    LogRule("install.library", r"Failed to load library (?P<file>\S+) with error: (?P<why>.+)",
        "{file} could not be loaded: {why}", _REINSTALL, SYMPTOM),
)
# fmt: on

SETUP_RULES: Final[tuple[LogRule, ...]] = (*BACKEND, *OPTIONS, *INSTALLATION)


_REBUILD = "Compile the model again with this onnxruntime-qnn, on or for this machine."
_SPACE = "Free some space, or put the cache on another disk."

# fmt: off
RESET: Final[tuple[LogRule, ...]] = (
    LogRule("reset.again", r"NPU crashed again after SSR recovery",
        "The NPU was reset twice within one call: something in this model or input makes it crash.",
        "Try the model on the CPU provider; update the NPU driver."),
    LogRule("reset.not-recoverable", r"SSR detected\. Recovery not supported",
        "The NPU was reset, and what was loaded into it cannot be loaded again from a file.",
        "Create the session again. From a context binary with embed mode 0 QNN recovers by itself."),
    LogRule("reset.fatal", r"SYSTEM_COMMUNICATION_FATAL|SSR failed to recover CDSP sessions",
        "This process has lost the NPU permanently.",
        "Restart the host (host.restart()); if that does not help, the machine."),
    LogRule("reset", r"NPU crashed|SSR (?:detected|Triggered)|detected a SSR|ERROR_SYSTEM_COMMUNICATION\b",
        "The NPU's own processor crashed and was restarted by the driver; what was loaded into it is gone.",
        "Create the session again.", STRONG),
)
# fmt: on

# fmt: off
CONTEXT: Final[tuple[LogRule, ...]] = (
    LogRule("context.no-bin", r"file path in ep_cache_context does not exist",
        "This model is compiled, but its .bin file is not next to it.",
        "Keep the .onnx file and its .bin file together, and do not rename them."),
    LogRule("context.empty", r"Empty cache file encountered", "The .bin file is empty.", _REBUILD),
    LogRule("context.damaged", r"Failed to get context binary info",
        "The .bin file is truncated, changed, or not a context binary (often a Git LFS pointer).",
        "Copy it again. " + _REBUILD),
    LogRule("context.other-chip", r"Compatible cache not found|No runnable cache selected",
        "The context binary was made for another chip.", _REBUILD),
    LogRule("context.refused", r"contextCreateFromBinary failed\. Error: (?P<qnn>QNN_\w+)",
        "QNN refused the context binary: {meaning} [{qnn}].", _REBUILD, STRONG),
    LogRule("context.dots", r"ep_cache_context field has '\.\.'",
        "The name of the .bin file contains '..' (a..b.onnx is enough), and ONNX Runtime refuses that.",
        "Give the model a name without '..' and compile it again."),
    LogRule("context.absolute", r"should set ep_cache_context field with a relative path",
        "The compiled model refers to its .bin file by an absolute path.", _REBUILD),
    LogRule("context.no-main", r"Failed to find the EPContext node with main_context=1",
        "No node of the compiled model holds the context binary.", _REBUILD),
    LogRule("context.no-provider",
        r"EPContext node generated by '(?P<ep>\w+)' is not compatible with any execution provider",
        "The model is compiled for {ep}, which this session does not have: it was not requested, or its backend or "
        "libQnnSystem could not be loaded.",
        "Request {ep}; if you did, read the reason in the lines before this one.", STRONG),
    LogRule("context.compiled-twice", r"OrtEp::Compile\(\) returned a NULL EPContext node",
        "The model to compile is compiled already.", "Compile the original model."),
    LogRule("context.renamed-io", r"has renamed graph I/O but no io_name_overrides",
        "The .bin file and the .onnx file may not belong together, or are from an older version.", _REBUILD,
        HINT),
    LogRule("context.exists", r"since the file .* exists already",
        "ONNX Runtime never overwrites a compiled model (a compile that was killed leaves one behind, too).",
        "Remove the file, or give another ep.context_file_path."),
    LogRule("context.no-extension", r"context_file_path should not point to a folder",
        "ep.context_file_path has no file name with an extension.", "Give a path that ends in .onnx."),
    # ONNX Runtime prints the number of errno: 28 is ENOSPC; 30 and 13 below are EROFS and EACCES.
    LogRule("disk.full",
        r"No space left on device|SystemError : 28|Failed to write context cache file|"
        r"Protobuf serialization failed when saving model|disk full|There is not enough space on the disk",
        "The disk is full (or has a quota): what was written so far is incomplete.", _SPACE),
    LogRule("disk.read-only", r"SystemError : (?:30|13)\b|Read-only file system",
        "The folder cannot be written to.", "Use another folder."),
    LogRule("disk.no-folder", r"Failed to open context cache file",
        "The folder for the compiled model does not exist, or cannot be written to.",
        "Create it, or give another ep.context_file_path."),
)
# fmt: on

# fmt: off
GRAPH: Final[tuple[LogRule, ...]] = (
    LogRule("finalize.operator", r'"(?P<op>[^"]+)" generated: could not create op',
        "QNN cannot place the operator {op} on this target, and reports it as a memory error.", _CODE_TARGET),
    LogRule("finalize.memory", r"Failed to finalize QNN graph\. Error: QNN_COMMON_ERROR_MEM_ALLOC",
        "QNN reports memory, but nearly always an operator or data type cannot be placed on this target (without "
        "soc_model most float models end like this).", _CODE_TARGET, STRONG),
    LogRule("finalize", r"Failed to finalize QNN graph\. Error: (?P<qnn>QNN_\w+)",
        "QNN could not finalize the graph: {meaning} [{qnn}].", "{advice}", SYMPTOM),
    LogRule("graph.create", r"Failed to create Qnn graph: .*Error: (?P<qnn>QNN_\w+)",
        "QNN refused the graph: {meaning} [{qnn}].", "{advice}", STRONG),
    LogRule("graph.tensor", r"Failed to create tensor for node: (?P<node>\S+) .*error code: (?P<qnn>\d+)",
        "QNN refused a tensor of node {node}: {meaning} [{qnn}]. A graph option (extended_udma and the like) can "
        "do this too.", "Leave out HTP graph options; change the node.", STRONG),
    LogRule("graph.dynamic", r"Dynamic shape is not supported yet, for (?P<what>(?:in|out)put): *(?P<name>\S+)",
        "QNN needs fixed dimensions, and {what} {name} has some without a fixed size.",
        "Fix them with add_free_dimension_override_by_name, or in the model."),
    LogRule("graph.dynamic", r"REASON : Cannot get shape",
        "QNN needs fixed dimensions, and the model has some without a fixed size.",
        "Fix them with add_free_dimension_override_by_name, or in the model."),
    LogRule("graph.no-inputs", r"Having zero graph inputs is not supported",
        "QNN cannot run a graph that has no inputs.", "Run this model on the CPU provider."),
    LogRule("graph.layout", r"Node '(?P<node>[^']*)' OpType:(?P<op>\w+) .*was inserted using the NHWC format",
        "QNN requested {op} ({node}) in channels-last layout and then refused it; after that, ONNX Runtime cannot "
        "assign it to the CPU.",
        "Change this operator (weights must be initializers), quantize it if it is float, or use the CPU provider.",
        SYMPTOM),
    LogRule("graph.validation",
        r"backendValidateOpConfig\(\) failed for node `(?P<node>[^`]*)` of type `(?P<op>[^`]*)` .* (?P<qnn>\d+)",
        "QNN refuses {op} ({node}): {meaning} [{qnn}].", "{advice}", STRONG),
    LogRule("graph.unsupported", r"Unsupported nodes in QNN EP: (?P<nodes>.+?),?\s*$",
        "QNN does not support these nodes as they are: {nodes}",
        "Change them, or quantize them if they are float, or allow fallback='cpu'.", SYMPTOM),
    LogRule("graph.on-cpu", r"This session contains graph nodes that are assigned to the default CPU EP",
        "Some nodes are not on QNN. ONNX Runtime is silent about it where dimensions are not fixed.",
        "Create the session with log_severity_level=0: it then logs a reason for each node.", HINT),
)
# fmt: on

# fmt: off
RUN: Final[tuple[LogRule, ...]] = (
    LogRule("run.index", r"index: (?P<index>-?\d+) is larger than input dim: (?P<dim>\d+) size: (?P<size>\d+)",
        "An index input has the value {index}, but that dimension has only {size} elements.",
        "Check the values of the index inputs."),
    LogRule("run", r"QNN graph execute error\. Error: (?P<qnn>QNN_\w+)",
        "QNN failed while running the model: {meaning} [{qnn}].", "{advice}", SYMPTOM),
)
# fmt: on

MODEL_RULES: Final[tuple[LogRule, ...]] = (*RESET, *CONTEXT, *GRAPH, *RUN)
