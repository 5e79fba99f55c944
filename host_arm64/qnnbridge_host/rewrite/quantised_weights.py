"""Store constant quantised weights and biases in number types and with scales that QNN supports.

A weight is (stored value - zero point) * scale. Adding the same number to the stored value and to the zero point
does not change the weight. If a bias gets a new scale, its values are rounded to multiples of this scale, which is
far below a step of the result.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Array, Editor
from qnnbridge_host.rewrite.rewriting import for_nodes
from qnnbridge_protocol.element_types import ElementType

_DOMAINS: Final = (*graphs.ONNX_DOMAINS, "com.microsoft")
_DEQUANTIZE: Final = "DequantizeLinear"
_UINT8, _INT8 = ElementType.UINT8.value, ElementType.INT8.value
_UINT4, _INT4 = ElementType.UINT4.value, ElementType.INT4.value
_UNSIGNED: Final = frozenset({_UINT8, ElementType.UINT16.value})
_SIGNED: Final = frozenset({_INT8, ElementType.INT16.value})
_NORMS: Final = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose"})
_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})
# The middle of the range of each integer type.
_MIDDLES: Final = {_UINT8: 128, _UINT4: 8, _INT4: 0}


@for_nodes(_DEQUANTIZE, "DequantizeLinear of scales", _DOMAINS)
def unsigned_scales(editor: Editor, node: Any) -> list[Any] | None:
    """Store the int8 scale of a normalization of unsigned activations as uint8.

    onnxruntime's quantizer stores the scale as int8, which QNN refuses: the operator stays on the CPU and splits
    the model.
    """
    readers = _readers(editor, node) if editor.element(node.input[0]) == _INT8 else []
    zeros = _zero_points(editor, node)
    if zeros is None or not readers or any(one.op not in _NORMS or one.kind not in _UNSIGNED for one in readers):
        return None
    return _stored_as(editor, node, _UINT8, np.array(128), zeros + 128)


@for_nodes(_DEQUANTIZE, "DequantizeLinear of weights", _DOMAINS)
def supported_weights(editor: Editor, node: Any) -> list[Any] | None:
    """Store weights of Conv, ConvTranspose, MatMul and Gemm in a type that QNN supports with their activations.

    Measured with QNN 2.7: QNN refuses unsigned weights if the activations are signed. It refuses uint4 weights with
    a scale for each channel. It refuses all 4-bit weights if the activations are int8, if a convolution with a bias
    has a single scale, or if the zero point of a channel is not the middle of the stored values.
    """
    kind = editor.element(node.input[0])
    readers = _readers(editor, node) if kind in _MIDDLES else []
    zeros = _zero_points(editor, node)
    if zeros is None or not readers or any(one.op not in _CONVOLUTIONS | _PRODUCTS for one in readers):
        return None
    single, centred = zeros.size == 1, bool((zeros == _MIDDLES[kind]).all())
    refused = any(one.op in _CONVOLUTIONS and one.biased for one in readers) if single else not centred
    if kind != _UINT8 and (refused or any(one.kind == _INT8 for one in readers)):
        # Every chip supports int8 with zero points of 0, and a difference of two numbers of four bits fits into
        # int8.
        return _stored_as(editor, node, _INT8, -_along_axis(editor, node, zeros), np.zeros_like(zeros))
    signed = any(one.kind in _SIGNED for one in readers) or (kind == _UINT4 and not single)
    if kind != _INT4 and signed and (single or centred):
        added = -_MIDDLES[kind]
        return _stored_as(editor, node, _INT8 if kind == _UINT8 else _INT4, np.array(added), zeros + added)
    return None


@for_nodes((*_CONVOLUTIONS, "Gemm"), "DequantizeLinear of biases")
def biases_of_products(editor: Editor, node: Any) -> list[Any] | None:
    """Give a bias the scale of the products to which it is added: the activations' scale times the weights' scale.

    QNN uses wrong bias values if only the bias or only the weights have a scale for each channel. If both have such
    scales, QNN mostly ignores the scales of the bias.
    """
    made = [one for name in node.input[:3] if (one := editor.maker_of(name, _DEQUANTIZE)) is not None]
    steps = [step for one in made if (step := editor.constant(one.input[1])) is not None and step.ndim < 2]
    if len(steps) < 3 or steps[0].size != 1:
        return None
    old, of_bias = made[2], steps[2]
    stored, zero = editor.constant(old.input[0]), _zero_points(editor, old)
    if stored is None or stored.dtype != np.int32 or stored.ndim != 1 or zero is None or zero.any():
        return None
    product = np.asarray(steps[0].reshape(()) * steps[1], of_bias.dtype)
    single = product.size == 1
    if product.size == of_bias.size and (single or np.allclose(product, of_bias, rtol=1e-3, atol=0)):
        return None
    values = np.round(stored * of_bias.astype(np.float64) / product)
    if values.shape != stored.shape or not (np.abs(values) <= np.iinfo(np.int32).max).all():
        return None
    names = [
        editor.add_constant(values.astype(np.int32), f"{old.input[0]}/stored"),
        editor.add_constant(product.reshape(()) if single else product, f"{old.input[0]}/scale"),
    ]
    bias = editor.make(_DEQUANTIZE, names, node, domain=old.domain, axis=0)
    node.input[2] = bias.output[0]
    return [bias, node]


class _Reader(NamedTuple):
    """A node that reads a weight.

    kind: element type of the quantised activations. biased: whether the node has a bias.
    """

    op: str
    kind: int
    biased: bool


def _readers(editor: Editor, node: Any) -> list[_Reader]:
    """Return the nodes that read a DequantizeLinear as their weight.

    The list is empty if a node uses the tensor for another purpose, or with activations that are not quantised.
    """
    found = []
    for reader in editor.uses(node.output[0]) if editor.is_free(node.output[0]) else ():
        data = editor.maker_of(reader.input[0], _DEQUANTIZE)
        is_weight = list(reader.input[1:2]) == [node.output[0]]
        if data is None or not is_weight or reader.domain not in _DOMAINS:
            return []
        biased = len(reader.input) > 2 and bool(reader.input[2])
        found.append(_Reader(reader.op_type, editor.element(data.input[0]), biased))
    return found


def _zero_points(editor: Editor, node: Any) -> Array | None:
    """Return the zero points of constant weights as int16; ``None`` if they are unknown or belong to blocks."""
    scale = editor.constant(node.input[1])
    given = node.input[2] if len(node.input) > 2 else ""
    if scale is None or scale.ndim > 1 or editor.tensor(node.input[0]) is None:
        return None
    zeros = editor.constant(given) if given else np.zeros(scale.shape)
    return None if zeros is None else zeros.astype(np.int16)


def _along_axis(editor: Editor, node: Any, numbers: Array) -> Array:
    """Reshape a single number, or one number for each channel, so that it broadcasts to the stored values."""
    if numbers.size == 1:
        return numbers.reshape(())
    rank, axis = editor.rank(node.input[0]) or 0, graphs.attribute_values(node).get("axis", 1)
    return numbers.reshape([-1 if at == axis % rank else 1 for at in range(rank)])


def _stored_as(editor: Editor, node: Any, kind: int, added: Array, zeros: Array) -> list[Any] | None:
    """Replace the stored values and the zero points of a DequantizeLinear. kind: the new type. added: what to add
    to the values.
    """
    from onnx import helper

    values = editor.constant(node.input[0])
    if values is None:
        return None
    dtype, name = helper.tensor_dtype_to_np_dtype(kind), node.input[0]
    # Add in int16: ml_dtypes computes numbers of four bits in four bits.
    node.input[0] = editor.add_constant((values.astype(np.int16) + added).astype(dtype), f"{name}/stored")
    zero = editor.add_constant(zeros.astype(dtype), f"{name}/zero")
    node.input[:] = [*node.input[:2], zero]
    return [node]
