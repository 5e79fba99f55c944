"""Build ``onnxruntime.SessionOptions`` and ``onnxruntime.RunOptions`` from the records of a request.

Every attribute of ONNX Runtime 1.32 that can be sent to another process is supported. Names and types of attributes
are checked here, because pybind11's message for a wrong type is a page of signatures. A built object belongs to one
session creation or to one run. `LoadedAdapters` belongs to one session and is thread-safe.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from qnnbridge_host.engine import qnn_options
from qnnbridge_host.engine.qnn_options import RUN_OPTIONS
from qnnbridge_host.model.source import FileStamp, take_stamp
from qnnbridge_protocol import errors
from qnnbridge_protocol.config_keys import RUN_KEYS, SESSION_KEYS
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shown import closest
from qnnbridge_protocol.specs import RunSpec, SessionSpec, in_memory

Kind = Literal["bool", "int", "str"]

# Type of each attribute in requests. Enums are sent as integers.
SESSION_ATTRIBUTES: Mapping[str, Kind] = {
    "enable_cpu_mem_arena": "bool",
    "enable_mem_pattern": "bool",
    "enable_mem_reuse": "bool",
    "enable_profiling": "bool",
    "execution_mode": "int",
    "execution_order": "int",
    "graph_optimization_level": "int",
    "inter_op_num_threads": "int",
    "intra_op_num_threads": "int",
    "log_severity_level": "int",
    "log_verbosity_level": "int",
    "logid": "str",
    "optimized_model_filepath": "str",
    "profile_file_prefix": "str",
    "use_deterministic_compute": "bool",
    "use_per_session_threads": "bool",
}

RUN_ATTRIBUTES: Mapping[str, Kind] = {
    "log_severity_level": "int",
    "log_verbosity_level": "int",
    "logid": "str",
    "only_execute_path_to_fetches": "bool",
    "terminate": "bool",
}

# Enum class in the module ``onnxruntime`` for attributes that are sent as integers.
ENUMS: Mapping[str, str] = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}

# ONNX Runtime starts all threads before the session exists: 300 take a second, 100,000 take minutes and all memory.
MOST_THREADS = 1024
THREADS = ("inter_op_num_threads", "intra_op_num_threads")

# Log level: warnings. Only log lines of this level contain the reason why QNN's set-up failed.
DEFAULT_LOG_SEVERITY = 2

# Option of a `RunSpec`: paths of the LoRA adapter files that the application has passed to
# ``RunOptions.add_active_adapter``.
ADAPTERS = "active_adapters"

# Options that make a session write files.
_WRITES_FILES = ("enable_profiling", "optimized_model_filepath")


class Tensors(NamedTuple):
    """Initializers of a session as OrtValues. They must outlive the session, which uses their memory.

    plain: values of ``add_initializer``. external: values of ``add_external_initializers``. files: bytes of
        external data files by file name.
    """

    plain: dict[str, Any]
    external: dict[str, Any]
    files: dict[str, Any]


def make_tensors(ort: Any, spec: SessionSpec, values: Mapping[str, Any]) -> Tensors:
    """Return the initializers of a session description as OrtValues; raise `InvalidArgument` if one is missing."""
    for name in spec.value_names:
        if name not in values:
            raise errors.InvalidArgument(f"The initializer {name!r} was announced but not sent.")
    if not spec.value_names:
        return Tensors({}, {}, {})
    from qnnbridge_host.engine import ort_values

    return Tensors(
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.initializers},
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.external_initializers},
        {name: memoryview(values[in_memory(name)]).tobytes() for name in spec.files_in_memory},
    )


def build_session_options(ort: Any, spec: SessionSpec, entries: Mapping[str, str], tensors: Tensors) -> Any:
    """Return SessionOptions with all settings except the providers.

    entries: configuration entries to use instead of the entries in `spec`.
    """
    options = ort.SessionOptions()
    for name, value in {"log_severity_level": DEFAULT_LOG_SEVERITY, **spec.options}.items():
        _set_attribute(ort, options, name, value, SESSION_ATTRIBUTES, ENUMS)
    for key, text in entries.items():
        qnn_options.refuse_misspelt(key, SESSION_KEYS, "session configuration key")
        options.add_session_config_entry(key, text)
    for name, size in spec.free_dimensions_by_name.items():
        options.add_free_dimension_override_by_name(name, int(size))
    for name, size in spec.free_dimensions_by_denotation.items():
        options.add_free_dimension_override_by_denotation(name, int(size))
    for path in spec.custom_op_libraries:
        options.register_custom_ops_library(path)
    for name, value in tensors.plain.items():
        options.add_initializer(name, value)
    if tensors.external:
        options.add_external_initializers(list(tensors.external), list(tensors.external.values()))
    if tensors.files:
        files = list(tensors.files.values())
        options.add_external_initializers_from_files_in_memory(list(tensors.files), files, list(map(len, files)))
    return options


def without_side_effects(spec: SessionSpec, entries: Mapping[str, str]) -> tuple[SessionSpec, dict[str, str]]:
    """Return the description of a second session for diagnosis, which logs everything and writes no file."""
    options = {name: value for name, value in spec.options.items() if name not in _WRITES_FILES}
    options["log_severity_level"] = 0
    # With ``ep.context_enable`` the second session would write a compiled model, or fail because the first session
    # has written it: ONNX Runtime never overwrites a compiled model.
    kept = {key: text for key, text in entries.items() if not key.startswith("ep.")}
    return dataclasses.replace(spec, options=options), kept


class LoadedAdapters:
    """LoRA adapters of a session: each is loaded once and reused until its file changes. Thread-safe."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._lock = threading.Lock()
        # Each loaded adapter by path, with the stamp that its file had when it was loaded.
        self._loaded: dict[str, tuple[FileStamp, Any]] = {}

    def get(self, path: str) -> Any:
        """Return the adapter in a file, loading it if necessary. Raise `OptionError` if the file does not exist."""
        try:
            stamp = take_stamp(path)
        except OSError:
            stamp = None
        if stamp is None:
            raise errors.OptionError(f"The LoRA adapter file {path} does not exist.", details={"option": ADAPTERS})
        with self._lock:
            known = self._loaded.get(path)
            # Size and date alone do not prove that the file is unchanged, because a program may set the date.
            if known is not None and known[0].proves(stamp):
                return known[1]
            adapter = self._ort.LoraAdapter()
            adapter.Load(path)
            self._loaded[path] = (stamp, adapter)
            return adapter


def build_run_options(ort: Any, run: RunSpec, adapters: LoadedAdapters, qnn_version: tuple[int, ...]) -> Any:
    """Return RunOptions for a run's description. Raise `OptionError` for an unknown name or a wrong value."""
    options = ort.RunOptions()
    for name, value in run.options.items():
        if name == ADAPTERS:
            for path in value:
                options.add_active_adapter(adapters.get(str(path)))
        else:
            _set_attribute(ort, options, name, value, RUN_ATTRIBUTES, {})
    for key, text in _checked_entries(run.config_entries, qnn_version).items():
        options.add_run_config_entry(key, text)
    return options


def _checked_entries(entries: Mapping[str, Any], qnn_version: tuple[int, ...]) -> dict[str, str]:
    """Return the configuration entries of a run as strings, after checking QNN's entries."""
    for_qnn = {key: value for key, value in entries.items() if key.startswith("qnn.")}
    checked = qnn_options.run_options(for_qnn, qnn_version)
    for key, value in entries.items():
        if key not in for_qnn:
            qnn_options.refuse_misspelt(key, [*RUN_KEYS, *RUN_OPTIONS], "run configuration key")
            checked[key] = value if isinstance(value, str) else str(value)
    return checked


def _set_attribute(
    ort: Any, target: Any, name: str, value: Any, known: Mapping[str, Kind], enums: Mapping[str, str]
) -> None:
    """Set one attribute of SessionOptions or RunOptions. Raise `OptionError` if it does not exist or the value has
    the wrong type."""
    what = type(target).__name__
    kind = known.get(name)
    if kind is None:
        raise _unknown_attribute(what, name, known)
    if not _fits(kind, value):
        raise errors.OptionError(
            f"{what}.{name} cannot be {value!r}.", fix=f"It must be of type {kind}.", details={"option": name}
        )
    if name in THREADS and value > MOST_THREADS:
        raise errors.OptionError(
            f"{what}.{name} is {value}, but at most {MOST_THREADS} threads are allowed.",
            cause="ONNX Runtime starts all threads before the session exists.",
            fix=f"Set {name} to {MOST_THREADS} or less, or to 0 to let ONNX Runtime choose the number.",
            details={"option": name},
        )
    if not hasattr(target, name):
        raise errors.OptionError(
            f"{what}.{name} is not known to the host's onnxruntime {ort.__version__}.",
            fix="Remove the attribute, or install a newer onnxruntime in the host's Python.",
            details={"option": name},
        )
    if name in enums:
        value = _member(getattr(ort, enums[name]), name, value)
    setattr(target, name, value)


def _member(enum: Any, name: str, number: int) -> Any:
    # Search the members instead of calling the enum, because pybind11 creates a member from any integer (77 is
    # ``GraphOptimizationLevel.???``).
    for member in enum.__members__.values():
        if int(member) == number:
            return member
    allowed = ", ".join(f"{int(member)} ({label})" for label, member in enum.__members__.items())
    raise errors.OptionError(
        f"SessionOptions.{name} cannot be {number}.", fix=f"Allowed values: {allowed}.", details={"option": name}
    )


def _fits(kind: Kind, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str)


def _unknown_attribute(what: str, name: str, known: Iterable[str]) -> errors.OptionError:
    close = closest(name, known)
    return errors.OptionError(
        f"{what} does not have an attribute {name!r} that can be set.",
        fix=f"Did you mean {close!r}?" if close else f"Allowed attributes: {', '.join(sorted(known))}.",
        details={"option": name, "suggestion": close},
    )
