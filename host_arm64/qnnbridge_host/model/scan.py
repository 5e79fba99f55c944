"""What a model file holds, without loading it: compiled parts, other files, inputs, outputs, versions, operators.

`scan_model` reads a file of any size in one pass and never loads weights or context binaries (2 GB: some 10 ms and
a few hundred kilobytes). It is deep: the main graph, the graphs inside of nodes (If, Loop, Scan) and the bodies of
the model's own functions. It is exact: a compiled part is a node of the operator EPContext in the domain
com.microsoft; a node that is merely named so, or in a foreign domain, is told apart. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from typing import BinaryIO, Final, Literal

from qnnbridge_host.model.nodes import EpContextNode
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_protocol.errors import InvalidProtobuf, NoSuchFile
from qnnbridge_protocol.specs import NodeInfo

_HEAD_BYTES: Final = 512
_LFS_MARK: Final = b"version https://git-lfs"
_ORT_MARK: Final = b"ORTM"
"""At offset 4 of the flatbuffer that ONNX Runtime's own format is."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelScan:
    """What a model file holds.

    format: "ort" is ONNX Runtime's own format; of such a file nothing but the size is known.
    ep_contexts: the compiled parts, in order of the file. lookalikes: nodes that only look like one.
    files: paths of other files as the model has them, each once, in order: of tensors and of context binaries;
    external_files are those of tensors alone.
    inputs: without initializers. node_count, ops: nodes of the main graph and of the graphs inside of it, by
    operator (with the domain, unless that is ONNX's own); 0 and empty if they were not counted. function_nodes:
    those in bodies of functions.
    """

    size_bytes: int
    format: Literal["onnx", "ort"] = "onnx"
    path: str | None = None
    ep_contexts: tuple[EpContextNode, ...] = ()
    lookalikes: tuple[EpContextNode, ...] = ()
    files: tuple[str, ...] = ()
    external_files: tuple[str, ...] = ()
    inputs: tuple[NodeInfo, ...] = ()
    outputs: tuple[NodeInfo, ...] = ()
    opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ir_version: int = 0
    producer: str = ""
    producer_version: str = ""
    graph_name: str = ""
    functions: tuple[str, ...] = ()
    node_count: int = 0
    function_nodes: int = 0
    initializer_count: int = 0
    ops: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_compiled(self) -> bool:
        """At least one part of the model is an EPContext node."""
        return bool(self.ep_contexts)

    @property
    def label(self) -> str:
        """How messages call it."""
        return os.path.basename(self.path) if self.path else f"<{self.size_bytes} bytes>"

    @property
    def sources(self) -> tuple[str, ...]:
        """The providers that made the compiled parts, each once."""
        return tuple(dict.fromkeys(node.provider for node in self.ep_contexts))


def scan_model(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, *, count_nodes: bool = True
) -> ModelScan:
    """Scan a model file, or a model's bytes.

    count_nodes: also look at every node, for `node_count` and `ops`; without that a model of 100,000 nodes is some
    ten times quicker. Raises `NoSuchFile`, and `InvalidProtobuf` for what is no model or is cut off, with the
    reason in words.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _scan(io.BytesIO(source), len(source), None, count_nodes)
    path = os.fsdecode(source)
    try:
        if os.path.isdir(path):
            raise InvalidProtobuf(f"{path} is a folder, not a model.", fix="Give the path of the .onnx file in it.")
        with open(path, "rb", buffering=0) as file:
            return _scan(file, os.fstat(file.fileno()).st_size, path, count_nodes)
    except (OSError, ValueError) as error:
        raise NoSuchFile(
            f"The model {path} cannot be read.",
            cause=f"{getattr(error, 'strerror', None) or error}.",
            fix="Check the path; a relative one counts from the current folder.",
            details={"path": path},
        ) from None


def scan_open(file: BinaryIO, *, count_nodes: bool = False) -> ModelScan:
    """`scan_model` of a seekable file that is open for reading bytes. Raises `InvalidProtobuf` and `OSError`."""
    return _scan(file, file.seek(0, io.SEEK_END), None, count_nodes)


def _scan(file: BinaryIO, size: int, path: str | None, count_nodes: bool) -> ModelScan:
    from qnnbridge_host.model.collector import collect

    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if head[4:8] == _ORT_MARK:
        return ModelScan(size, "ort", path)
    try:
        return dataclasses.replace(collect(file, size, count_nodes), path=path)
    except Garbage:
        raise no_model(head, size, path) from None


def no_model(head: bytes, size: int, path: str | None) -> InvalidProtobuf:
    """The error for a file that is no ONNX model, with the best guess what it is instead. head: its first bytes."""
    from qnnbridge_host.model.blob import looks_like_blob

    name = f"The file {path}" if path else "What was given as a model"
    words: tuple[str, str, str]
    evidence: list[str] = []
    if not size:
        words = (
            "is empty",
            "It was never written to its end: a download or a program that writes it was interrupted.",
            "Get or make the model again.",
        )
    elif head.startswith(_LFS_MARK):
        words = (
            "is not an ONNX model: it is a Git LFS pointer",
            "The repository was cloned without Git LFS, so there is only a short text in its place.",
            "Run: git lfs pull   (in that repository), or download the model file itself.",
        )
    elif is_text(head):
        words = (
            "is not an ONNX model: it is a text",
            "A web page or an error message may have been saved in its place.",
            "Download the model again.",
        )
        evidence = [line[:120] for line in head.decode("utf-8", "replace").strip().splitlines()[:1]]
    elif looks_like_blob(head):
        words = (
            "is not an ONNX model: it is a QNN context binary",
            "It is the part of a compiled model that is kept beside its .onnx file.",
            "Give the .onnx file that names it, mostly the same name without _qnn.bin.",
        )
    else:
        return InvalidProtobuf(
            f"{name} is not an ONNX model, or it is cut off.",
            cause="It cannot be read to its end as the protobuf that an ONNX model is.",
            fix="Compare its size with the original, and copy, download or make it again.",
            details={"path": path, "size": size},
        )
    return InvalidProtobuf(
        f"{name} {words[0]}.",
        cause=words[1],
        fix=words[2],
        evidence=evidence,
        details={"path": path, "size": size},
    )


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a text, which no model and no context binary begins like."""
    if not head.strip():
        return False
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # else only the last character is cut
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)


__all__ = ["EpContextNode", "ModelScan", "no_model", "scan_model", "scan_open"]
