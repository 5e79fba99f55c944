"""A context binary in place of a model: which file is one, and what its header says of it. Pure; any thread."""

from __future__ import annotations

import os
from typing import BinaryIO, Final

from qnnbridge_host.model.collector import DOMAIN, OP_TYPE, EpContextNode, ModelScan
from qnnbridge_host.model.context_binary import BlobFacts, looks_like_blob, looks_like_container, read_blob
from qnnbridge_host.model.paths import open_regular
from qnnbridge_host.model.scan import no_model, scan_model, scan_open
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import ContextUnusable, InvalidProtobuf, NoSuchFile, OptionError
from qnnbridge_protocol.specs import QNN

# Enough for the magic numbers, and for a look whether it is a text.
_HEAD_BYTES: Final = 512
# Metadata of a model that `wrap` gave float inputs and outputs, and what it puts around the compiled part.
FLOAT_IO: Final = "qnnbridge.float_io"
_CONVERSIONS: Final = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})
_COMPILED: Final = f"{DOMAIN}.{OP_TYPE}"


def facts_of(path: str) -> BlobFacts | None:
    """What the header of a context binary for one chip says; ``None`` for any other file."""
    try:
        with open_regular(path) as file:
            return read_blob(file) if looks_like_blob(file.read(_HEAD_BYTES)) else None
    except (OSError, ValueError):
        return None


def look_at_binary(path: str) -> BlobFacts:
    """What the header of an alleged context binary says. kind "unknown": perhaps of another format.

    Raises:
        NoSuchFile: it cannot be read.
        OptionError: it is an ONNX model.
        InvalidProtobuf: it is empty, a text, or a DLC.
        ContextUnusable: it is cut off, or has bytes behind its end.
    """
    try:
        if os.path.isdir(path):
            raise OSError("It is a folder")
        with open_regular(path) as file:
            head, size = file.read(_HEAD_BYTES), os.fstat(file.fileno()).st_size
            facts = read_blob(file)
            if facts.kind == "unknown" and _is_model(file):
                raise OptionError(
                    f"{path} is an ONNX model, not a context binary.",
                    fix="Use it as it is: a session, qnnbridge run and qnnbridge inspect take it.",
                )
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise NoSuchFile(
            f"The context binary {path} cannot be read.",
            cause=f"{getattr(error, 'strerror', None) or error}.",
            fix="Check the path; a relative one counts from the current folder.",
            details={"path": path},
        ) from None
    if facts.kind in ("empty", "text") or looks_like_container(head):
        refused = no_model(head, size, path)
        refused.message = refused.message.replace("is not an ONNX model", "is no context binary")
        raise refused
    if facts.is_whole is False:
        longer = facts.declared_size is not None and facts.size > facts.declared_size
        raise ContextUnusable(
            f"The context binary {path} {'has bytes behind its end' if longer else 'is cut off'}.",
            cause=f"It has {facts.size} bytes and says of itself that it has {facts.declared_size}.",
            fix="Copy or download it again. Git and FTP damage binary files that they take for texts.",
            details={"path": path},
        )
    return facts


def only_converts(source: ModelSource) -> bool:
    """Whether the nodes of a compiled model that run on the CPU are those of ``wrap --float-io``, and no others."""
    scan = source.scan
    if scan is None or not scan.is_compiled or scan.metadata.get(FLOAT_IO) != "1":
        return False
    given = source.data if source.path is None else source.path
    return set(scan_model(given or b"").ops) <= {*_CONVERSIONS, _COMPILED}


def _is_model(file: BinaryIO) -> bool:
    try:
        scan_open(file)
    except InvalidProtobuf:
        return False
    return True


def sketch(path: str, facts: BlobFacts) -> ModelScan:
    """A model around the binary as far as its header describes it: enough to judge SDK, chip and damage by."""
    name = os.path.basename(path)
    nodes = tuple(
        EpContextNode(
            graph,
            OP_TYPE,
            DOMAIN,
            "the main graph",
            source=QNN,
            main_context=int(not number),
            embed_mode=0,
            cache_path=None if number else name,
            sdk_version=facts.sdk,
            partition_name=graph,
        )
        # A header without names of graphs: one part stands for all.
        for number, graph in enumerate(facts.graphs or ("",))
    )
    return ModelScan(facts.size, ep_contexts=nodes, files=(name,), path=path)
