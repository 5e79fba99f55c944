"""What lines of ONNX Runtime's and QNN's logs mean when QNN does not start at all, as data. Read by `ort_log`.

Every pattern was taken from a log made with onnxruntime 1.24 to 1.31 and onnxruntime-qnn 2.6 or 2.7 (Linux, and
Windows where its texts differ), or from the texts inside the libraries of those wheels, where only a real NPU
would print them. A line is explained by the first rule that matches it: special cases come first.
"""

from __future__ import annotations

from typing import Final

from qnnbridge._diagnosis.rules import HINT, STRONG, SYMPTOM, Rule, rule

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

BACKEND: Final[tuple[Rule, ...]] = (
    rule(
        "backend.library-of-wheel",
        r"(?P<lib>lib(?:c\+\+|c\+\+abi|unwind)[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which the QNN libraries need. It is in the wheel's folder onnxruntime_qnn.libs.",
        _REINSTALL,
        setup=True,
    ),
    rule(
        "backend.libatomic",
        r"(?P<lib>libatomic[\w.+-]*): cannot open shared object file",
        "{lib} is missing, which libQnnSystem needs; without it no EPContext model can be read or written.",
        "Install it (Debian and Ubuntu: apt install libatomic1).",
        setup=True,
    ),
    rule(
        "backend.fastrpc",
        r"libcdsprpc[\w.]*: cannot open shared object file|Unable to get the handle to libcdsprpc\.dll|"
        r"Failed to (?:get symbol|load library).*(?:rpcmem|cdsprpc)",
        "libcdsprpc, the way to the NPU, is missing: the NPU driver is not installed, or not visible here.",
        _DRIVER,
        setup=True,
    ),
    rule(
        "backend.file-missing",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): cannot open shared object file",
        "The QNN backend library {file} is not there.",
        "Leave out the provider option backend_path, or correct it. QnnCpu is no longer part of the wheel.",
        setup=True,
    ),
    rule(
        "backend.none-for-device",
        r"Could not determine default backend path for device",
        "The QNN backend library for this device (libQnnHtp.so or QnnHtp.dll for an NPU and for the simulator) is "
        "missing from the folder of onnxruntime-qnn.",
        _REINSTALL,
        setup=True,
    ),
    rule(
        "backend.wrong-machine",
        r"SetupBackend failed Unable to load backend, error: *(?P<file>.+?): (?:wrong|invalid) ELF ",
        "The QNN backend library {file} is damaged or made for another machine.",
        _REINSTALL,
        setup=True,
    ),
    rule(
        "backend.not-loaded",
        r"SetupBackend failed Unable to load backend, error: *(?P<why>.+)",
        "The QNN backend library could not be loaded ({why}): it is missing, or something that it needs is.",
        "Leave out the provider option backend_path, or correct it. " + _REINSTALL,
        STRONG,
        setup=True,
    ),
    rule(
        "backend.other-version",
        r"Unable to find a valid interface for (?P<file>.+)",
        "{file} is of another (older) QNN version than the execution provider.",
        _ONE_SET,
        setup=True,
    ),
    rule(
        "backend.mixed",
        r"(?P<part>Stub|Skel|Prepare) lib id mismatch:.*expected \((?P<want>.*?)\), detected \((?P<found>.*?)\)",
        "The QNN libraries are from different versions: the {part} library is {found}, {want} was expected.",
        _ONE_SET,
        setup=True,
    ),
    rule(
        "backend.mixed",
        r"Failed to retrieve skel build id: err: 1008|INCOMPATIBLE_BINARIES",
        "The QNN libraries (backend, stub, skel) are from different versions.",
        _ONE_SET,
        setup=True,
    ),
    rule(
        "backend.skel",
        r"qnn_open failed,? (?P<code>0x[0-9a-fA-F]+)",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver ({code}).",
        _SKEL,
        STRONG,
        setup=True,
    ),
    rule(
        "backend.skel",
        r"Failed to load skel, error|Failed to retrieve skel load status",
        "The library for the NPU side (skel) was not found, not signed, or not accepted by the driver.",
        _SKEL,
        STRONG,
        setup=True,
    ),
    rule(
        "backend.stub",
        r"Failed in loading stub|Failed to load (?:stub lib|HTP user driver)|DriverLibLoader Failed loading",
        "The library that talks to the NPU driver (stub) could not be loaded.",
        _REINSTALL + " " + _DRIVER,
        STRONG,
        setup=True,
    ),
    rule(
        "backend.process-name",
        r"FastRPC process/executable name exceeds supported length",
        "The NPU driver refuses processes with such a long path.",
        "Use an interpreter with a shorter path.",
        setup=True,
    ),
    rule(
        "backend.user-driver",
        r"fell back to HTP user-driver \(HNRD\) path|Switching to user driver path",
        "Parts of the wheel (Prepare, Stub or Skel) are missing beside the backend, so the driver's own runtime is "
        "used, which supports fewer operators.",
        _REINSTALL,
        SYMPTOM,
    ),
    rule(
        "backend.unsigned-session",
        r"createUnsignedPD (?:failed|unable|unsigned PD interface not supported)|create unsigned PD failed",
        "The NPU driver refused the process a session on the NPU.",
        _DRIVER,
        STRONG,
        setup=True,
    ),
    rule(
        "backend.device-id",
        r"Could not find device with ID = (?P<id>\S+)",
        "There is no QNN device with the number {id}.",
        "Leave out the provider option device_id.",
        setup=True,
    ),
    rule(
        "backend.priority",
        r"context priority: (?P<value>\S+) not valid",
        "qnn_context_priority is {value!r}, which QNN does not know; it then refuses to start.",
        "Use low, normal, normal_high or high.",
        setup=True,
    ),
    rule(
        "backend.priority",
        r"SetupBackend failed Invalid Qnn context priority",
        "qnn_context_priority has a value that QNN does not know.",
        "Use low, normal, normal_high or high.",
        STRONG,
        setup=True,
    ),
    rule(
        "backend.device-config",
        r"Failed to create device\. Error: (?P<qnn>QNN_\w+)",
        "QNN refused the device: {meaning} [{qnn}].",
        "{advice}",
        STRONG,
        setup=True,
    ),
    rule(
        "backend.soc",
        r"Unknown config socModel",
        "QNN does not know this soc_model.",
        "Give the number of a chip that this SDK knows (60 is X Elite), or leave the option out on an NPU.",
        setup=True,
    ),
    rule(
        "backend.refused",
        r"QNN SetupBackend failed (?P<why>.*Error: (?P<qnn>QNN_\w+).*)",
        "QNN did not start: {meaning} [{qnn}].",
        "{advice}",
        STRONG,
        setup=True,
    ),
    rule(
        "backend.refused",
        r"QNN SetupBackend failed (?P<why>.+)",
        "QNN did not start: {why}",
        "Check the provider options; `qnnbridge demo` shows whether QNN works here without any.",
        SYMPTOM,
        setup=True,
    ),
)

OPTIONS: Final[tuple[Rule, ...]] = (
    rule(
        "option.fp16-needs-chip",
        r"FP16 precision mode is enabled but soc_model is not specified",
        "enable_htp_fp16_precision=1 needs soc_model.",
        "Set soc_model too (60 for X Elite).",
    ),
    rule(
        "option.backend-twice",
        r"Only one of 'backend_type' and 'backend_path' should be set",
        "backend_type and backend_path were both given.",
        "Leave one of them out.",
    ),
    rule(
        "option.unknown-exception",
        r"Unknown exception occurred while creating QNN EP",
        "A provider option has a value that QNN cannot read (a number was expected: device_id, vtcm_mb, "
        "rpc_control_latency) or that this machine cannot do: enable_htp_shared_memory_allocator needs libcdsprpc.",
        "Leave out the provider options that are not needed.",
        STRONG,
    ),
    rule(
        "option.profiling-file",
        r"Need to specify a CSV file via provider option profiling_file_path",
        "profiling_level needs a file to write to.",
        "Set the provider option profiling_file_path too.",
    ),
    rule(
        "option.ignored",
        r"Profiling level not valid|[Pp]erformance mode not valid|Invalid HTP architecture: (?P<value>\S+)",
        "A provider option had a value that QNN does not know; it was ignored.",
        "Correct profiling_level, htp_performance_mode or htp_arch.",
        HINT,
    ),
)

INSTALLATION: Final[tuple[Rule, ...]] = (
    rule(
        "install.ort-too-old",
        r"QNN EP requires ORT >= (?P<need>\S+) .*Host ORT is (?P<have>\S+)",
        "This onnxruntime-qnn needs onnxruntime {need} or newer; the host has {have}.",
        "Upgrade onnxruntime in the host's interpreter.",
    ),
    rule(
        "install.ort-too-new",
        r"invalid ort_version_supported=",
        "This onnxruntime-qnn is too old for the host's onnxruntime.",
        "Upgrade onnxruntime-qnn in the host's interpreter.",
    ),
    rule(
        "install.no-device",
        r"Must provide one or more OrtEpDevice instances",
        "No QNN device was found: there is no NPU, its driver is missing, or the versions of onnxruntime and "
        "onnxruntime-qnn do not fit.",
        _DRIVER,
        STRONG,
    ),
    rule(
        "install.not-a-provider",
        r"undefined symbol: CreateEpFactories",
        "The file that was registered is a QNN backend, not the execution provider.",
        "Register the library that onnxruntime_qnn.get_library_path() names.",
    ),
    rule(
        "install.library",
        r"Failed to load library (?P<file>\S+) with error: (?P<why>.+)",
        "{file} could not be loaded: {why}",
        _REINSTALL,
        SYMPTOM,
    ),
)

SETUP_RULES: Final[tuple[Rule, ...]] = (*BACKEND, *OPTIONS, *INSTALLATION)
