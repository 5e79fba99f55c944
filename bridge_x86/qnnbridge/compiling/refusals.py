"""The words of refusals that are peculiar to compiling. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qnnbridge_protocol.errors import CompileFailed, PlacementRefused
from qnnbridge_protocol.specs import NodeInfo

_ABOUT_SESSIONS = re.compile(r",? and this session forbids (?:the CPU|it)\.")
_ALLOW_CPU = re.compile(r"\s*To let such nodes run on the CPU, create the session with fallback='cpu'\.")
_BY_NAME = re.compile(r"add_free_dimension_override_by_name\('([^']*)', SIZE\)")
_NAMES_DO_NOT_DO = "Export the model with fixed shapes"
"""How the fix begins where some dimensions have no name that could be used."""


def nothing_to_compile(refused: PlacementRefused, inputs: Sequence[NodeInfo] = ()) -> CompileFailed:
    """What a session's refusal means for a compilation that would have let nodes stay on the CPU: there is no node
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


def _free_axes(inputs: Sequence[NodeInfo]) -> list[str]:
    """``x:0`` for each dimension without a number."""
    return [
        f"{node.name}:{axis}"
        for node in inputs
        for axis, size in enumerate(node.shape or ())
        if not isinstance(size, int) or size < 0
    ]
