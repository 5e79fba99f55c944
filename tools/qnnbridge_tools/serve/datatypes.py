"""The Open Inference Protocol's names for element types, and what a model takes and gives in those terms.

`Contract` is made once per session and immutable; any thread. ONNX types that the protocol has no name for
(complex, float8, everything below a byte, sequences, maps, sparse tensors) are never converted: a model that needs
one as an input is refused, an output of such a type is left out of the metadata and refused when it is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType, from_ort_type

DATATYPES: Final[Mapping[ElementType, str]] = {
    ElementType.BOOL: "BOOL",
    ElementType.UINT8: "UINT8",
    ElementType.UINT16: "UINT16",
    ElementType.UINT32: "UINT32",
    ElementType.UINT64: "UINT64",
    ElementType.INT8: "INT8",
    ElementType.INT16: "INT16",
    ElementType.INT32: "INT32",
    ElementType.INT64: "INT64",
    ElementType.FLOAT16: "FP16",
    ElementType.FLOAT: "FP32",
    ElementType.DOUBLE: "FP64",
    ElementType.BFLOAT16: "BF16",
    ElementType.STRING: "BYTES",
}

BINARY_ONLY: Final = frozenset({ElementType.FLOAT16, ElementType.BFLOAT16})
"""JSON has no form for these in the protocol."""

PLATFORM: Final = "onnx_onnxv1"


class Node(Protocol):
    """`qnnbridge.NodeArg` is such."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. shape: -1 for a size that is free."""

    name: str
    element: ElementType
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str:
        return DATATYPES[self.element]

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclasses.dataclass(frozen=True, slots=True)
class Contract:
    """What can be fed to a model and asked of it.

    inputs: required ones first, in the model's order, then initializers that may be fed. required: how many are.
    unnamed: outputs that the protocol cannot carry, with their ONNX type.
    """

    inputs: Mapping[str, Tensor]
    required: int
    outputs: Mapping[str, Tensor]
    unnamed: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """The part of the model's metadata that tells of tensors."""
        return {
            "inputs": [tensor.described() for tensor in list(self.inputs.values())[: self.required]],
            "outputs": [tensor.described() for tensor in self.outputs.values()],
        }


def make_contract(inputs: Iterable[Node], overridable: Iterable[Node], outputs: Iterable[Node]) -> Contract:
    """Raises `errors.OptionError` for a model that cannot be served."""
    fed: dict[str, Tensor] = {}
    for node in inputs:
        tensor = _tensor(node)
        if tensor is None:
            raise errors.OptionError(
                f"The model cannot be served: its input {node.name!r} is {node.type}.",
                cause="The Open Inference Protocol has no datatype for it.",
                fix="Give the model inputs of ordinary tensor types, or use it from Python.",
            )
        fed[node.name] = tensor
    required = len(fed)
    fed.update({tensor.name: tensor for tensor in map(_tensor, overridable) if tensor is not None})
    given: dict[str, Tensor] = {}
    unnamed: dict[str, str] = {}
    for node in outputs:
        tensor = _tensor(node)
        if tensor is None:
            unnamed[node.name] = node.type
        else:
            given[node.name] = tensor
    if not given:
        listed = ", ".join(f"{name} ({kind})" for name, kind in unnamed.items()) or "none"
        raise errors.OptionError(
            f"The model cannot be served: none of its outputs can be sent. They are: {listed}.",
            cause="The Open Inference Protocol has no datatype for them.",
        )
    return Contract(fed, required, given, unnamed)


def _tensor(node: Node) -> Tensor | None:
    try:
        declared = from_ort_type(node.type)
    except errors.NotImplemented:
        return None
    inner = declared.item if declared.kind == "optional" and declared.item is not None else declared
    if inner.kind != "tensor" or inner.element is None or inner.element not in DATATYPES:
        return None
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape or ())
    return Tensor(node.name, inner.element, shape)
