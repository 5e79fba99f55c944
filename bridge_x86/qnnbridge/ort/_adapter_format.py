"""`AdapterFormat`: reading and writing of LoRA adapter files, in the host.

The adapter itself is an object of the host (`NativeAdapterFormat`); it is lost with the host. Values that are set
are sent at once, so a later change of their arrays does not show in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from qnnbridge._connect import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._option_fields import incompatible
from qnnbridge._ort_value import OrtValue
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_protocol.errors import RemoteRuntimeError

_KIND = "AdapterFormat"
_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"


class NativeAdapterFormat:
    """``onnxruntime.capi.onnxruntime_pybind11_state.AdapterFormat``."""

    __slots__ = ("_facts", "_object", "_strings")

    @as_ort_raises
    def __init__(self) -> None:
        self._begin({})

    def _begin(self, arguments: dict[str, Any]) -> None:
        made, facts = create_object(default_host(), _KIND, arguments)
        self._object: HostObject = made
        self._facts: dict[str, int] = dict(facts)
        # Parameters that no adapter can have; they are refused when it is written, as in ONNX Runtime.
        self._strings: dict[str, OrtValue] = {}

    @staticmethod
    @as_ort_raises
    def read_adapter(path: str, /) -> NativeAdapterFormat:
        if not isinstance(path, str):
            raise incompatible("read_adapter", f"(arg0: str) -> {_MODULE}.{_KIND}", path)
        adapter = NativeAdapterFormat.__new__(NativeAdapterFormat)
        adapter._begin({"path": os.path.abspath(path)})
        return adapter

    @as_ort_raises
    def export_adapter(self, path: str, /) -> None:
        if not isinstance(path, str):
            raise incompatible("export_adapter", f"(self: {_MODULE}.{_KIND}, arg0: str) -> None", self, path)
        for name, value in self._strings.items():
            raise RemoteRuntimeError(
                f"Lora adapter parameter '{name}' has element type STRING, which is not supported by the adapter "
                "format.",
                cause=f"It is {value.data_type()}.",
            )
        self._object.call("export", {"path": os.path.abspath(path)})

    @property
    def format_version(self) -> int:
        return self._facts["format_version"]

    @property
    def adapter_version(self) -> int:
        return self._facts["adapter_version"]

    @adapter_version.setter
    def adapter_version(self, version: int) -> None:
        self._set("adapter_version", version)

    @property
    def model_version(self) -> int:
        return self._facts["model_version"]

    @model_version.setter
    def model_version(self, version: int) -> None:
        self._set("model_version", version)

    @property
    @as_ort_raises
    def parameters(self) -> dict[str, OrtValue]:
        found = self._object.call("parameters")
        held = {str(name): OrtValue(value) for name, value in zip(found.result, found.values, strict=True)}
        return held | self._strings

    @parameters.setter
    @as_ort_raises
    def parameters(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise incompatible("", f"(arg0: {_MODULE}.{_KIND}, arg1: dict) -> None", self, values)
        wrong = next((value for value in values.values() if not isinstance(value, OrtValue)), None)
        if wrong is not None:
            raise RemoteRuntimeError(
                f"Unable to cast Python instance of type {type(wrong)} to C++ type 'OrtValue'",
                fix="Wrap a numpy array with OrtValue.ortvalue_from_numpy.",
            )
        strings = {name: value for name, value in values.items() if value.data_type() == "tensor(string)"}
        held = {name: value.value for name, value in values.items() if name not in strings}
        self._object.call("set_parameters", {"names": list(held)}, list(held.values()))
        self._strings = strings

    @as_ort_raises
    def _set(self, name: str, version: int) -> None:
        try:
            number = None if isinstance(version, (float, str, bytes)) else int(version)
        except (TypeError, ValueError):
            number = None
        if number is None or not -(2**31) <= number < 2**31:
            raise incompatible(
                "",
                f"(arg0: {_MODULE}.{_KIND}, arg1: typing.SupportsInt | typing.SupportsIndex) -> None",
                self,
                version,
            )
        facts = self._facts | {name: number}
        wanted = {key: facts[key] for key in ("adapter_version", "model_version")}
        self._object.call("set_versions", wanted)
        self._facts = facts


class AdapterFormat:
    """See ``onnxruntime.AdapterFormat``."""

    def __init__(self, adapter: Any = None) -> None:
        self._adapter = NativeAdapterFormat() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: str) -> AdapterFormat:
        return AdapterFormat(NativeAdapterFormat.read_adapter(file_path))

    def export_adapter(self, file_path: str) -> None:
        """Write the file; a relative path starts at the application's working folder."""
        self._adapter.export_adapter(file_path)

    def get_format_version(self) -> int:
        return self._adapter.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter.adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        return self._adapter.adapter_version

    def set_model_version(self, model_version: int) -> None:
        self._adapter.model_version = model_version

    def get_model_version(self) -> int:
        return self._adapter.model_version

    def set_parameters(self, params: dict[str, OrtValue]) -> None:
        self._adapter.parameters = {
            name: value if isinstance(value, OrtValue) else value._ortvalue for name, value in params.items()
        }

    def get_parameters(self) -> dict[str, OrtValue]:
        return {name: OrtValue(value.value) for name, value in self._adapter.parameters.items()}


NativeAdapterFormat.__name__ = NativeAdapterFormat.__qualname__ = _KIND
