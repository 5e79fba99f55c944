"""Model packages and files of LoRA adapters, which ONNX Runtime reads and writes in the host.

The objects belong to the host's ONNX Runtime and are lost if the host ends. Relative paths are resolved against the
application's working folder. A session of a selected variant is an ordinary session, which survives a crash of the
host. The values of an adapter are sent when they are set: later changes of their arrays do not affect the file.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qnnbridge._host import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._option_fields import ModelPackageWriteMode, incompatible
from qnnbridge._ort_value import OrtValue
from qnnbridge._providers import CPU
from qnnbridge._session.runs import coerce_session_options
from qnnbridge._session_options import SessionOptions
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_protocol.errors import EPFail, RemoteRuntimeError, RemoteTypeError
from qnnbridge_protocol.specs import SessionSpec

if TYPE_CHECKING:
    from qnnbridge.ort._session import InferenceSession


# --- model packages: folders with several variants of a model ---

_MODULE: Final = "onnxruntime.capi.onnxruntime_pybind11_state"


class _Proxy:
    """An object of the host with methods whose arguments and results are plain values."""

    __slots__ = ("_object",)

    _object: HostObject


def _absolute(path: Any) -> Any:
    return os.path.abspath(path) if isinstance(path, str) and path else path


class ModelPackage(_Proxy):
    """See ``onnxruntime.ModelPackage``."""

    __slots__ = ()

    @as_ort_raises
    def __init__(self) -> None:
        self._object, _ = create_object(default_host(), "ModelPackage")

    @staticmethod
    @as_ort_raises
    def open(
        package_root: str,
        allow_external_paths: bool = False,
        follow_symlinks: bool = True,
        strict_unknown_fields: bool = True,
    ) -> ModelPackage:
        given = (allow_external_paths, follow_symlinks, strict_unknown_fields)
        if not isinstance(package_root, str) or not all(isinstance(value, bool) for value in given):
            signature = (
                "(package_root: str, allow_external_paths: bool = False, follow_symlinks: bool = True, "
                f"strict_unknown_fields: bool = True) -> {_MODULE}.ModelPackage"
            )
            raise incompatible("open", signature, package_root)
        package = ModelPackage.__new__(ModelPackage)
        arguments = {"open": {"positional": [_absolute(package_root), *given], "named": {}}}
        package._object, _ = create_object(default_host(), "ModelPackage", arguments)
        return package

    @staticmethod
    @as_ort_raises
    def compute_directory_hash(source_dir: str) -> str:
        if not isinstance(source_dir, str):
            raise incompatible("compute_directory_hash", "(source_dir: str) -> str", source_dir)
        # The function is static in the bindings, but an operation in the host needs an object: an empty package.
        made, _ = create_object(default_host(), "ModelPackage")
        try:
            return str(made.call("compute_directory_hash", {"source_dir": _absolute(source_dir)}).result)
        finally:
            made.release()

    @as_ort_raises
    def commit(
        self, dest_root: str | None = None, mode: ModelPackageWriteMode = ModelPackageWriteMode.PRESERVE
    ) -> None:
        """Write the package to its own folder, or to the empty folder `dest_root`."""
        if not isinstance(dest_root, (str, type(None))) or not isinstance(mode, ModelPackageWriteMode):
            signature = (
                f"(self: {_MODULE}.ModelPackage, dest_root: str | None = None, mode: "
                f"{_MODULE}.ModelPackageWriteMode = <ModelPackageWriteMode.PRESERVE: 0>) -> None"
            )
            raise incompatible("commit", signature, self, dest_root, mode)
        self._object.call("commit", {"dest_root": _absolute(dest_root), "mode": int(mode)})


class ModelPackageOptions:
    """Session options whose providers decide which variant is selected."""

    __slots__ = ("_object", "_options")

    @as_ort_raises
    def __init__(self, sess_options: SessionOptions) -> None:
        try:
            self._options = coerce_session_options(sess_options)
        except RemoteTypeError:
            signature = f"{_MODULE}.ModelPackageOptions(sess_options: {_MODULE}.SessionOptions)"
            raise incompatible("__init__", signature, sess_options) from None
        spec = SessionSpec(model_path=None, fallback="cpu", **self._options.to_spec_parts())
        values = list(self._options.initializer_values().values())
        self._object, _ = create_object(default_host(), "ModelPackageOptions", {"spec": spec.to_wire()}, values)


class ModelPackageContext(_Proxy):
    """A package from which variants are selected."""

    __slots__ = ()

    @as_ort_raises
    def __init__(self, package_root: str) -> None:
        if not isinstance(package_root, str):
            raise incompatible("__init__", f"{_MODULE}.ModelPackageContext(package_root: str)", package_root)
        arguments = {"package_root": _absolute(package_root)}
        self._object, _ = create_object(default_host(), "ModelPackageContext", arguments)

    @as_ort_raises
    def select_component(self, component_name: str, options: ModelPackageOptions) -> ModelPackageComponentContext:
        """Select the variant of a component that fits the options best."""
        if not isinstance(component_name, str) or not isinstance(options, ModelPackageOptions):
            signature = (
                f"(self: {_MODULE}.ModelPackageContext, component_name: str, options: "
                f"{_MODULE}.ModelPackageOptions) -> {_MODULE}.ModelPackageComponentContext"
            )
            raise incompatible("select_component", signature, self, component_name, options)
        found = self._object.call("select_component", {"component_name": component_name}, (), [options._object])
        chosen = ModelPackageComponentContext.__new__(ModelPackageComponentContext)
        chosen._object, chosen._description, chosen._options = found.made, found.result, options._options
        return chosen


class ModelPackageComponentContext:
    """A selected variant of a component."""

    __slots__ = ("_description", "_object", "_options")

    _object: HostObject | None
    _options: SessionOptions
    _description: Mapping[str, Any]

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError(f"{_MODULE}.ModelPackageComponentContext: No constructor defined!")

    def get_selected_variant_name(self) -> str:
        return str(self._description["name"])

    def get_selected_variant_folder_path(self) -> str:
        return str(self._description["folder"])

    @as_ort_raises
    def create_session(self, sess_options: SessionOptions | None = None) -> InferenceSession:
        """Create a session of the variant. Without `sess_options` the options of the package apply."""
        from qnnbridge.ort._session import InferenceSession

        settings = self._description["ort"]
        ep = str(self._description["ep"] or next(iter(_providers(self._options)), CPU))
        if sess_options is None:
            options, providers = SessionOptions(), [(ep, dict(settings.get("provider_options") or {}))]
            for key, text in (settings.get("session_options") or {}).items():
                options.add_session_config_entry(str(key), str(text))
        else:
            if not isinstance(sess_options, SessionOptions):
                native = f"{_MODULE}.ModelPackageComponentContext"
                signature = (
                    f"(self: {native}, sess_options: {_MODULE}.SessionOptions = None) -> {_MODULE}.InferenceSession"
                )
                raise incompatible("_create_session", signature, self, sess_options)
            options, providers = sess_options, None
            if ep != CPU and ep not in _providers(sess_options):
                raise EPFail(
                    "[ONNXRuntimeError] : 11 : EP_FAIL : The selected model package execution provider was not "
                    f"registered: {ep}"
                )
        path = os.path.join(self.get_selected_variant_folder_path(), str(settings.get("model_file", "")))
        # Disabled: the fallback would load files made for another provider on the CPU.
        session = InferenceSession(path, options, providers, enable_fallback=0)
        # As in ONNX Runtime: the variant was selected for its provider; another provider needs other files.
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


# Arguments with paths. The host's working folder differs, so relative paths are made absolute here.
_FOLDERS: Final = ("source_dir", "base_dir")


def _remote(owner: type[_Proxy], name: str, shape: Callable[..., Any]) -> Callable[..., Any]:
    # `shape` only describes the method. Its parameters are those of the method, so `bind` raises Python's own
    # TypeError for wrong ones. Its return value is the function that converts the host's result, or None.
    takes = inspect.signature(shape)

    def method(self: _Proxy, /, *positional: Any, **named: Any) -> Any:
        given = takes.bind(*positional, **named)
        given.apply_defaults()
        values = [_absolute(value) if key in _FOLDERS else value for key, value in given.arguments.items()]
        # Methods of the tables below take these types only; other types cannot be sent as plain values.
        if not all(value is None or isinstance(value, (str, bool, int)) for value in values):
            raise incompatible(name, f"(self: {_MODULE}.{type(self).__name__}, ...)", self, *values)
        found = self._object.call(name, {"positional": values, "named": {}}).result
        result = shape(*given.args)
        return found if found is None or result is None else result(found)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__, method.__qualname__ = name, f"{owner.__name__}.{name}"
    method.__dict__["__signature__"] = takes.replace(parameters=[own, *takes.parameters.values()])
    return as_ort_raises(method)


def _remote_methods(owner: type[_Proxy], **shapes: Callable[..., Any]) -> None:
    """Add methods that call the host's object and return a plain value.

    Args:
        shapes: by name, a function with the method's parameters that returns the converter of the result, or None.
    """
    for name, shape in shapes.items():
        setattr(owner, name, _remote(owner, name, shape))


_remote_methods(
    ModelPackage,
    close=lambda: None,
    get_info=lambda: dict,
    add_shared_asset=lambda source_dir, expected_uri=None, copy_in=True: str,
    remove_shared_asset=lambda uri: None,
    resolve_asset_uri=lambda uri: str,
    resolve_string_ref=lambda string_ref, base_dir=None, must_exist=False: str,
    prune=lambda: None,
    set_layout=lambda layout: None,
    set_metadata=lambda name=None, version=None, description=None: None,
    set_additional_metadata_json=lambda scope, component_name=None, variant_name=None, json=None: None,
    get_component_json=lambda component_name: str,
    set_component_inline=lambda name, component_json: None,
    set_component_external=lambda name, path: None,
    remove_component=lambda name: None,
    get_variant_json=lambda component_name, variant_name: str,
    set_variant=lambda component_name, variant_name, variant_json: None,
    remove_variant=lambda component_name, variant_name: None,
    set_variant_executor_info_inline=lambda component_name, variant_name, namespace_key, info_json: None,
    set_variant_executor_info_external=lambda component_name, variant_name, namespace_key, path: None,
    remove_variant_executor_info=lambda component_name, variant_name, namespace_key: None,
)
_remote_methods(
    ModelPackageContext,
    get_component_count=lambda: int,
    get_component_names=lambda: list,
    get_schema_version=lambda: int,
    get_variant_count=lambda component_name: int,
    get_variant_ep_name=lambda component_name, variant_name: str,
    get_variant_names=lambda component_name: list,
    resolve_string_ref=lambda string_ref, base_dir=None, must_exist=False: str,
)


# --- LoRA adapters ---

_KIND = "AdapterFormat"


def _version(name: str) -> Any:
    return property(lambda self: self._facts[name], lambda self, version: self._set(name, version))


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
        # Adapter files cannot contain strings; as in ONNX Runtime, only `export_adapter` raises the error.
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
        # Assigned after the call: if the host refuses the values, the adapter is unchanged here and there.
        self._strings = strings

    format_version = property(lambda self: self._facts["format_version"])
    adapter_version, model_version = _version("adapter_version"), _version("model_version")

    @as_ort_raises
    def _set(self, name: str, version: int) -> None:
        # Like the bindings, accept values with __int__ or __index__, except floats and texts.
        try:
            number = None if isinstance(version, (float, str, bytes)) else int(version)
        except (TypeError, ValueError):
            number = None
        if number is None or not -(2**31) <= number < 2**31:
            signature = f"(arg0: {_MODULE}.{_KIND}, arg1: typing.SupportsInt | typing.SupportsIndex) -> None"
            raise incompatible("", signature, self, version)
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


NativeAdapterFormat.__name__ = NativeAdapterFormat.__qualname__ = _KIND
