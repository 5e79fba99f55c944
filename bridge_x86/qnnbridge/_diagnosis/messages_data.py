"""Messages that users meet and paste, beyond the lines of a log: what Python, pip, Windows and ONNX Runtime's
Python layer print. Data, read by `messages`; the shape is that of the log rules."""

from __future__ import annotations

from typing import Final

from qnnbridge._diagnosis.rules import HINT, STRONG, SYMPTOM, Rule, rule

_REINSTALL = (
    "Reinstall onnxruntime and onnxruntime-qnn with the host's own interpreter: qnnbridge doctor names the command."
)
_VC = (
    "Install the Visual C++ redistributable of the interpreter's machine type: winget install "
    "Microsoft.VCRedist.2015+.arm64 (x64 for an x64 Python)."
)
_MACHINE = "Use packages and an interpreter of one machine type: qnnbridge doctor names the odd one."

MESSAGE_RULES: Final[tuple[Rule, ...]] = (
    rule(
        "message.dynamic-shape",
        r"Dynamic shape is not supported yet(?:, for (?:input|output): *(?P<name>[^\s\"]+))?",
        "QNN needs fixed dimensions, and the model has one that is not.",
        "Fix it: SessionOptions.add_free_dimension_override_by_name(NAME, SIZE), or qnnbridge run "
        "MODEL --random --dim "
        "NAME=SIZE.",
    ),
    rule(
        "message.epcontext-not-implemented",
        r"NOT_IMPLEMENTED.*EPContext|Could not find an implementation for EPContext",
        "The model is compiled for QNN (EPContext), and this session has no QNN provider that takes it: it was not "
        "asked for, its libraries could not be loaded, or the host has only the CPU.",
        "Ask for QNNExecutionProvider on a host that has it (qnnbridge doctor), or run the original model.",
        STRONG,
    ),
    rule(
        "message.not-available",
        r"Specified provider '?QNNExecutionProvider'? is not in available provider names",
        "This onnxruntime has no QNN: plain onnxruntime has replaced onnxruntime-qnn 1.x, or with "
        "2.x the plugin was "
        "not registered (the old providers=[...] call never does).",
        "Install one of both: pip uninstall -y onnxruntime onnxruntime-qnn, then pip install "
        "onnxruntime-qnn (1.x) or "
        "both (2.x). qnnbridge registers the plugin itself.",
    ),
    rule(
        "message.fell-back",
        r"\*+ EP Error \*+|Falling back to \['CPUExecutionProvider'\]",
        "ONNX Runtime's Python layer could not make the session on QNN and made one on the CPU "
        "instead, with no error.",
        "Read the line above it for the reason. qnnbridge sessions are strict and raise that reason instead.",
        STRONG,
    ),
    rule(
        "message.dll-load-failed",
        r"DLL load failed while importing (?P<module>\S+?):? (?P<why>.+)",
        "A library that {module} needs could not be loaded ({why}): the Visual C++ runtime is "
        "missing, or libraries of "
        "another machine type or version are found first.",
        _VC + " " + _REINSTALL,
        STRONG,
    ),
    rule(
        "message.not-a-valid-win32",
        r"is not a valid Win32 application|%1 ist keine zulässige Win32|n.est pas une application Win32 valide",
        "The file is built for another machine type than the program that loads it, or it is cut off.",
        _MACHINE,
        STRONG,
    ),
    rule(
        "message.module-not-found",
        r"specified module could not be found|angegebene Modul wurde nicht gefunden",
        "The library, or one that it needs, is not there.",
        _VC + " " + _REINSTALL,
        STRONG,
    ),
    rule(
        "message.procedure-not-found",
        r"specified procedure could not be found|angegebene Prozedur wurde nicht gefunden",
        "A library of another version was found first: versions are mixed.",
        "Remove QNN SDK folders from PATH; " + _REINSTALL[0].lower() + _REINSTALL[1:],
        STRONG,
    ),
    rule(
        "message.elf",
        r"wrong ELF class|invalid ELF header|file too short",
        "The library is for another machine type, or cut off.",
        _REINSTALL,
        STRONG,
    ),
    rule(
        "message.no-wheel",
        r"Could not find a version that satisfies the requirement (?P<name>onnxruntime[\w-]*)",
        "{name} has no wheel for this interpreter: its version of Python or its machine type is not supported.",
        "See which ones are: qnnbridge versions. For a host on Windows on Arm use an ARM64 Python 3.11 to 3.14.",
    ),
    rule(
        "message.no-wheel",
        r"Could not find a version that satisfies the requirement (?P<name>\S+)|"
        r"Failed building wheel for (?P<built>\S+)|Microsoft Visual C\+\+ 14\.0 or greater is required",
        "A package has no ready wheel for this interpreter, often because it is an ARM64 one.",
        "Keep the application in its x64 Python and give qnnbridge an ARM64 host: that one needs only "
        "onnxruntime, onnxruntime-qnn, onnx, numpy and msgpack.",
        SYMPTOM,
    ),
    rule(
        "message.not-supported-wheel",
        r"(?P<wheel>(?<!\S)\S+\.whl) is not a supported wheel on this platform",
        "The wheel {wheel} is for another machine type or version of Python than this pip.",
        "Use the pip of the interpreter that it is for: PATH-TO-PYTHON -m pip install ...",
    ),
    rule(
        "message.no-module",
        r"No module named '?(?P<module>onnxruntime(?:_qnn)?|numpy|msgpack|qnnbridge\w*)\b",
        "The interpreter that runs this has no package {module}.",
        'For the host: its python -m pip install "qnnbridge[host]". For the application: pip install qnnbridge.',
    ),
    rule(
        "message.node-inserted",
        r"Conflicting session configuration: explicitly added the CPU EP",
        "ONNX Runtime's retry on the CPU contradicts disable_cpu_ep_fallback and hides the true reason.",
        "Pass enable_fallback=0 to see it; qnnbridge always does.",
        STRONG,
    ),
    rule(
        "message.unsupported-arch",
        r"No libraries available for architecture: (?P<arch>\S+)|Unsupported architecture: (?P<other>\S+)",
        "onnxruntime_qnn found itself on a machine type that its wheel has no libraries for: the "
        "wheel is for another "
        "one (an x64 wheel in an ARM64 Python, or the other way round).",
        "Install onnxruntime-qnn with the interpreter's own pip.",
    ),
    rule(
        "message.terminated-by",
        r"invalid stoi argument|std::invalid_argument.*\bsto[a-z]+",
        "An option that should be a number is none; QNN ends the process for it.",
        "Correct the provider or run option (device_id, vtcm_mb, qnn.rpc_control_latency).",
    ),
    rule(
        "message.command-not-found",
        r"command not found|is not recognized as an internal or external command",
        "The shell found no program of that name; nothing was started.",
        "Use the full path of the interpreter.",
        STRONG,
    ),
)

# For lines that nothing else knows.
LAST_RULES: Final[tuple[Rule, ...]] = (
    rule(
        "message.qnn-log",
        r"QnnDsp <E>|QNN_\w+_ERROR_\w+",
        "QNN reports an error of its own.",
        "Paste the lines around it, too.",
        HINT,
    ),
)
