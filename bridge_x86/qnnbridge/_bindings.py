"""Signatures of ONNX Runtime's native functions, and the error that they raise for arguments of wrong types."""
# ruff: noqa: E501 - one signature a line

from __future__ import annotations

from typing import Any, Final

from qnnbridge_protocol.errors import RemoteTypeError

BINDINGS: Final = "onnxruntime.capi.onnxruntime_pybind11_state"


def refused(name: str, *given: Any, **named: Any) -> RemoteTypeError:
    """Return the error that pybind11 raises for arguments of wrong types.

    Args:
        name: the function, ``Class.method`` for a method, or ``Class.property`` for assigning to a property.
        given: positional arguments of the call, including `self` of a method.
    """
    cls, _, function = name.rpartition(".")
    overloads = SIGNATURES[name].replace("C.", f"{BINDINGS}.").split("\n")
    kind = "function"
    if function == "__init__":
        # pybind11 shows the name of the object's class instead of `self`.
        own, kind, given = f"{BINDINGS}.{cls}", "constructor", given[1:]
        overloads = [
            one.replace(f"(self: {own}, ", f"{own}(").replace(f"(self: {own}", f"{own}(").partition(" -> ")[0]
            for one in overloads
        ]
    elif overloads[0].startswith(f"(arg0: {BINDINGS}.{cls},"):
        function = ""  # setters of properties have no name in the message
    supported = "".join(f"    {number}. {one}\n" for number, one in enumerate(overloads, 1))
    shown = ", ".join(map(repr, given))
    if named:
        pairs = ", ".join(f"{key}={value!r}" for key, value in named.items())
        shown = f"{shown}{'; ' if given else ''}kwargs: {pairs}"
    return RemoteTypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"{supported}\nInvoked with: {shown}"
    )


# Written by ``python -m scripts.makers.signatures``. ``C.`` stands for `BINDINGS`; overloads are separated by a line feed.
SIGNATURES: Final = {
    "AdapterFormat.adapter_version": "(arg0: C.AdapterFormat, arg1: typing.SupportsInt | typing.SupportsIndex) -> None",
    "AdapterFormat.export_adapter": "(self: C.AdapterFormat, arg0: str) -> None",
    "AdapterFormat.model_version": "(arg0: C.AdapterFormat, arg1: typing.SupportsInt | typing.SupportsIndex) -> None",
    "AdapterFormat.parameters": "(arg0: C.AdapterFormat, arg1: dict) -> None",
    "AdapterFormat.read_adapter": "(arg0: str) -> C.AdapterFormat",
    "InferenceSession.run_async": "(self: object, arg0: collections.abc.Sequence[str], arg1: collections.abc.Mapping[str, object], arg2: collections.abc.Callable[[collections.abc.Sequence[object], object, str], None], arg3: object, arg4: object) -> None",
    "ModelCompiler.__init__": "(self: C.ModelCompiler, arg0: C.SessionOptions, arg1: str, arg2: bool, arg3: bool, arg4: str, arg5: typing.SupportsInt | typing.SupportsIndex, arg6: typing.SupportsInt | typing.SupportsIndex, arg7: C.GraphOptimizationLevel, arg8: collections.abc.Callable[[str, OrtValue, C.OrtExternalInitializerInfo], C.OrtExternalInitializerInfo]) -> None",
    "ModelCompiler.set_ep_context_data_write_func": "(self: C.ModelCompiler, write_func: collections.abc.Callable[[str, C.OrtEpContextData], None]) -> None",
    "ModelPackage.add_shared_asset": "(self: C.ModelPackage, source_dir: str, expected_uri: str | None = None, copy_in: bool = True) -> str",
    "ModelPackage.close": "(self: C.ModelPackage) -> None",
    "ModelPackage.commit": "(self: C.ModelPackage, dest_root: str | None = None, mode: C.ModelPackageWriteMode = <ModelPackageWriteMode.PRESERVE: 0>) -> None",
    "ModelPackage.compute_directory_hash": "(source_dir: str) -> str",
    "ModelPackage.get_component_json": "(self: C.ModelPackage, component_name: str) -> str",
    "ModelPackage.get_info": "(self: C.ModelPackage) -> dict",
    "ModelPackage.get_variant_json": "(self: C.ModelPackage, component_name: str, variant_name: str) -> str",
    "ModelPackage.open": "(package_root: str, allow_external_paths: bool = False, follow_symlinks: bool = True, strict_unknown_fields: bool = True) -> C.ModelPackage",
    "ModelPackage.prune": "(self: C.ModelPackage) -> None",
    "ModelPackage.remove_component": "(self: C.ModelPackage, name: str) -> None",
    "ModelPackage.remove_shared_asset": "(self: C.ModelPackage, uri: str) -> None",
    "ModelPackage.remove_variant": "(self: C.ModelPackage, component_name: str, variant_name: str) -> None",
    "ModelPackage.remove_variant_executor_info": "(self: C.ModelPackage, component_name: str, variant_name: str, namespace_key: str) -> None",
    "ModelPackage.resolve_asset_uri": "(self: C.ModelPackage, uri: str) -> str",
    "ModelPackage.resolve_string_ref": "(self: C.ModelPackage, string_ref: str, base_dir: str | None = None, must_exist: bool = False) -> str",
    "ModelPackage.set_additional_metadata_json": "(self: C.ModelPackage, scope: str, component_name: str | None = None, variant_name: str | None = None, json: str | None = None) -> None",
    "ModelPackage.set_component_external": "(self: C.ModelPackage, name: str, path: str) -> None",
    "ModelPackage.set_component_inline": "(self: C.ModelPackage, name: str, component_json: str) -> None",
    "ModelPackage.set_layout": "(self: C.ModelPackage, layout: str) -> None",
    "ModelPackage.set_metadata": "(self: C.ModelPackage, name: str | None = None, version: str | None = None, description: str | None = None) -> None",
    "ModelPackage.set_variant": "(self: C.ModelPackage, component_name: str, variant_name: str, variant_json: str) -> None",
    "ModelPackage.set_variant_executor_info_external": "(self: C.ModelPackage, component_name: str, variant_name: str, namespace_key: str, path: str) -> None",
    "ModelPackage.set_variant_executor_info_inline": "(self: C.ModelPackage, component_name: str, variant_name: str, namespace_key: str, info_json: str) -> None",
    "ModelPackageComponentContext._create_session": "(self: C.ModelPackageComponentContext, sess_options: C.SessionOptions = None) -> C.InferenceSession",
    "ModelPackageContext.__init__": "(self: C.ModelPackageContext, package_root: str) -> None",
    "ModelPackageContext.get_component_count": "(self: C.ModelPackageContext) -> int",
    "ModelPackageContext.get_component_names": "(self: C.ModelPackageContext) -> list[str]",
    "ModelPackageContext.get_schema_version": "(self: C.ModelPackageContext) -> int",
    "ModelPackageContext.get_variant_count": "(self: C.ModelPackageContext, component_name: str) -> int",
    "ModelPackageContext.get_variant_ep_name": "(self: C.ModelPackageContext, component_name: str, variant_name: str) -> str | None",
    "ModelPackageContext.get_variant_names": "(self: C.ModelPackageContext, component_name: str) -> list[str]",
    "ModelPackageContext.resolve_string_ref": "(self: C.ModelPackageContext, string_ref: str, base_dir: str | None = None, must_exist: bool = False) -> str",
    "ModelPackageContext.select_component": "(self: C.ModelPackageContext, component_name: str, options: C.ModelPackageOptions) -> C.ModelPackageComponentContext",
    "ModelPackageOptions.__init__": "(self: C.ModelPackageOptions, sess_options: C.SessionOptions) -> None",
    "OrtArenaCfg.__init__": "(self: C.OrtArenaCfg, arg0: typing.SupportsInt | typing.SupportsIndex, arg1: typing.SupportsInt | typing.SupportsIndex, arg2: typing.SupportsInt | typing.SupportsIndex, arg3: typing.SupportsInt | typing.SupportsIndex) -> None\n(self: C.OrtArenaCfg, arg0: dict) -> None",
    "OrtEpContextData.read": "(self: C.OrtEpContextData, offset: typing.SupportsInt | typing.SupportsIndex = 0, length: typing.SupportsInt | typing.SupportsIndex | None = None) -> bytes",
    "OrtEpContextDataBuffer.allocate": "(self: C.OrtEpContextDataBuffer, size: typing.SupportsInt | typing.SupportsIndex) -> None",
    "OrtMemoryInfo.__init__": "(self: C.OrtMemoryInfo, arg0: str, arg1: C.OrtAllocatorType, arg2: typing.SupportsInt | typing.SupportsIndex, arg3: C.OrtMemType) -> None",
    "OrtMemoryInfo.create_v2": "(arg0: str, arg1: C.OrtMemoryInfoDeviceType, arg2: typing.SupportsInt | typing.SupportsIndex, arg3: typing.SupportsInt | typing.SupportsIndex, arg4: C.OrtDeviceMemoryType, arg5: typing.SupportsInt | typing.SupportsIndex, arg6: C.OrtAllocatorType) -> C.OrtMemoryInfo",
    "OrtSyncStream.get_handle": "(self: C.OrtSyncStream) -> int",
    "SessionOptions.set_ep_context_data_read_func": "(self: C.SessionOptions, read_func: collections.abc.Callable[[str, C.OrtEpContextDataBuffer], None], max_data_size: typing.SupportsInt | typing.SupportsIndex) -> None",
    "SessionOptions.set_provider_selection_policy_delegate": "(self: C.SessionOptions, arg0: collections.abc.Callable[[collections.abc.Sequence[C.OrtEpDevice], collections.abc.Mapping[str, str], collections.abc.Mapping[str, str], typing.SupportsInt | typing.SupportsIndex], list[C.OrtEpDevice]]) -> None",
    "create_and_register_allocator": "(arg0: OrtMemoryInfo, arg1: OrtArenaCfg) -> None",
    "create_and_register_allocator_v2": "(arg0: str, arg1: OrtMemoryInfo, arg2: collections.abc.Mapping[str, str], arg3: OrtArenaCfg) -> None",
    "get_compatibility_info_from_model": "(arg0: str, arg1: str) -> object",
    "get_compatibility_info_from_model_bytes": "(arg0: typing_extensions.Buffer, arg1: str) -> object",
    "get_hardware_device_ep_incompatibility_details": "(arg0: str, arg1: OrtHardwareDevice) -> dict",
    "get_model_compatibility_for_ep_devices": "(arg0: collections.abc.Sequence[OrtEpDevice], arg1: str) -> OrtCompiledModelCompatibility",
    "get_registered_ep_kernel_defs": "(ep_name: str) -> list[onnxruntime::KernelDef]",
    "register_execution_provider_library": "(arg0: str, arg1: str) -> None",
    "set_default_logger_callback": "(callback: object, severity: typing.SupportsInt | typing.SupportsIndex = 2) -> None",
    "set_default_logger_severity": "(arg0: typing.SupportsInt | typing.SupportsIndex) -> None",
    "set_default_logger_verbosity": "(arg0: typing.SupportsInt | typing.SupportsIndex) -> None",
    "set_global_thread_pool_sizes": "(intra_op_num_threads: typing.SupportsInt | typing.SupportsIndex = 0, inter_op_num_threads: typing.SupportsInt | typing.SupportsIndex = 0) -> None",
    "set_seed": "(arg0: typing.SupportsInt | typing.SupportsIndex) -> None",
    "unregister_execution_provider_library": "(arg0: str) -> None",
}
