"""Errors as an application written for onnxruntime meets them.

ONNX Runtime's errors say one thing; ours add cause and fix, and a program that compares or shows ``str(error)``
would notice. So what ONNX Runtime itself would have raised reads as ONNX Runtime's here, and cause, evidence and fix
follow as notes (PEP 678), which tracebacks show. What only the bridge can raise (a crash, say) keeps all its words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from qnnbridge_protocol.errors import BridgeError, OrtError, RemoteError

F = TypeVar("F", bound=Callable[..., Any])


def as_ort_raises(function: F) -> F:
    """Decorates a method whose errors an application catches."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (OrtError, RemoteError) as error:
            raise told_as_ort(error) from None

    return call  # type: ignore[return-value]


def told_as_ort(error: BridgeError) -> BridgeError:
    """The same error with ONNX Runtime's text alone as its text."""
    cls = _terse(type(error))
    if cls is type(error):
        return error
    twin = cls.__new__(cls, *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    notes = [f"Cause: {error.cause}"] if error.cause else []
    notes += [f"Evidence: {line}" for line in error.evidence]
    notes += [f"Fix: {error.fix}"] if error.fix else []
    if notes:
        twin.__dict__["__notes__"] = [*error.__dict__.get("__notes__", ()), *notes]
    twin.__cause__, twin.__suppress_context__ = error.__cause__, True
    return twin.with_traceback(error.__traceback__)


class _Terse:
    """Mixed into the classes below, in front."""

    message: str

    def __str__(self) -> str:
        return self.message


@functools.lru_cache(maxsize=None)  # noqa: UP033 - 3.10 spells it like this too; a class per class
def _terse(cls: type[BridgeError]) -> type[BridgeError]:
    if issubclass(cls, _Terse):
        return cls
    body = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (_Terse, cls), body)
