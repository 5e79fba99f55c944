"""Errors with the text of ONNX Runtime, and errors for unsupported names.

The text of qnnbridge's errors includes cause and fix, which would break a program that compares ``str(error)``.
After `qnnbridge.ort` was imported, an error that ONNX Runtime itself would raise has exactly ONNX Runtime's text;
cause, evidence and fix are added as notes (PEP 678), which tracebacks show. An error that only qnnbridge can raise,
such as a crash of the host, keeps its whole text.

A name that `qnnbridge.ort` lacks raises an `AttributeError` with the reason, so ``hasattr`` and ``getattr`` with
a default work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from qnnbridge_protocol.errors import OrtError, RemoteError

F = TypeVar("F", bound=Callable[..., Any])


def as_ort_raises(function: F) -> F:
    """Decorate a public function so that its errors carry cause, evidence and fix as notes."""

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
    # Extend the list itself, because `add_note` exists only since Python 3.11; older versions ignore the list. Skip
    # notes that are in the list, because decorated methods call each other (`run` and `run_values`).
    there = error.__dict__.setdefault("__notes__", [])
    there.extend(note for note in notes if note not in there)


_WHY: Mapping[str, str] = {
    **dict.fromkeys(
        ("quantization", "tools", "transformers"),
        "The package is in the host's installation: import qnnbridge.dropin (`qnnbridge exec` does that), and "
        "then import the package as onnxruntime.{name}.",
    ),
    "training": "onnxruntime-qnn does not contain training.",
}


class NotOffered(AttributeError):
    """Error for a name of ONNX Runtime that qnnbridge does not support."""


def missing(module: str, name: str) -> NotOffered:
    """Return the error for a missing name of a module; the caller raises it."""
    # Python and its tools look up names such as `__path__` in every module. They are not names of ONNX Runtime.
    if name.startswith("__"):
        return NotOffered(f"module {module!r} has no attribute {name!r}")
    why = _WHY.get(name)
    text = f"{module}.{name} is not offered through qnnbridge."
    return NotOffered(
        f"{text} {why.format(name=name)}" if why else f"{text} docs/ort-api.md lists the supported names."
    )
