"""The result of `verify_model`: as data, as text for a person, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from qnnbridge_host.numerics.comparing import OutputComparison
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools import output, session_report

InputKind = Literal["given", "made up", "extreme"]
InputStatus = Literal["agrees", "differs", "failed", "unchecked", "refused", "skipped"]
VerificationVerdict = Literal["agrees", "differs", "failed", "not compared"]

# One number has no direction.
_SEVERAL = 2
_MARKS = {"agrees": "AGREES", "differs": "DIFFERS", "failed": "FAILED", "not compared": "NOT COMPARED"}


@dataclasses.dataclass(frozen=True, slots=True)
class TrapFound:
    """A silent trap that was stepped into.

    Args:
        words: what it is.
        evidence: what was seen.
        advice: what to do.
    """

    name: str
    words: str
    evidence: str
    advice: str


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedOutput:
    """One output for one set of inputs. differs: more than rounding; `remark` says why."""

    difference: OutputComparison
    differs: bool
    remark: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class InputSetResult:
    """One set of inputs.

    Args:
        counts: whether a difference makes the model differ (NaN, infinities and sizes beyond half floats do not,
            unless asked for).
        status: failed, QNN raised or died where the CPU answers; unchecked, QNN answers where the CPU raises;
            refused, neither answers; skipped, not tried. `reason` has the words for the last four.
    """

    name: str
    kind: InputKind
    counts: bool
    status: InputStatus
    outputs: tuple[JudgedOutput, ...] = ()
    reason: str = ""
    traps: tuple[TrapFound, ...] = ()
    died: bool = False

    @property
    def is_bad(self) -> bool:
        return self.status in ("differs", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAlone:
    """One node by itself on the CPU's own values.

    Args:
        agrees: None if that could not be tried; `words` says more.
    """

    agrees: bool | None
    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """The first node, in the order of the file, behind which QNN's values differ from the CPU's.

    Args:
        exact: it is this node; else the time was over and it is one of `window` nodes that end with it.
        number, of: its place.
        tensor, difference: what differs; None if QNN dies or raises there, `error` says how.
        row: the inputs.
    """

    row: str
    node: str
    op: str
    number: int
    of: int
    exact: bool
    window: int
    tensor: str = ""
    difference: OutputComparison | None = None
    error: str = ""
    alone: NodeAlone | None = None
    sessions: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify_model`.

    Args:
        verdict: failed if QNN made no session; "not compared" if nothing was to be compared, `reason` says why.
        placement: None if there was no session.
        precision: what QNN computes in.
        divergence: None if none was looked for or found; `not_bisected` says why, empty if nothing had to be looked
            for.
    """

    source: Path
    verdict: VerificationVerdict
    reason: str
    precision: str
    tolerance: str
    sizes: Mapping[str, int]
    rows: tuple[InputSetResult, ...]
    placement: Placement | None
    versions: Mapping[str, str]
    divergence: Divergence | None = None
    not_bisected: str = ""
    node_traps: tuple[TrapFound, ...] = ()
    error: BridgeError | None = None
    seconds: float = 0.0

    @property
    def traps(self) -> tuple[TrapFound, ...]:
        """Each once, the first evidence of it."""
        found: dict[str, TrapFound] = {}
        for trap in (*self.node_traps, *(trap for row in self.rows for trap in row.traps)):
            found.setdefault(trap.name, trap)
        return tuple(found.values())

    @property
    def cosine(self) -> float | None:
        """The worst one over ordinary inputs; None if no output has several floats: one has no direction."""
        cosines = (
            one.difference.cosine
            for row in self.rows
            if row.kind != "extreme"
            for one in row.outputs
            if one.difference.cosine is not None and one.difference.elements > 1
        )
        return min(cosines, default=None)


def print_result(result: Verification) -> None:
    print(f"{_MARKS[result.verdict]}: {output.visible(result.source.name)}. {output.visible(result.reason)}")
    print()
    if result.rows:
        output.print_table(["inputs", "output", "result", "cosine", "max abs", "max rel"], _table(result.rows))
        print()
        _print_reasons(result.rows)
    if result.error is not None:
        output.print_pairs("What QNN says", _error_pairs(result))
        print()
    _print_divergence(result)
    for trap in result.traps:
        output.print_pairs(f"Trap: {trap.name}", _trap_pairs(trap))
        print()
    output.print_pairs("Compared", _how_pairs(result))


def _table(rows: tuple[InputSetResult, ...]) -> list[list[str]]:
    lines: list[list[str]] = []
    for row in rows:
        if not row.outputs:
            lines.append([row.name, "", _status(row), "", "", ""])
        for number, one in enumerate(row.outputs):
            told = one.difference
            status = "agrees" if not one.differs else "differs" if row.counts else "differs (extreme)"
            lines.append(
                [
                    row.name if number == 0 else "",
                    told.name,
                    status,
                    "-" if told.cosine is None or told.elements < _SEVERAL else f"{told.cosine:.5f}",
                    f"{told.max_abs:.3g}",
                    f"{told.max_relative:.2g}" if told.kind == "float" else f"{told.different} differ",
                ]
            )
    return lines


def _status(row: InputSetResult) -> str:
    return {"unchecked": "not checked", "refused": "refused by both"}.get(row.status, row.status)


def _print_reasons(rows: tuple[InputSetResult, ...]) -> None:
    pairs: list[tuple[str, str]] = []
    for row in rows:
        pairs += [(row.name, row.reason)] if row.reason else []
        pairs += [(row.name, f"{one.difference.name}: {one.remark}") for one in row.outputs if one.differs]
    if pairs:
        output.print_pairs("In words", pairs)
        print()


def _error_pairs(result: Verification) -> list[tuple[str, str]]:
    error = result.error
    assert error is not None
    pairs = [("message", error.message)]
    pairs += [("cause", error.cause)] if error.cause else []
    pairs += [("evidence", line) for line in error.evidence]
    pairs += [("fix", error.fix)] if error.fix else []
    return pairs


def _print_divergence(result: Verification) -> None:
    found = result.divergence
    if found is not None:
        output.print_pairs("Where it begins", divergence_pairs(found))
        print()
    elif result.not_bisected:
        output.print_pairs("Where it begins", [("unknown", result.not_bisected)])
        print()


def divergence_pairs(found: Divergence) -> list[tuple[str, str]]:
    place = f"{found.node} ({found.op}), node {found.number} of {found.of}"
    if not found.exact:
        place = f"among the {found.window} nodes that end with {place}; the time for the search was over"
    pairs = [("node", place), ("inputs", found.row)]
    if found.difference is not None:
        one = found.difference
        cosine = "" if one.cosine is None else f", cosine {one.cosine:.5f}"
        pairs.append(
            ("tensor", f"{found.tensor}: max abs {one.max_abs:.3g}, max rel {one.max_relative:.2g}{cosine}")
        )
    if found.error:
        pairs.append(("QNN", found.error))
    if found.alone is not None:
        pairs.append(("alone", found.alone.words))
    pairs.append(("search", f"{found.sessions} sessions, {output.seconds(found.seconds)}"))
    return pairs


def _trap_pairs(trap: TrapFound) -> list[tuple[str, str]]:
    return [("what", trap.words), ("seen", trap.evidence), ("do", trap.advice)]


def _how_pairs(result: Verification) -> list[tuple[str, str]]:
    pairs = session_report.placement_pairs(result.placement) if result.placement is not None else []
    computes = "half floats" if result.precision == "fp16" else "quantised steps"
    pairs.append(("allowed", f"{result.tolerance} ({computes})"))
    if result.sizes:
        pairs.append(("sizes", ", ".join(f"{name}={size}" for name, size in result.sizes.items())))
    shown = ("onnxruntime", "onnxruntime-qnn", "qnn_sdk")
    pairs.append(("with", ", ".join(f"{n} {result.versions[n]}" for n in shown if n in result.versions) or "?"))
    pairs.append(("time", output.seconds(result.seconds)))
    return pairs


def document(result: Verification) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "verdict": result.verdict,
        "agrees": result.verdict == "agrees",
        "reason": result.reason,
        "precision": result.precision,
        "tolerance": result.tolerance,
        "sizes": dict(result.sizes),
        "cosine": result.cosine,
        "rows": [_row_document(row) for row in result.rows],
        "first_divergence": dataclasses.asdict(result.divergence) if result.divergence else None,
        "not_bisected": result.not_bisected or None,
        "traps": [dataclasses.asdict(trap) for trap in result.traps],
        "placement": result.placement.to_wire() if result.placement else None,
        "versions": dict(result.versions),
        "error": result.error.to_wire() if result.error else None,
        "seconds": result.seconds,
    }


def _row_document(row: InputSetResult) -> dict[str, Any]:
    return {
        "inputs": row.name,
        "kind": row.kind,
        "counts": row.counts,
        "status": row.status,
        "reason": row.reason or None,
        "died": row.died,
        "outputs": [
            {**one.difference.document(), "differs": one.differs, "remark": one.remark or None}
            for one in row.outputs
        ],
        "traps": [trap.name for trap in row.traps],
    }
