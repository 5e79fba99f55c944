"""The contents of a model file, without loading it: compiled parts, other files, inputs, outputs, versions,
operators.

`scan_model` reads a file of any size in one pass and never loads weights or context binaries (2 GB: some 10 ms and
a few hundred kilobytes). It is deep: the main graph, the graphs inside of nodes (If, Loop, Scan) and the bodies of
the model's own functions. It is exact: a compiled part is a node of the operator EPContext in the domain
com.microsoft; a node with only that name, or in a foreign domain, is distinguished. Pure functions; any thread.
"""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final, Literal

from qnnbridge_host.model.collector import EpContextNode, ModelScan, collect
from qnnbridge_host.model.paths import open_regular
from qnnbridge_host.model.protobuf import Garbage, TooMuch
from qnnbridge_protocol.errors import CompiledModelRefused, ContextUnusable, InvalidProtobuf, NoSuchFile
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shell import model_command

_HEAD_BYTES: Final = 512
_LFS_MARK: Final = b"version https://git-lfs"
# At offset 4 of the flatbuffer that ONNX Runtime's own format is.
_ORT_MARK: Final = b"ORTM"
# One zero is a damaged byte; this many are a place that was never written.
_MANY_ZEROS: Final = 16


def scan_model(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, *, count_nodes: bool = True
) -> ModelScan:
    """Scan a model file, or a model's bytes.

    count_nodes: also look at every node, for `node_count` and `ops`; without that a model of 100,000 nodes is some
    ten times quicker. Raises `NoSuchFile`, and `InvalidProtobuf` for a file that is no model or is cut off, with
    the reason as text.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _scan(io.BytesIO(source), len(source), None, count_nodes)
    path = os.fsdecode(source)
    try:
        # Windows answers to the opening of a folder that permission is denied.
        if os.path.isdir(path):
            raise InvalidProtobuf(f"{path} is a folder, not a model.", fix="Give the path of the .onnx file in it.")
        with open_regular(path) as file:
            return _scan(file, os.fstat(file.fileno()).st_size, path, count_nodes)
    # ValueError: a path with a NUL character.
    except (OSError, ValueError) as error:
        raise NoSuchFile(
            f"The model {path} cannot be read.",
            cause=f"{getattr(error, 'strerror', None) or error}.",
            fix="Check the path; a relative one counts from the current folder.",
            details={"path": path},
        ) from None


def scan_open(file: BinaryIO, *, path: str | None = None, count_nodes: bool = False) -> ModelScan:
    """`scan_model` of a seekable file that is open for reading bytes. Raises `InvalidProtobuf` and `OSError`."""
    return _scan(file, file.seek(0, io.SEEK_END), path, count_nodes)


def scan_start(file: BinaryIO, size: int) -> ModelScan:
    """Scan a model until reading raises `EOFError`, and return the nodes that were found until then.

    Writers put the nodes before the weights, so the operators of a distant model are known after its first bytes.
    Raises `InvalidProtobuf` and `OSError`.
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
    # Before the walk, which would call a sound flatbuffer a damaged protobuf.
    if head[4:8] == _ORT_MARK:
        return ModelScan(size, "ort", path)
    try:
        return collect(file, size, count_nodes)._replace(path=path)
    except Garbage as found:
        raise no_model(head, size, path, found) from None


def no_model(head: bytes, size: int, path: str | None, found: Garbage | None = None) -> InvalidProtobuf:
    """The error for a file that is no ONNX model, with the likely format.

    head: its first bytes. found: why and where it cannot be read on.
    """
    from qnnbridge_host.model.context_binary import is_text, looks_like_blob, looks_like_container

    name = f"The file {path}" if path else "What was given as a model"
    words: tuple[str, str, str]
    evidence: list[str] = []
    if not size:
        words = (
            "is empty",
            "It was never written to its end: a download or a program that writes it was interrupted.",
            "Get or make the model again.",
        )
    # In front of the check for a text: a pointer is one, too, and has a remedy of its own.
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
            "It is the part of a compiled model that is kept beside its .onnx file; AI Hub and QAIRT also make it "
            "alone.",
            "Give the .onnx file that names it, mostly the same name without _qnn.bin. If there is none: "
            f"{model_command('wrap', path, '-o model_ctx.onnx')}",
        )
    elif looks_like_container(head):
        words = (
            "is not an ONNX model: it is a DLC, a container of Qualcomm's tools",
            "It holds a model for QAIRT and Genie, or context binaries for several chips. onnxruntime-genai hands "
            "a DLC to Genie, which generates text by itself; ONNX Runtime has no sessions of one.",
            "Give the .onnx file that names it (ep_dlc_context), or make a context binary for one chip of it with "
            "QAIRT's qnn-context-binary-generator: qnnbridge wrap makes a model of that.",
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
    """The error for a file that may have been a model once."""
    what = "is not an ONNX model, or it is cut off"
    cause = "It cannot be read to its end as the protobuf that an ONNX model is."
    evidence = [f"At byte {found.at} of {size}: {found.why}."] if found is not None and found.at is not None else []
    if found is not None and found.zeros >= _MANY_ZEROS:
        what = "is not an ONNX model: it " + (
            f"is zeros from byte {found.at} on" if found.at else "consists of zeros"
        )
        cause = "A power cut or the end of a download left only the place for its contents, not the contents."
        evidence = [f"From byte {found.at} of {size} on, at least {found.zeros} bytes are zero."]
    elif isinstance(found, TooMuch):
        what = "has too many fields for a model"
        cause = "It is damaged, or it was made to keep its readers busy."
    details: dict[str, object] = {"path": path, "size": size}
    # `source` reads `limit`: absent for another kind of file, false for damage, true for too many fields.
    if found is not None and found.at is not None:
        details |= {"at": found.at, "limit": isinstance(found, TooMuch)}
    return InvalidProtobuf(
        f"{name} {what}.",
        cause=cause,
        fix="Compare its size with the original, and copy, download or make it again.",
        evidence=evidence,
        details=details,
    )


def lacking_weights(path: str) -> list[str]:
    """What the files lack that hold weights of a model, one sentence each. Nothing for a model that cannot be read.

    For the explanation of an error: ONNX Runtime names the file in some of its texts, and QNN refuses the operator
    whose weights it could not read, as if it did not support that.
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
            found.append(f"{beside} has {size} bytes, and the model reads it up to byte {end}.")
    return found


# --- compiled models -----------------------------------------------------------------------------------
# A compiled model (EPContext) holds no weights that a tool could read, only an opaque context binary. ONNX Runtime
# and the quantizer find that out late, and say NOT_IMPLEMENTED or worse. Every command that works on a model's
# graph or weights calls `refuse_compiled` first.

Level = Literal["ok", "recompile recommended", "cannot run here"]

OK: Final = "ok"
RECOMPILE: Final = "recompile recommended"
CANNOT_RUN: Final = "cannot run here"

RECOMPILE_FIX: Final = "Recompile from the original model"


class Verdict(NamedTuple):
    """level and reason: `reason` continues the sentence of the level, without a full stop; empty for ok.

    cause, fix, evidence as in errors. notes: further facts, one sentence each; also of an ok.
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
        """``cannot run here: its context binary m_qnn.bin is missing``."""
        return f"{self.level}: {self.reason}" if self.reason else self.level

    def error(self, label: str, path: str | None = None) -> ContextUnusable:
        """For a model called `label` that cannot run."""
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

RUN_ON_THE_ORIGINAL: Final = "on the original ONNX model, the one before compilation"


def refuse_compiled(source: str | os.PathLike[str] | bytes, command: str) -> None:
    """Raises `CompiledModelRefused` for a compiled model. command: words for the user ("qnnbridge optimize").

    Also raises the errors of `scan_model` for a file that is no model, and `InvalidProtobuf` for ONNX Runtime's own
    format, which cannot be looked into.
    """
    refuse_scanned(scan_model(source, count_nodes=False), command)


def refuse_scanned(scan: ModelScan, command: str) -> None:
    """`refuse_compiled` of a model that has been scanned."""
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
    """The error; `scan` is of a compiled model."""
    nodes = scan.ep_contexts
    return CompiledModelRefused(
        f"{scan.label} is a compiled EPContext artifact made by {' and '.join(scan.sources)}; "
        f"{command} cannot work on it.",
        cause="Its weights are inside of an opaque context binary, which only the execution provider that made it "
        "can read.",
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
    """One line about a compiled part: node, place, provider, SDK."""
    sdk = f", QNN SDK {node.sdk_version}" if node.sdk_version else ""
    return f"EPContext node {node.label} in {node.where}, source {node.provider}{sdk}"
