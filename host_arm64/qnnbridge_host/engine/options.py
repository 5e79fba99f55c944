"""Builds ``onnxruntime.SessionOptions`` and ``onnxruntime.RunOptions`` from what came over the wire.

Every attribute of ONNX Runtime 1.32 that can cross a process is carried. Attributes are checked by name and type,
because pybind11 answers a wrong one with a page of signatures. A built object belongs to one session creation or to
one run. `LoadedAdapters` belongs to one session and may be used by any thread.
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
from qnnbridge_protocol.specs import RunSpec, SessionSpec, in_memory

Kind = Literal["bool", "int", "str"]

# Attribute -> its type on the wire (the enums travel as integers).
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

# ONNX Runtime starts them all before a session exists: 300 take a second, 100,000 minutes and all of the memory.
MOST_THREADS = 1024
THREADS = ("inter_op_num_threads", "intra_op_num_threads")

# Warnings. QNN reports why its set-up failed only in the log, at this level.
DEFAULT_LOG_SEVERITY = 2

# Option of a `RunSpec`: paths of the LoRA adapter files that ``RunOptions.add_active_adapter`` was called with.
ADAPTERS = "active_adapters"

# Without these a session leaves no file behind.
_WRITES_FILES = ("enable_profiling", "optimized_model_filepath")


class Tensors(NamedTuple):
    """The initializers of a session as OrtValues.

    They must outlive the session: ONNX Runtime uses the memory of those given by ``add_initializer``. files: the
    bytes of external data files.
    """

    plain: dict[str, Any]
    external: dict[str, Any]
    files: dict[str, Any]


def make_tensors(ort: Any, spec: SessionSpec, values: Mapping[str, Any]) -> Tensors:
    """The OrtValues of the initializers that a session description names."""
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
    """SessionOptions with everything but the providers.

    entries: the configuration entries to use instead of those of `spec`.
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
    """The same session for a second, diagnostic creation: it logs everything and writes no file."""
    options = {name: value for name, value in spec.options.items() if name not in _WRITES_FILES}
    options["log_severity_level"] = 0
    # With ``ep.context_enable`` the second creation would write a compiled model, or fail because the first one
    # has written it: ONNX Runtime overwrites none.
    kept = {key: text for key, text in entries.items() if not key.startswith("ep.")}
    return dataclasses.replace(spec, options=options), kept


class LoadedAdapters:
    """LoRA adapters, loaded once and kept as long as their file is the same. Any thread."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._lock = threading.Lock()
        # By path: the file as it was when it was loaded, and the adapter.
        self._loaded: dict[str, tuple[FileStamp, Any]] = {}

    def get(self, path: str) -> Any:
        """The adapter in a file."""
        try:
            stamp = take_stamp(path)
        except OSError:
            stamp = None
        if stamp is None:
            raise errors.OptionError(f"There is no LoRA adapter file {path}.", details={"option": ADAPTERS})
        with self._lock:
            known = self._loaded.get(path)
            # Not size and date alone: a program may set a date.
            if known is not None and known[0].proves(stamp):
                return known[1]
            adapter = self._ort.LoraAdapter()
            adapter.Load(path)
            self._loaded[path] = (stamp, adapter)
            return adapter


def build_run_options(ort: Any, run: RunSpec, adapters: LoadedAdapters, qnn_version: tuple[int, ...]) -> Any:
    """RunOptions as described, or `OptionError`."""
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
    """The configuration entries of a run as text."""
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
    """Set one attribute of SessionOptions or RunOptions, or raise `OptionError`."""
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
    # Looked up, since pybind11 makes a member of any integer: 77 is ``GraphOptimizationLevel.???``.
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
    close = qnn_options.closest(name, known)
    return errors.OptionError(
        f"{what} has no attribute {name!r} that can be set.",
        fix=f"Did you mean {close!r}?" if close else f"Allowed are {', '.join(sorted(known))}.",
        details={"option": name, "suggestion": close},
    )
