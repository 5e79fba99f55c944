"""Builds ``onnxruntime.SessionOptions`` from what came over the wire.

Every attribute of ONNX Runtime 1.32 that can cross a process is carried. Attributes are checked by name and type,
because pybind11 answers a wrong one with a page of signatures. A built object belongs to one session creation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from qnnbridge_host.engine import config_keys
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import SessionSpec

Kind = Literal["bool", "int", "str"]

# Attribute -> its type on the wire (the enums travel as integers).
ATTRIBUTES: Mapping[str, Kind] = {
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

# Attribute -> the class in the module ``onnxruntime`` that its integer stands for.
ENUMS: Mapping[str, str] = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}

# Warnings. QNN tells why its set-up failed only in the log, at this level.
DEFAULT_LOG_SEVERITY = 2

# Without these a session leaves no file behind.
_WRITES_FILES = ("enable_profiling", "optimized_model_filepath")


class Tensors(NamedTuple):
    """The initializers of a session as OrtValues.

    They must outlive the session: ONNX Runtime uses the memory of those given by ``add_initializer``.
    """

    plain: dict[str, Any]
    external: dict[str, Any]


def make_tensors(ort: Any, spec: SessionSpec, values: Mapping[str, Any]) -> Tensors:
    """The OrtValues of the initializers that a session description names."""
    for name in (*spec.initializers, *spec.external_initializers):
        if name not in values:
            raise errors.InvalidArgument(f"The initializer {name!r} was announced and not sent.")
    if not (spec.initializers or spec.external_initializers):
        return Tensors({}, {})
    from qnnbridge_host.engine import ort_values

    return Tensors(
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.initializers},
        {name: ort_values.to_ort_value(ort, values[name], name) for name in spec.external_initializers},
    )


def build(ort: Any, spec: SessionSpec, entries: Mapping[str, str], tensors: Tensors) -> Any:
    """SessionOptions with everything but the providers.

    entries: the configuration entries to use instead of those of `spec`.
    """
    options = ort.SessionOptions()
    for name, value in {"log_severity_level": DEFAULT_LOG_SEVERITY, **spec.options}.items():
        set_attribute(ort, options, name, value, ATTRIBUTES, ENUMS)
    for key, text in entries.items():
        config_keys.refuse_misspelt(key, config_keys.SESSION_KEYS, "session configuration key")
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
    return options


def without_side_effects(spec: SessionSpec, entries: Mapping[str, str]) -> tuple[SessionSpec, dict[str, str]]:
    """The same session for a second, diagnostic creation: it logs everything and writes no file."""
    options = {name: value for name, value in spec.options.items() if name not in _WRITES_FILES}
    options["log_severity_level"] = 0
    kept = {key: text for key, text in entries.items() if not key.startswith("ep.")}
    return dataclasses.replace(spec, options=options), kept


def set_attribute(
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
    import difflib  # needed for mistakes only

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return errors.OptionError(
        f"{what} has no attribute {name!r} that can be set.",
        fix=f"Did you mean {close[0]!r}?" if close else f"Allowed are {', '.join(sorted(known))}.",
        details={"option": name, "suggestion": close[0] if close else None},
    )
