"""Finds in the host's stderr why something failed, and adds it to the error.

ONNX Runtime's exception often says only that a node is not on QNN; the reason is a line of its log. The patterns
are data (`setup_rules`, `model_rules`). Pure functions, safe from any thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from qnnbridge._diagnosis.model_rules import MODEL_RULES
from qnnbridge._diagnosis.node_reasons import NodeReason, unsupported_nodes
from qnnbridge._diagnosis.rules import HINT, Finding, Rule, render
from qnnbridge._diagnosis.setup_rules import SETUP_RULES
from qnnbridge._diagnosis.stderr_text import LogLine, decode_stderr, parse_line, shorten
from qnnbridge_protocol.errors import (
    BridgeError,
    OrtError,
    PlacementRefused,
    ProviderUnavailable,
    RemoteRuntimeError,
)

# Lines of evidence for one finding or error: it is for a person to read.
MAX_EVIDENCE: Final = 4

# So many lines of a long log are first asked together which rules can match at all: asking each line each rule
# takes a minute for 5 MB.
LINES_AT_ONCE: Final = 200

_READ_SEVERITIES: Final = frozenset(("", "W", "E", "F"))
_ABOUT_PLACEMENT = re.compile("assigned to the default CPU EP|was inserted using the NHWC format")


class StderrSource(Protocol):
    """Where the lines of a request come from: the collector of the host's stderr."""

    def section(self, request_id: int, timeout_s: float) -> bytes:
        """What was written between the markers of the request; waits for the end marker that long at most."""


def explain_lines(lines: Iterable[str]) -> list[Finding]:
    """What the lines of a log say about a failure, best first. Empty if no line is known."""
    return search(lines, (*SETUP_RULES, *MODEL_RULES))


def search(lines: Iterable[str], rules: Sequence[Rule]) -> list[Finding]:
    """The findings of `rules` in `lines`; lines that mean the same are the evidence of one finding."""
    compiled = [(rule, re.compile(rule.pattern)) for rule in rules]
    found: dict[tuple[str, str], Finding] = {}
    worth = [parsed.text for parsed in map(parse_line, lines) if _worth_reading(parsed)]
    for start in range(0, len(worth), LINES_AT_ONCE):
        some = worth[start : start + LINES_AT_ONCE]
        together = "\n".join(some)
        possible = compiled
        if len(worth) > LINES_AT_ONCE:
            possible = [(rule, pattern) for rule, pattern in compiled if occurs(rule.pattern, together)]
        _search_lines(some, possible, found)
    return sorted(found.values(), key=lambda finding: -finding.weight)


def _search_lines(
    lines: Iterable[str], rules: Sequence[tuple[Rule, re.Pattern[str]]], found: dict[tuple[str, str], Finding]
) -> None:
    for line in lines:
        for rule, pattern in rules:
            match = pattern.search(line)
            if match is not None:
                _add(found, render(rule, match, shorten(line)))
                break


def occurs(pattern: str, text: str) -> bool:
    """Whether one of the text's lines may match; where none does, each of them need not be asked."""
    return re.search(pattern, text, re.MULTILINE) is not None


def enrich(error: BridgeError, lines: Iterable[str]) -> BridgeError:
    """Adds to an error what the log says: cause and fix where it has none, evidence, ``unsupported_nodes``.

    What the error says already stays, with one exception: the host concludes the cause of a `PlacementRefused`
    from the outcome (these nodes are not on QNN), and a line which says that QNN did not start at all is the fact
    behind that.
    """
    if not isinstance(error, (OrtError, PlacementRefused, ProviderUnavailable, RemoteRuntimeError)):
        return error
    lines = list(lines)
    findings = [finding for finding in explain_lines(lines) if finding.weight > HINT]
    best = findings[0] if findings else None
    if best is not None and best.setup and isinstance(error, PlacementRefused):
        error.cause, error.fix = best.cause, best.fix
    elif isinstance(error, PlacementRefused) or _ABOUT_PLACEMENT.search(error.message):
        _add_nodes(error, unsupported_nodes(lines))
    # What the error itself says comes second: the log names the reason behind it.
    best = best or next(iter(explain_lines(error.message.splitlines())), None)
    if best is not None:
        error.cause = error.cause or best.cause
        error.fix = error.fix or best.fix or None
    if not error.evidence and findings:
        error.evidence = tuple(line for line in findings[0].evidence if not _says_the_same(line, [error.message]))
    return error


def enrich_from_stderr(
    error: BridgeError, stderr: StderrSource, request_ids: Sequence[int], timeout_s: float
) -> BridgeError:
    """`enrich` with what the host wrote for the last of these requests (none: it was never sent)."""
    if not request_ids:
        return error
    text = decode_stderr(stderr.section(request_ids[-1], timeout_s))
    return enrich(error, text.splitlines())


def _add_nodes(error: BridgeError, nodes: Sequence[NodeReason]) -> None:
    if not nodes:
        return
    error.details["unsupported_nodes"] = [[node.name, node.op_type, node.reason] for node in nodes]
    error.cause = error.cause or "QNN does not support these nodes as they are: " + ", ".join(
        f"{node.op_type} ({node.name})" if node.name else node.op_type for node in nodes[:MAX_EVIDENCE]
    )
    error.fix = error.fix or "Change or quantize these nodes, or allow fallback='cpu'."
    error.evidence += tuple(shorten(str(node)) for node in nodes[:MAX_EVIDENCE] if node.reason)


def _worth_reading(line: LogLine) -> bool:
    """At severity 0 thousands of lines tell what went well. QNN's own errors arrive as verbose lines with <E>."""
    return line.severity in _READ_SEVERITIES or (line.place == "QnnLogging" and line.text.startswith("<E>"))


def _add(found: dict[tuple[str, str], Finding], finding: Finding) -> None:
    key = (finding.rule, finding.cause)
    known = found.get(key)
    if known is None:
        found[key] = finding
    elif len(known.evidence) < MAX_EVIDENCE and not _says_the_same(finding.evidence[0], known.evidence):
        found[key] = dataclasses.replace(known, evidence=known.evidence + finding.evidence)


def _says_the_same(line: str, others: Sequence[str]) -> bool:
    """ONNX Runtime repeats QNN's line inside a longer one of its own."""
    return any(line in other or other in line for other in others)


__all__ = [
    "Finding",
    "NodeReason",
    "StderrSource",
    "decode_stderr",
    "enrich",
    "enrich_from_stderr",
    "explain_lines",
    "occurs",
    "search",
    "unsupported_nodes",
]
