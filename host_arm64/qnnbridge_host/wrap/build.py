"""Build EPContext models for a context binary, so that onnxruntime can run it. This needs the package `onnx`.

QNN finds a graph of the binary by the name of the node, and a tensor of the graph by the name of the node's input
or output; if a tensor has another name in the model, an attribute of the node maps the names.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.model.collector import DOMAIN, OP_TYPE
from qnnbridge_host.model.context_binary import (
    BinaryDescription,
    GraphDescription,
    TensorDescription,
    type_words,
)
from qnnbridge_host.model.context_files import FLOAT_IO
from qnnbridge_host.wrap.system_library import has_library, read_binary
from qnnbridge_protocol.errors import ContextUnusable, OptionError
from qnnbridge_protocol.specs import QNN

if TYPE_CHECKING:
    import onnx


# QuantizeLinear supports 16 bits since opset 21, which came with IR 10. onnxruntime-qnn itself writes the newest IR
# version that it supports (13 with 2.7), which older releases of ONNX Runtime refuse.
_IR: Final = 10
_OPSET: Final = 21
_RANGES: Final = {
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (0, 0),  # DequantizeLinear requires the zero point 0
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
}
_SHOWN: Final = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Binary:
    """A context binary. name: the binary's path in the models. label: the binary's name in messages."""

    described: BinaryDescription
    name: str
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class WrappedModel:
    """A model for graphs of a binary, as bytes."""

    graphs: tuple[str, ...]
    data: bytes


def wrap(
    binary: Binary, names: Sequence[str] = (), *, together: bool = False, float_io: bool = False
) -> tuple[WrappedModel, ...]:
    """Build a model for each graph, or (`together`) one model for all graphs.

    Args:
        binary: the context binary.
        names: the graphs; default: all graphs of the binary.
        together: build one model for all graphs.
        float_io: see `build_model`.

    Raises:
        OptionError: the binary lacks one of the graphs.
        ContextUnusable: the binary has no graphs, or a tensor that `build_model` refuses.
    """
    chosen = chosen_graphs(binary, names)
    groups = [chosen] if together else [(graph,) for graph in chosen]
    return tuple(
        WrappedModel(
            tuple(graph.name for graph in group),
            bytes(build_model(binary, group, float_io=float_io).SerializeToString(deterministic=True)),
        )
        for group in groups
    )


def chosen_graphs(binary: Binary, names: Sequence[str]) -> tuple[GraphDescription, ...]:
    """Return the graphs with these names, or all graphs. Raise `OptionError` for an unknown name, and
    `ContextUnusable` without graphs."""
    graphs = binary.described.graphs
    if not graphs:
        raise ContextUnusable(
            f"The context binary {binary.label} has no graph.",
            cause="The binary was written before a graph was compiled into it, or contains only weights.",
            fix="Compile the binary again: a graph must be finalised before the binary is written.",
        )
    known = {graph.name: graph for graph in graphs}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(
            f"The context binary {binary.label} has no graph {unknown[0]!r}.",
            fix=f"Choose one of: {', '.join(list(known)[:_SHOWN])}.",
        )
    return tuple(known[name] for name in dict.fromkeys(names)) if names else graphs


def build_model(binary: Binary, graphs: Sequence[GraphDescription], *, float_io: bool = False) -> onnx.ModelProto:
    """Build one model for these graphs of the binary.

    Args:
        binary: the context binary.
        graphs: the graphs of the model; a tensor name that occurs in two of them gets the graph's name as prefix.
        float_io: whether nodes around the graph convert fixed-point and half-float tensors to float32 for the
            application.

    Raises:
        ContextUnusable: a tensor has a type without a corresponding array type, or cannot become float32.
    """
    from onnx import helper

    for graph in graphs:
        for tensor in (*graph.inputs, *graph.outputs):
            _check(binary, graph, tensor)
    builder = _Builder(binary, float_io, _repeated(graphs))
    for number, graph in enumerate(graphs):
        builder.add(graph, owns=not number)
    made = helper.make_graph(
        builder.nodes, "qnn", builder.inputs, builder.outputs, builder.constants, value_info=builder.inner
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)],
        ir_version=_IR,
        producer_name="qnnbridge wrap",
    )
    properties = {"external_dependencies": "ep_context_binary"}
    helper.set_model_props(model, {**properties, FLOAT_IO: "1"} if float_io else properties)
    return model


def _repeated(graphs: Sequence[GraphDescription]) -> frozenset[str]:
    """Return the names of tensors that occur in several graphs, or as both input and output of a graph."""
    counts = collections.Counter(tensor.name for graph in graphs for tensor in (*graph.inputs, *graph.outputs))
    return frozenset(name for name, count in counts.items() if count > 1)


def _check(binary: Binary, graph: GraphDescription, tensor: TensorDescription) -> None:
    why = None
    if not tensor.name:
        why = "has no name"
    elif tensor.onnx_type is None:
        why = f"is of {type_words(tensor.data_type)}, for which ONNX Runtime has no array type that QNN can read"
    elif tensor.layout:
        why = f"has QNN's memory layout {tensor.layout}, which is not a plain array"
    elif tensor.dynamic:
        why = "has a size that changes from run to run, which QNN's provider does not support"
    elif 0 in tensor.dimensions:
        why = "is empty, which crashes QNN's provider"
    elif tensor.is_optional:
        why = "is optional, which ONNX Runtime does not support"
    if why is not None:
        raise ContextUnusable(
            f"ONNX Runtime cannot run the graph {graph.name} of {binary.label}: its tensor {tensor.name!r} {why}.",
            cause="The context binary was compiled for a program that calls QNN directly.",
            evidence=(f"{tensor.name}: {tensor.words}",),
            fix="Compile the binary again with plain inputs and outputs (8, 16 or 32 bits, fixed sizes).",
            details={"graph": graph.name, "tensor": tensor.name},
        )


class _Builder:
    """Collects the nodes and tensors of one model."""

    def __init__(self, binary: Binary, float_io: bool, repeated: frozenset[str]) -> None:
        self._binary, self._float_io, self._repeated = binary, float_io, repeated
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []
        # Types of tensors between two nodes: the outputs of an EPContext node cannot be inferred from its inputs.
        self.inner: list[Any] = []

    def add(self, graph: GraphDescription, *, owns: bool) -> None:
        from onnx import helper

        # QNN's name by the model's name: an input that is also an output needs two names in the model
        names: dict[str, str] = {}
        before: list[Any] = []
        after: list[Any] = []
        taken = [self._end(graph, one, before, names, is_input=True) for one in graph.inputs]
        given = [self._end(graph, one, after, names, is_input=False) for one in graph.outputs]
        # Only the first node refers to the binary. QNN finds the graphs of the other nodes in that binary.
        attributes: dict[str, Any] = {
            "main_context": int(owns),
            # The binary stays a separate file; its path is relative to the folder of the .onnx file.
            "embed_mode": 0,
            # QNN takes nodes with this source.
            "source": QNN,
            "partition_name": graph.name,
            # QNN does not check ep_sdk_version and max_size when it loads the node. max_size is the size of a
            # spill-fill buffer.
            "ep_sdk_version": self._binary.described.build,
            "max_size": 0,
        }
        if owns:
            attributes["ep_cache_context"] = self._binary.name
        if names:
            # The format that QNN's provider expects: name in the model = name in QNN.
            attributes["io_name_overrides"] = "".join(f"{shown}={own};" for shown, own in names.items())
        node = helper.make_node(OP_TYPE, taken, given, name=graph.name, domain=DOMAIN, **attributes)
        self.nodes += [*before, node, *after]

    def _end(
        self,
        graph: GraphDescription,
        tensor: TensorDescription,
        nodes: list[Any],
        names: dict[str, str],
        *,
        is_input: bool,
    ) -> str:
        """Add an input or output of the model; return its name at the EPContext node."""
        from onnx import TensorProto, helper

        shown = tensor.name
        if shown in self._repeated:
            shown = f"{graph.name}/{shown}" if is_input else f"{graph.name}/{shown}/out"
        # `_check` has refused a tensor without an ONNX type.
        number = getattr(TensorProto, tensor.onnx_type or "")
        ends = self.inputs if is_input else self.outputs
        converted = self._float_io and (tensor.is_fixed_point or tensor.onnx_type == "FLOAT16")
        shape = list(tensor.dimensions)
        if not converted:
            if shown != tensor.name:
                names[shown] = tensor.name
            ends.append(helper.make_tensor_value_info(shown, number, shape))
            return shown
        # The model's input or output has the name `shown`, so the tensor at the EPContext node needs another name.
        inner = f"{shown}/qnn"
        names[inner] = tensor.name
        self.inner.append(helper.make_tensor_value_info(inner, number, shape))
        ends.append(helper.make_tensor_value_info(shown, TensorProto.FLOAT, shape))
        source, target = (shown, inner) if is_input else (inner, shown)
        # Cast converts to FLOAT with `to=1`.
        if tensor.onnx_type == "FLOAT16":
            nodes.append(
                helper.make_node("Cast", [source], [target], name=f"{shown}/cast", to=number if is_input else 1)
            )
            return inner
        scale, zero, axis = self._constants(graph, tensor, shown, is_input=is_input)
        operator = "QuantizeLinear" if is_input else "DequantizeLinear"
        attributes = {} if axis is None else {"axis": axis}
        nodes.append(
            helper.make_node(operator, [source, scale, zero], [target], name=f"{shown}/{operator}", **attributes)
        )
        return inner

    def _constants(
        self, graph: GraphDescription, tensor: TensorDescription, shown: str, *, is_input: bool
    ) -> tuple[str, str, int | None]:
        """Add scale and zero point of a tensor that is converted to float32; return their names and the axis.

        QNN's offset equals the negative zero point.
        """
        from onnx import TensorProto, helper

        kind, given = tensor.onnx_type or "", tensor.quantisation
        # (1, 0) is an empty range: types that are not in the table do not allow an offset.
        least, most = _RANGES.get(kind, (1, 0))
        why = None
        if given is None or given.encoding is not None or not given.scales:
            why = "the binary does not have its scale and offset"
        elif given.bits is not None and given.bits != _bits(tensor):
            why = f"it uses {given.bits} of its {_bits(tensor)} bits"
        # Refuse only inputs of 32 bits. Outputs may have 32 bits, because DequantizeLinear reads int32.
        elif is_input and kind in ("INT32", "UINT32"):
            why = "ONNX's QuantizeLinear does not support 32 bits"
        elif not all(least <= -offset <= most for offset in given.offsets):
            why = f"its offset {given.offsets[0]} is not a valid zero point of {kind}"
        elif not all(0 < scale < float("inf") for scale in given.scales):
            why = f"its scale is {given.scales[0]}"
        elif given.axis is not None and not (
            0 <= given.axis < len(tensor.dimensions) and tensor.dimensions[given.axis] == len(given.scales)
        ):
            why = f"it has {len(given.scales)} scales along axis {given.axis}"
        if why is not None or given is None:
            raise ContextUnusable(
                f"The tensor {tensor.name!r} of the graph {graph.name} of {self._binary.label} cannot be "
                f"converted to and from float32: {why}.",
                cause="--float-io inserts QuantizeLinear and DequantizeLinear around the graph.",
                evidence=(f"{tensor.name}: {tensor.words}",),
                fix="Omit --float-io, and convert this tensor in the application.",
                details={"graph": graph.name, "tensor": tensor.name},
            )
        shape = [] if given.axis is None else [len(given.scales)]
        scale, zero = f"{shown}/scale", f"{shown}/zero_point"
        # QNN's value is (q + offset) * scale, ONNX's is (q - zero point) * scale.
        self.constants += [
            helper.make_tensor(scale, TensorProto.FLOAT, shape, given.scales),
            helper.make_tensor(zero, getattr(TensorProto, kind), shape, [-offset for offset in given.offsets]),
        ]
        return scale, zero, given.axis


def _bits(tensor: TensorDescription) -> int:
    # QNN's types contain their width as decimal digits in the low byte: 0x0416 is an unsigned fixed-point number of
    # 16 bits.
    return int(f"{tensor.data_type & 0xFF:x}")


# --- the work of a worker --------------------------------------------------------------------------------
#
# Native code reads a file of unknown origin, so this runs in a separate process: the worker of a host, or
# `python -m qnnbridge_host.wrap` of a command.


@dataclasses.dataclass(frozen=True, slots=True)
class WrapRequest:
    """Request to a worker.

    path: path of the binary. name: the binary's path in the models; ``None`` to describe the binary only. For the
        other fields see `wrap`.
    """

    path: str
    name: str | None = None
    graphs: tuple[str, ...] = ()
    together: bool = False
    float_io: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Return the request in JSON types."""
        return {**dataclasses.asdict(self), "graphs": list(self.graphs)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WrapRequest:
        """Read the result of `to_plain`. Raise `LookupError`, `TypeError` or `ValueError` for other data."""
        name = plain["name"]
        return cls(
            str(plain["path"]),
            None if name is None else str(name),
            tuple(str(one) for one in plain["graphs"]),
            bool(plain["together"]),
            bool(plain["float_io"]),
        )


def work(request: WrapRequest, folder: str | None = None) -> tuple[BinaryDescription, tuple[WrappedModel, ...]]:
    """Describe the binary, and build the requested models.

    folder: folder of the QNN libraries that the session will use. Raises the errors of `read_binary` and `wrap`.
    """
    described = read_binary(request.path, folder if folder and has_library(folder) else None)
    if request.name is None:
        return described, ()
    binary = Binary(described, request.name, os.path.basename(request.path))
    return described, wrap(binary, request.graphs, together=request.together, float_io=request.float_io)
