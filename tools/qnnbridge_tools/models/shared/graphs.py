"""What a `ModelProto` is made of, and small repairs of one that ONNX Runtime wrote. Deep: subgraphs count, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import InvalidProtobuf
from qnnbridge_tools.models.shared.files import inside_folder

_EXTERNAL = 1
"""TensorProto.DataLocation."""
ONNX_DOMAINS = ("", "ai.onnx")
INSERTED_CAST = "InsertedPrecisionFreeCast_"
"""How ONNX Runtime names the casts that it puts around float16 operators which the CPU provider lacks."""
NEWEST_QDQ_OPSET = 21
"""From here on QuantizeLinear itself has 16 and 4 bits; before, they are com.microsoft's."""
TOO_LARGE_FOR_ONE_MESSAGE = 2**31 - 2**24
"""protobuf refuses messages of 2 GiB; a little is left for names and shapes."""


def load(path: Path, *, weights: bool = False) -> Any:
    """The `ModelProto` of a file, without the tensors that are in other files unless `weights`."""
    import onnx

    try:
        return onnx.load_model(str(path), load_external_data=weights)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - protobuf's DecodeError, and onnx's own for missing or unsafe files
        raise InvalidProtobuf(
            f"{path} cannot be read as an ONNX model.",
            cause=str(error)[:500],
            fix="Check that all files of the model are there and complete.",
            details={"path": str(path)},
        ) from None


def load_weights(model: Any, folder: Path) -> None:
    """Reads the tensors that are in other files of `folder` into the model.

    Not onnx's own function: that refuses files with several hard links, which package caches make everywhere.
    """
    for tensor in _tensors(model.graph):
        load_tensor(tensor, folder)


def load_tensor(tensor: Any, folder: Path) -> None:
    """Reads one tensor into the model, if it is in another file."""
    if tensor.data_location != _EXTERNAL:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    if not inside_folder(name):
        raise InvalidProtobuf(
            f'Tensor {tensor.name} is said to be in the file "{name}", which is outside of the model\'s folder.'
        )
    with (folder / name).open("rb") as file:
        file.seek(int(entries.get("offset", "0")))
        tensor.raw_data = file.read(int(entries.get("length", "-1")))
    tensor.data_location = 0
    del tensor.external_data[:]


def is_too_large(model: Any) -> bool:
    """Whether the model with the tensors that it holds is too large for one message (`ByteSize` raises then)."""
    return sum(len(tensor.raw_data) for tensor in _tensors(model.graph)) > TOO_LARGE_FOR_ONE_MESSAGE


def _tensors(graph: Any) -> Iterator[Any]:
    for inner in subgraphs(graph):
        yield from inner.initializer
        for node in inner.node:
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def subgraphs(graph: Any) -> Iterator[Any]:
    """The graph and all graphs inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from subgraphs(inner)


def nodes(model: Any) -> Iterator[Any]:
    for graph in subgraphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def op_name(node: Any) -> str:
    """`Conv`, or with its domain if that is not ONNX's own: `com.microsoft.FusedConv`."""
    return node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


def count_ops(model: Any) -> dict[str, int]:
    """How many nodes of each operator, most frequent first."""
    counted = Counter(op_name(node) for node in nodes(model))
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def opset_of(model: Any) -> int | None:
    """The version of ONNX's own operators; None if the model uses none of them."""
    return next((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), None)


def trim_opsets(model: Any, wanted: Any = None) -> None:
    """Drops the domains that ONNX Runtime adds to every model it writes and that no node uses.

    Domains that `wanted`, the model as it was, has are kept.
    """
    used = {node.domain for node in nodes(model)} | set(ONNX_DOMAINS)
    if wanted is not None:
        used |= {entry.domain for entry in wanted.opset_import}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def strip_inserted_casts(model: Any) -> int:
    """Takes out the casts that ONNX Runtime put around float16 operators for the CPU; gives how many there were.

    QNN computes float16 itself, and would have the whole graph in float32 with them.
    """
    graph = model.graph
    casts = [
        node for node in graph.node if node.op_type == "Cast" and node.name.startswith(INSERTED_CAST) and node.input
    ]
    if not casts:
        return 0
    from_name = {node.output[0]: node.input[0] for node in casts}
    outputs = {value.name for value in graph.output}
    renamed = {node.input[0]: node.output[0] for node in casts if node.output[0] in outputs}

    def source(name: str) -> str:
        while name in from_name:
            name = from_name[name]
        return str(renamed.get(name, name))

    kept = [node for node in graph.node if not any(node is cast for cast in casts)]
    for node in kept:
        for number, name in enumerate(node.input):
            node.input[number] = source(name)
        for number, name in enumerate(node.output):
            node.output[number] = renamed.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]  # their types were those of the float32 graph; every reader infers them again
    return len(casts)
