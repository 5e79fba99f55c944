"""Providers of a session of a program written for onnxruntime, and which provider has which nodes.

Providers are as requested, unless the user overrides them (`qnnbridge exec --provider`, or
the variable ``QNNBRIDGE_DROPIN_PROVIDER``): "qnn" takes every model to the NPU as far as it goes, "cpu" none. A
program that asks for QNN gets it with the CPU behind it, as with onnxruntime-qnn itself; a warning, the log and
the report name nodes that did not go to the NPU. The rules on the arguments and their messages are ONNX
Runtime's. Pure functions.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from qnnbridge._providers import CPU, QNN, option_text
from qnnbridge._session_options import KNOWN_PROVIDERS
from qnnbridge_protocol.errors import OptionError, RemoteRuntimeError, RemoteValueError


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    name: str
    domain: str
    op_type: str


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """Nodes that one provider took together."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


POLICY_VARIABLE = "QNNBRIDGE_DROPIN_PROVIDER"
# Sizes of free dimensions, as a JSON object: dimension -> size, or sizes.
SIZES_VARIABLE = "QNNBRIDGE_DROPIN_SIZES"
Policy = Literal["as-requested", "qnn", "cpu"]
POLICIES: tuple[str, ...] = get_args(Policy)

Named = tuple[str, dict[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderChoice:
    """providers: for `qnnbridge.InferenceSession`; ``None`` leaves them to the session options.

    asked: the program asked for QNN itself, so what goes wrong there is its own. Otherwise QNN was chosen over its
    head, and the CPU has to do where QNN cannot.
    """

    providers: list[Named] | None
    asked: bool


def policy() -> Policy:
    """Raises `OptionError` for an invalid value."""
    value = os.environ.get(POLICY_VARIABLE, "") or "as-requested"
    if value not in POLICIES:
        raise OptionError(f"{POLICY_VARIABLE}={value!r} is not known.", fix=f"One of: {', '.join(POLICIES)}.")
    return value  # type: ignore[return-value]


def given_sizes() -> dict[str, int | list[int]]:
    """Of the environment: dimension -> size, or sizes. Raises `OptionError` for an invalid value."""
    text = os.environ.get(SIZES_VARIABLE, "")
    if not text:
        return {}
    from qnnbridge._buckets import make_arguments

    try:
        sizes = json.loads(text)
        make_arguments(sizes)
    except (ValueError, OptionError) as error:
        raise OptionError(
            f"{SIZES_VARIABLE}={text!r:.200} gives no sizes: {error}",
            fix='Give a JSON object: {"batch": 1, "seq": [16, 32]}. `qnnbridge exec --dim` and --bucket set it.',
        ) from None
    return dict(sizes)


def choose(named: Sequence[Named], *, in_options: bool, chosen: Policy) -> ProviderChoice:
    """named: what `normalize` made of the arguments. in_options: the session options name providers."""
    names = [name for name, _ in named]
    qnn_options = next((options for name, options in named if name == QNN), {})
    if chosen == "cpu":
        # asked: there is no QNN to go back from, so an error of the CPU is the program's.
        return ProviderChoice([(CPU, {})], asked=True)
    if chosen == "qnn":
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=QNN in names)
    # A CPU provider in front of QNN takes every node, in ONNX Runtime too: nothing would be left for QNN.
    if QNN in names and CPU not in names[: names.index(QNN)]:
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=True)
    # Providers of the session options count only where the arguments name none.
    if in_options and not named:
        return ProviderChoice(None, asked=True)
    # Others (CUDA) are left out: `normalize` has warned of them, and ONNX Runtime goes on with the CPU as well.
    return ProviderChoice([(CPU, dict(named).get(CPU, {}))], asked=True)


# Frames from `normalize` up to the program: it, `_begin`, the method and its decorator.
_CALLER = 5


def normalize(providers: Any, provider_options: Any, available: Sequence[str]) -> list[Named]:
    """The arguments of ``InferenceSession``, checked as ONNX Runtime checks them; empty for none."""
    if providers is None:
        return []
    if not isinstance(providers, collections.abc.Sequence):
        raise RemoteValueError("'providers' should be a sequence.")
    pairs = _pairs(providers, provider_options)
    found: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name not in available:
            warnings.warn(
                # ONNX Runtime's text has no space between the two sentences either.
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                stacklevel=_CALLER,
            )
        if name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=_CALLER)
            continue
        found[name] = {str(key): option_text(key, value) for key, value in options.items()}
    # Last, as in ONNX Runtime: its Python warns about all of them before its C++ refuses one.
    unknown = next((name for name in found if name not in available and name not in KNOWN_PROVIDERS), None)
    if unknown is not None:
        raise RemoteRuntimeError(f"Unknown Provider Type: {unknown}")
    return list(found.items())


def _pairs(providers: Sequence[Any], provider_options: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if provider_options is None:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, collections.abc.Sequence):
        raise RemoteValueError("'provider_options' should be a sequence.")
    if len(providers) != len(provider_options):
        raise RemoteValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(provider, str) for provider in providers):
        raise RemoteValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(options, dict) for options in provider_options):
        raise RemoteValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(provider: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(provider, str):
        return provider, {}
    if (
        isinstance(provider, tuple)
        and len(provider) == 2
        and isinstance(provider[0], str)
        and isinstance(provider[1], dict)
    ):
        return provider
    raise RemoteValueError("'providers' values must be either strings or (string, dict) tuples.")
