"""Models for the tests of compiled models, made by the real onnx package."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

COMPILED = Path(__file__).parents[1] / "models" / "compiled"
QNN = "QNNExecutionProvider"
COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"
FLOAT = TensorProto.FLOAT


def context_node(name: str = "part_0", domain: str = "com.microsoft", **attributes: Any) -> Any:
    """Return an EPContext node as QNN writes it. `attributes` replace attributes; ``None`` removes one."""
    written = {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": "m_qnn.bin",
        "source": QNN,
        "ep_sdk_version": "v2.51.0.260929181845",
        "partition_name": name,
        "max_size": 0,
        **attributes,
    }
    kept = {key: value for key, value in written.items() if value is not None}
    return helper.make_node("EPContext", ["x"], ["y"], name=name, domain=domain, **kept)


def model_of(
    *nodes: Any, functions: tuple[Any, ...] = (), metadata: dict[str, str] | None = None, **graph: Any
) -> Any:
    made = helper.make_graph(
        list(nodes),
        "main",
        [helper.make_tensor_value_info("x", FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 8])],
        **graph,
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        functions=list(functions),
        producer_name="tests",
    )
    helper.set_model_props(model, metadata or {})
    return model


def body(*nodes: Any) -> Any:
    return helper.make_graph(list(nodes), "body", [], [])


def in_if(*nodes: Any, name: str = "branch") -> Any:
    return helper.make_node("If", ["c"], ["y"], name=name, then_branch=body(*nodes), else_branch=body())


def in_loop(*nodes: Any) -> Any:
    return helper.make_node("Loop", ["n", "c"], ["y"], name="turns", body=body(*nodes))


def function_with(*nodes: Any) -> Any:
    return helper.make_function("own", "Block", ["x"], ["y"], list(nodes), [helper.make_opsetid("", 21)])


# Possible locations of a compiled part: functions that return the model for a node.
PLACES = {
    "at top level": lambda node: model_of(node),
    "in a branch of If": lambda node: model_of(in_if(node)),
    "in the body of Loop": lambda node: model_of(in_loop(node)),
    "in a Loop in an If": lambda node: model_of(in_if(in_loop(node))),
    "in the body of a function": lambda node: model_of(
        helper.make_node("Block", ["x"], ["y"], domain="own"), functions=(function_with(node),)
    ),
    "in an If in a function": lambda node: model_of(
        helper.make_node("Block", ["x"], ["y"], domain="own"), functions=(function_with(in_if(node)),)
    ),
}


def save(model: Any, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def real(folder: Path, name: str = "good.onnx", binary: str = "a_qnn.bin") -> Path:
    """Copy a compiled model that QNN wrote, with its context binary; return its path."""
    shutil.copy(COMPILED / name, folder)
    shutil.copy(COMPILED / binary, folder)
    return folder / name


def edit(path: Path, **attributes: Any) -> Path:
    """Change attributes of the EPContext nodes of a file; ``None`` removes one."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "EPContext":
            kept = [attribute for attribute in node.attribute if attribute.name not in attributes]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(
                helper.make_attribute(key, value) for key, value in attributes.items() if value is not None
            )
    return save(model, path)


def embed(path: Path, data: bytes) -> Path:
    return edit(path, embed_mode=1, ep_cache_context=data)


def set_compatibility(path: Path, text: str | None) -> Path:
    model = onnx.load(path)
    kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != COMPATIBILITY}
    helper.set_model_props(model, kept if text is None else {**kept, COMPATIBILITY: text})
    return save(model, path)


def retarget(binary: Path, soc: str, arch: int, sdk: str | None = None) -> None:
    """Change the chip or SDK that a context binary records, without a change of its length."""
    data = binary.read_bytes()
    old = b"soc_type=SC8380XP;arch=73"
    new = b"soc_type=%s;arch=%d" % (soc.encode(), arch)
    data = data.replace(old, new + b";" * (len(old) - len(new)))
    if sdk is not None:
        data = data.replace(b"v2.51.0.260929181845", sdk.encode())
    binary.write_bytes(data)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def json_of(path: Path) -> Any:
    return json.loads(path.read_text())


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def write_huge(path: Path, weights: int, node: Any) -> None:
    """Write a model with an initializer of `weights` bytes, as a sparse file, followed by a node."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[weights // 4]).SerializeToString()
    tensor += b"\x4a" + varint(weights)  # raw_data
    node_bytes = node.SerializeToString()
    tail = b"\x0a" + varint(len(node_bytes)) + node_bytes
    initializer = b"\x2a" + varint(len(tensor) + weights) + tensor
    graph = b"\x12\x01g" + initializer
    head = onnx.ModelProto(ir_version=9).SerializeToString() + b"\x3a" + varint(len(graph) + weights + len(tail))
    with path.open("wb") as file:
        file.write(head + graph)
        file.seek(weights, io.SEEK_CUR)
        file.write(tail)
