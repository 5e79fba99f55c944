"""Errors as an application written for onnxruntime meets them.

ONNX Runtime's errors say one thing; ours add cause and fix, and a program that compares or shows ``str(error)``
would notice. So once `qnnbridge.ort` is imported, the text of what ONNX Runtime itself would have raised is ONNX
Runtime's; cause, evidence and fix follow as notes (PEP 678), which tracebacks show. What only the bridge can
raise (a crash, say) keeps all its words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from qnnbridge_protocol.errors import OrtError, RemoteError

F = TypeVar("F", bound=Callable[..., Any])


def as_ort_raises(function: F) -> F:
    """Decorates what an application calls: what its errors do not say in their text, their notes do."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (OrtError, RemoteError) as error:
            _add_notes(error)
            raise

    return call  # type: ignore[return-value]


def _add_notes(error: OrtError | RemoteError) -> None:
    notes = [f"Cause: {error.cause}"] if error.cause else []
    notes += [f"Evidence: {line}" for line in error.evidence]
    notes += [f"Fix: {error.fix}"] if error.fix else []
    there = error.__dict__.setdefault("__notes__", [])
    there.extend(note for note in notes if note not in there)
