"""The errors that are peculiar to compiling: folders that cannot be written to, and refusals.

Pure functions, but for looks at a disk's free space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from qnnbridge_host.model.chips import CHIPS, chip_of
from qnnbridge_protocol.errors import BridgeError, CompileFailed, EPFail, Fail, PlacementRefused
from qnnbridge_protocol.specs import QNN, NodeInfo, ProviderSpec

_ABOUT_SESSIONS = re.compile(r",? and this session forbids (?:the CPU|it)\.")
_ALLOW_CPU = re.compile(r"\s*To let such nodes run on the CPU, create the session with fallback='cpu'\.")
_BY_NAME = re.compile(r"add_free_dimension_override_by_name\('([^']*)', SIZE\)")
# How the fix begins where some dimensions have no name that could be used.
_NAMES_DO_NOT_DO = "Export the model with fixed shapes"


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
