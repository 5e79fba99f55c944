"""The closed table of kinds of objects that a client may make in the host.

A kind is registered here, with the function that loads its module when the first object is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qnnbridge_host.engine.objects import ObjectKind


def _adapter_format() -> ObjectKind:
    from qnnbridge_host.engine.adapter_format import ADAPTER_FORMAT

    return ADAPTER_FORMAT


def _build_tools() -> ObjectKind:
    from qnnbridge_host.engine.build_tools import BUILD_TOOLS

    return BUILD_TOOLS


def _model_compiler() -> ObjectKind:
    from qnnbridge_host.engine.model_compiler import MODEL_COMPILER

    return MODEL_COMPILER


def _model_package() -> ObjectKind:
    from qnnbridge_host.engine.model_package import MODEL_PACKAGE

    return MODEL_PACKAGE


def _model_package_context() -> ObjectKind:
    from qnnbridge_host.engine.model_package import MODEL_PACKAGE_CONTEXT

    return MODEL_PACKAGE_CONTEXT


def _model_package_options() -> ObjectKind:
    from qnnbridge_host.engine.model_package import MODEL_PACKAGE_OPTIONS

    return MODEL_PACKAGE_OPTIONS


def _genai_model() -> ObjectKind:
    from qnnbridge_host.genai.object_kinds import MODEL

    return MODEL


def _shared_allocator() -> ObjectKind:
    from qnnbridge_host.engine.devices import SHARED_ALLOCATOR

    return SHARED_ALLOCATOR


def _sync_stream() -> ObjectKind:
    from qnnbridge_host.engine.devices import SYNC_STREAM

    return SYNC_STREAM


KINDS: Final[Mapping[str, Callable[[], ObjectKind]]] = {
    "AdapterFormat": _adapter_format,
    "BuildTools": _build_tools,
    "ModelCompiler": _model_compiler,
    "ModelPackage": _model_package,
    "ModelPackageContext": _model_package_context,
    "ModelPackageOptions": _model_package_options,
    "OrtSyncStream": _sync_stream,
    "SharedAllocator": _shared_allocator,
    "GenaiModel": _genai_model,
}
