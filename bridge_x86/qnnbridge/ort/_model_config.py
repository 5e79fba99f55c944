"""Session options that a model brings in its metadata (``ort_config``), as ONNX Runtime reads them.

They are read where the variable ``ORT_LOAD_CONFIG_FROM_MODEL`` is 1, and then they and the defaults alone count:
the application's options are left aside, apart from its providers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge._option_fields import ExecutionMode, GraphOptimizationLevel
from qnnbridge._session_options import SessionOptions
from qnnbridge.ort._compatibility import metadata_props
from qnnbridge_protocol.errors import RemoteRuntimeError

_KEY = "ort_config"
_FAILED = "Could not finalize session options while constructing the inference session. Error Message: "


def with_model_config(model: Any, options: SessionOptions | None, read: bool) -> SessionOptions | None:
    """The options of a session, where the variable is set. read: the argument ``read_config_from_model``.

    Raises an error that is also a `RuntimeError` for a configuration that ONNX Runtime refuses.
    """
    if not read:
        raise RemoteRuntimeError(
            "is_model_proto_parsed was false. ModelProto needs to be parsed to check for ORT config within it"
        )
    text = _config_text(model)
    if text is None:
        return options if options is None else _fresh(options)
    return configured(text, _fresh(options))


def configured(text: str, options: SessionOptions) -> SessionOptions:
    """The options with what the configuration sets."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RemoteRuntimeError(
            f"{_FAILED}Json stored in the `{_KEY}` key cannot be parsed. Error message: {error}"
        ) from None
    wanted = found.get("session_options") if isinstance(found, dict) else None
    for name, value in sorted(wanted.items()) if isinstance(wanted, Mapping) else ():
        setting = _SETTINGS.get(name)
        if setting is None:
            continue
        if type(value) is not int:
            raise RemoteRuntimeError(f"{_FAILED}{name} option in the model file must be an integer")
        convert, text = setting
        try:
            setattr(options, name, convert(value))
        except (KeyError, ValueError):
            raise RemoteRuntimeError(_FAILED + text.format(value)) from None
    return options


def _threads(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return value


# How a number becomes the value of an option, and what is said of one that does not.
_SETTINGS: dict[str, tuple[Callable[[int], Any], str]] = {
    "intra_op_num_threads": (_threads, "Unsupported value for intra_op_num_threads: {}"),
    "inter_op_num_threads": (_threads, "Unsupported value for inter_op_num_threads: {}"),
    "execution_mode": (
        {int(one): one for one in ExecutionMode.__members__.values()}.__getitem__,
        "Unsupported execution_mode value in ORT config: {}",
    ),
    "graph_optimization_level": (
        {int(one): one for one in GraphOptimizationLevel.__members__.values()}.__getitem__,
        "Unsupported graph_optimization_level value in ORT config: {}",
    ),
    "enable_profiling": ({0: False, 1: True}.__getitem__, "Unsupported value for enable_profiling option: {}"),
}


def _fresh(options: SessionOptions | None) -> SessionOptions:
    return SessionOptions() if options is None else options.providers_alone()


def _config_text(model: Any) -> str | None:
    """``None`` for no configuration, and for what is no model: the session says what is wrong with it."""
    try:
        with io.BytesIO(model) if isinstance(model, bytes) else open(model, "rb") as stream:
            return dict(metadata_props(stream)).get(_KEY)
    except (OSError, RemoteRuntimeError):
        return None
