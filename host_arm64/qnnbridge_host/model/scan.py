"""Read the contents of a model file without loading it: compiled parts, other files, inputs, outputs, versions,
operators.

`scan_model` reads a file of any size in one pass and never reads weights or context binaries: a file of 2 GB
costs about 10 ms and a few hundred kilobytes. The scan covers the main graph, the graphs inside of nodes (If,
Loop, Scan) and the bodies of the model's own functions. A compiled part is a node with the operator EPContext in
the domain com.microsoft; a node that only has this name, or is in another domain, is listed separately. The
functions have no side effects and are thread-safe.
"""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final, Literal

from qnnbridge_host.model.collector import EpContextNode, ModelScan, collect
from qnnbridge_host.model.paths import open_regular
from qnnbridge_host.model.protobuf import Garbage, TooMuch
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import CompiledModelRefused, ContextUnusable, InvalidProtobuf, NoSuchFile
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shell import beside_command, model_command

_HEAD_BYTES: Final = 512
_LFS_MARK: Final = b"version https://git-lfs"
# Identifier of ONNX Runtime's own format, at offset 4 of the flatbuffer.
_ORT_MARK: Final = b"ORTM"
# A single zero may be a damaged byte; this many zeros are a region of the file that was never written.
_MANY_ZEROS: Final = 16


def scan_model(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, *, count_nodes: bool = True
) -> ModelScan:
    """Scan a model file, or a model's bytes.

    Args:
        source: the model's path, or its bytes.
        count_nodes: whether to count the nodes for `node_count` and `ops`; without counting, a model of 100,000
            nodes takes about a tenth of the time.

    Raises:
        NoSuchFile: the file cannot be read.
        InvalidProtobuf: the file is not a model, or is cut off.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _scan(io.BytesIO(source), len(source), None, count_nodes)
    path = os.fsdecode(source)
    try:
        # Check first: on Windows opening a folder fails with "permission denied", which would be misleading.
        if os.path.isdir(path):
            raise InvalidProtobuf(
                f"{path} is a folder, not a model.", fix="Give the path of the .onnx file in the folder."
            )
        with open_regular(path) as file:
            return _scan(file, os.fstat(file.fileno()).st_size, path, count_nodes)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"There is no model file {path}.", **why_missing(path), details={"path": path}) from None
    # ValueError: a path with a NUL character.
    except (OSError, ValueError) as error:
        raise NoSuchFile(
            f"The model {path} cannot be read.",
            cause=f"{getattr(error, 'strerror', None) or error}.",
            fix="Check the path; a relative path is relative to the current folder.",
            details={"path": path},
        ) from None


def scan_open(file: BinaryIO, *, path: str | None = None, count_nodes: bool = False) -> ModelScan:
    """Scan a seekable binary file. Raise `InvalidProtobuf` if it is not a model, `OSError` if reading fails."""
    return _scan(file, file.seek(0, io.SEEK_END), path, count_nodes)


def scan_start(file: BinaryIO, size: int) -> ModelScan:
    """Scan a model until reading raises `EOFError`, and return the nodes found until then.

    Writers put the nodes before the weights, so the first bytes of a remote model contain its operators.

    Raises:
        InvalidProtobuf: the file is not a model.
        OSError: reading failed.
    """
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if head[4:8] == _ORT_MARK:
        return ModelScan(size, "ort")
    try:
        return collect(file, size, True, until_eof=True)
    except Garbage as found:
        raise no_model(head, size, None, found) from None


def _scan(file: BinaryIO, size: int, path: str | None, count_nodes: bool) -> ModelScan:
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    # Check this first, because the walk would report a valid flatbuffer as damaged protobuf.
    if head[4:8] == _ORT_MARK:
        return ModelScan(size, "ort", path)
    try:
        return collect(file, size, count_nodes)._replace(path=path)
    except Garbage as found:
        raise no_model(head, size, path, found) from None


def no_model(head: bytes, size: int, path: str | None, found: Garbage | None = None) -> InvalidProtobuf:
    """Return the error for a file that is not an ONNX model, with the likely format.

    Args:
        head: the file's first bytes.
        size: the file's size in bytes.
        path: the file's path; ``None`` for a model given as bytes.
        found: reason and position at which reading failed.
    """
    from qnnbridge_host.model.context_binary import is_text, looks_like_blob, looks_like_container

    name = f"The file {path}" if path else "The given model"
    words: tuple[str, str, str]
    evidence: list[str] = []
    if not size:
        words = (
            "is empty",
            "The file was not written completely: a download or the program that writes the file was interrupted.",
            "Download or create the model again.",
        )
    # Check for a Git LFS pointer before text, because a pointer is also text, but has another fix.
    elif head.startswith(_LFS_MARK):
        words = (
            "is not an ONNX model: it is a Git LFS pointer",
            "The repository was cloned without Git LFS, so it contains a short text file instead of the model.",
            "Run: git lfs pull   (in that repository), or download the model file itself.",
        )
    elif is_text(head):
        words = (
            "is not an ONNX model: it is a text file",
            "A web page or an error message may have been saved instead of the model.",
            "Download the model again.",
        )
        evidence = [line[:120] for line in head.decode("utf-8", "replace").strip().splitlines()[:1]]
    elif looks_like_blob(head):
        words = (
            "is not an ONNX model: it is a QNN context binary",
            "A context binary is the part of a compiled model that is stored next to the .onnx file; AI Hub and "
            "QAIRT also create binaries without an .onnx file.",
            "Give the .onnx file that refers to the binary; its name is usually the binary's without _qnn.bin. If "
            "there is no such file, create one: "
            f"{model_command('wrap', path, '-o model_ctx.onnx')}",
        )
    elif looks_like_container(head):
        words = (
            "is not an ONNX model: it is a DLC, a container of Qualcomm's tools",
            "It contains a model for QAIRT and Genie, or context binaries for several chips. onnxruntime-genai "
            "hands a DLC to Genie, which generates text by itself; ONNX Runtime cannot create a session from it.",
            "Give the .onnx file that refers to it (ep_dlc_context), or create a context binary for one chip with "
            "QAIRT's qnn-context-binary-generator, and a model from that binary with qnnbridge wrap.",
        )
    else:
        return _unreadable(name, size, path, found)
    return InvalidProtobuf(
        f"{name} {words[0]}.",
        cause=words[1],
        fix=words[2],
        evidence=evidence,
        details={"path": path, "size": size},
    )


def _unreadable(name: str, size: int, path: str | None, found: Garbage | None) -> InvalidProtobuf:
    """Return the error for a file that may be a damaged model."""
    what = "is not an ONNX model, or it is cut off"
    cause = "The contents are incomplete or are not valid protobuf, the format of ONNX models."
    evidence = [f"At byte {found.at} of {size}: {found.why}."] if found is not None and found.at is not None else []
    if found is not None and found.zeros >= _MANY_ZEROS:
        what = "is not an ONNX model: it " + (
            f"contains only zeros from byte {found.at} on" if found.at else "consists of zeros"
        )
        cause = "A power cut or an interrupted download left a part of the file reserved, but not written."
        evidence = [f"From byte {found.at} of {size} on, at least {found.zeros} bytes are zero."]
    elif isinstance(found, TooMuch):
        what = "has too many fields for a model"
        cause = "The model is damaged, or was made to overload programs that read it."
    details: dict[str, object] = {"path": path, "size": size}
    # Set the detail `limit` only for a protobuf file: true if it has too many fields, false if it is damaged.
    if found is not None and found.at is not None:
        details |= {"at": found.at, "limit": isinstance(found, TooMuch)}
    return InvalidProtobuf(
        f"{name} {what}.",
        cause=cause,
        fix="Compare the size with the original's, and copy, download or export the model again.",
        evidence=evidence,
        details=details,
    )


WEIGHTS_OUTSIDE: Final = (
    "The model refers to a file with weights by an absolute path or outside of the model's folder, and weights are "
    "read only in this folder."
)


def weights_outside_fix(model: str | None) -> str:
    """Return the fix for weights outside of the model's folder. model: the model's file, if it is known."""
    return (
        "Copy the file with the weights into the folder of the model, and shorten its path in the model to the "
        f"file name: {beside_command(model)}"
    )


def lacking_weights(path: str) -> list[str]:
    """Return a sentence for each missing or truncated weight file of a model. Empty for an unreadable model.

    Use the result to explain errors of a session. Only some messages of ONNX Runtime contain the file's name, and
    QNN reports an operator without readable weights as not supported.
    """
    try:
        ends = scan_model(path, count_nodes=False).external_files
    except (InvalidProtobuf, NoSuchFile):
        return []
    found = []
    for name, end in ends.items():
        beside = os.path.join(os.path.dirname(path), name)
        try:
            size = os.stat(beside).st_size
        except OSError as error:
            found.append(f"{beside}: {error.strerror or error}.")
            continue
        if size < end:
            found.append(f"{beside} has {size} bytes, but the model needs {end} bytes.")
    return found


# --- compiled models -------------------------------------------------------------------------------------
# A compiled model (EPContext) contains no weights that a tool could read, only an opaque context binary. ONNX
# Runtime and the quantizer detect a compiled model late, and fail with NOT_IMPLEMENTED or an unrelated error. Every
# command that works on a model's graph or weights calls `refuse_compiled` first.

Level = Literal["ok", "recompile recommended", "cannot run here"]

OK: Final = "ok"
RECOMPILE: Final = "recompile recommended"
CANNOT_RUN: Final = "cannot run here"

RECOMPILE_FIX: Final = "Recompile from the original model"


class Verdict(NamedTuple):
    """Verdict on a compiled model.

    reason: the rest of the sentence that begins with `level`, without a full stop; empty for ok. cause, fix,
    evidence: as in errors. notes: further facts, one sentence each; any level may have notes.
    """

    level: Level
    reason: str = ""
    cause: str | None = None
    fix: str | None = None
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        return self.level != CANNOT_RUN

    @property
    def message(self) -> str:
        """Level and reason: ``cannot run here: its context binary m_qnn.bin is missing``."""
        return f"{self.level}: {self.reason}" if self.reason else self.level

    def error(self, label: str, path: str | None = None) -> ContextUnusable:
        """Return the error for a model that cannot run. label: its name in the message."""
        return ContextUnusable(
            f"{label} {self.message}.",
            cause=self.cause,
            fix=self.fix,
            evidence=self.evidence,
            details={"path": path, "verdict": self.level, "reason": self.reason, "notes": list(self.notes)},
        )


def cannot_run(reason: str, cause: str | None = None, fix: str | None = None, *evidence: str) -> Verdict:
    return Verdict(CANNOT_RUN, reason, cause, fix, evidence)


_SHOWN_NODES: Final = 5

RUN_ON_THE_ORIGINAL: Final = "on the original ONNX model before its compilation"


def refuse_compiled(source: str | os.PathLike[str] | bytes, command: str) -> None:
    """Raise `CompiledModelRefused` for a compiled model.

    Args:
        source: the model's path, or its bytes.
        command: the command for the message ("qnnbridge optimize").

    Raises:
        CompiledModelRefused: the model is compiled.
        InvalidProtobuf: the file is not a model, or is in ONNX Runtime's own format, which cannot be read here.
        NoSuchFile: the file cannot be read.
    """
    refuse_scanned(scan_model(source, count_nodes=False), command)


def refuse_scanned(scan: ModelScan, command: str) -> None:
    """Raise `CompiledModelRefused` for a compiled model that has been scanned."""
    if scan.format == "ort":
        raise InvalidProtobuf(
            f"{scan.label} is in ONNX Runtime's own format (.ort), not an ONNX model.",
            cause=f"{command} works on ONNX models.",
            fix=f"Run {command} on the .onnx file that it was converted from.",
            details={"path": scan.path},
        )
    if scan.is_compiled:
        raise compiled_refused(scan, command)


def compiled_refused(scan: ModelScan, command: str) -> CompiledModelRefused:
    """Return the error for a command on a compiled model, whose scan is `scan`."""
    nodes = scan.ep_contexts
    return CompiledModelRefused(
        f"{scan.label} is a compiled model (EPContext) made by {' and '.join(scan.sources)}; "
        f"{command} needs the original model.",
        cause="The weights of a compiled model are inside of a context binary, which only the execution provider "
        "that compiled the model can read.",
        fix=f"Run {command} {RUN_ON_THE_ORIGINAL}.",
        evidence=[describe(node) for node in nodes[:_SHOWN_NODES]]
        + ([f"and {len(nodes) - _SHOWN_NODES} more compiled parts"] if len(nodes) > _SHOWN_NODES else []),
        details={
            "path": scan.path,
            "command": command,
            "sources": list(scan.sources),
            "nodes": [
                {"name": node.name, "where": node.where, "source": node.source, "sdk": node.sdk_version}
                for node in nodes[:_SHOWN_NODES]
            ],
        },
    )


def describe(node: EpContextNode) -> str:
    """Describe a compiled part in one line: node, graph, provider, SDK."""
    sdk = f", QNN SDK {node.sdk_version}" if node.sdk_version else ""
    return f"EPContext node {node.label} in {node.where}, source {node.provider}{sdk}"
