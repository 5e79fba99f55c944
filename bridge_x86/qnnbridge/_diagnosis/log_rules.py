"""Lines of ONNX Runtime's and QNN's logs and what they mean, as data: a pattern, a cause, a fix.

Each rule was taken from a log of onnxruntime-qnn 2.6 or 2.7 that was provoked here, or from the texts inside the
libraries of those wheels, where only a real NPU would print them. A line is explained by the first rule that
matches it: special cases come first. `ort_log` reads the rules.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from qnnbridge._diagnosis import qnn_codes

# Weight of a line that names the one cause.
PROOF: Final = 90
# The line nearly always has this cause.
STRONG: Final = 70
# The line says what failed, its cause is one of several.
SYMPTOM: Final = 40
# The line may have nothing to do with the failure.
HINT: Final = 15


@dataclasses.dataclass(frozen=True, slots=True)
class LogRule:
    """pattern: searched in a line without its time stamp; its named groups can be used in `cause` and `fix`. It is
    compiled when it is first needed: most processes never need one.

    A group called ``qnn`` (a name or a number of a QNN error) also gives ``{meaning}`` and ``{advice}``.
    setup: the line says that QNN as a whole did not start, which explains every node that is not on QNN.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    weight: int
    setup: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LogFinding:
    """A rule that matched. evidence: the lines, without time stamps and shortened."""

    rule: str
    cause: str
    fix: str
    weight: int
    evidence: tuple[str, ...] = ()
    setup: bool = False


def rule(name: str, pattern: str, cause: str, fix: str, weight: int = PROOF, *, setup: bool = False) -> LogRule:
    return LogRule(name, pattern, cause, fix, weight, setup)


def render(matched: LogRule, match: re.Match[str], evidence: str) -> LogFinding:
    """The finding for a line, with the words of the line put into the rule's sentences."""
    words = {key: value.strip() for key, value in match.groupdict(default="").items()}
    if "qnn" in words:
        words |= _qnn_words(words["qnn"])
    cause = matched.cause.format(**words)
    # `{advice}` may be empty; a fix of blanks would count as one.
    return LogFinding(
        matched.name, cause, matched.fix.format(**words).strip(), matched.weight, (evidence,), matched.setup
    )


def _qnn_words(text: str) -> dict[str, str]:
    row = qnn_codes.by_number(int(text)) if text.isdigit() else qnn_codes.by_name(text)
    if row is None:
        return {"qnn": text, "meaning": "a QNN error without a description", "advice": ""}
    return {"qnn": f"{row.name} ({row.number})", "meaning": row.meaning, "advice": row.advice}


_ONE_SET = (
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
    rule("backend.library-of-wheel",
        r"(?P<lib>lib(?:c\+\+|c\+\+abi|unwind)[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which the QNN libraries need. It is in the wheel's folder onnxruntime_qnn.libs.",
        _REINSTALL, setup=True),
    rule("backend.libatomic", r"(?P<lib>libatomic[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which libQnnSystem needs; without it no EPContext model can be read or written.",
        "Install it (Debian and Ubuntu: apt install libatomic1).", setup=True),
    rule("backend.fastrpc",
        r"libcdsprpc[\w.]*: cannot open shared object file|Unable to get the handle to libcdsprpc\.dll|"
        r"Failed to (?:get symbol|load library).*(?:rpcmem|cdsprpc)",
        "libcdsprpc, the way to the NPU, is missing: the NPU driver is not installed, or not visible here.",
        _DRIVER, setup=True),
    rule("backend.file-missing",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): cannot open shared object file",
        "The QNN backend library {file} is not there.",
        "Leave out the provider option backend_path, or correct it. QnnCpu is no longer part of the wheel.",
        setup=True),
    rule("backend.none-for-device", r"Could not determine default backend path for device",
        "The QNN backend library for this device (libQnnHtp.so or QnnHtp.dll for an NPU and for the simulator) is "
        "missing from the folder of onnxruntime-qnn.", _REINSTALL, setup=True),
    rule("backend.wrong-machine",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): (?:wrong|invalid) ELF ",
        "The QNN backend library {file} is damaged or made for another machine.", _REINSTALL, setup=True),
    rule("backend.not-loaded", r"SetupBackend failed Unable to load backend, error: *(?P<why>.+)",
        "The QNN backend library could not be loaded ({why}): it is missing, or something that it needs is.",
        "Leave out the provider option backend_path, or correct it. " + _REINSTALL, STRONG, setup=True),
    rule("backend.other-version", r"Unable to find a valid interface for (?P<file>.+)",
        "{file} is of another (older) QNN version than the execution provider.", _ONE_SET, setup=True),
    rule("backend.mixed",
        r"(?P<part>Stub|Skel|Prepare) lib id mismatch:.*expected \((?P<want>.*?)\), detected \((?P<found>.*?)\)",
        "The QNN libraries are from different versions: the {part} library is {found}, {want} was expected.",
        _ONE_SET, setup=True),
    rule("backend.mixed", r"Failed to retrieve skel build id: err: 1008|INCOMPATIBLE_BINARIES",
        "The QNN libraries (backend, stub, skel) are from different versions.", _ONE_SET, setup=True),
    rule("backend.skel", r"qnn_open failed,? (?P<code>0x[0-9a-fA-F]+)",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver ({code}).",
        _SKEL, STRONG, setup=True),
    rule("backend.skel", r"Failed to load skel, error|Failed to retrieve skel load status",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver.", _SKEL,
        STRONG, setup=True),
    rule("backend.stub",
        r"Failed in loading stub|Failed to load (?:stub lib|HTP user driver)|DriverLibLoader Failed loading",
        "The library that talks to the NPU driver (stub) could not be loaded.", _REINSTALL + " " + _DRIVER,
        STRONG, setup=True),
    rule("backend.process-name", r"FastRPC process/executable name exceeds supported length",
        "The NPU driver refuses processes with such a long path.", "Use an interpreter with a shorter path.",
        setup=True),
    rule("backend.user-driver", r"fell back to HTP user-driver \(HNRD\) path|Switching to user driver path",
        "Parts of the wheel (Prepare, Stub or Skel) are missing beside the backend, so the driver's own runtime is "
        "used, which supports fewer operators.", _REINSTALL, SYMPTOM),
    rule("backend.unsigned-session",
        r"createUnsignedPD (?:failed|unable|unsigned PD interface not supported)|create unsigned PD failed",
        "The NPU driver refused the process a session on the NPU.", _DRIVER, STRONG, setup=True),
    rule("backend.device-id", r"Could not find device with ID = (?P<id>\S+)",
        "There is no QNN device with the number {id}.", "Leave out the provider option device_id.", setup=True),
    rule("backend.priority", r"context priority: (?P<value>\S+) not valid",
        "qnn_context_priority is {value!r}, which QNN does not know; it then refuses to start.",
        "Use low, normal, normal_high or high.", setup=True),
    rule("backend.priority", r"SetupBackend failed Invalid Qnn context priority",
        "qnn_context_priority has a value that QNN does not know.", "Use low, normal, normal_high or high.",
        STRONG, setup=True),
    rule("backend.device-config", r"Failed to create device\. Error: (?P<qnn>QNN_\w+)",
        "QNN refused the device: {meaning} [{qnn}].", "{advice}", STRONG, setup=True),
    rule("backend.soc", r"Unknown config socModel", "QNN does not know this soc_model.",
        "Give the number of a chip that this SDK knows (60 is X Elite), or leave the option out on an NPU.",
        setup=True),
    rule("backend.refused", r"QNN SetupBackend failed (?P<why>.*Error: (?P<qnn>QNN_\w+).*)",
        "QNN did not start: {meaning} [{qnn}].", "{advice}", STRONG, setup=True),
    rule("backend.refused", r"QNN SetupBackend failed (?P<why>.+)", "QNN did not start: {why}",
        "Check the provider options; `qnnbridge demo` shows whether QNN works here without any.", SYMPTOM,
        setup=True),
)
# fmt: on

# fmt: off
OPTIONS: Final[tuple[LogRule, ...]] = (
    rule("option.fp16-needs-chip", r"FP16 precision mode is enabled but soc_model is not specified",
        "enable_htp_fp16_precision=1 needs soc_model.", "Set soc_model too (60 for X Elite)."),
    rule("option.backend-twice", r"Only one of 'backend_type' and 'backend_path' should be set",
        "backend_type and backend_path were both given.", "Leave one of them out."),
    rule("option.unknown-exception", r"Unknown exception occurred while creating QNN EP",
        "A provider option has a value that QNN cannot read (a number was expected: device_id, vtcm_mb, "
        "rpc_control_latency) or that this machine cannot do: enable_htp_shared_memory_allocator needs libcdsprpc.",
        "Leave out the provider options that are not needed.", STRONG),
    rule("option.profiling-file", r"Need to specify a CSV file via provider option profiling_file_path",
        "profiling_level needs a file to write to.", "Set the provider option profiling_file_path too."),
    rule("option.ignored",
        r"Profiling level not valid|[Pp]erformance mode not valid|Invalid HTP architecture: (?P<value>\S+)",
        "A provider option had a value that QNN does not know; it was ignored.",
        "Correct profiling_level, htp_performance_mode or htp_arch.", HINT),
)
# fmt: on

# fmt: off
INSTALLATION: Final[tuple[LogRule, ...]] = (
    rule("install.ort-too-old", r"QNN EP requires ORT >= (?P<need>\S+) .*Host ORT is (?P<have>\S+)",
        "This onnxruntime-qnn needs onnxruntime {need} or newer; the host has {have}.",
        "Upgrade onnxruntime in the host's interpreter."),
    rule("install.ort-too-new", r"invalid ort_version_supported=",
        "This onnxruntime-qnn is too old for the host's onnxruntime.",
        "Upgrade onnxruntime-qnn in the host's interpreter."),
    rule("install.no-device", r"Must provide one or more OrtEpDevice instances",
        "No QNN device was found: there is no NPU, its driver is missing, or the versions of onnxruntime and "
        "onnxruntime-qnn do not fit.", _DRIVER, STRONG),
    rule("install.not-a-provider", r"undefined symbol: CreateEpFactories",
        "The file that was registered is a QNN backend, not the execution provider.",
        "Register the library that onnxruntime_qnn.get_library_path() names."),
    rule("install.library", r"Failed to load library (?P<file>\S+) with error: (?P<why>.+)",
        "{file} could not be loaded: {why}", _REINSTALL, SYMPTOM),
)
# fmt: on

SETUP_RULES: Final[tuple[LogRule, ...]] = (*BACKEND, *OPTIONS, *INSTALLATION)


_REBUILD = "Compile the model again with this onnxruntime-qnn, on or for this machine."
_TARGET = "Name the chip with the provider option soc_model (60 for X Elite); quantize or change the operator."
_SPACE = "Free some space, or put the cache on another disk."

# fmt: off
RESET: Final[tuple[LogRule, ...]] = (
    rule("reset.again", r"NPU crashed again after SSR recovery",
        "The NPU was reset twice within one call: something in this model or input makes it crash.",
        "Try the model on the CPU provider; update the NPU driver."),
    rule("reset.not-recoverable", r"SSR detected\. Recovery not supported",
        "The NPU was reset, and what was loaded into it cannot be loaded again from a file.",
        "Create the session again. From a context binary with embed mode 0 QNN recovers by itself."),
    rule("reset.fatal", r"SYSTEM_COMMUNICATION_FATAL|SSR failed to recover CDSP sessions",
        "The NPU is gone for good in this process.",
        "Restart the host (host.restart()); if that does not help, the machine."),
    rule("reset", r"NPU crashed|SSR (?:detected|Triggered)|detected a SSR|ERROR_SYSTEM_COMMUNICATION\b",
        "The NPU's own processor crashed and was restarted by the driver; what was loaded into it is gone.",
        "Create the session again.", STRONG),
)
# fmt: on

# fmt: off
CONTEXT: Final[tuple[LogRule, ...]] = (
    rule("context.no-bin", r"file path in ep_cache_context does not exist",
        "This model is compiled, and the .bin file that it names is not beside it.",
        "Keep the .onnx file and its .bin file together, under the names they were made with."),
    rule("context.empty", r"Empty cache file encountered", "The .bin file is empty.", _REBUILD),
    rule("context.damaged", r"Failed to get context binary info",
        "The .bin file is cut off, changed, or no context binary at all (often a Git LFS pointer).",
        "Copy it again. " + _REBUILD),
    rule("context.other-chip", r"Compatible cache not found|No runnable cache selected",
        "The context binary was made for another chip.", _REBUILD),
    rule("context.refused", r"contextCreateFromBinary failed\. Error: (?P<qnn>QNN_\w+)",
        "QNN refused the context binary: {meaning} [{qnn}].", _REBUILD, STRONG),
    rule("context.dots", r"ep_cache_context field has '\.\.'",
        "The name of the .bin file contains '..' (a..b.onnx is enough), and ONNX Runtime refuses that.",
        "Give the model a name without '..' and compile it again."),
    rule("context.absolute", r"should set ep_cache_context field with a relative path",
        "The compiled model names its .bin file by an absolute path.", _REBUILD),
    rule("context.no-main", r"Failed to find the EPContext node with main_context=1",
        "No node of the compiled model holds the context binary.", _REBUILD),
    rule("context.no-provider",
        r"EPContext node generated by '(?P<ep>\w+)' is not compatible with any execution provider",
        "The model is compiled for {ep}, which is not there in this session: it was not asked for, or its "
        "backend or libQnnSystem could not be loaded.",
        "Ask for {ep}; if you did, the lines before this one name the reason.", STRONG),
    rule("context.compiled-twice", r"OrtEp::Compile\(\) returned a NULL EPContext node",
        "The model to compile is compiled already.", "Compile the original model."),
    rule("context.renamed-io", r"has renamed graph I/O but no io_name_overrides",
        "The .bin file and the .onnx file may not belong together, or are from an older version.", _REBUILD,
        HINT),
    rule("context.exists", r"since the file .* exists already",
        "ONNX Runtime never overwrites a compiled model (a compile that was killed leaves one behind, too).",
        "Remove the file, or give another ep.context_file_path."),
    rule("context.no-extension", r"context_file_path should not point to a folder",
        "ep.context_file_path has no file name with an extension.", "Give a path that ends in .onnx."),
    # ONNX Runtime prints the number of errno: 28 is ENOSPC; 30 and 13 below are EROFS and EACCES.
    rule("disk.full",
        r"No space left on device|SystemError : 28|Failed to write context cache file|"
        r"Protobuf serialization failed when saving model|disk full|There is not enough space on the disk",
        "The disk is full (or has a quota): what was written so far is incomplete.", _SPACE),
    rule("disk.read-only", r"SystemError : (?:30|13)\b|Read-only file system",
        "The folder cannot be written to.", "Use another folder."),
    rule("disk.no-folder", r"Failed to open context cache file",
        "The folder for the compiled model is not there, or cannot be written to.",
        "Create it, or give another ep.context_file_path."),
)
# fmt: on

# fmt: off
GRAPH: Final[tuple[LogRule, ...]] = (
    rule("finalize.operator", r'"(?P<op>[^"]+)" generated: could not create op',
        "QNN cannot place the operator {op} on this target, and reports it as a memory error.", _TARGET),
    rule("finalize.memory", r"Failed to finalize QNN graph\. Error: QNN_COMMON_ERROR_MEM_ALLOC",
        "QNN says memory, but it nearly always means that an operator or data type cannot be placed on this target "
        "(without soc_model most float models end like this).", _TARGET, STRONG),
    rule("finalize", r"Failed to finalize QNN graph\. Error: (?P<qnn>QNN_\w+)",
        "QNN could not finalize the graph: {meaning} [{qnn}].", "{advice}", SYMPTOM),
    rule("graph.create", r"Failed to create Qnn graph: .*Error: (?P<qnn>QNN_\w+)",
        "QNN refused the graph: {meaning} [{qnn}].", "{advice}", STRONG),
    rule("graph.tensor", r"Failed to create tensor for node: (?P<node>\S+) .*error code: (?P<qnn>\d+)",
        "QNN refused a tensor of node {node}: {meaning} [{qnn}]. A graph option (extended_udma and the like) can "
        "do this too.", "Leave out HTP graph options; change the node.", STRONG),
    rule("graph.dynamic", r"Dynamic shape is not supported yet, for (?P<what>(?:in|out)put): *(?P<name>\S+)",
        "QNN needs fixed dimensions, and {what} {name} has some without a fixed size.",
        "Fix them with add_free_dimension_override_by_name, or in the model."),
    rule("graph.dynamic", r"REASON : Cannot get shape",
        "QNN needs fixed dimensions, and the model has some without a fixed size.",
        "Fix them with add_free_dimension_override_by_name, or in the model."),
    rule("graph.no-inputs", r"Having zero graph inputs is not supported",
        "QNN cannot run a graph that has no inputs.", "Run this model on the CPU provider."),
    rule("graph.layout", r"Node '(?P<node>[^']*)' OpType:(?P<op>\w+) .*was inserted using the NHWC format",
        "QNN asked for {op} ({node}) in channels-last layout and then refused it; ONNX Runtime cannot give it back "
        "to the CPU after that.",
        "Change or quantize this operator (weights must be initializers), or use the CPU provider.", SYMPTOM),
    rule("graph.validation",
        r"backendValidateOpConfig\(\) failed for node `(?P<node>[^`]*)` of type `(?P<op>[^`]*)` .* (?P<qnn>\d+)",
        "QNN refuses {op} ({node}): {meaning} [{qnn}].", "{advice}", STRONG),
    rule("graph.unsupported", r"Unsupported nodes in QNN EP: (?P<nodes>.+?),?\s*$",
        "QNN does not support these nodes as they are: {nodes}",
        "Change or quantize them, or allow fallback='cpu'.", SYMPTOM),
    rule("graph.on-cpu", r"This session contains graph nodes that are assigned to the default CPU EP",
        "Some nodes are not on QNN. ONNX Runtime is silent about it where dimensions are not fixed.",
        "Create the session with log_severity_level=0: it then gives a reason for each node.", HINT),
)
# fmt: on

# fmt: off
RUN: Final[tuple[LogRule, ...]] = (
    rule("run.index", r"index: (?P<index>-?\d+) is larger than input dim: (?P<dim>\d+) size: (?P<size>\d+)",
        "An index input has the value {index}, but that dimension has only {size} elements.",
        "Check the values of the index inputs."),
    rule("run", r"QNN graph execute error\. Error: (?P<qnn>QNN_\w+)",
        "QNN failed while running the model: {meaning} [{qnn}].", "{advice}", SYMPTOM),
)
# fmt: on

MODEL_RULES: Final[tuple[LogRule, ...]] = (*RESET, *CONTEXT, *GRAPH, *RUN)
