"""The host's part of `onnxruntime.ModelPackage` and of its contexts: ONNX Runtime's own objects.

A session of the variant that was chosen is an ordinary one of the application: it is made from the variant's file,
with the options that the package names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from onnxruntime.capi import onnxruntime_pybind11_state as native

from qnnbridge_host.engine.objects import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_protocol import errors
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import SessionSpec

# Methods that take and give texts, numbers and truth values.
_PACKAGE_METHODS: Final = (
    "add_shared_asset",
    "close",
    "get_component_json",
    "get_info",
    "get_variant_json",
    "prune",
    "remove_component",
    "remove_shared_asset",
    "remove_variant",
    "remove_variant_executor_info",
    "resolve_asset_uri",
    "resolve_string_ref",
    "set_additional_metadata_json",
    "set_component_external",
    "set_component_inline",
    "set_layout",
    "set_metadata",
    "set_variant",
    "set_variant_executor_info_external",
    "set_variant_executor_info_inline",
)
_CONTEXT_METHODS: Final = (
    "get_component_count",
    "get_component_names",
    "get_schema_version",
    "get_variant_count",
    "get_variant_ep_name",
    "get_variant_names",
    "resolve_string_ref",
)


class _Context(NamedTuple):
    context: Any
    root: str


class _Options(NamedTuple):
    """What a variant is chosen by, with the options that must outlive it."""

    options: Any
    session_options: Any
    tensors: Any


def _class(name: str) -> Any:
    found = getattr(native, name, None)
    if found is None:
        import onnxruntime

        raise errors.NotImplemented(
            f"The host's onnxruntime {onnxruntime.__version__} has no {name}.",
            fix="Install a newer onnxruntime in the host's Python.",
        )
    return found


def _forward(method: str, of: Callable[[Any], Any]) -> Callable[[Any, ObjectCall], ObjectResult]:
    """An operation that is a method of ONNX Runtime's object. method: from the tables above."""

    def operation(value: Any, call: ObjectCall) -> ObjectResult:
        positional = call.arguments.get("positional") or []
        named = call.arguments.get("named") or {}
        return ObjectResult(getattr(of(value), method)(*positional, **named))

    return operation


# --- packages --------------------------------------------------------------------------------------------


def _create_package(call: ObjectCall) -> Any:
    """An empty package, or that of the folder in `open`."""
    cls = _class("ModelPackage")
    given = call.arguments.get("open")
    return cls() if given is None else cls.open(*given["positional"], **given["named"])


def _commit(package: Any, call: ObjectCall) -> None:
    mode = _class("ModelPackageWriteMode")(argument(call, "mode", int))
    package.commit(call.arguments.get("dest_root"), mode)


def _hash(package: Any, call: ObjectCall) -> ObjectResult:
    return ObjectResult(package.compute_directory_hash(call.arguments.get("source_dir")))


MODEL_PACKAGE = ObjectKind(
    "ModelPackage",
    _create_package,
    {
        **{name: _forward(name, lambda package: package) for name in _PACKAGE_METHODS},
        "commit": _commit,
        "compute_directory_hash": _hash,
    },
)


# --- choosing a variant ----------------------------------------------------------------------------------


def _create_context(call: ObjectCall) -> _Context:
    root = argument(call, "package_root", str)
    return _Context(_class("ModelPackageContext")(root), root)


def _create_options(call: ObjectCall) -> _Options:
    spec = SessionSpec.from_wire(argument(call, "spec", dict))
    names = spec.value_names
    engine: Any = call.sessions.engine
    options, tensors = engine.session_options(spec, dict(zip(names, call.values, strict=True)))
    return _Options(_class("ModelPackageOptions")(options), options, tensors)


def _select(context: _Context, call: ObjectCall) -> ObjectResult:
    """Choose a variant; the result has what a session of it is made from."""
    component = argument(call, "component_name", str)
    (options,) = call.objects
    chosen = context.context.select_component(component, options.options)
    name, folder = chosen.get_selected_variant_name(), chosen.get_selected_variant_folder_path()
    ep = context.context.get_variant_ep_name(component, name)
    described = {"name": name, "folder": folder, "ep": ep, "ort": _settings(context.root, component, name, folder)}
    return ObjectResult(described, made=(COMPONENT_CONTEXT, chosen))


def _settings(root: str, component: str, variant: str, folder: str) -> Mapping[str, Any]:
    """The part of the package about ONNX Runtime: ``model_file``, ``session_options``, ``provider_options``."""
    package = _class("ModelPackage").open(root)
    try:
        components = {one["name"]: one for one in package.get_info()["components"]}
    finally:
        package.close()
    variants = {one["name"]: one for one in components[component]["variants"]}
    text = variants[variant]["executor_info"].get("ort", "{}")
    settings = json.loads(text)
    if isinstance(settings, str):  # it is in a file beside the model
        with open(os.path.join(folder, settings), encoding="utf-8") as file:
            settings = json.load(file)
    return settings if isinstance(settings, dict) else {}


MODEL_PACKAGE_CONTEXT = ObjectKind(
    "ModelPackageContext",
    _create_context,
    {
        **{name: _forward(name, lambda context: context.context) for name in _CONTEXT_METHODS},
        "select_component": _select,
    },
)
MODEL_PACKAGE_OPTIONS = ObjectKind("ModelPackageOptions", _create_options, {})
COMPONENT_CONTEXT = ObjectKind("ModelPackageComponentContext", None, {})
