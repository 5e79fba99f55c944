"""Turn errors of ONNX Runtime and Python into the project's errors, and explain misleading messages.

ONNX Runtime's classes keep their name and message; builtin exceptions become the matching ``Remote...Error``. Rules
add a cause and a fix to a message that is misleading or incomplete; each message was observed on onnxruntime 1.24
to 1.32 with onnxruntime-qnn 2.7. Only this module decides whether an error is a reset of the NPU
(``details["npu_reset"]``). Pure functions.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge_host.engine.qnn_options import arch_of, chip_label, parse_chips
from qnnbridge_host.model.scan import WEIGHTS_OUTSIDE, weights_outside_fix
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import BridgeError, OrtError, RemoteError
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shell import NO_FILE, ModelInCommands, fixed_file
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.tables import read_tables

_GIT_LFS = b"version https://git-lfs"
_V73 = 73
_NOT_A_MODEL = ("INVALID_PROTOBUF", "Protobuf parsing failed", "No graph was found in the protobuf")


class Circumstances(NamedTuple):
    """Facts about the failed call, which the rules use.

    Attributes:
        model: the model that was loaded, with its file unless it was given as bytes.
        soc_model: the chip for which the session computes, if the application has given one.
        simulator: whether the session runs on the HTP simulator.
        lacking: files with weights that are missing or truncated (`scan.lacking_weights`).
        custom_op_libraries: the libraries that are registered for the session.
        on_qnn: operators of the session's nodes on QNN; set if a run failed and QNN reported no reason.
        empty_inputs, empty_results: inputs and other tensors without elements; set if the creation failed.
        known_fault, known_cure: which operators of the model are known to make QNN fail, and the fix.
    """

    model: ModelInCommands = NO_FILE
    soc_model: str | None = None
    simulator: bool = False
    lacking: tuple[str, ...] = ()
    custom_op_libraries: tuple[str, ...] = ()
    on_qnn: frozenset[str] = frozenset()
    empty_inputs: tuple[str, ...] = ()
    empty_results: tuple[str, ...] = ()
    known_fault: str = ""
    known_cure: str = ""


Text = str | Callable[[Circumstances], str | None]

# Parts of QNN's messages that give no reason for a failure. The first three messages occur when a session is
# created, the fourth in a run.
NOT_COMPOSED = "Failed to compose Qnn graph"
NOT_FINALIZED = "Failed to finalize QNN graph"
NOT_SELECTED = "was inserted using the NHWC format"
UNEXPLAINED = "QNN graph execute error"


class HintRule(NamedTuple):
    # A regular expression, compiled when the first error occurs, because compiling all rules takes 15 ms.
    pattern: str
    cause: Text
    fix: Text | None = None


def hint(text: str, circumstances: Circumstances) -> tuple[str | None, str | None]:
    """Return the cause and the fix for an error message; ``None`` for each that is unknown."""
    if re.search(_OUTSIDE, text):
        return WEIGHTS_OUTSIDE, weights_outside_fix(circumstances.model.path)
    if circumstances.lacking:
        return _LACKING_CAUSE, _LACKING_FIX
    if any(words in text for words in _NOT_A_MODEL):
        return _not_a_model(circumstances.model.path)
    if circumstances.known_fault:
        return circumstances.known_fault, circumstances.known_cure
    for rule in _rules():
        if re.search(rule.pattern, text):
            return _say(rule.cause, circumstances), None if rule.fix is None else _say(rule.fix, circumstances)
    return None, None


def _say(text: Text, circumstances: Circumstances) -> str | None:
    return text if isinstance(text, str) else text(circumstances)


_OUTSIDE = "External data path escapes|Absolute path not allowed for external data"
_LACKING_CAUSE = "The model has external files with weights, and some of them are missing or truncated."
_LACKING_FIX = (
    "Copy or download the model again with all of its files (`qnnbridge inspect` lists them), and do not rename "
    "them."
)


def _not_a_model(path: str | None) -> tuple[str | None, str | None]:
    if path is None:
        return None, None
    try:
        if os.path.isdir(path):
            return f"The path {path} is a folder.", "Give the path of the .onnx file in the folder."
        with open(path, "rb") as file:
            head = file.read(len(_GIT_LFS))
    except OSError:
        return None, None
    if not head:
        return f"{path} is empty.", "Copy or download the model again."
    if head == _GIT_LFS:
        return f"{path} is a Git LFS pointer, not the model itself.", "Fetch the file with `git lfs pull`."
    return f"{path} is not an ONNX model, or it is cut off.", "Copy or download the model again."


def _finalize_cause(circumstances: Circumstances) -> str:
    cause = "QNN reports a lack of memory, but usually the chip does not support an operator or a data type"
    if circumstances.soc_model:
        return f"{cause} (soc_model={chip_label(circumstances.soc_model)})."
    return f"{cause}, and the session has no soc_model." if circumstances.simulator else f"{cause}."


def _finalize_fix(circumstances: Circumstances) -> str:
    chips = parse_chips(circumstances.soc_model) if circumstances.soc_model else ()
    archs = [arch_of(chip) for chip in chips]
    # A computer with an NPU does not need soc_model: QNN gets the chip from the driver.
    if not chips and circumstances.simulator:
        return (
            "Set the provider option soc_model to the chip for which the model is intended, for example 60 (X "
            "Elite)."
        )
    if any(arch is not None and arch < _V73 for arch in archs):
        return (
            "This chip is older than HTP V73 and cannot run most float operators. If the model is float, quantize "
            "it; else run it on the CPU provider."
        )
    return (
        "Run the model again with QNNBRIDGE_VERBOSE=1 in the environment: QNN then logs the operator. "
        "Change that operator, quantize it if it is float, or run the model on the CPU provider."
    )


def _blob_fix(circumstances: Circumstances) -> str:
    if circumstances.soc_model:
        return (
            f"Compile the model again for soc_model={chip_label(circumstances.soc_model)} with this "
            "onnxruntime-qnn, or set soc_model to the chip for which the model was compiled."
        )
    return "Compile the model again with this onnxruntime-qnn, on or for this machine."


def _unknown_operator_cause(circumstances: Circumstances) -> str:
    if not circumstances.custom_op_libraries:
        return (
            "This ONNX Runtime lacks the operator, which belongs to a library of custom operators or to a newer "
            "release."
        )
    return (
        f"None of the registered libraries contains the operator ({_named(circumstances)}). An operator that a "
        "program writes in Python (@onnx_op of onnxruntime_extensions) exists in the program's own process only; "
        "the session is in the host, another process, and cannot call it."
    )


def _unknown_operator_fix(circumstances: Circumstances) -> str:
    if not circumstances.custom_op_libraries:
        return (
            "Register the library (SessionOptions.register_custom_ops_library), update onnxruntime in the host's "
            "Python, or replace the operator."
        )
    return (
        "Register the library that contains the operator. For an operator written in Python: compute it before or "
        "after the session, replace it with operators of ONNX or of a compiled library, or run this model with "
        "onnxruntime itself."
    )


def _named(circumstances: Circumstances) -> str:
    return ", ".join(map(os.path.basename, circumstances.custom_op_libraries))


_TAKES_INDICES = frozenset(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"))
_RANDOM = frozenset(("RandomNormalLike", "RandomUniformLike", "Bernoulli"))


def _execute_cause(circumstances: Circumstances) -> str:
    indexed = sorted(circumstances.on_qnn & _TAKES_INDICES)
    random = sorted(circumstances.on_qnn & _RANDOM)
    if random:
        return (
            f"QNN does not report a reason. The model draws random numbers on QNN ({', '.join(random)}), which "
            "fails if the shape of these numbers comes from an input."
        )
    if indexed:
        return f"QNN does not report a reason. A possible reason is an index out of range ({', '.join(indexed)})."
    return "QNN does not report a reason. The previous log line may contain the reason."


def _execute_fix(circumstances: Circumstances) -> str | None:
    if circumstances.on_qnn & _RANDOM:
        return 'Create the session with fallback="cpu", which leaves the random operators to the CPU.'
    if circumstances.on_qnn & _TAKES_INDICES:
        return "Run the model on the CPU provider: its error reports an index that is out of range."
    return None


_NAMED = 5


def _compose_cause(circumstances: Circumstances) -> str:
    empty = (*circumstances.empty_inputs, *circumstances.empty_results)
    if not empty:
        return (
            "QNN accepted every node, but could not build its graph and does not report a reason. A known reason "
            "is an infinite scale, which results from quantising a mask that contains minus infinity."
        )
    return f"QNN cannot build a graph with empty tensors, and the model has {listed(empty, _NAMED)}."


def _compose_fix(circumstances: Circumstances) -> str:
    if circumstances.empty_inputs:
        return f"Give {circumstances.empty_inputs[0]} at least one element, or run the model on the CPU provider."
    if circumstances.empty_results:
        return f"Create the session with fix=True, or run: {circumstances.model.fix()}. Both remove these tensors."
    return (
        f"Run: {circumstances.model.examine('analyze')}. The command reports an infinite scale, if the model has "
        "one; then quantise the float model with qnnbridge quantize, which first reduces the huge values in masks. "
        "Otherwise run the model again with QNNBRIDGE_VERBOSE=1 in the environment: QNN then logs how it builds "
        "the graph. Change the failing operator, or run the model on the CPU provider."
    )


def _layout_fix(circumstances: Circumstances) -> str:
    model = circumstances.model
    return (
        f"Run: {model.fix()}, which rewrites what QNN refuses if a rewrite exists, and use "
        f"{fixed_file(model.path)}. If the error persists, quantise the float model with qnnbridge quantize, which "
        "chooses types that QNN supports, or run the model on the CPU provider."
    )


def _wide_edges_fix(circumstances: Circumstances) -> str:
    return (
        "Sessions convert 64-bit inputs and outputs on the CPU automatically, unless fix=False. If the numbers "
        "need 64 bits, run the model on the CPU provider. To change a file with 64-bit floats, run: "
        f"{circumstances.model.fix('double-edges')}. For 64-bit integers use --only int64-output in this command."
    )


def _definitions_fix(circumstances: Circumstances) -> str:
    model = circumstances.model
    return (
        f"For Mish and GroupNormalization run: {model.fix('definitions')}, and compile "
        f"{fixed_file(model.path)}. Or run the unchanged model in a session without a cache."
    )


def _body_weights_fix(circumstances: Circumstances) -> str:
    model = circumstances.model
    return f"Run: {model.fix('body-weights')}, and compile {fixed_file(model.path)}."


# Functions that return a cause or fix depending on the circumstances, by their names in `ort_hints.json`.
_CAUSES: Mapping[str, Text] = {
    "finalize": _finalize_cause,
    "compose": _compose_cause,
    "unknown_operator": _unknown_operator_cause,
    "execute": _execute_cause,
}
_FIXES: Mapping[str, Text] = {
    "finalize": _finalize_fix,
    "compose": _compose_fix,
    "layout": _layout_fix,
    "wide_edges": _wide_edges_fix,
    "unknown_operator": _unknown_operator_fix,
    "blob": _blob_fix,
    "definitions": _definitions_fix,
    "body_weights": _body_weights_fix,
    "execute": _execute_fix,
}


@functools.cache
def _rules() -> tuple[HintRule, ...]:
    """Return the rules of `ort_hints.json`. The first matching rule explains an error."""
    with open(os.path.join(os.path.dirname(__file__), "ort_hints.json"), encoding="utf-8") as file:
        rows = read_tables(file.read())["rules"]
    return tuple(
        HintRule(
            row["pattern"],
            _CAUSES[row["cause_by"]] if "cause_by" in row else row["cause"],
            _FIXES[row["fix_by"]] if "fix_by" in row else row.get("fix"),
        )
        for row in rows
    )


# Class for each ``OrtErrorCode``. A plugin can return a number for which an older ONNX Runtime has no class.
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

# The order matters, because the first matching class is used: FileNotFoundError is a subclass of OSError.
_BUILTINS: tuple[tuple[type[Exception], type[RemoteError]], ...] = (
    (KeyError, errors.RemoteKeyError),
    (IndexError, errors.RemoteIndexError),
    (MemoryError, errors.RemoteMemoryError),
    (FileNotFoundError, errors.RemoteFileNotFoundError),
    (OSError, errors.RemoteOSError),
    (ValueError, errors.RemoteValueError),
    (TypeError, errors.RemoteTypeError),
    (RuntimeError, errors.RemoteRuntimeError),
)

_PREFIX = r"\[ONNXRuntimeError\] : (\d+) : "
_QNN_CODE = r"\b[Cc]ode: (\d+)"
# Mask for QNN's codes: ONNX Runtime prints the complete code, whose upper bits are internal to QNN.
_QNN_CODE_MASK = 0xFFFF

# QNN_COMMON_ERROR_SYSTEM_COMMUNICATION: the NPU restarted, and this process can use it again.
QNN_COMMUNICATION = 1007

# QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL: this process cannot use the NPU again.
QNN_COMMUNICATION_FATAL = 1011

# QNN_COMMON_ERROR_MEM_ALLOC and QNN_MEM_ERROR_MAPPING. During the creation of a context they mean that the NPU's
# memory is full; during the finalization of a graph, that the chip does not support an operator.
_MEMORY_CODES = (1002, 8003)
_MAKES_A_CONTEXT = r"contextCreateFromBinary|context from binary|Failed to create context\b"
_NO_RPC_MEMORY = "rpcmem_alloc() failed"
MEMORY_CAUSE = (
    "The NPU's memory is full, or the weights could not be mapped. One process can use about 3.5 GB of this memory."
)
MEMORY_FIX = (
    "Close other sessions and programs that use the NPU (`qnnbridge top` shows the sessions of the daemon), "
    "or split the model."
)

_RESET_TEXT = "SSR detected"
_CPU_FALLBACK_DISABLED = "fallback to CPU EP has been explicitly disabled"


def translate(error: Exception, circumstances: Circumstances | None = None) -> BridgeError:
    """Return the project's error for any exception from a call into ONNX Runtime."""
    if isinstance(error, BridgeError):
        return error
    text = str(error)
    cls = _class_of(error, text)
    details = details_of(cls, text)
    given = circumstances or Circumstances()
    cause, fix = hint(text, given)
    if details.get("npu_memory"):
        cause, fix = MEMORY_CAUSE, MEMORY_FIX
    details = {"type": type(error).__name__, **details}
    return cls(text, cause=cause, fix=fix, evidence=given.lacking, details=details)


def is_cpu_fallback_refusal(error: Exception) -> bool:
    """Return whether ONNX Runtime refused a strict session because some node is not on the requested provider."""
    return _CPU_FALLBACK_DISABLED in str(error)


def _class_of(error: Exception, text: str) -> type[OrtError] | type[RemoteError]:
    if type(error).__module__.startswith("onnxruntime"):
        # Compare the class by its name, because older releases lack some classes and this module does not import
        # onnxruntime.
        known = errors.ORT_ERRORS.get(type(error).__name__)
        if known is not None:
            return known
    match = re.match(_PREFIX, text)
    # onnxruntime 1.24.4 with onnxruntime-qnn 2.7 raises RuntimeError, ``15 : GENERAL ERROR``, for a reset.
    if match and type(error) is RuntimeError:
        known = _BY_NUMBER.get(int(match[1]))
        if known is not None:
            return known
    for builtin, remote in _BUILTINS:
        if isinstance(error, builtin):
            return remote
    return RemoteError


def details_of(cls: type[BridgeError], text: str) -> dict[str, Any]:
    """Extract details from ONNX Runtime's message: ``ort_code``, ``qnn_code``, ``npu_reset``, ``npu_memory``.

    The class of an NPU reset depends on the release: `DeviceReset` since onnxruntime 1.28; before that
    `EngineError`, or `EPFail` with one of two codes.
    """
    details: dict[str, Any] = {}
    prefix = re.search(_PREFIX, text)
    if prefix:
        details["ort_code"] = int(prefix[1])
    code = re.search(_QNN_CODE, text)
    if code:
        details["qnn_code"] = int(code[1]) & _QNN_CODE_MASK
    by_text = details.get("qnn_code") in (QNN_COMMUNICATION, QNN_COMMUNICATION_FATAL) or _RESET_TEXT in text
    if issubclass(cls, (errors.DeviceReset, errors.EngineError)) or (issubclass(cls, OrtError) and by_text):
        details["npu_reset"] = True
    in_context = details.get("qnn_code") in _MEMORY_CODES and re.search(_MAKES_A_CONTEXT, text) is not None
    if in_context or _NO_RPC_MEMORY in text:
        details["npu_memory"] = True
    return details
