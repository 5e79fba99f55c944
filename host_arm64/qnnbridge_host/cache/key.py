"""The key of a compiled model: a hash of all that it depends on.

What is not known to be harmless is part of the key: an unknown option that changes nothing costs a compilation, one
that is left out would give wrong results. Names and places of files never are, only their contents. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from qnnbridge._host import HostInfo
from qnnbridge._providers import QNN
from qnnbridge_host.cache.manifest import SCHEMA
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

KEY_DIGITS: Final = 32
"""128 bits; longer names would only make paths that Windows refuses."""

VERSIONS_THAT_MATTER: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver")

HARMLESS_OPTIONS: Final = frozenset(
    (
        *("log_severity_level", "log_verbosity_level", "logid"),
        *("enable_profiling", "profile_file_prefix"),
        *("intra_op_num_threads", "inter_op_num_threads", "use_per_session_threads"),
        *("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"),
    )
)
"""Attributes of SessionOptions that change how a graph is run and reported, never the graph."""

HARMLESS_ENTRIES: Final = (
    *("session.log_", "session.intra_op", "session.inter_op", "session.force_spinning_stop"),
    *("session.enable_profiling", "session.use_per_session_threads"),
    *("session.enable_cpu_mem_arena", "session.enable_mem_pattern"),
    *("session.record_ep_graph_assignment_info", "session.model_external_initializers_file_folder_path"),
)
"""Beginnings of configuration entries of the same kinds. The last is a place: contents are in the fingerprint."""

HARMLESS_QNN_OPTIONS: Final = frozenset(("htp_performance_mode", "rpc_control_latency"))
"""Clock settings, which are given again when the compiled model is loaded."""

SESSION_PREFIX: Final = "ep.qnnexecutionprovider."
"""Configuration entries with this beginning are QNN options by another name."""

FILE_OPTIONS: Final = frozenset(("backend_path", "op_affinity"))
"""QNN options that name a file: its contents count."""

_DEVICE_FACTS: Final = ("ep_name", "device_type", "device_vendor_id", "device_id")
"""Of a device only what stays when the machine is started again."""

HashFile = Callable[[str], str | None]
"""The SHA-256 of a file, ``None`` if there is none. May raise `OSError`."""


def key_of(parts: Mapping[str, Any]) -> str:
    """The key of `parts` (`key_parts`), in hex."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]


def key_parts(
    fingerprint: str,
    spec: SessionSpec,
    initializers: Sequence[Any],
    host: HostInfo,
    hash_file: HashFile,
) -> dict[str, Any]:
    """All that the compiled model depends on, in JSON's types.

    fingerprint: of the model with its files (`ModelSource.fingerprint`). hash_file: for files that options name.
    Raises `OSError` if one of those cannot be read.
    """
    return {
        "schema": SCHEMA,
        "model": fingerprint,
        "providers": [_provider(provider, host, hash_file) for provider in spec.providers or (ProviderSpec(QNN),)],
        "fallback": spec.fallback,
        "options": {k: v for k, v in spec.options.items() if k not in HARMLESS_OPTIONS},
        "entries": {k: v for k, v in spec.config_entries.items() if not k.startswith(HARMLESS_ENTRIES)},
        "free_dimensions": [dict(spec.free_dimensions_by_name), dict(spec.free_dimensions_by_denotation)],
        "disabled_optimizers": sorted(spec.disabled_optimizers),
        "initializers": _values((*spec.initializers, *spec.external_initializers), initializers),
        "host": host_parts(host),
    }


def host_parts(host: HostInfo) -> dict[str, Any]:
    """What a compiled model depends on besides model and options: versions, libraries, chip."""
    return {
        "versions": {name: host.versions[name] for name in VERSIONS_THAT_MATTER if name in host.versions},
        "qnnbridge": host.qnnbridge,
        "machine": host.machine,
        "platform": host.platform,
        "simulator": host.simulator,
        "devices": [
            {name: device.get(name) for name in _DEVICE_FACTS}
            for device in host.devices
            if device.get("ep_name") == QNN
        ],
        "libraries": libraries_digest(host.library_folder),
    }


def libraries_digest(folder: str | None) -> str | None:
    """Which libraries a folder holds: names, sizes and dates, since hashing them would take a second.

    For what a version does not tell: a library that was replaced, patched, or is of another build.
    """
    if not folder:
        return None
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_library(entry.name) and entry.is_file():
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:
        return None
    return hashlib.sha256(json.dumps(sorted(found)).encode("ascii")).hexdigest()[:KEY_DIGITS]


def qnn_options(spec: SessionSpec) -> dict[str, str]:
    """QNN's options, however they were given."""
    named = next((dict(p.options) for p in spec.providers if p.name == QNN), {})
    entries = {
        key[len(SESSION_PREFIX) :]: text
        for key, text in spec.config_entries.items()
        if key.startswith(SESSION_PREFIX)
    }
    return {**entries, **named}


def _provider(provider: ProviderSpec, host: HostInfo, hash_file: HashFile) -> list[Any]:
    options: dict[str, Any] = {}
    for name, text in provider.options.items():
        if provider.name == QNN and name in HARMLESS_QNN_OPTIONS:
            continue
        is_file = provider.name == QNN and name in FILE_OPTIONS
        options[name] = _contents(text, host.library_folder, hash_file) if is_file else text
    return [provider.name, options]


def _contents(text: str, folder: str | None, hash_file: HashFile) -> list[str | None]:
    path = text if os.path.dirname(text) else os.path.join(folder or os.curdir, text)
    return [os.path.basename(text), hash_file(os.path.abspath(path))]


def _values(names: Iterable[str], values: Sequence[Any]) -> list[list[str]]:
    """Name and hash of each tensor that was given as a value."""
    if not values:
        return []
    from qnnbridge_protocol.values import Encoder

    hashed = []
    for name, value in zip(names, values, strict=True):
        encoder = Encoder()
        described = encoder.add(value)
        digest = hashlib.sha256(json.dumps(described).encode("ascii"))
        for buffer in encoder.buffers:
            digest.update(buffer.data)
        hashed.append([name, digest.hexdigest()])
    return sorted(hashed)


def _is_library(name: str) -> bool:
    lowered = name.lower()
    return lowered.endswith((".dll", ".so", ".cat", ".dylib")) or ".so." in lowered
