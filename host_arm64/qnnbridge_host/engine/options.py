"""Builds ``onnxruntime.SessionOptions`` and ``onnxruntime.RunOptions`` from the records of the wire.

Every attribute of ONNX Runtime 1.32 that can be sent to another process is supported. Names and types of attributes
are checked, because pybind11 reports a wrong type with a page of signatures. A built object belongs to one session
creation or to one run. `LoadedAdapters` belongs to one session and is thread-safe.
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

# Attribute -> its type on the wire (enums are sent as integers).
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

# Attribute -> the class in the module ``onnxruntime`` that its integer stands for.
ENUMS: Mapping[str, str] = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}

# ONNX Runtime starts all threads before the session exists: 300 take a second, 100,000 take minutes and all memory.
MOST_THREADS = 1024
THREADS = ("inter_op_num_threads", "intra_op_num_threads")

# Warnings. QNN reports why its set-up failed only in the log, at this level.
DEFAULT_LOG_SEVERITY = 2

# Option of a `RunSpec`: paths of the LoRA adapter files that the application passed to
# ``RunOptions.add_active_adapter``.
ADAPTERS = "active_adapters"

# The options that make a session write files.
_WRITES_FILES = ("enable_profiling", "optimized_model_filepath")


class Tensors(NamedTuple):
    """Initializers of a session as OrtValues. They must outlive the session, which borrows their memory.

    plain: those of ``add_initializer``. external: those of ``add_external_initializers``. files: the bytes of
    external data files, by name.
    """

    plain: dict[str, Any]
    external: dict[str, Any]
    files: dict[str, Any]


def make_tensors(ort: Any, spec: SessionSpec, values: Mapping[str, Any]) -> Tensors:
    """Return the initializers of a session description as OrtValues; raise `InvalidArgument` if one is missing."""
    for name in spec.value_names:
        if name not in values:
            raise errors.InvalidArgument(f"The initializer {name!r} was announced and not sent.")
    if not spec.value_names:
        return Tensors({}, {}, {})
    from qnnbridge_host.engine import ort_values

    return Tensors(
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.initializers},
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.external_initializers},
        {name: memoryview(values[in_memory(name)]).tobytes() for name in spec.files_in_memory},
    )


def build_session_options(ort: Any, spec: SessionSpec, entries: Mapping[str, str], tensors: Tensors) -> Any:
    """Return SessionOptions with everything but the providers.

    entries: the configuration entries, which replace those of `spec`.
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
    """Return the description for a second, diagnostic creation that logs everything and writes no file."""
    options = {name: value for name, value in spec.options.items() if name not in _WRITES_FILES}
    options["log_severity_level"] = 0
    # With ``ep.context_enable`` the second creation would write a compiled model, or fail because the first one
    # has written it: ONNX Runtime never overwrites a compiled model.
    kept = {key: text for key, text in entries.items() if not key.startswith("ep.")}
    return dataclasses.replace(spec, options=options), kept


class LoadedAdapters:
    """LoRA adapters of a session: each is loaded once and reused until its file changes. Thread-safe."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._lock = threading.Lock()
        # Path -> the file's stamp when it was loaded, and the adapter.
        self._loaded: dict[str, tuple[FileStamp, Any]] = {}

    def get(self, path: str) -> Any:
        """Return the adapter in a file, loaded if necessary; raise `OptionError` without the file."""
        try:
            stamp = take_stamp(path)
        except OSError:
            stamp = None
        if stamp is None:
            raise errors.OptionError(f"There is no LoRA adapter file {path}.", details={"option": ADAPTERS})
        with self._lock:
            known = self._loaded.get(path)
            # Size and date alone are not enough, because a program may set the date.
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
    """Return the configuration entries of a run as text, with QNN's entries checked."""
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
    """Set one attribute of SessionOptions or RunOptions. Raise `OptionError` if it does not exist or fit."""
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
            f"{what}.{name} is {value}, more than {MOST_THREADS} threads.",
            cause="ONNX Runtime starts all of them before the session exists.",
            fix=f"Set it to {MOST_THREADS} or less; 0 lets ONNX Runtime choose.",
            details={"option": name},
        )
    if not hasattr(target, name):
        raise errors.OptionError(
            f"{what}.{name} is not known to the host's onnxruntime {ort.__version__}.",
            fix="Leave it out, or install a newer onnxruntime in the host's Python.",
            details={"option": name},
        )
    if name in enums:
        value = _member(getattr(ort, enums[name]), name, value)
    setattr(target, name, value)


def _member(enum: Any, name: str, number: int) -> Any:
    # pybind11 creates a member from any integer (77 is ``GraphOptimizationLevel.???``), so compare the members.
    for member in enum.__members__.values():
        if int(member) == number:
            return member
    allowed = ", ".join(f"{int(member)} ({label})" for label, member in enum.__members__.items())
    raise errors.OptionError(
        f"SessionOptions.{name} cannot be {number}.", fix=f"Allowed are {allowed}.", details={"option": name}
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
        fix=f"Did you mean {close!r}?" if close else f"Allowed are {', '.join(sorted(known))}.",
        details={"option": name, "suggestion": close},
    )
