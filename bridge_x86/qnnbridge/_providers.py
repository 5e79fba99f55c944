"""Execution providers as an application names them, in ONNX Runtime's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_protocol.errors import OptionError, RemoteValueError
from qnnbridge_protocol.specs import Fallback, ProviderSpec

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"

ProviderArgument = str | tuple[str, Mapping[str, Any]]


def normalize_providers(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> tuple[ProviderSpec, ...]:
    """What ``providers=`` and ``provider_options=`` mean; empty for none given.

    Raises errors that are also `ValueError`, with ONNX Runtime's wording where it has one.
    """
    if providers is None:
        if provider_options is None:
            return ()
        # ONNX Runtime ignores them silently. Here the provider they are for is clear.
        providers = [QNN]
    if isinstance(providers, str):
        providers = [providers]
    options: list[Mapping[str, Any]] = [{} for _ in providers]
    if provider_options is not None:
        if isinstance(provider_options, Mapping):
            provider_options = [provider_options]
        if len(provider_options) != len(providers):
            raise RemoteValueError(
                "'providers' and 'provider_options' should be the same length if both are given."
            )
        if not all(isinstance(p, str) for p in providers):
            raise RemoteValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given."
            )
        if not all(isinstance(o, Mapping) for o in provider_options):
            raise RemoteValueError("'provider_options' values must be dicts.")
        options = list(provider_options)
    specs: dict[str, ProviderSpec] = {}
    for provider, given in zip(providers, options, strict=True):
        if isinstance(provider, str):
            name = provider
        elif (
            isinstance(provider, tuple)
            and len(provider) == 2
            and isinstance(provider[0], str)
            and isinstance(provider[1], Mapping)
        ):
            name, given = provider
        else:
            raise RemoteValueError("'providers' values must be either strings or (string, dict) tuples.")
        specs.setdefault(name, ProviderSpec(name, {str(k): option_text(k, v) for k, v in given.items()}))
    return tuple(specs.values())


def option_text(key: Any, value: Any) -> str:
    """A provider option as QNN reads it: text, and 0 or 1 for a boolean (``true`` would be ignored)."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, int)) for v in value):
        return ",".join(str(v) for v in value)
    raise OptionError(
        f"The provider option {key} has a value of type {type(value).__name__}.",
        fix="Give text, a number or a boolean.",
    )


def choose_fallback(specs: Sequence[ProviderSpec], fallback: Fallback | None) -> Fallback:
    """``error`` unless the application listed the CPU behind QNN, which is ONNX Runtime's way to allow it."""
    if fallback not in (None, "error", "cpu"):
        raise OptionError(f"fallback={fallback!r} is not known.", fix="Give 'error' or 'cpu'.")
    if fallback is not None:
        return fallback
    names = [spec.name for spec in specs]
    return "cpu" if CPU in names else "error"
