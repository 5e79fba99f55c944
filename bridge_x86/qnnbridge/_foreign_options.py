"""Options objects of a real onnxruntime, where the application has one: read, and turned into ours.

Nothing is imported: an object of onnxruntime can only exist if the application imported it. ONNX Runtime offers no
way to list configuration entries, so the keys that it knows (`config_keys`) are asked for one by one.
What cannot be read at all is either refused (providers) or announced with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from qnnbridge._option_fields import HasFields
from qnnbridge._run_options import RunOptions
from qnnbridge._session_options import SessionOptions
from qnnbridge_protocol import errors
from qnnbridge_protocol.config_keys import QNN_RUN_KEYS, RUN_KEYS, SESSION_KEYS

O = TypeVar("O", bound=HasFields)  # noqa: E741 - options


def coerce_session_options(options: object, *, providers_given: bool = False) -> SessionOptions:
    """Our `SessionOptions` for what the application passed: ours as it is, ``None``, or onnxruntime's own.

    providers_given: the session got ``providers=``, which take precedence over those inside the options. Without,
    options of onnxruntime that hold providers are refused, because they cannot be read from there.
    """
    if isinstance(options, SessionOptions):
        return options
    if options is None:
        return SessionOptions()
    _require_foreign(options, "SessionOptions", "sess_options")
    has_providers = getattr(options, "has_providers", None)
    if not providers_given and has_providers is not None and has_providers():
        raise errors.OptionError(
            "The execution providers inside this onnxruntime.SessionOptions cannot be read.",
            cause="ONNX Runtime tells that there are some, and not which.",
            fix="Pass providers= and provider_options= to InferenceSession, or use qnnbridge.SessionOptions.",
        )
    warnings.warn(
        "From an onnxruntime.SessionOptions only attributes and known configuration entries can be read; free "
        "dimension overrides, initializers and custom op libraries in it are lost. Use qnnbridge.SessionOptions "
        "if you set any.",
        stacklevel=3,
    )
    ours = _copy_fields(options, SessionOptions())
    for key, value in _entries(getattr(options, "get_session_config_entry"), sorted(SESSION_KEYS)):  # noqa: B009
        ours.add_session_config_entry(key, value)
    return ours


def coerce_run_options(options: object) -> RunOptions:
    """Our `RunOptions` for what the application passed: ours as it is, ``None``, or onnxruntime's own.

    Those of onnxruntime are read once: a later ``terminate = True`` on them is not seen.
    """
    if isinstance(options, RunOptions):
        return options
    if options is None:
        return RunOptions()
    _require_foreign(options, "RunOptions", "run_options")
    ours = _copy_fields(options, RunOptions())
    ours.terminate = getattr(options, "terminate", False)
    for key, value in _entries(getattr(options, "get_run_config_entry"), sorted(RUN_KEYS | QNN_RUN_KEYS)):  # noqa: B009
        ours.add_run_config_entry(key, value)
    return ours


def _require_foreign(options: object, name: str, argument: str) -> None:
    cls = type(options)
    if cls.__name__ != name or not cls.__module__.startswith("onnxruntime."):
        raise errors.RemoteTypeError(
            f"{argument} must be a {name} or None, not {cls.__name__}.", fix=f"Pass qnnbridge.{name}()."
        )


def _copy_fields(source: object, target: O) -> O:
    for name, field in type(target).fields().items():
        # An older onnxruntime lacks the newer attributes.
        value = getattr(source, name, field.default)
        if value != field.default:
            setattr(target, name, value)
    return target


def _entries(get: Callable[[str], str], keys: Iterable[str]) -> list[tuple[str, str]]:
    def value(key: str) -> str | None:
        try:
            return get(key)
        except RuntimeError:  # ONNX Runtime's way to say that there is no such entry
            return None

    return [(key, text) for key in keys if (text := value(key)) is not None]
