"""Write the values of ``SessionOptions.add_initializer`` into the model.

ONNX Runtime passes these values only to CPU kernels; QNN would compute with the values in the file. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_host.model.compiled_checks import CONTEXT_ENABLE, CONTEXT_PATH
from qnnbridge_host.model.external_lengths import EXTERNAL_DATA_FOLDER
from qnnbridge_host.model.initial_values import MAX_MODEL_BYTES, with_values
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.writing import tensor_message, text_tensor_message
from qnnbridge_protocol.elements import ElementType, element_of
from qnnbridge_protocol.errors import InvalidProtobuf, OptionError
from qnnbridge_protocol.specs import QNN, SessionSpec
from qnnbridge_protocol.tensors import Typed

_FIX: Final = "Write the values into the model's file (onnx.save) and remove the calls of add_initializer()."


def with_given_values(
    spec: SessionSpec, source: str | bytes, values: Mapping[str, Any]
) -> tuple[SessionSpec, str | bytes]:
    """Return the session's description without the values of ``add_initializer``, and a model that contains them.

    If the model cannot be rewritten, or a value's type or shape does not match, `spec` and `source` are returned
    unchanged for a session on the CPU alone: ONNX Runtime then handles the values and reports its own errors.

    Args:
        spec: the session's description, with `initializers`.
        source: path or bytes of the model.
        values: the initializers' values by name.

    Raises:
        OptionError: the session requests QNN, and the values cannot be written into the model.
    """
    if not spec.initializers:
        return spec, source
    try:
        made = _rewritten(spec, source, {name: values[name] for name in spec.initializers})
    except _CannotRewrite as reason:
        if not _asks_for_qnn(spec):
            return spec, source
        raise _refused(spec, reason) from None
    entries = dict(spec.config_entries)
    if isinstance(source, str):
        # A model given as bytes has no folder, so pass the folder of external data and the output path explicitly.
        entries.setdefault(EXTERNAL_DATA_FOLDER, os.path.dirname(os.path.abspath(source)))
        if entries.get(CONTEXT_ENABLE) == "1":
            entries.setdefault(CONTEXT_PATH, f"{os.path.splitext(source)[0]}_ctx.onnx")
    return dataclasses.replace(spec, initializers=(), config_entries=entries), made


def _refused(spec: SessionSpec, reason: object) -> OptionError:
    shown = ", ".join(repr(name) for name in spec.initializers[:3])
    return OptionError(
        f"The values of add_initializer() ({shown}) cannot be passed to QNN.",
        cause=f"QNN computes with the weights of the model's file, and {reason}.",
        fix=_FIX,
        details={"option": "add_initializer", "names": list(spec.initializers)},
    )


class _CannotRewrite(Exception):
    """Reason why a model cannot be rewritten, as a clause that can follow "and" in a sentence."""


def _asks_for_qnn(spec: SessionSpec) -> bool:
    return not spec.providers or any(provider.name == QNN for provider in spec.providers)


def _rewritten(spec: SessionSpec, source: str | bytes, values: Mapping[str, Any]) -> bytes:
    try:
        scan = scan_model(source, count_nodes=False)
    except InvalidProtobuf:
        raise _CannotRewrite("the model is not an ONNX file") from None
    if scan.format != "onnx":
        raise _CannotRewrite("the model is not an ONNX file")
    tensors = {name: _message(name, value) for name, value in values.items()}
    size = os.path.getsize(source) if isinstance(source, str) else len(source)
    if size + sum(map(len, tensors.values())) > MAX_MODEL_BYTES:
        raise _CannotRewrite("the model with these values would exceed 2 GiB in one file")
    if isinstance(source, str):
        with open(source, "rb") as file:
            data = file.read()
    else:
        data = source
    try:
        made = with_values(data, tensors)
    except Garbage:
        raise _CannotRewrite("the model's file cannot be read") from None
    if made.misfits and not _asks_for_qnn(spec):
        raise _CannotRewrite("the types or shapes of the values do not match the model's")
    if scan.is_compiled:
        if not made.replaced.issuperset(tensors):
            raise _CannotRewrite("the model is compiled: its weights are in a context binary")
        if isinstance(source, str) and any(not one.embedded for one in scan.ep_contexts):
            raise _CannotRewrite("the model is compiled: its weights are in a separate context binary")
    return made.model


def _message(name: str, value: Any) -> bytes:
    if isinstance(value, Typed):
        raw = np.asarray(value.data, order="C").tobytes()
        return tensor_message(name, int(value.element_type), value.shape, raw)
    element = element_of(value.dtype) if isinstance(value, np.ndarray) else None
    if element is None:
        raise _CannotRewrite(f"{name!r} is not a dense tensor")
    if element is ElementType.STRING:
        texts = [one if isinstance(one, bytes) else str(one).encode() for one in value.ravel().tolist()]
        return text_tensor_message(name, int(element), value.shape, texts)
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return tensor_message(name, int(element), value.shape, np.ascontiguousarray(little).tobytes())
