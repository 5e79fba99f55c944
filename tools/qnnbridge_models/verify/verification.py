"""The result of `verify_model` as a record, as rows printed during the run, as a text report, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._buckets import sizes_text
from qnnbridge_host.numerics.judge import NumberFormat, State, rank
from qnnbridge_protocol.errors import BridgeError, OptionError, OrtError
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools import output, reporting

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

InputKind = Literal["given", "made up", "extreme"]
InputStatus = Literal["agrees", "differs", "not shown", "failed", "unchecked", "refused", "skipped"]
VerificationVerdict = Literal["agrees", "differs", "not shown", "failed", "not compared"]


@dataclasses.dataclass(frozen=True, slots=True)
class TrapFound:
    """A silent trap of QNN (a wrong result without an error) that affects the model.

    Args:
        words: description of the trap.
        evidence: the observed values, or the node.
        advice: what the user can do.
        proof: the change that removed the error.
    """

    name: str
    words: str
    evidence: str
    advice: str
    proof: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputVerdict:
    """Verdict on one output over all sets of inputs that count.

    Args:
        state: the verdict; "unknown" if the inputs prove nothing.
        reason: why the state is not "agrees".
        inputs: name of the set of inputs that decided the verdict.
        worst: SNR and largest difference for this set; None if nothing was compared.
    """

    name: str
    state: State
    reason: str = ""
    inputs: str = ""
    worst: JudgedNumbers | None = None

    @property
    def numbers(self) -> str:
        """SNR and largest difference as text, or the reason why nothing was compared."""
        return numbers_text(self.worst) if self.worst is not None else self.reason

    def document(self) -> dict[str, Any]:
        numbers = self.worst.to_wire() if self.worst is not None else {}
        return {
            **numbers,
            "name": self.name,
            "state": self.state,
            "reason": self.reason or None,
            "inputs": self.inputs,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class InputSetResult:
    """Result of one set of inputs.

    Args:
        counts: true if a difference changes the model's verdict to "differs". NaN, infinities and values beyond
            float16 count only on request.
        status: "not shown": the values prove nothing; "failed": QNN raised or crashed, but the CPU returned
            results; "unchecked": QNN returned results, but the CPU raised; "refused": both raised; "skipped": not
            run.
        outputs: (name, numbers) for each output; empty if nothing was compared.
        reason: explanation of the statuses "failed", "unchecked", "refused" and "skipped".
        died: the host crashed or hung.
        kept: QNN's results come from the journal of an earlier, interrupted run.
    """

    name: str
    kind: InputKind
    counts: bool
    status: InputStatus
    outputs: Sequence[tuple[str, JudgedNumbers]] = ()
    reason: str = ""
    traps: tuple[TrapFound, ...] = ()
    died: bool = False
    kept: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "inputs": self.name,
            "kind": self.kind,
            "counts": self.counts,
            "status": self.status,
            "reason": self.reason or None,
            "died": self.died,
            "kept": self.kept,
            "outputs": [
                {**one.to_wire(), "name": name, "differs": one.state == "differs"} for name, one in self.outputs
            ],
            "traps": [trap.name for trap in self.traps],
        }

    @property
    def is_bad(self) -> bool:
        return self.status in ("differs", "failed")

    @property
    def worst(self) -> JudgedNumbers | None:
        """Comparison of the output with the lowest SNR among those that differ, else among all outputs."""
        compared = [one for _, one in self.outputs if one.snr_db is not None or one.lost]
        return min(compared, key=lambda one: (one.state != "differs", rank(one)), default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAlone:
    """Result of running one node alone on the CPU's values.

    Args:
        agrees: whether QNN agrees with the CPU; None if the node could not be run.
        words: explanation.
    """

    agrees: bool | None
    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """The first node, in the order of the file, after which QNN's values differ from the CPU's.

    Args:
        row: name of the set of inputs.
        node: label of the node.
        op: operator of the node.
        number, of: position of the node, and total number of nodes.
        exact: true if this is the first differing node. If the time ran out, false: the first differing node is one
            of the `window` nodes that end with this one.
        tensor: name of the tensor that differs.
        difference: numbers of the tensor; None if QNN crashes or raises there.
        error: QNN's error.
        group: names of the nodes that were examined together: a quantised operator with its QuantizeLinear and
            DequantizeLinear nodes.
        not_finalized: number of cut models that QNN did not finalize, so that their values could not be compared.
        alone: result of running the node alone.
        sessions: number of sessions that the search used.
        seconds: duration of the search.
    """

    row: str
    node: str
    op: str
    number: int
    of: int
    exact: bool
    window: int
    tensor: str = ""
    difference: JudgedNumbers | None = None
    error: str = ""
    group: tuple[str, ...] = ()
    not_finalized: int = 0
    alone: NodeAlone | None = None
    sessions: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class SessionCure:
    """Result of a remedy for a model that QNN computes wrong: rewrites, or disabled optimizers.

    Args:
        rewrites: descriptions of the rewrites, or names of the optimizers.
        agrees: with the remedy, QNN agrees on the inputs that differed before.
        words: the results as text.
        by_optimizers: true if the cause is not QNN: `rewrites` are optimizers of ONNX Runtime, which change the
            graph.
        command: command that writes the repaired model; empty if sessions apply the remedy automatically.
    """

    rewrites: tuple[str, ...]
    agrees: bool
    words: str
    by_optimizers: bool = False
    command: str = ""

    def __str__(self) -> str:
        if self.command:
            return (
                f"A rewrite fixes the model ({self.words}), but sessions do not apply this rewrite automatically. "
                f"Run: {self.command}"
            )
        if self.by_optimizers:
            then = "agrees with" if self.agrees else "still differs from"
            return (
                f"The cause is {'; '.join(self.rewrites)}, not QNN: ONNX Runtime changes the model before QNN "
                f"receives the model. Without this change QNN {then} the CPU: {self.words}. A session disables the "
                "change after the first call that differs; disabled_optimizers= disables it from the start."
            )
        if self.agrees:
            return f"Sessions fix the model automatically ({'; '.join(self.rewrites)}): {self.words}."
        return f"Sessions rewrite the model ({'; '.join(self.rewrites)}), but QNN still differs: {self.words}."


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Verification(Shown):
    """The result of `verify_model`.

    Args:
        verdict: "not shown" if the inputs prove nothing about an output; "failed" if QNN created no session; "not
            compared" if there was nothing to compare.
        reason: why this verdict was reached, with the worst numbers.
        number_format: format in which QNN computes.
        limits: tolerances of the verdict, as text.
        sizes: sizes of free dimensions.
        rows: result of each set of inputs.
        outputs: verdict on each output over all sets of inputs that count.
        given: verdicts on the given inputs only; empty if none are given.
        placement: placement of the nodes; None if no session was created.
        nodes: number of nodes of the file that depend on the inputs; None if they could not be counted.
        divergence: first differing node; None if the search found none or did not run.
        not_bisected: why the first differing node is unknown; empty if no search was necessary.
        node_traps: traps proven at the first differing node.
        error: why QNN failed.
        cure: result of a remedy tried on a model that differs; None if none was tried.
    """

    source: Path
    verdict: VerificationVerdict
    reason: str
    number_format: NumberFormat
    limits: str
    sizes: Mapping[str, int]
    rows: tuple[InputSetResult, ...]
    outputs: tuple[OutputVerdict, ...]
    given: tuple[OutputVerdict, ...]
    placement: Placement | None
    versions: Mapping[str, str]
    nodes: int | None = None
    divergence: Divergence | None = None
    not_bisected: str = ""
    node_traps: tuple[TrapFound, ...] = ()
    error: BridgeError | None = None
    cure: SessionCure | None = None
    seconds: float = 0.0

    def _shown_name(self) -> str:
        return self.source.name

    def _shown_facts(self) -> Iterator[Fact]:
        yield self.verdict, "" if self.verdict == "agrees" else "problem"
        if self.placement is not None:
            yield from self.placement._shown_facts()
        yield from more([self.reason, *(f"{one.name}: {one.state}, {one.numbers}" for one in self.outputs)])
        yield from more(f"{trap.name}: {trap.words} {trap.advice}" for trap in self.traps)

    @property
    def traps(self) -> tuple[TrapFound, ...]:
        """Traps without duplicates, each with its first evidence."""
        found: dict[str, TrapFound] = {}
        for trap in (*self.node_traps, *(trap for row in self.rows for trap in row.traps)):
            found.setdefault(trap.name, trap)
        return tuple(found.values())

    @property
    def worst(self) -> OutputVerdict | None:
        """Output that determines the verdict: an output that differs, else one that is "not shown", else the one
        with the lowest SNR.
        """
        return worst_of(self.outputs)

    @property
    def snr_db(self) -> float | None:
        """SNR of the worst output over all inputs that count; None if nothing was compared."""
        ratios = [
            one.worst.snr_db for one in self.outputs if one.worst is not None and one.worst.snr_db is not None
        ]
        return min(ratios, default=None)


# Order of the verdicts by weight: a single output that differs decides.
_ORDER = {"differs": 0, "unknown": 1, "agrees": 2}


def worst_of(outputs: Sequence[OutputVerdict]) -> OutputVerdict | None:
    def order(one: OutputVerdict) -> tuple[int, float]:
        return _ORDER[one.state], -math.inf if one.worst is None else rank(one.worst)

    return min(outputs, key=order, default=None)


def numbers_text(numbers: JudgedNumbers) -> str:
    """Return SNR, largest difference, fraction of differing values and fraction of equal decisions of an output as
    text.
    """
    if numbers.snr_db is None:
        return numbers.reason or "nothing was compared"
    where = f" in {numbers.part}" if numbers.part else ""
    text = f"SNR {numbers.snr_db:.1f} dB{where}, largest difference {numbers.max_abs:.3g}"
    text += f", {numbers.off:.2%} of values off"
    return text if numbers.decisions is None else f"{text}, {numbers.decisions:.1%} of the decisions the same"


# --- The result of `qnnbridge verify`: rows as they come, the text report, and the JSON document.


class PrintedRows:
    """Prints each row when it is complete, in columns of fixed width.

    Args:
        names: names of all sets of inputs.
        outputs: names of the outputs.
    """

    HEADERS = ("inputs", "output", "result", "SNR dB", "off", "decisions", "max abs")

    def __init__(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        texts = ([output.visible(name) for name in names], [output.visible(name) for name in outputs])
        # Each row is printed as soon as it is known, so make each column as wide as its longest possible text.
        self._widths = [
            max(map(len, ("inputs", *texts[0]))),
            max(map(len, ("output", *texts[1]))),
            *map(len, ("refused by both", "SNR dB", "100.00 %", "decisions", "max abs")),
        ]
        self._print(self.HEADERS)

    def __call__(self, row: InputSetResult) -> None:
        for line in _lines(row):
            self._print(line)

    def _print(self, cells: Sequence[str]) -> None:
        padded = (output.visible(cell).ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        # Flush each row, because the next may take minutes and Python buffers output to a pipe.
        print("  ".join(padded).rstrip(), flush=True)


def print_whole(result: Verification) -> None:
    """Print the table of rows, and the report."""
    output.print_table(PrintedRows.HEADERS, [line for row in result.rows for line in _lines(row)])
    print_result(result)


def print_result(result: Verification) -> None:
    """Print the report below the table of rows (`PrintedRows`)."""
    if result.rows:
        print()
    print(f"{result.verdict.upper()}: {output.visible(result.source.name)}. {output.visible(result.reason)}")
    print()
    _print_reasons(result)
    if result.error is not None:
        output.print_pairs("QNN's error", _error_pairs(result.error))
        print()
    begins = divergence_pairs(result.divergence) if result.divergence is not None else []
    if not begins and result.not_bisected:
        begins = [("unknown", result.not_bisected)]
    if begins:
        output.print_pairs("Where it begins", begins)
        print()
    for trap in result.traps:
        proof = [("proof", trap.proof)] if trap.proof else []
        pairs = [("what", trap.words), ("seen", trap.evidence), *proof, ("do", trap.advice)]
        output.print_pairs(f"Trap: {trap.name}", pairs)
        print()
    output.print_pairs("Compared", _how_pairs(result))


def _lines(row: InputSetResult) -> list[list[str]]:
    if not row.outputs:
        status = {"unchecked": "not checked", "refused": "refused by both"}.get(row.status, row.status)
        return [[row.name, "", status, "", "", "", ""]]
    lines = []
    for number, (name, numbers) in enumerate(row.outputs):
        extreme = " (extreme)" if numbers.state == "differs" and not row.counts else ""
        lines.append(
            [
                row.name if number == 0 else "",
                name,
                _state_text(numbers.state) + extreme,
                "-" if numbers.snr_db is None else f"{numbers.snr_db:.1f}",
                "-" if numbers.snr_db is None else f"{numbers.off:.2%}".replace("%", " %"),
                "-" if numbers.decisions is None else f"{numbers.decisions:.1%}".replace("%", " %"),
                "-" if numbers.snr_db is None else f"{numbers.max_abs:.3g}",
            ]
        )
    return lines


def _state_text(state: str) -> str:
    return "not shown" if state == "unknown" else state


def _print_reasons(result: Verification) -> None:
    pairs: list[tuple[str, str]] = []
    for row in result.rows:
        pairs += [(row.name, row.reason)] if row.reason else []
        pairs += [(row.name, f"{name}: {one.reason}") for name, one in row.outputs if one.reason]
    pairs += [("not shown", f"{one.name}: {one.reason}") for one in result.outputs if one.state == "unknown"]
    if pairs:
        output.print_pairs("Explained", pairs)
        print()


def _error_pairs(error: BridgeError) -> list[tuple[str, str]]:
    pairs = [("message", error.message)]
    pairs += [("cause", error.cause)] if error.cause else []
    pairs += [("evidence", line) for line in error.evidence]
    pairs += [("fix", error.fix)] if error.fix else []
    return pairs


def divergence_pairs(found: Divergence) -> list[tuple[str, str]]:
    place = f"{found.node} ({found.op}), node {found.number} of {found.of}"
    if not found.exact:
        place = f"one of the {found.window} nodes up to and including {place}; the search reached its time limit"
    pairs = [("node", place), ("inputs", found.row)]
    if len(found.group) > 1:
        pairs.append(("with", f"its quantised group: {', '.join(found.group)}"))
    if found.difference is not None:
        pairs.append(("tensor", f"{found.tensor}: {numbers_text(found.difference)}"))
    if found.error:
        pairs.append(("QNN", found.error))
    if found.alone is not None:
        pairs.append(("alone", found.alone.words))
    if found.not_finalized:
        pairs.append(
            ("no evidence", f"QNN did not finalize {found.not_finalized} of the models cut for the search")
        )
    pairs.append(("search", f"{found.sessions} sessions, {output.seconds(found.seconds)}"))
    return pairs


def _how_pairs(result: Verification) -> list[tuple[str, str]]:
    pairs = reporting.placement_pairs(result.placement) if result.placement is not None else []
    computes = "half floats" if result.number_format == "fp16" else "quantised steps"
    pairs.append(("allowed", f"{result.limits} ({computes})"))
    if result.given:
        worst = worst_of(result.given)
        assert worst is not None
        pairs.append(("given alone", f"{_state_text(worst.state)}: {worst.name}, {worst.numbers}"))
    if result.sizes:
        pairs.append(("sizes", sizes_text(result.sizes)))
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
        "number_format": result.number_format,
        "limits": result.limits,
        "sizes": dict(result.sizes),
        "snr_db": result.snr_db,
        "outputs": [one.document() for one in result.outputs],
        "given": [one.document() for one in result.given] or None,
        "rows": [row.document() for row in result.rows],
        "first_divergence": dataclasses.asdict(result.divergence) if result.divergence else None,
        "not_bisected": result.not_bisected or None,
        "traps": [dataclasses.asdict(trap) for trap in result.traps],
        "placement": result.placement.to_wire() if result.placement else None,
        "nodes": result.nodes,
        "versions": dict(result.versions),
        "cure": dataclasses.asdict(result.cure) if result.cure else None,
        "error": result.error.to_wire() if result.error else None,
        "seconds": result.seconds,
    }


# --- `--buckets`: verify a model at each combination of sizes that a session with buckets compiles -----------


@dataclasses.dataclass(frozen=True, slots=True)
class BucketsVerification:
    """Results for each combination of sizes.

    Args:
        results: pairs (sizes, result).
        ruled_out: pairs (sizes that the CPU rejects, reason).
    """

    results: tuple[tuple[Mapping[str, int], Verification], ...]
    ruled_out: tuple[tuple[Mapping[str, int], str], ...]

    @property
    def agrees(self) -> bool:
        return all(result.verdict == "agrees" for _, result in self.results)


def verify_buckets(
    buckets: Sequence[Mapping[str, int]], verify: Callable[[Mapping[str, int]], Verification]
) -> BucketsVerification:
    """Verify the model at each combination of sizes.

    Args:
        buckets: sizes of free dimensions by name.
        verify: verifies the model at the given sizes.

    Raises:
        OrtError, OptionError: the CPU rejects all combinations.
    """
    results: list[tuple[Mapping[str, int], Verification]] = []
    ruled_out: list[tuple[Mapping[str, int], str]] = []
    refused: BridgeError | None = None
    for sizes in buckets:
        try:
            results.append((sizes, verify(sizes)))
        # If the model does not support these sizes, list them apart from QNN's results.
        except (OrtError, OptionError) as error:
            refused = refused or error
            ruled_out.append((sizes, error.cause or error.message))
    # If every size fails, the cause is a wrong option, so raise the error.
    if refused is not None and not results:
        raise refused
    return BucketsVerification(tuple(results), tuple(ruled_out))


def print_buckets(result: BucketsVerification) -> None:
    """Print the verdict for each combination of sizes, below all reports."""
    pairs = [
        (sizes_text(sizes), f"{one.verdict}: {one.reason}" if one.reason else one.verdict)
        for sizes, one in result.results
    ]
    left_out = "skipped, because the CPU rejects these sizes"
    pairs += [(sizes_text(sizes), f"{left_out}: {reason}") for sizes, reason in result.ruled_out]
    output.print_pairs("Buckets", pairs)


def buckets_document(result: BucketsVerification) -> dict[str, Any]:
    return {
        "agrees": result.agrees,
        "buckets": [{"sizes": dict(sizes), **document(one)} for sizes, one in result.results],
        "ruled_out": [{"sizes": dict(sizes), "reason": reason} for sizes, reason in result.ruled_out],
    }
