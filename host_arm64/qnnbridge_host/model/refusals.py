"""Refusals: a `Verdict` on a compiled model, and the error for one where only an original will do.

A compiled model (EPContext) holds no weights that a tool could read, only an opaque context binary. ONNX Runtime
and the quantizer find that out late, and say NOT_IMPLEMENTED or worse. Every command that works on a model's graph
or weights calls `refuse_compiled` first. Any thread.
"""

from __future__ import annotations

import os
from typing import Final, Literal

from qnnbridge_host.model.collector import EpContextNode, ModelScan
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import CompiledModelRefused, ContextUnusable, InvalidProtobuf
from qnnbridge_protocol.records import NamedTuple

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
