"""Errors as an application written for onnxruntime meets them, and the names that are not offered.

ONNX Runtime's errors say one thing; ours add cause and fix, and a program that compares or shows ``str(error)``
would notice. So once `qnnbridge.ort` is imported, an error that ONNX Runtime itself would have raised has ONNX
Runtime's text; cause, evidence and fix follow as notes (PEP 678), which tracebacks show. An error that only the
bridge can raise (a crash, say) keeps all its words.

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
    # `add_note` came with Python 3.11; the list is what tracebacks read there, and older ones ignore.
    # Decorated methods call each other (`run` and `run_values`), so an error may come here twice.
    there = error.__dict__.setdefault("__notes__", [])
    there.extend(note for note in notes if note not in there)


_WHY: Mapping[str, str] = {
    **dict.fromkeys(
        ("quantization", "tools", "transformers"),
        "It is part of the host's installation: import it as onnxruntime.{name}, after qnnbridge.dropin "
        "(`qnnbridge exec` does that).",
    ),
    "training": "Training is no part of onnxruntime-qnn.",
}


class NotOffered(AttributeError):
    """A name of ONNX Runtime that this side of the bridge does not have."""


def missing(module: str, name: str) -> NotOffered:
    """The error for one name; not raised here."""
    # Names that Python and its tools ask every module for, as `__path__`: they belong to no interface.
    if name.startswith("__"):
        return NotOffered(f"module {module!r} has no attribute {name!r}")
    why = _WHY.get(name)
    text = f"{module}.{name} is not offered through qnnbridge."
    return NotOffered(
        f"{text} {why.format(name=name)}" if why else f"{text} docs/ort-api.md lists the names that are."
    )
