"""Explain qnnbridge's own errors and warnings by the name of their class, and errors by their code.

`str(error)` contains cause and fix. These tables are for readers who have only a name, from a log, an
`except` clause or the table of `docs/errors.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from qnnbridge_protocol import errors

_REPAIR: Final = "Run `qnnbridge doctor`: it examines the host and prints the command that repairs it."
_CRASH: Final = "Run `qnnbridge crashes show last`: it lists the likely causes, best first."
_AGAIN: Final = "Run `qnnbridge doctor`; if it finds nothing, write a bug report with `qnnbridge report`."
_SAME_VERSION: Final = "Install the same version on both sides: `qnnbridge setup`."
_MESSAGE: Final = "Read the lines after the error's name: they are message, cause and fix."

# Class -> (cause, fix). A subclass without a row has that of its base.
TABLE: Final[dict[type[errors.BridgeError], tuple[str, str]]] = {
    errors.BridgeError: ("The common base of all errors of qnnbridge.", _MESSAGE),
    errors.HostError: ("The host process failed, or could not be used.", _REPAIR),
    errors.HostStartFailed: ("The host process did not start.", _REPAIR),
    errors.HostNotFound: (
        "No interpreter can be the host: none is ARM64 and has onnxruntime-qnn.",
        "Set one up with `qnnbridge setup`.",
    ),
    errors.HandshakeFailed: ("The program that was started as the host is not a host.", _REPAIR),
    errors.VersionMismatch: ("The application and the host have different versions of qnnbridge.", _SAME_VERSION),
    errors.HostCrashed: ("The host ended during a call that must not be repeated, or failed repeatedly.", _CRASH),
    errors.WorkerDied: ("The process that compiles a model ended.", _CRASH),
    errors.HostHung: ("The host did not answer in time and was ended.", _CRASH),
    errors.BreakerOpen: (
        "Hosts ended repeatedly before they did any work, so no new one is started for some time.",
        'Run `qnnbridge doctor`. details["retry_after_s"] is the time until the next attempt.',
    ),
    errors.StateLost: (
        "The host was restarted, and the requested state existed only in the old process.",
        "Repeat the steps that created it.",
    ),
    errors.ForkedClient: (
        "The object was created before a fork, and its contents are in the parent's host.",
        "Create the object again in the child process.",
    ),
    errors.Closed: ("The host or the session is closed.", "Create a new session, or close it later."),
    errors.WireError: ("The application and the host exchanged a message that cannot be read.", _AGAIN),
    errors.TooLarge: ("A message exceeds the limits of the protocol. Nothing was sent.", "Send smaller tensors."),
    errors.CallError: ("A call ended without a result.", _MESSAGE),
    errors.DeadlineExceeded: (
        "The call took longer than its timeout.",
        'Give a longer timeout. details["state"] reports whether the work still goes on.',
    ),
    errors.Cancelled: ("The application cancelled the call.", "Nothing has to be repaired."),
    errors.Busy: ("More calls are in flight than allowed.", "Wait for results before you make more calls."),
    errors.CallBackFailed: (
        "A function of the application that the host called raised, hung or returned a wrong value.",
        'Correct the function; details["reason"] is what it did wrong.',
    ),
    errors.UnknownOperation: ("The host has an older version of qnnbridge without this operation.", _SAME_VERSION),
    errors.OptionError: ("An option is unknown, or has a value that is not allowed.", _MESSAGE),
    errors.ModelError: ("The model cannot be used in this way.", _MESSAGE),
    errors.PlacementRefused: (
        "Nodes of the model would run on the CPU, and the session does not allow it.",
        "Run `qnnbridge analyze MODEL` to see which nodes and why, or allow the CPU: fallback='cpu'.",
    ),
    errors.ProviderUnavailable: ("The host cannot use the execution provider.", _REPAIR),
    errors.ModelChanged: (
        "The model's file has changed since the session was created.",
        "Create a new session.",
    ),
    errors.ModelQuarantined: (
        "The model ended hosts repeatedly, so it is refused for some time.",
        "Run `qnnbridge crashes show last` for the reason, and `qnnbridge quarantine list` for the id; then run "
        "`qnnbridge quarantine clear ID`.",
    ),
    errors.CompiledModelRefused: (
        "A compiled model (EPContext) was given to a command that needs the original.",
        "Run the command on the original model.",
    ),
    errors.ContextUnusable: (
        "The compiled model's context binary is missing, damaged, or made for another chip or QNN version.",
        "Run `qnnbridge inspect MODEL` for the reason, and compile the original again.",
    ),
    errors.PullFailed: (
        "A model could not be downloaded from a model hub.",
        'Read the message, or details["reason"]. The same `qnnbridge pull` command continues the download.',
    ),
    errors.CompileFailed: (
        "The compiled model is not usable: no node runs on QNN, or its outputs are wrong.",
        "Run `qnnbridge analyze MODEL` on the original.",
    ),
    errors.NumbersDiffer: (
        "The session's outputs on QNN differ from those on the CPU.",
        "Run `qnnbridge verify MODEL` to find the node, and `qnnbridge fix MODEL` for a rewrite.",
    ),
    errors.GenerationError: ("onnxruntime-genai raised an error.", _MESSAGE),
    errors.GenerationFolderInvalid: (
        "The folder lacks genai_config.json or a file of the model, or a file is truncated.",
        "Run `qnnbridge inspect FOLDER`, and copy the folder again.",
    ),
    errors.NativeCodeRefused: (
        "genai_config.json sets an option that loads native code.",
        "Check the folder's origin. If you trust it, name the option in allow_native=[...].",
    ),
    errors.GenerationUnsupported: (
        "The model or the version of onnxruntime-genai does not support this.",
        _MESSAGE,
    ),
    errors.PromptRefused: ("The prompt is empty, too long, or has unknown token ids.", "Change the prompt."),
    errors.OrtError: ("ONNX Runtime raised an error of this name in the host.", _MESSAGE),
    errors.RemoteError: ("The host raised a Python exception of this name.", _MESSAGE),
}

# Warnings by their class, as Python writes them: `file.py:3: NumbersWarning: ...`.
WARNINGS: Final[dict[str, tuple[str, str]]] = {
    "CacheWarning": (
        "The cache of compiled models cannot be used, so each session compiles its model again.",
        "Run `qnnbridge doctor`: it prints the folder and the command that repairs it.",
    ),
    "CpuFallbackWarning": (
        "A session that requested QNN runs on the CPU, as its fallback allows.",
        "Run `qnnbridge analyze MODEL` to see why. With fallback='error' the session is refused.",
    ),
    "NumbersWarning": (
        "The session's outputs on QNN differ from those on the CPU.",
        "Run `qnnbridge verify MODEL` to find the node, and `qnnbridge fix MODEL` for a rewrite.",
    ),
}

_WARNING: Final = re.compile(r"^(?:.*:\d+: )?(?:qnnbridge\.(?:\w+\.)*)?(?P<name>[A-Z]\w+Warning)(?=:|$)")
_LINE: Final = re.compile(r"(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w+)(?=:|$)")


def _all(base: type[errors.BridgeError]) -> Iterator[type[errors.BridgeError]]:
    yield base
    for one in base.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _all(one)


def in_lines(lines: Iterable[str]) -> Iterator[tuple[type[errors.BridgeError], str, str, str]]:
    """Find errors at the start of a line, before a colon or the end, as Python prints them.

    Yields:
        The class, its cause, its fix, and the line.
    """
    named = {one.__name__: one for one in _all(errors.BridgeError)}
    by_code = {one.code: one for one in named.values()}
    for line in lines:
        text = line.strip()
        match = _LINE.match(text)
        found = by_code.get(text.strip("[]"))
        if found is None and match is not None and _is_ours(match, text):
            found = named.get(match["name"])
        if found is not None:
            yield found, *next(TABLE[one] for one in found.__mro__ if one in TABLE), text


def warnings_in(lines: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Find warnings where Python writes them: behind a file and its line, or at the start of a line.

    Yields:
        The name, its cause and its fix, and the line.
    """
    for line in lines:
        match = _WARNING.match(line.strip())
        if match is not None and match["name"] in WARNINGS:
            yield match["name"], *WARNINGS[match["name"]], line.strip()


def _is_ours(match: re.Match[str], text: str) -> bool:
    """Return whether a name means a class of qnnbridge. `Fail: ...` alone may be another program's."""
    if match["module"]:
        return match["module"].startswith("qnnbridge")
    found = getattr(errors, match["name"], None)
    return match[0] == text or not (isinstance(found, type) and issubclass(found, errors.OrtError))
