"""The closed table of kinds of objects that a client may make in the host.

A kind is registered here, with the function that loads its module when the first object is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qnnbridge_host.objects import ObjectKind


def _adapter_format() -> ObjectKind:
    from qnnbridge_host.engine.adapter_format import ADAPTER_FORMAT

    return ADAPTER_FORMAT


def _model_compiler() -> ObjectKind:
    from qnnbridge_host.engine.model_compiler import MODEL_COMPILER

    return MODEL_COMPILER


KINDS: Final[Mapping[str, Callable[[], ObjectKind]]] = {
    "AdapterFormat": _adapter_format,
    "ModelCompiler": _model_compiler,
}
