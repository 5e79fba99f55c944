"""Model packages and files of LoRA adapters, which ONNX Runtime reads and writes in the host.

The objects belong to the host's ONNX Runtime and are lost if the host ends. Relative paths are resolved against the
application's working folder. A session of a selected variant is an ordinary session, which survives a crash of the
host. The values of an adapter are sent when they are set: later changes of their arrays do not affect the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from qnnbridge._bindings import refused
from qnnbridge._host import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._options.fields import ModelPackageWriteMode
from qnnbridge._options.providers import CPU
from qnnbridge._session.runs import coerce_session_options
from qnnbridge._session_options import SessionOptions
from qnnbridge._values.ort_value import OrtValue
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge.ort._signatures import absolute, bound, named, no_constructor, remote
from qnnbridge_protocol.errors import EPFail, RemoteRuntimeError, RemoteTypeError
from qnnbridge_protocol.specs import SessionSpec

# --- model packages: folders with several variants of a model ---


@remote("ModelPackage")
class ModelPackage:
    """Model package in the host, with the interface of ``onnxruntime.ModelPackage``."""

    __slots__ = ("_object",)

    @as_ort_raises
    def __init__(self) -> None:
        self._object, _ = create_object(default_host(), "ModelPackage")

    @staticmethod
    @bound("ModelPackage.open")
    def open(
        package_root: str,
        allow_external_paths: bool = False,
        follow_symlinks: bool = True,
        strict_unknown_fields: bool = True,
    ) -> ModelPackage:
        given = [absolute(package_root), allow_external_paths, follow_symlinks, strict_unknown_fields]
        package = ModelPackage.__new__(ModelPackage)
        arguments = {"open": {"positional": given, "named": {}}}
        package._object, _ = create_object(default_host(), "ModelPackage", arguments)
        return package

    @staticmethod
    @bound("ModelPackage.compute_directory_hash")
    def compute_directory_hash(source_dir: str) -> str:
        # This method is static in the bindings, but the host runs operations only on objects, so create an empty
        # package.
        made, _ = create_object(default_host(), "ModelPackage")
        try:
            return str(made.call("compute_directory_hash", {"source_dir": absolute(source_dir)}).result)
        finally:
            made.release()

    @bound("ModelPackage.commit")
    def commit(
        self, dest_root: str | None = None, mode: ModelPackageWriteMode = ModelPackageWriteMode.PRESERVE
    ) -> None:
        """Write the package to its own folder, or to the empty folder `dest_root`."""
        self._object.call("commit", {"dest_root": absolute(dest_root), "mode": int(mode)})


class ModelPackageOptions:
    """Session options whose providers decide which variant is selected."""

    __slots__ = ("_object", "_options")

    @as_ort_raises
    def __init__(self, sess_options: SessionOptions) -> None:
        try:
            self._options = coerce_session_options(sess_options)
        except RemoteTypeError:
            raise refused("ModelPackageOptions.__init__", self, sess_options) from None
        spec = SessionSpec(model_path=None, fallback="cpu", **self._options.to_spec_parts())
        values = list(self._options.initializer_values().values())
        self._object, _ = create_object(default_host(), "ModelPackageOptions", {"spec": spec.to_wire()}, values)


@remote("ModelPackageContext")
class ModelPackageContext:
    """A package from which variants are selected."""

    __slots__ = ("_object",)

    @bound("ModelPackageContext.__init__")
    def __init__(self, package_root: str) -> None:
        arguments = {"package_root": absolute(package_root)}
        self._object, _ = create_object(default_host(), "ModelPackageContext", arguments)

    @bound("ModelPackageContext.select_component")
    def select_component(self, component_name: str, options: ModelPackageOptions) -> ModelPackageComponentContext:
        """Select the variant of a component that fits the options best."""
        found = self._object.call("select_component", {"component_name": component_name}, (), [options._object])
        chosen = ModelPackageComponentContext.__new__(ModelPackageComponentContext)
        chosen._object, chosen._description, chosen._options = found.made, found.result, options._options
        return chosen


@no_constructor
class ModelPackageComponentContext:
    """A selected variant of a component."""

    __slots__ = ("_description", "_object", "_options")

    _object: HostObject | None
    _options: SessionOptions
    _description: Mapping[str, Any]

    def get_selected_variant_name(self) -> str:
        return str(self._description["name"])

    def get_selected_variant_folder_path(self) -> str:
        return str(self._description["folder"])

    @bound("ModelPackageComponentContext._create_session")
    def create_session(self, sess_options: SessionOptions | None = None) -> Any:
        """Create a session of the variant. Without `sess_options`, use the options of the package."""
        from qnnbridge.ort._session import InferenceSession

        settings = self._description["ort"]
        ep = str(self._description["ep"] or next(iter(_providers(self._options)), CPU))
        options, providers = sess_options, None
        if options is None:
            options, providers = SessionOptions(), [(ep, dict(settings.get("provider_options") or {}))]
            for key, text in (settings.get("session_options") or {}).items():
                options.add_session_config_entry(str(key), str(text))
        elif ep != CPU and ep not in _providers(options):
            raise EPFail(
                "[ONNXRuntimeError] : 11 : EP_FAIL : The selected model package execution provider was not "
                f"registered: {ep}"
            )
        path = os.path.join(self.get_selected_variant_folder_path(), str(settings.get("model_file", "")))
        # Disable the fallback, which would run files on the CPU that were made for another provider.
        session = InferenceSession(path, options, providers, enable_fallback=0)
        # As in ONNX Runtime, refuse other providers, because the variant's files are made for its own provider.
        session.set_providers = _no_other_providers  # type: ignore[method-assign]
        return session

    _create_session = create_session


def _providers(options: SessionOptions) -> list[str]:
    return [provider.name for provider in options.to_spec_parts().get("providers", ())]


def _no_other_providers(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "set_providers() is not supported for sessions created from a model package. Create a new session with "
        "ModelPackageComponentContext.create_session() instead."
    )


# --- LoRA adapters ---


@named("AdapterFormat")
class NativeAdapterFormat:
    """Native class behind `AdapterFormat`: the parameters of a LoRA adapter in the host."""

    __slots__ = ("_facts", "_object", "_strings")

    @as_ort_raises
    def __init__(self) -> None:
        self._begin({})

    def _begin(self, arguments: dict[str, Any]) -> None:
        made, facts = create_object(default_host(), "AdapterFormat", arguments)
        self._object: HostObject = made
        self._facts: dict[str, int] = dict(facts)
        # Adapter files cannot contain strings. As in ONNX Runtime, only `export_adapter` raises the error.
        self._strings: dict[str, OrtValue] = {}

    @staticmethod
    @bound("AdapterFormat.read_adapter")
    def read_adapter(path: str, /) -> NativeAdapterFormat:
        adapter = NativeAdapterFormat.__new__(NativeAdapterFormat)
        adapter._begin({"path": os.path.abspath(path)})
        return adapter

    @bound("AdapterFormat.export_adapter")
    def export_adapter(self, path: str, /) -> None:
        for name, value in self._strings.items():
            raise RemoteRuntimeError(
                f"Lora adapter parameter '{name}' has element type STRING, which is not supported by the adapter "
                "format.",
                cause=f"It is {value.data_type()}.",
            )
        self._object.call("export", {"path": os.path.abspath(path)})

    @property
    @as_ort_raises
    def parameters(self) -> dict[str, OrtValue]:
        found = self._object.call("parameters")
        held = {str(name): OrtValue(value) for name, value in zip(found.result, found.values, strict=True)}
        return held | self._strings

    @parameters.setter
    @bound("AdapterFormat.parameters")
    def parameters(self, values: Mapping[str, Any]) -> None:
        wrong = next((value for value in values.values() if not isinstance(value, OrtValue)), None)
        if wrong is not None:
            raise RemoteRuntimeError(
                f"Unable to cast Python instance of type {type(wrong)} to C++ type 'OrtValue'",
                fix="Wrap a numpy array with OrtValue.ortvalue_from_numpy.",
            )
        strings = {name: value for name, value in values.items() if value.data_type() == "tensor(string)"}
        held = {name: value.value for name, value in values.items() if name not in strings}
        self._object.call("set_parameters", {"names": list(held)}, list(held.values()))
        # Assign the strings after the call, so that the adapter is unchanged on both sides if the host refuses the
        # values.
        self._strings = strings

    format_version = property(lambda self: self._facts["format_version"])

    @property
    def adapter_version(self) -> int:
        return self._facts["adapter_version"]

    @adapter_version.setter
    @bound("AdapterFormat.adapter_version")
    def adapter_version(self, version: int) -> None:
        self._set_versions(version, self.model_version)

    @property
    def model_version(self) -> int:
        return self._facts["model_version"]

    @model_version.setter
    @bound("AdapterFormat.model_version")
    def model_version(self, version: int) -> None:
        self._set_versions(self.adapter_version, version)

    def _set_versions(self, adapter_version: int, model_version: int) -> None:
        versions = {"adapter_version": adapter_version, "model_version": model_version}
        self._object.call("set_versions", versions)
        self._facts |= versions


class AdapterFormat:
    """LoRA adapter in the host, with the interface of ``onnxruntime.AdapterFormat``."""

    def __init__(self, adapter: Any = None) -> None:
        self._adapter = NativeAdapterFormat() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: str) -> AdapterFormat:
        return AdapterFormat(NativeAdapterFormat.read_adapter(file_path))

    def export_adapter(self, file_path: str) -> None:
        """Write the file; a relative path is resolved against the application's working folder."""
        self._adapter.export_adapter(file_path)

    def get_format_version(self) -> int:
        return int(self._adapter.format_version)

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter.adapter_version = adapter_version

    def get_adapter_version(self) -> int:
        return int(self._adapter.adapter_version)

    def set_model_version(self, model_version: int) -> None:
        self._adapter.model_version = model_version

    def get_model_version(self) -> int:
        return int(self._adapter.model_version)

    def set_parameters(self, params: dict[str, OrtValue]) -> None:
        self._adapter.parameters = {
            name: value if isinstance(value, OrtValue) else value._ortvalue for name, value in params.items()
        }

    def get_parameters(self) -> dict[str, OrtValue]:
        return {name: OrtValue(value.value) for name, value in self._adapter.parameters.items()}
