"""Collect a `ModelScan` with its EPContext nodes while a model's protobuf is read. The results are immutable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, Final, Literal

from qnnbridge_host.model import protobuf as schema
from qnnbridge_host.model.node_count import Operator, operator_of, written_out
from qnnbridge_host.model.protobuf import (
    Garbage,
    Message,
    MessageKind,
    Span,
    close_type,
    signed,
    type_of_value,
    varint,
    walk,
)
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import NodeInfo

OP_TYPE = "EPContext"
DOMAIN = "com.microsoft"

# Values of ``source`` with which the QNN provider accepts a node.
QNN_SOURCES = frozenset({"QNNExecutionProvider", "QNN"})


class EpContextNode(NamedTuple):
    """A compiled part of a model, or (in `ModelScan.lookalikes`) a node that only resembles a compiled part.

    where: description of the graph that contains the node ("the main graph", "then_branch of the If node 'if1'").
    Attributes are ``None`` if the file lacks them; `owns_blob` and `embeds` then return the schema's defaults.
    cache_path: file of the context binary, if it is not embedded. embedded: position of an embedded context binary
    in the model file, or the bytes of ep_cache_context if they are too few for a context binary.
    """

    name: str
    op_type: str
    domain: str
    where: str
    source: str | None = None
    main_context: int | None = None
    embed_mode: int | None = None
    cache_path: str | None = None
    embedded: Span | bytes | None = None
    sdk_version: str | None = None
    partition_name: str | None = None
    multi_soc: bool = False
    dlc_path: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def is_real(self) -> bool:
        """Whether ONNX Runtime treats the node as a compiled part."""
        return self.op_type == OP_TYPE and self.domain == DOMAIN

    @property
    def embeds(self) -> bool:
        """Whether the model file contains the context binary (embed_mode 1, the schema's default)."""
        return self.embed_mode != 0

    @property
    def owns_blob(self) -> bool:
        """Whether the node is a main node, which refers to a context binary or embeds it. Other nodes share the
        main node's binary."""
        return self.main_context in (None, 1)

    @property
    def label(self) -> str:
        return self.name or "(unnamed)"

    @property
    def provider(self) -> str:
        """Execution provider that compiled the part, for messages."""
        return self.source or "an unnamed execution provider"


# A node without these byte strings refers to no file, and contains no compiled part. Searching for the strings is
# 15 times faster than parsing the node.
_WORDS: Final = (b"location", OP_TYPE.encode())
# Before this IR version initializers also had to be listed as inputs.
_LEAST_INITIALIZERS_ARE_INPUTS_IR: Final = 4
# Version that ONNX Runtime reports for a model without model_version.
_NO_VERSION: Final = 2**63 - 1


# Maximum number of digits of a byte count: 2**63 has 19 digits.
_MOST_DIGITS: Final = 20

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class ModelScan(NamedTuple):
    """The contents of a model file.

    format: "ort" is ONNX Runtime's own format; only the size of such a file is known. ep_contexts: the compiled
    parts in file order. lookalikes: nodes that only resemble a compiled part. files: paths of all files that
    contain tensors or context binaries, as written in the model, without duplicates, in file order. external_files:
    paths of the files that contain tensors, with the size that each file needs. inputs: the model's inputs without
    initializers. node_count, ops: number of nodes by the definition in the module `node_count`, in total and by
    operator (with the domain unless it is ONNX's own); 0 and empty if the nodes were not counted. function_nodes:
    nodes in the bodies of functions, each body counted once. metadata: the model's custom metadata. properties:
    `metadata`, and the model's description under ONNX Runtime's keys.
    """

    size_bytes: int
    format: Literal["onnx", "ort"] = "onnx"
    path: str | None = None
    ep_contexts: tuple[EpContextNode, ...] = ()
    lookalikes: tuple[EpContextNode, ...] = ()
    files: tuple[str, ...] = ()
    external_files: Mapping[str, int] = _NONE
    inputs: tuple[NodeInfo, ...] = ()
    outputs: tuple[NodeInfo, ...] = ()
    opsets: Mapping[str, int] = _NONE
    metadata: Mapping[str, str] = _NONE
    ir_version: int = 0
    producer: str = ""
    producer_version: str = ""
    graph_name: str = ""
    properties: Mapping[str, str] = _NONE
    functions: tuple[str, ...] = ()
    node_count: int = 0
    function_nodes: int = 0
    initializer_count: int = 0
    ops: Mapping[str, int] = _NONE

    @property
    def is_compiled(self) -> bool:
        """Whether at least one part of the model is an EPContext node."""
        return bool(self.ep_contexts)

    @property
    def label(self) -> str:
        """Name of the model in messages."""
        return os.path.basename(self.path) if self.path else f"<{self.size_bytes} bytes>"

    @property
    def sources(self) -> tuple[str, ...]:
        """Providers that compiled the parts, without duplicates."""
        return tuple(dict.fromkeys(node.provider for node in self.ep_contexts))


def collect(file: BinaryIO, size: int, count_nodes: bool, *, until_eof: bool = False) -> ModelScan:
    """Scan a model.

    Args:
        file: the model, opened for reading in binary mode.
        size: its size in bytes.
        count_nodes: whether to count the nodes.
        until_eof: return a partial scan if `file` raises `EOFError`.

    Raises:
        Garbage: the file is not an ONNX model.
        OSError: reading failed.
    """
    collector = _Collector(count_nodes)
    try:
        walk(file, size, schema.MODEL, schema.SCHEMA, collector)
    except EOFError:
        if not until_eof:
            raise
        return collector.scan_so_far(size)
    return collector.scan(size)


# Most nodes are not parsed. A search for two byte strings finds the nodes that may be a compiled part or refer to a
# file. If nodes are counted, `_glance` reads the operators of the remaining nodes. A node is parsed field by field
# only if the search finds a byte string, or if `_glance` cannot rule out a graph in the node. If a byte string
# occurs by chance, the node is parsed unnecessarily, and `close` finds that it is an ordinary node.
class _Collector:
    """Visitor that processes the messages of one pass through the file."""

    def __init__(self, count_nodes: bool) -> None:
        self.looked = 0
        self._count_nodes = count_nodes
        self._contexts: list[EpContextNode] = []
        self._lookalikes: list[EpContextNode] = []
        self._files: dict[str, None] = {}
        self._external: dict[str, int] = {}
        self._inputs: list[NodeInfo] = []
        self._outputs: list[NodeInfo] = []
        self._opsets: dict[str, int] = {}
        self._metadata: dict[str, str] = {}
        self._functions: list[str] = []
        self._operators: dict[Operator, int] = {}
        self._bodies: dict[Operator, dict[Operator, int]] = {}
        # Operators of the functions being read, by the id of the function's message.
        self._in_functions: dict[int, dict[Operator, int]] = {}
        self._initializers: set[str] = set()
        self._initializer_count = 0
        self._graph_name: str | None = None
        self._graph_doc = ""
        self._model: Message | None = None

    # --- callbacks of `protobuf.walk` --------------------------------------------------------------------

    def wants(self, kind: MessageKind, parent: Message, window: bytes, at: int, length: int) -> bool:
        end = at + length
        if kind is schema.NODE:
            if any(window.find(word, at, end) >= 0 for word in _WORDS):
                return True
            if not self._count_nodes:
                return False
            op_type, domain, has_graph = self._glance(window, at, end)
            if not has_graph:
                self._count(op_type, domain, parent)
            return has_graph
        if kind is schema.TENSOR:
            if parent.kind is schema.GRAPH and parent.parent is not None and parent.parent.kind is schema.MODEL:
                return True  # the names of the main graph's initializers are needed to remove them from the inputs
            return window.find(_WORDS[0], at, end) >= 0
        if kind is schema.VALUE:
            # Skip inputs and outputs of other graphs, because callers of a session use only inputs and outputs of
            # the main graph.
            return parent.parent is not None and parent.parent.kind is schema.MODEL
        return True

    def close(self, message: Message) -> None:
        closing = _CLOSING.get(message.kind)
        if closing is None:
            close_type(message)
        else:
            closing(self, message)

    def _glance(self, window: bytes, at: int, end: int) -> tuple[str, str, bool]:
        """Return operator and domain of a node that is completely in `window`, and whether the node may contain a
        graph."""
        op_type = domain = b""
        while at < end:
            self.looked += 1
            tag = window[at]
            number, wire = tag >> 3, tag & 7
            # All fields of a node are strings or messages with numbers below 16, so their tags have one byte.
            if tag & 0x80 or wire != 2 or not number:
                return "", "", True  # an unusual node, to be parsed field by field
            length, at = varint(window, at + 1)
            stop = at + length
            if stop > end:
                raise Garbage("a field is longer than the node that it is part of")
            if number == schema.NODE_ATTRIBUTE:
                if window.find(b"\x32", at, stop) >= 0 or window.find(b"\x5a", at, stop) >= 0:
                    # 0x32 and 0x5a are the tags of an attribute's fields for graphs. The same bytes may also occur
                    # by chance.
                    return "", "", True
            elif number == schema.NODE_TYPE:
                op_type = window[at:stop]
            elif number == schema.NODE_DOMAIN:
                domain = window[at:stop]
            at = stop
        return op_type.decode("utf-8", "replace"), domain.decode("utf-8", "replace"), False

    def _count(self, op_type: str, domain: str, parent: Message | None) -> None:
        function = _function_around(parent)
        # Use the message's id as key, because in the file the name of a function may follow its nodes.
        counts = self._operators if function is None else self._in_functions.setdefault(id(function), {})
        operator = operator_of(op_type, domain)
        counts[operator] = counts.get(operator, 0) + 1

    # --- processing of completely read messages ----------------------------------------------------------

    def _close_model(self, model: Message) -> None:
        self._model = model

    def _close_graph(self, graph: Message) -> None:
        if graph.parent is not None and graph.parent.kind is schema.MODEL:
            self._graph_name = graph.text(schema.GRAPH_NAME) or ""
            self._graph_doc = graph.text(schema.GRAPH_DOC) or ""

    def _close_function(self, function: Message) -> None:
        domain, name = function.text(schema.FUNCTION_DOMAIN) or "", function.text(schema.FUNCTION_NAME) or ""
        self._functions.append(f"{domain}.{name}" if domain else name)
        self._bodies[operator_of(name, domain)] = self._in_functions.pop(id(function), {})

    def _close_opset(self, opset: Message) -> None:
        domain = opset.text(schema.OPSET_DOMAIN) or ""
        self._opsets[domain] = opset.number(schema.OPSET_VERSION) or 0

    def _close_entry(self, entry: Message) -> None:
        key, parent = entry.text(schema.ENTRY_KEY), entry.parent
        if parent is not None and key in ("location", "offset", "length"):
            parent.notes[key] = entry.text(schema.ENTRY_VALUE)

    def _close_metadata(self, entry: Message) -> None:
        key, value = entry.text(schema.ENTRY_KEY), entry.values.get(schema.ENTRY_VALUE, b"")
        # Omit a value that the reader skipped because of its length: an empty string would be a wrong value.
        if key is not None and not isinstance(value, schema.Span):
            self._metadata[key] = entry.text(schema.ENTRY_VALUE) or ""

    def _close_tensor(self, tensor: Message) -> None:
        # If data_location is not EXTERNAL, the tensor contains its data, and ONNX Runtime ignores the path.
        if tensor.number(schema.TENSOR_LOCATION) == schema.EXTERNAL:
            path = self._add_file(tensor.notes.get("location"))
            if path:
                end = _count(tensor.notes.get("offset")) + _count(tensor.notes.get("length"))
                self._external[path] = max(end, self._external.get(path, 0))
        parent = tensor.parent
        if parent is not None and parent.kind is schema.SPARSE_TENSOR:
            # The first tensor of a sparse tensor contains its values and has its name.
            parent.notes.setdefault("name", tensor.text(schema.TENSOR_NAME))
        elif parent is not None and parent.kind is schema.GRAPH:
            self._add_initializer(parent, tensor.text(schema.TENSOR_NAME))

    def _close_sparse_tensor(self, tensor: Message) -> None:
        if tensor.parent is not None and tensor.parent.kind is schema.GRAPH:
            self._add_initializer(tensor.parent, tensor.notes.get("name"))

    def _add_initializer(self, graph: Message, name: object) -> None:
        if graph.parent is not None and graph.parent.kind is schema.MODEL:
            self._initializer_count += 1
            self._initializers.add(str(name or ""))

    def _close_value(self, value: Message) -> None:
        graph = value.parent
        if graph is None or graph.parent is None or graph.parent.kind is not schema.MODEL:
            return
        kind, shape = type_of_value(value)
        node = NodeInfo(value.text(schema.VALUE_NAME) or "", kind, shape)
        (self._inputs if value.field == schema.GRAPH_INPUT else self._outputs).append(node)

    def _close_attribute(self, attribute: Message) -> None:
        name, node = attribute.text(schema.ATTRIBUTE_NAME), attribute.parent
        if name is None or node is None or node.kind is not schema.NODE:
            return
        value = attribute.values.get(schema.ATTRIBUTE_TEXT, attribute.values.get(schema.ATTRIBUTE_INT))
        if value is not None:
            node.notes[name] = value

    def _close_node(self, node: Message) -> None:
        op_type, domain = node.text(schema.NODE_TYPE) or "", node.text(schema.NODE_DOMAIN) or ""
        if self._count_nodes:
            self._count(op_type, domain, node.parent)
        # A node that has only the name EPContext is not a compiled part; `inspect` lists it to avoid confusion.
        if op_type != OP_TYPE and node.text(schema.NODE_NAME) != OP_TYPE:
            return
        found = _context_node(node, op_type, domain)
        if not found.is_real:
            self._lookalikes.append(found)
            return
        self._contexts.append(found)
        self._add_file(found.cache_path)
        self._add_file(found.dlc_path)

    def _add_file(self, path: object) -> str:
        """Record a path of another file and return it; return "" if `path` is not a valid path."""
        # A file name cannot contain NUL, and `os.stat` would raise ValueError instead of OSError.
        if not isinstance(path, str) or not path or "\0" in path:
            return ""
        self._files[path] = None
        return path

    # --- the result --------------------------------------------------------------------------------------

    def _properties(self, model: Message) -> dict[str, str]:
        version = model.number(schema.MODEL_VERSION)
        own = {
            "producer_name": model.text(schema.MODEL_PRODUCER),
            "producer_version": model.text(schema.MODEL_PRODUCER_VERSION),
            "domain": model.text(schema.MODEL_DOMAIN),
            "model_version": str(_NO_VERSION if version is None else version),
            "doc_string": model.text(schema.MODEL_DOC),
            "graph_name": self._graph_name,
            "graph_description": self._graph_doc,
        }
        return {**{name: text or "" for name, text in own.items()}, **self._metadata}

    def scan_so_far(self, size: int) -> ModelScan:
        """Return a partial scan with the nodes read so far: `node_count`, `ops` and `ep_contexts`."""
        ops = written_out(self._operators, self._bodies)
        return ModelScan(size, ep_contexts=tuple(self._contexts), node_count=sum(ops.values()), ops=ops)

    def scan(self, size: int) -> ModelScan:
        model = self._model
        ir_version = model.number(schema.MODEL_IR_VERSION) if model is not None else None
        if model is None or ir_version is None or self._graph_name is None:
            # The file may be a protobuf message of another type.
            raise Garbage("its version or its graph is missing")
        ops = written_out(self._operators, self._bodies)
        weights_are_inputs = ir_version < _LEAST_INITIALIZERS_ARE_INPUTS_IR
        return ModelScan(
            size_bytes=size,
            ep_contexts=tuple(self._contexts),
            lookalikes=tuple(self._lookalikes),
            files=tuple(self._files),
            external_files=self._external,
            inputs=tuple(
                node for node in self._inputs if not (weights_are_inputs and node.name in self._initializers)
            ),
            outputs=tuple(self._outputs),
            opsets=self._opsets,
            metadata=self._metadata,
            ir_version=ir_version,
            producer=model.text(schema.MODEL_PRODUCER) or "",
            producer_version=model.text(schema.MODEL_PRODUCER_VERSION) or "",
            graph_name=self._graph_name,
            properties=self._properties(model),
            functions=tuple(self._functions),
            node_count=sum(ops.values()),
            function_nodes=sum(sum(body.values()) for body in self._bodies.values()),
            initializer_count=self._initializer_count,
            ops=ops,
        )


# Use a table instead of a chain of comparisons, because this runs at the end of every message.
_CLOSING: Final = {
    schema.MODEL: _Collector._close_model,
    schema.GRAPH: _Collector._close_graph,
    schema.FUNCTION: _Collector._close_function,
    schema.OPSET: _Collector._close_opset,
    schema.ENTRY: _Collector._close_entry,
    schema.METADATA: _Collector._close_metadata,
    schema.TENSOR: _Collector._close_tensor,
    schema.SPARSE_TENSOR: _Collector._close_sparse_tensor,
    schema.VALUE: _Collector._close_value,
    schema.ATTRIBUTE: _Collector._close_attribute,
    schema.NODE: _Collector._close_node,
}


def _context_node(node: Message, op_type: str, domain: str) -> EpContextNode:
    notes = node.notes
    embed_mode, cache = _number(notes, "embed_mode"), notes.get("ep_cache_context")
    # The reader returns a Span only for values longer than any path, so a Span is a binary whatever embed_mode is.
    is_path = embed_mode == 0 and isinstance(cache, bytes)
    return EpContextNode(
        name=node.text(schema.NODE_NAME) or "",
        op_type=op_type,
        domain=domain,
        where=_where(node),
        source=_text(notes, "source"),
        main_context=_number(notes, "main_context"),
        embed_mode=embed_mode,
        cache_path=_text(notes, "ep_cache_context") if is_path else None,
        embedded=cache if not is_path and isinstance(cache, (Span, bytes)) else None,
        sdk_version=_text(notes, "ep_sdk_version"),
        partition_name=_text(notes, "partition_name"),
        multi_soc=bool(_number(notes, "is_multi_soc_ep_context")),
        dlc_path=_text(notes, "ep_dlc_context"),
        inputs=node.texts(schema.NODE_INPUT),
        outputs=node.texts(schema.NODE_OUTPUT),
    )


def _text(notes: Mapping[str, object], name: str) -> str | None:
    value = notes.get(name)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else None


def _number(notes: Mapping[str, object], name: str) -> int | None:
    value = notes.get(name)
    return signed(value) if isinstance(value, int) else None


def _count(text: object) -> int:
    """Parse a byte count; return 0 for a value that is not a number or is larger than any file."""
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < _MOST_DIGITS else 0


def _function_around(message: Message | None) -> Message | None:
    while message is not None and message.kind is not schema.FUNCTION:
        message = message.parent
    return message


def _where(node: Message) -> str:
    """Return a description of the graphs that contain a node, innermost first. The names of these graphs have been
    read already, because protobuf writes the name of a graph before its subgraphs."""
    words: list[str] = []
    message = node.parent
    while message is not None:
        if message.kind is schema.FUNCTION:
            words.append(f"the function {message.text(schema.FUNCTION_NAME) or '(unnamed)'}")
        elif message.kind is schema.GRAPH and message.parent is not None:
            around = message.parent
            if around.kind is schema.MODEL:
                words.append("the main graph")
            elif around.parent is not None:
                owner = around.parent
                name = owner.text(schema.NODE_NAME)
                words.append(
                    f"{around.text(schema.ATTRIBUTE_NAME) or 'a graph'} of the "
                    f"{owner.text(schema.NODE_TYPE) or 'unknown'} node {name!r}"
                    if name
                    else f"{around.text(schema.ATTRIBUTE_NAME) or 'a graph'} of a "
                    f"{owner.text(schema.NODE_TYPE) or 'unknown'} node"
                )
        message = message.parent
    return " in ".join(words)
