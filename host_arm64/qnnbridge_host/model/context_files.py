"""Check the context binaries of a compiled model: each must exist, be complete, belong to this model, and be in the
model's folder or below.

QNN detects some of these faults, crashes on others and misses the rest: a context binary that was compiled with
other weights loads and computes wrong results. The functions only read files, and are thread-safe.
"""

from __future__ import annotations

import dataclasses
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final

from qnnbridge_host.model.collector import DOMAIN, OP_TYPE, EpContextNode, ModelScan
from qnnbridge_host.model.context_binary import BlobFacts, looks_like_blob, looks_like_container, read_blob
from qnnbridge_host.model.manifest import CompiledManifest, FileRecord
from qnnbridge_host.model.paths import leaves_folder, open_regular, path_problem
from qnnbridge_host.model.protobuf import Span
from qnnbridge_host.model.scan import RECOMPILE_FIX, Verdict, cannot_run, no_model, scan_model, scan_open
from qnnbridge_host.model.source import ModelSource
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import ContextUnusable, InvalidProtobuf, NoSuchFile, OptionError
from qnnbridge_protocol.specs import QNN

_COPY_AGAIN: Final = "Copy the compiled model again with all its files, or recompile from the original model."

# Function that returns the SHA-256 in hex of the file with this absolute path. It may raise `OSError`.
Hash = Callable[[str], str]


@dataclasses.dataclass(frozen=True, slots=True)
class Blob:
    """A context binary of a model.

    name: path of the binary as the model records it; ``None`` if it is embedded. nodes: the EPContext nodes that
        use the binary, the main nodes first.
    """

    name: str | None
    path: str | None
    facts: BlobFacts
    nodes: tuple[EpContextNode, ...]

    @property
    def label(self) -> str:
        return f"context binary {self.name}" if self.name else "embedded context binary"

    @property
    def names(self) -> frozenset[str]:
        """Names of the binary's graphs according to the nodes."""
        return frozenset(name for node in self.nodes for name in (node.partition_name, node.name) if name)

    @property
    def is_of_another_model(self) -> bool:
        """Whether the binary lacks a graph of the model. False if the names of its graphs cannot be read."""
        facts = self.facts
        return (
            facts.described
            and bool(facts.graphs)
            # A match of one of the node's two names is enough: QNN checks neither, and loads a model even if one of
            # the names was edited.
            and not all({node.partition_name, node.name} & set(facts.graphs) for node in self.nodes)
        )

    @property
    def is_shared(self) -> bool:
        """Whether several graphs use the same weights, including graphs that this model does not use."""
        if self.is_of_another_model:
            return False
        if self.facts.shares_weights is not None:
            return self.facts.shares_weights
        # Without a table of contents, compare the graphs: a graph to which no node refers belongs to another model.
        return not set(self.facts.graphs) <= self.names


@dataclasses.dataclass(frozen=True, slots=True)
class ContextFindings:
    """Result of the check. blobs: binaries that could be read. problem: why the model is unusable, or ``None``."""

    blobs: tuple[Blob, ...] = ()
    problem: Verdict | None = None


def check_context_files(
    model: str | bytes,
    folder: str,
    nodes: Sequence[EpContextNode],
    manifest: CompiledManifest | None,
    hash_of: Hash,
) -> ContextFindings:
    """Check every file that the compiled parts of a model need.

    Args:
        model: the model's path, or its bytes.
        folder: folder to which relative paths in the model refer.
        nodes: the EPContext nodes of QNN with a context binary.
        manifest: the model's manifest, if it has one.
        hash_of: function that returns the SHA-256 of a file.
    """
    try:
        # Check the hashes first: they detect any damaged byte and identify the file, while a header identifies it
        # only partly.
        if manifest is not None:
            _check_manifest(manifest, folder, nodes, hash_of)
        blobs = tuple(_blobs(model, folder, nodes))
        for blob in blobs:
            _check_facts(blob)
    except _Unusable as unusable:
        return ContextFindings((), unusable.verdict)
    return ContextFindings(blobs)


class _Unusable(Exception):
    def __init__(self, reason: str, cause: str | None, fix: str | None, *evidence: str) -> None:
        self.verdict = cannot_run(reason, cause, fix, *evidence)


def _blobs(model: str | bytes, folder: str, nodes: Sequence[EpContextNode]) -> Iterator[Blob]:
    owners = [node for node in nodes if node.owns_blob]
    parts = [node for node in nodes if not node.owns_blob]
    source = None if isinstance(model, bytes) else model
    for name, own in _by_file(owners).items():
        # A secondary node does not record which binary contains its graph, so its binary is known only if the
        # model has a single one. Only a model assembled from parts of several models has more.
        inside = (*own, *parts) if len(_by_file(owners)) == 1 else tuple(own)
        if name is None:
            for node in own:
                yield Blob(None, None, _embedded(model, node), inside)
        else:
            path = os.path.join(folder, name)
            yield Blob(name, path, _external(folder, name, path, source), inside)


def _by_file(owners: Sequence[EpContextNode]) -> Mapping[str | None, list[EpContextNode]]:
    found: dict[str | None, list[EpContextNode]] = {}
    for node in owners:
        # An empty path gets a separate key, and `path_problem` refuses it.
        found.setdefault(None if node.embeds else node.cache_path or "", []).append(node)
    return found


# --- context binaries embedded in the model --------------------------------------------------------------


def _embedded(model: str | bytes, node: EpContextNode) -> BlobFacts:
    value = node.embedded
    if not isinstance(value, Span):
        # The reader returns short values as bytes. They are no binary: the smallest measured binary has 48 KB.
        kept = value or b""
        raise _Unusable(
            f"its node {node.label} contains no context binary",
            (
                f"embed_mode is {'missing, which means 1' if node.embed_mode is None else node.embed_mode}, so "
                f"ep_cache_context must contain the binary, but its value is {_preview(kept)}."
            ),
            f"{RECOMPILE_FIX}.",
        )
    with io.BytesIO(model) if isinstance(model, bytes) else open(model, "rb") as file:
        return read_blob(file, value.start, value.length)


def _preview(value: bytes) -> str:
    return repr(value[:60].decode("utf-8", "backslashreplace")) if value else "empty"


# --- next to the model -----------------------------------------------------------------------------------


def _external(folder: str, name: str, path: str, model: str | None) -> BlobFacts:
    # Check the path before accessing the file: it may point to a network share.
    problem = path_problem(name)
    if problem is not None:
        raise _Unusable(
            f"it refers to {name!r} as its context binary: {problem}",
            "A compiled model may only use files in its own folder or below, and paths valid on Windows and Linux.",
            "Rename the original model so that its name does not contain two dots in a row, and recompile it."
            if "QNN" in problem
            else f"{RECOMPILE_FIX}, with the context binary next to the model.",
        )
    # Check links before calling anything that follows them, as `os.stat` does.
    outside = leaves_folder(folder, name, model)
    if outside is not None:
        raise _Unusable(
            f"its context binary {name} is a link to {outside}, outside of the model's folder",
            "A compiled model may only use files in its own folder or below; otherwise it could read any file of "
            "the user.",
            f"Replace the link by a copy of {os.path.basename(name)} next to the model.",
        )
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _Unusable(
            f"its context binary {name} is missing",
            f"A compiled model needs it at {path}.",
            f"Copy {os.path.basename(name)} next to the model, or recompile from the original model.",
        ) from None
    except OSError as error:
        raise _unreadable(name, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise _Unusable(
            f"{name} is not a file", "The model refers to this path as its context binary.", _COPY_AGAIN
        )
    try:
        with open(path, "rb") as file:
            return read_blob(file)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError) -> _Unusable:
    return _Unusable(
        f"its context binary {name} cannot be read", f"{error.strerror or error}.", "Check the file's permissions."
    )


# --- the header of a binary ------------------------------------------------------------------------------


# Accept an unknown header: the format is not published, and a later QNN may write another header.
def _check_facts(blob: Blob) -> None:
    facts = blob.facts
    if facts.kind == "empty":
        raise _Unusable(
            f"its {blob.label} is empty",
            "The file was not written completely: the compiler or a copy was interrupted, or the disk was full.",
            _COPY_AGAIN,
        )
    if facts.kind == "text":
        lfs = facts.first_line.startswith("version https://git-lfs")
        raise _Unusable(
            f"its {blob.label} is a {'Git LFS pointer' if lfs else 'text'}, not a context binary",
            "The repository was cloned without Git LFS."
            if lfs
            else "A different file was saved instead of the binary.",
            "Run: git lfs pull   (in that repository)." if lfs else _COPY_AGAIN,
            facts.first_line,
        )
    if facts.is_whole is False:
        what = "is cut off or damaged"
        if facts.declared_size is not None:
            longer = facts.size > facts.declared_size
            what = "has bytes after its end" if longer else "is cut off"
        raise _Unusable(
            f"its {blob.label} {what}",
            f"The file has {facts.size} bytes"
            + (f", but its header declares {facts.declared_size}." if facts.declared_size is not None else "."),
            _COPY_AGAIN,
        )
    if blob.is_of_another_model:
        raise _Unusable(
            f"its {blob.label} belongs to another model",
            "Its graphs do not have the names of the model's parts. Compiling two models to the same file name "
            "leaves the model of one next to the binary of the other, which crashes or computes wrong results.",
            f"{RECOMPILE_FIX}, each model to a different file name.",
            f"the model has {', '.join(sorted(blob.names))}",
            f"the binary has {', '.join(blob.facts.graphs)}",
        )


# --- the manifest ----------------------------------------------------------------------------------------


def _check_manifest(manifest: CompiledManifest, folder: str, nodes: Sequence[EpContextNode], hash_of: Hash) -> None:
    for record in manifest.files:
        _check_record(record, folder, hash_of)
    for node in nodes:
        name = node.cache_path
        # Skip a forbidden path here: a later check refuses it with a more precise message.
        if node.owns_blob and name and not path_problem(name) and manifest.record_of(name) is None:
            raise _Unusable(
                f"its context binary {name} is not listed in its manifest",
                f"The manifest has {', '.join(record.name for record in manifest.files)}.",
                _COPY_AGAIN,
            )


def _check_record(record: FileRecord, folder: str, hash_of: Hash) -> None:
    path = os.path.join(folder, *record.name.split("/"))
    try:
        size = os.stat(path).st_size
        # Hash only if the sizes are equal, because hashing gigabytes takes seconds.
        sha256 = hash_of(path) if size == record.size else ""
    except (FileNotFoundError, NotADirectoryError):
        raise _Unusable(
            f"its file {record.name} is missing", "The manifest next to the model lists this file.", _COPY_AGAIN
        ) from None
    except OSError as error:
        raise _unreadable(record.name, error) from None
    if size != record.size:
        raise _Unusable(
            f"its file {record.name} differs from the manifest",
            f"It has {size} bytes; the manifest records {record.size}.",
            _COPY_AGAIN,
        )
    if sha256 != record.sha256:
        raise _Unusable(
            f"its file {record.name} differs from the manifest",
            "Its contents have changed since the compilation; a damaged context binary crashes the host, hangs it "
            "or causes wrong results.",
            _COPY_AGAIN,
            f"sha256 {sha256}",
            f"in the manifest {record.sha256}",
        )


# --- a context binary given as a model -------------------------------------------------------------------

# Number of bytes to read in order to recognise the magic numbers and text.
_MAGIC_BYTES: Final = 512
# `FLOAT_IO`: metadata key of models to which `wrap` added float inputs and outputs. `_CONVERSIONS`: operators that
# `wrap` adds for the conversion.
FLOAT_IO: Final = "qnnbridge.float_io"
_CONVERSIONS: Final = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})
_COMPILED: Final = f"{DOMAIN}.{OP_TYPE}"


def facts_of(path: str) -> BlobFacts | None:
    """Return the facts from the header of a context binary for one chip; ``None`` for any other file."""
    try:
        with open_regular(path) as file:
            return read_blob(file) if looks_like_blob(file.read(_MAGIC_BYTES)) else None
    except (OSError, ValueError):
        return None


def look_at_binary(path: str) -> BlobFacts:
    """Return the facts from the header of a file given as context binary. The kind "unknown" may be a later format.

    Raises:
        NoSuchFile: the file cannot be read.
        OptionError: the file is an ONNX model.
        InvalidProtobuf: the file is empty, a text, or a DLC.
        ContextUnusable: the binary is cut off, or has bytes after its end.
    """
    try:
        # Check first: on Windows opening a folder fails with "permission denied", which would be misleading.
        if os.path.isdir(path):
            raise OSError("It is a folder")
        with open_regular(path) as file:
            head, size = file.read(_MAGIC_BYTES), os.fstat(file.fileno()).st_size
            facts = read_blob(file)
            if facts.kind == "unknown" and _is_model(file):
                raise OptionError(
                    f"{path} is an ONNX model, not a context binary.",
                    fix="Use it directly: a session, qnnbridge run and qnnbridge inspect accept it.",
                )
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(
            f"There is no context binary {path}.", **why_missing(path), details={"path": path}
        ) from None
    except (OSError, ValueError) as error:
        # Do not convert an `OptionError`, which is a `ValueError` too.
        if isinstance(error, OptionError):
            raise
        raise NoSuchFile(
            f"The context binary {path} cannot be read.",
            cause=f"{getattr(error, 'strerror', None) or error}.",
            fix="Check the path; a relative path is relative to the current folder.",
            details={"path": path},
        ) from None
    if facts.kind in ("empty", "text") or looks_like_container(head):
        refused = no_model(head, size, path)
        refused.message = refused.message.replace("is not an ONNX model", "is not a context binary")
        raise refused
    if facts.is_whole is False:
        longer = facts.declared_size is not None and facts.size > facts.declared_size
        raise ContextUnusable(
            f"The context binary {path} {'has bytes after its end' if longer else 'is cut off'}.",
            cause=f"The file has {facts.size} bytes, but its header declares {facts.declared_size}.",
            fix="Copy or download the binary again. Git and FTP damage binary files that they treat as text.",
            details={"path": path},
        )
    return facts


def only_converts(source: ModelSource) -> bool:
    """Return whether the only CPU nodes of a compiled model are the conversions of ``wrap --float-io``."""
    scan = source.scan
    if scan is None or not scan.is_compiled or scan.metadata.get(FLOAT_IO) != "1":
        return False
    given = source.data if source.path is None else source.path
    # Scan the model again, because the scan of a session does not count nodes.
    return set(scan_model(given or b"").ops) <= {*_CONVERSIONS, _COMPILED}


def _is_model(file: BinaryIO) -> bool:
    try:
        scan_open(file)
    except InvalidProtobuf:
        return False
    return True


def sketch(path: str, facts: BlobFacts) -> ModelScan:
    """Return the scan that a model with this binary would have; it is sufficient to judge SDK, chip and damage."""
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
        # If the header lists no graph, use one node for all graphs.
        for number, graph in enumerate(facts.graphs or ("",))
    )
    return ModelScan(facts.size, ep_contexts=nodes, files=(name,), path=path)
