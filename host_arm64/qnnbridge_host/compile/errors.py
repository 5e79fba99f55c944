"""The errors that are peculiar to compiling: folders that cannot be written to, and refusals in words.

Pure functions, but for looks at a disk's free space.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from typing import Final

from qnnbridge_host.model.chips import CHIPS, chip_of
from qnnbridge_protocol.errors import BridgeError, CompileFailed, EPFail, Fail, PlacementRefused
from qnnbridge_protocol.specs import QNN, NodeInfo, ProviderSpec

# With less than this free the disk counts as full. ONNX Runtime does not say.
LITTLE_BYTES: Final = 16 * 1024 * 1024

_NOT_WRITTEN: Final = re.compile(
    r"Failed to (?:write|open) context cache file|Protobuf serialization failed"
    r"|SystemError : (?:28|27|30|13|122)\b|No space left on device|File too large|Read-only file system"
)
_ABOUT_SESSIONS = re.compile(r",? and this session forbids (?:the CPU|it)\.")
_ALLOW_CPU = re.compile(r"\s*To let such nodes run on the CPU, create the session with fallback='cpu'\.")
_BY_NAME = re.compile(r"add_free_dimension_override_by_name\('([^']*)', SIZE\)")
# How the fix begins where some dimensions have no name that could be used.
_NAMES_DO_NOT_DO = "Export the model with fixed shapes"


# --- folders ---------------------------------------------------------------------------------------------


def cannot_write(folder: str, reason: str, evidence: str = "") -> CompileFailed:
    """The common error of these cases. reason: a sentence, if known."""
    return CompileFailed(
        f"The compiled model cannot be written to {folder}.",
        cause=reason,
        fix="Make room there or choose another folder (-o, output=) that can be written to.",
        evidence=[evidence] if evidence else (),
        details={"folder": folder, "free_bytes": _free(folder)},
    )


def seen_from(error: CompileFailed, folder: str, target: str) -> CompileFailed:
    """The error with `target`, which its reader has named, in place of the hidden `folder` inside of it."""
    error.message = error.message.replace(folder, target)
    error.evidence = tuple(line.replace(folder, target) for line in error.evidence)
    error.args = (error.message,)
    if error.details.get("folder") == folder:
        error.details["folder"] = target
    return error


def from_os(error: OSError, folder: str) -> CompileFailed:
    """The error for an error of the operating system on this side."""
    return cannot_write(folder, reason_of(error, folder))


def reason_of(error: OSError, folder: str) -> str:
    """Why a file could not be written, as a sentence."""
    return _full(folder) if error.errno == errno.ENOSPC else f"{error.strerror or error}."


def from_host(error: BridgeError, folder: str) -> BridgeError:
    """`error`, or its cause if ONNX Runtime could not write its files to `folder`."""
    if not is_about_writing(error):
        return error
    return cannot_write(folder, why_not_written(folder), error.message)


def is_about_writing(error: BridgeError) -> bool:
    """Whether ONNX Runtime could not write a file, by its words."""
    text = "\n".join((error.message, error.cause or "", *error.evidence))
    # A model too large for one message cannot be serialised either, and has its own error text.
    return _NOT_WRITTEN.search(text) is not None and "2GB" not in text


def why_not_written(folder: str) -> str:
    """A sentence about a visible fault of the folder."""
    free = _free(folder)
    if free is not None and free < LITTLE_BYTES:
        return _full(folder)
    if not os.path.isdir(folder):
        return "The folder is gone."
    return "ONNX Runtime could not write its files: a full disk, a quota, a limit on their size, or no right."


def _full(folder: str) -> str:
    free = _free(folder)
    left = "" if free is None else f" ({free / 1024:.0f} kB are free)"
    return f"The disk is full{left}."


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


# --- refusals --------------------------------------------------------------------------------------------


def nothing_to_compile(refused: PlacementRefused, inputs: Sequence[NodeInfo] = ()) -> CompileFailed:
    """The error of a compilation that allows the CPU, from a session's refusal: the model has no node
    for QNN at all, and a "compiled" model would be a copy of the original.

    inputs: of the model, as far as known."""
    fix = _ALLOW_CPU.sub("", refused.fix or "").strip()
    names = _BY_NAME.findall(fix)
    free = _free_axes(inputs)
    if fix.startswith(_NAMES_DO_NOT_DO) and free:
        fix = (
            "Fix the dimensions in a copy of the model, and compile that: qnnbridge optimize MODEL -o FIXED.onnx "
            + " ".join(f"--dim {axis}=SIZE" for axis in free)
            + "; or export the model with fixed shapes."
        )
    elif names:
        fix += " On the command line: " + " ".join(f"--dim {name}=SIZE" for name in dict.fromkeys(names)) + "."
    return CompileFailed(
        _ABOUT_SESSIONS.sub(", so there is nothing to compile.", refused.message),
        cause=refused.cause,
        fix=fix or None,
        evidence=refused.evidence,
        details=refused.details,
    )


def unknown_chips(providers: Sequence[ProviderSpec]) -> tuple[int, ...]:
    """Numbers in ``soc_model`` that are none of `CHIPS`. QNN knows more, so such a number is not refused."""
    texts = (provider.options.get("soc_model", "") for provider in providers if provider.name == QNN)
    parts = (part.strip() for text in texts for part in text.split(","))
    numbers = (int(part) for part in parts if part.isascii() and part.isdecimal())
    return tuple(dict.fromkeys(number for number in numbers if number and chip_of(number) is None))


def unknown_chips_text(numbers: Sequence[int]) -> str:
    """The text about the findings of `unknown_chips`."""
    named = ", ".join(map(str, numbers))
    return f"{named} {'is no chip' if len(numbers) == 1 else 'are no chips'} that qnnbridge knows"


def known_chips_text() -> str:
    return ", ".join(f"{chip.name}={chip.number}" for chip in CHIPS)


def blame_unknown_chips(error: BridgeError, providers: Sequence[ProviderSpec]) -> None:
    """Where the chip is unknown, a refusal by QNN is most likely about that: say it first."""
    numbers = unknown_chips(providers)
    if numbers and isinstance(error, (CompileFailed, PlacementRefused, EPFail, Fail)):
        error.cause = f"{unknown_chips_text(numbers)} (soc_model). {error.cause or ''}".rstrip()
        error.fix = f"Check soc_model (--soc-model); known are {known_chips_text()}. {error.fix or ''}".rstrip()


def _free_axes(inputs: Sequence[NodeInfo]) -> list[str]:
    """``x:0`` for each dimension without a number."""
    return [
        f"{node.name}:{axis}"
        for node in inputs
        for axis, size in enumerate(node.shape or ())
        if not isinstance(size, int) or size < 0
    ]
