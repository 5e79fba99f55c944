"""The host's part of `onnxruntime.AdapterFormat`: files with the parameters of a LoRA adapter."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from qnnbridge_host.engine.objects import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.engine.ort_values import result_of_ort_value, to_ort_value
from qnnbridge_protocol.errors import RemoteRuntimeError


def _create(call: ObjectCall) -> Any:
    """An empty adapter, or that of the file `path`."""
    if call.arguments.get("path") is None:
        return ort.AdapterFormat()
    return ort.AdapterFormat.read_adapter(argument(call, "path", str))


def _describe(adapter: Any) -> dict[str, int]:
    return {
        "format_version": adapter.get_format_version(),
        "adapter_version": adapter.get_adapter_version(),
        "model_version": adapter.get_model_version(),
    }


def _export(adapter: Any, call: ObjectCall) -> None:
    adapter.export_adapter(argument(call, "path", str))


def _set_versions(adapter: Any, call: ObjectCall) -> None:
    adapter.set_adapter_version(argument(call, "adapter_version", int))
    adapter.set_model_version(argument(call, "model_version", int))


def _parameters(adapter: Any, _call: ObjectCall) -> ObjectResult:
    found = adapter.get_parameters()
    return ObjectResult(list(found), [result_of_ort_value(value) for value in found.values()])


def _set_parameters(adapter: Any, call: ObjectCall) -> None:
    names = argument(call, "names", list)
    if len(names) != len(call.values):
        raise RemoteRuntimeError(f"{len(names)} names for {len(call.values)} parameters")
    values = zip(map(str, names), call.values, strict=True)
    adapter.set_parameters({name: to_ort_value(ort, value, name) for name, value in values})


ADAPTER_FORMAT = ObjectKind(
    "AdapterFormat",
    _create,
    {
        "export": _export,
        "set_versions": _set_versions,
        "parameters": _parameters,
        "set_parameters": _set_parameters,
    },
    _describe,
)
