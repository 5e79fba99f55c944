"""The words of refusals that are peculiar to compiling. Pure functions."""

from __future__ import annotations

import re

from qnnbridge_protocol.errors import CompileFailed, PlacementRefused

_ABOUT_SESSIONS = re.compile(r",? and this session forbids (?:the CPU|it)\.")
_ALLOW_CPU = re.compile(r"\s*To let such nodes run on the CPU, create the session with fallback='cpu'\.")
_BY_NAME = re.compile(r"add_free_dimension_override_by_name\('([^']*)', SIZE\)")


def nothing_to_compile(refused: PlacementRefused) -> CompileFailed:
    """What a session's refusal means for a compilation that would have let nodes stay on the CPU: there is no node
    for QNN at all, and a "compiled" model would be a copy of the original."""
    fix = _ALLOW_CPU.sub("", refused.fix or "").strip()
    names = _BY_NAME.findall(fix)
    if names:
        fix += " On the command line: " + " ".join(f"--dim {name}=SIZE" for name in dict.fromkeys(names)) + "."
    return CompileFailed(
        _ABOUT_SESSIONS.sub(", so there is nothing to compile.", refused.message),
        cause=refused.cause,
        fix=fix or None,
        evidence=refused.evidence,
        details=refused.details,
    )
