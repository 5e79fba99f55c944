"""Compute the key of a compiled model, a hash of everything on which it depends, and decide which sessions use the
cache.

Every option that is not known to be harmless is part of the key: an unknown option without effect costs a
compilation, an omitted option would give wrong results. Names and locations of files are never part of the key,
only their contents. A session that needs the compilation itself (for dumps, profiles or op traces, or because it
writes a compiled model) bypasses the cache. `reason_against` returns a clause that messages show after "off: ".
Pure functions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.cache.files import SCHEMA
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.model_records import CacheSettings
from qnnbridge_protocol.settings import SWITCH_VARIABLE
from qnnbridge_protocol.specs import QNN, HostInfo, ProviderSpec, SessionSpec

# 128 bits are enough; longer names would only create paths that Windows refuses.
KEY_DIGITS: Final = 32

# Names of the versions that identify the QNN in use. Windows replaces the QNN in its catalogue without notice.
SOURCE_VERSIONS: Final = ("ep_source", "ep_version")
VERSIONS_THAT_MATTER: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver", *SOURCE_VERSIONS)

# Attributes of SessionOptions that change how a graph is run and reported, but not the graph.
HARMLESS_OPTIONS: Final = frozenset(
    (
        *("log_severity_level", "log_verbosity_level", "logid"),
        *("enable_profiling", "profile_file_prefix"),
        *("intra_op_num_threads", "inter_op_num_threads", "use_per_session_threads"),
        *("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"),
    )
)

# Prefixes of config entries that do not change the graph. Entries with the last prefix set the folder of
# external data; the fingerprint covers the files in it.
HARMLESS_ENTRIES: Final = (
    *("session.log_", "session.intra_op", "session.inter_op", "session.force_spinning_stop"),
    *("session.enable_profiling", "session.use_per_session_threads"),
    *("session.enable_cpu_mem_arena", "session.enable_mem_pattern"),
    "session.model_external_initializers_file_folder_path",
)

# Config entry that the host sets in all sessions. A session with another value bypasses the cache, because its
# cache entry would lack the placement of the nodes.
_OF_EVERY_SESSION: Final = ("session.record_ep_graph_assignment_info", "1")

# Clock settings, which the session passes again when it loads the compiled model.
HARMLESS_QNN_OPTIONS: Final = frozenset(("htp_performance_mode", "rpc_control_latency"))

# A config entry with this prefix is a QNN option.
SESSION_PREFIX: Final = "ep.qnnexecutionprovider."

# QNN options whose value is a file. The file's contents are part of the key.
FILE_OPTIONS: Final = frozenset(("backend_path", "op_affinity"))

# Properties of a device that remain the same when the machine is restarted.
_DEVICE_FACTS: Final = ("ep_name", "device_type", "device_vendor_id", "device_id")

# Function that returns the SHA-256 of a file, or ``None`` if the file does not exist. May raise `OSError`.
HashFile = Callable[[str], str | None]


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the key of `parts` (`key_parts`), in hex."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]


def key_parts(
    fingerprint: str,
    spec: SessionSpec,
    initializers: Sequence[Any],
    host: HostInfo,
    hash_file: HashFile,
    rows_here: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything on which the compiled model depends, as JSON types.

    Args:
        fingerprint: fingerprint of the model with its files (`ModelSource.fingerprint`).
        spec: the session's description.
        initializers: the values that the session passes, in the order of `spec.value_names`.
        host: the host's versions and chip.
        hash_file: function that hashes a file to which an option refers.
        rows_here: differences from the known-wrong table for this session (`RowsHere.identity`), which decide
            whether the model is rewritten.

    Raises:
        OSError: a file to which an option refers cannot be read.
    """
    return {
        "schema": SCHEMA,
        "model": fingerprint,
        "providers": [_provider(provider, host, hash_file) for provider in spec.providers or (ProviderSpec(QNN),)],
        "fallback": spec.fallback,
        "options": {k: v for k, v in spec.options.items() if k not in HARMLESS_OPTIONS},
        "entries": {
            k: _value(k.removeprefix(SESSION_PREFIX), v, host, hash_file)
            for k, v in spec.config_entries.items()
            if not k.startswith(HARMLESS_ENTRIES) and (k, v) != _OF_EVERY_SESSION
        },
        "free_dimensions": [dict(spec.free_dimensions_by_name), dict(spec.free_dimensions_by_denotation)],
        "disabled_optimizers": sorted(spec.disabled_optimizers),
        "initializers": _values(spec.value_names, initializers),
        "host": host_parts(host),
        # Omit this part if the table applies unchanged, so that keys of earlier releases stay valid.
        **({"rows_here": list(rows_here)} if rows_here else {}),
    }


def host_parts(host: HostInfo) -> dict[str, Any]:
    """Return the parts of the key that describe the host: versions, libraries, chip."""
    return {
        "versions": {name: host.versions[name] for name in VERSIONS_THAT_MATTER if name in host.versions},
        # Include qnnbridge's release, because another release may rewrite or compile a model differently.
        "qnnbridge": host.qnnbridge,
        "machine": host.machine,
        "platform": host.platform,
        "simulator": host.simulator,
        # The chip determines the compiled code; a simulator and an NPU never share an entry.
        "devices": [
            {name: device.get(name) for name in _DEVICE_FACTS}
            for device in host.devices
            if device.get("ep_name") == QNN
        ],
        "libraries": libraries_digest(host.library_folder),
    }


def libraries_digest(folder: str | None) -> str | None:
    """Return a digest of the names, sizes and dates of a folder's libraries. Hashing their contents would take a
    second.

    The digest detects changes without a new version number: a replaced or patched library, or another build.
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
    """Return QNN's options from provider options and config entries."""
    named = next((dict(p.options) for p in spec.providers if p.name == QNN), {})
    entries = {
        key[len(SESSION_PREFIX) :]: text
        for key, text in spec.config_entries.items()
        if key.startswith(SESSION_PREFIX)
    }
    return {**entries, **named}


def _provider(provider: ProviderSpec, host: HostInfo, hash_file: HashFile) -> list[Any]:
    if provider.name != QNN:
        return [provider.name, dict(provider.options)]
    options = {
        name: _value(name, text, host, hash_file)
        for name, text in provider.options.items()
        if name not in HARMLESS_QNN_OPTIONS
    }
    return [provider.name, options]


def _value(name: str, text: str, host: HostInfo, hash_file: HashFile) -> Any:
    """Return the value of a QNN option, or the name and hash of the file to which it refers."""
    if name not in FILE_OPTIONS:
        return text
    # A name without a folder refers to a file next to QNN's own libraries.
    path = text if os.path.dirname(text) else os.path.join(host.library_folder or os.curdir, text)
    return [os.path.basename(text), hash_file(os.path.abspath(path))]


def _values(names: Iterable[str], values: Sequence[Any]) -> list[list[str]]:
    """Return the name and hash of each initializer that the session passes as a value."""
    if not values:
        return []
    from qnnbridge_protocol.values import Encoder

    hashed = []
    for name, value in zip(names, values, strict=True):
        # Hash the wire format, in which equal tensors have equal bytes.
        encoder = Encoder()
        described = encoder.add(value)
        digest = hashlib.sha256(json.dumps(described).encode("ascii"))
        for buffer in encoder.buffers:
            digest.update(buffer.data)
        hashed.append([name, digest.hexdigest()])
    # The order in which initializers were added does not affect the compiled model.
    return sorted(hashed)


def _is_library(name: str) -> bool:
    lowered = name.lower()
    return lowered.endswith((".dll", ".so", ".cat", ".dylib")) or ".so." in lowered


# QNN options for the compilation itself, such as additional output files. A session with them bypasses the cache.
_WRITES: Final = frozenset(
    (
        *("dump_qnn_ir_dlc", "dump_json_qnn_graph", "enable_framework_op_trace", "dump_qnn_ep_input_graph"),
        *("enable_htp_prepare_only", "enable_htp_prepare_and_load"),
    )
)

_LIBRARIES: Final = ("op_packages", "qnn_saver_path", "qnn_ir_backend_path")

_OWN_CONTEXT: Final = ("ep.context_", "ep.share_ep_contexts", "ep.stop_share_ep_contexts", "ep.enable_weightless")
_OTHER_ENTRIES: Final = ("session.compile_only", "session.disable_model_compile", "session.save_model_format")


def reason_against(source: ModelSource, spec: SessionSpec, settings: CacheSettings) -> str | None:
    """Return why a session is created without the cache; ``None`` if it uses the cache."""
    if settings.wanted is False:
        return "cache=False"
    if not settings.enabled:
        return f"{SWITCH_VARIABLE} disables the cache"
    if spec.providers and spec.providers[0].name != QNN:
        return f"{QNN} is not the session's first provider"
    if source.scan is None or source.scan.format != "onnx":
        return "the model is not an ONNX model"
    if source.scan.is_compiled:
        return "the model is compiled already"
    reason = _against_options(spec)
    if reason is None and is_small(source, settings):
        reason = f"the model has {size_of(source)} bytes, so compiling it is fast"
    return reason


def is_small(source: ModelSource, settings: CacheSettings) -> bool:
    """Return whether the model is so small that it need not be cached: it probably compiles quickly."""
    return settings.wanted is not True and size_of(source) < settings.min_model_bytes


def size_of(source: ModelSource) -> int:
    """Return the size in bytes of the model with all its files, as it was when the model was opened."""
    sizes = [file.stamp.size for file in source.known if file.stamp is not None]
    return sum(sizes) + len(source.data or b"")


def _against_options(spec: SessionSpec) -> str | None:
    options = qnn_options(spec)
    backend = options.get("backend_type") or _stem(options.get("backend_path", ""))
    if backend not in ("", "htp"):
        return f"QNN's backend is {backend}, not htp"
    for name in _WRITES & options.keys():
        if options[name] != "0":
            return f"the QNN option {name} concerns compilation itself"
    if options.get("profiling_level", "off") != "off":
        return "QNN's profiling would not include the compilation"
    for name in _LIBRARIES:
        if options.get(name):
            return f"the QNN option {name} refers to libraries whose contents are not known"
    if spec.custom_op_libraries:
        return "the session has custom operators, in libraries whose contents are not known"
    if spec.options.get("optimized_model_filepath"):
        return "optimized_model_filepath requests a file that only a session of the original model writes"
    for key, text in spec.config_entries.items():
        if key.startswith(_OWN_CONTEXT) and text not in ("", "0"):
            return f"the session config entry {key} concerns compilation itself"
        if key in _OTHER_ENTRIES and text not in ("", "0"):
            return f"the session config entry {key} is incompatible with the cache"
    return None


def _stem(path: str) -> str:
    """Return the backend from a library's file name: ``libQnnHtp.so`` and ``QnnHtp.dll`` are htp."""
    name = os.path.basename(path.replace("\\", "/")).removeprefix("lib").split(".", 1)[0].lower()
    return name.removeprefix("qnn")
