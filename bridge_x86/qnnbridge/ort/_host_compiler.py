"""ONNX Runtime's own ``ModelCompiler`` in a host of its own, for what needs it: functions of the application, and
initializers in files. What it compiles is not tried, and a result is not put into its place whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

from qnnbridge._called_functions import CalledFunction
from qnnbridge._host import Host
from qnnbridge._host_objects import ObjectReply, create_object
from qnnbridge._recipe import SessionRecipe
from qnnbridge._session_options import SessionOptions
from qnnbridge._transport.channel import CallContext
from qnnbridge_protocol.specs import CPU, ProviderSpec, SessionSpec

_KIND: Final = "ModelCompiler"


def compile_natively(
    options: SessionOptions,
    model: str | os.PathLike[str] | bytes,
    operation: str,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any],
    functions: Mapping[str, CalledFunction],
) -> ObjectReply:
    """Make a compiler in a fresh host and call its operation. Raises what a function raises, and ORT's errors.

    Args:
        options: with the providers to compile for; without any it is the CPU.
        model: path or bytes.
        operation: compile_to_file, compile_to_bytes or compile_to_stream.
        arguments: of the operation.
        settings: of the compiler.
        functions: of the application, that the host may call.
    """
    import numpy as np

    parts = options.to_spec_parts()
    providers = parts.pop("providers", None) or (ProviderSpec(CPU),)
    path = None if isinstance(model, bytes) else os.path.abspath(os.fsdecode(model))
    spec = SessionSpec(model_path=path, providers=providers, fallback="cpu", **parts)
    recipe = SessionRecipe(spec, model if isinstance(model, bytes) else None)
    context = CallContext("model.compile", recipe.label, "", recipe.options_hash, recipe.without_qnn)
    values = [*options.initializer_values().values()]
    if isinstance(model, bytes):
        values.append(np.frombuffer(model, np.uint8))
    output = arguments.get("output")
    there = _there(output)
    with Host() as host:
        try:
            made, _ = create_object(host, _KIND, {"spec": spec.to_wire(), **settings}, values, context=context)
            return made.call(operation, arguments, functions=functions, context=context)
        except BaseException:
            for name in _there(output) - there:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            raise


def _there(output: Any) -> set[str]:
    """The files of a compiled model that exist."""
    if not isinstance(output, str):
        return set()
    return {name for name in (output, os.path.splitext(output)[0] + "_qnn.bin") if os.path.exists(name)}
