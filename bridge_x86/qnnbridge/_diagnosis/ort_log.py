"""Find the causes of a failure in the host's stderr: the nodes that QNN refused, and log lines with a known cause.

ONNX Runtime's exception often reports only that a node is not on QNN; the reason is in its log. At severity 0 the
QNN execution provider reports each node, or each group of quantized nodes, in a few lines (a headline, one line per
node, and the reason), once per pass over the graph. At severities 1 and 2 the log contains only a list without
reasons, or the line of a failed validation. The patterns are data (`log_rules`). All functions are pure and
thread-safe.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final

from qnnbridge._diagnosis.log_rules import HINT, MODEL_RULES, SETUP_RULES, LogFinding, LogRule, qnn_code, render
from qnnbridge._launch.stderr import LogLine, StderrCollector, decode_stderr, parse_line, shorten
from qnnbridge_protocol.errors import (
    BridgeError,
    CompileFailed,
    OrtError,
    PlacementRefused,
    ProviderUnavailable,
    RemoteRuntimeError,
)
from qnnbridge_protocol.shown import listed

_UNIT = re.compile(r"Validation FAILED for \d+ nodes in OrtNodeUnit \((?P<unit>[^)]*)\)")
_NODE = re.compile(r"^\s*Operator type: (?P<op>\S*) Node name: (?P<name>.*?) Node index: \d+\s*$")
_REASON = re.compile(r"^\s*REASON : (?P<reason>.*)$")
_LISTED = re.compile(r"\{ name: (?P<name>.*?), type: (?P<op>\w+) \}")
_REFUSED = re.compile(
    r"backendValidateOpConfig\(\) failed for node `(?P<name>[^`]*)` of type `(?P<op>[^`]*)` .*code (?P<code>\d+)"
)
_REPEATED_NAME = re.compile(r"(?<=\.)\w+ node `[^`]*` will not be assigned to QNN EP\.")
_VAGUE: Final = ("", "Failed to add node.")


@dataclasses.dataclass(frozen=True, slots=True)
class NodeReason:
    """A node that QNN refused. `reason` is '' if the log does not contain a reason."""

    name: str
    op_type: str
    reason: str

    @property
    def label(self) -> str:
        return f"{self.op_type} ({self.name})" if self.name else self.op_type

    def __str__(self) -> str:
        return f"{self.label}: {self.reason}" if self.reason else self.label


def unsupported_nodes(lines: Iterable[str]) -> list[NodeReason]:
    """Return the nodes that QNN refused, with reasons, without duplicates, in the order of the log. For a group of
    quantized nodes, return only the operator node."""
    reader = _Reader()
    for line in lines:
        reader.read(parse_line(line))
    return reader.result()


class _Reader:
    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], str] = {}
        self._refused: dict[str, tuple[str, int]] = {}
        self._unit = ""
        self._members: list[tuple[str, str]] = []

    def read(self, line: LogLine) -> None:
        head = _UNIT.search(line.text)
        if head:
            self._unit, self._members = head.group("unit"), []
        elif self._unit:
            self._read_report(line.text)
        elif refused := _REFUSED.search(line.text):
            self._refused[refused.group("name")] = refused.group("op"), int(refused.group("code"))
        elif "Unsupported nodes in QNN EP:" in line.text:
            for listed in _LISTED.finditer(line.text):
                self._reasons.setdefault((listed.group("name"), listed.group("op")), "")

    def result(self) -> list[NodeReason]:
        nodes = [NodeReason(name, op, self._explain(name, reason)) for (name, op), reason in self._reasons.items()]
        named = {node.name for node in nodes}
        # Use the operator name from the line of the refusal only for nodes that the log lists nowhere else, because
        # this line contains QNN's name of the operator instead of ONNX's.
        rest = [(name, op) for name, (op, _) in self._refused.items() if name not in named]
        return nodes + [NodeReason(name, op, self._explain(name, "")) for name, op in rest]

    def _read_report(self, text: str) -> None:
        node = _NODE.match(text)
        if node:
            self._members.append((node.group("name"), node.group("op")))
            return
        reason = _REASON.match(text)
        if reason:
            self._reasons[self._operator()] = _REPEATED_NAME.sub("", reason.group("reason")).strip()
        # The report about the node ends here: with the node's reason, or before a line in another format.
        self._unit = ""

    def _operator(self) -> tuple[str, str]:
        """Return the operator node of a group. All other nodes of the group are QuantizeLinear and
        DequantizeLinear."""
        for name, op in self._members:
            if op == self._unit:
                return name, op
        return self._members[-1] if self._members else ("", self._unit)

    def _explain(self, name: str, reason: str) -> str:
        if name not in self._refused or reason not in _VAGUE:
            return reason
        row = qnn_code(self._refused[name][1])
        return f"{row.meaning} [{row.name} ({row.number})]" if row else reason


# Maximum number of lines of evidence in a finding or error. With more lines an error message is hard to read.
MAX_EVIDENCE: Final = 4

# Search a long log in blocks of this many lines: find the rules that match anywhere in the block, then apply only
# these rules to its lines. Matching each line with each rule would take a minute for 5 MB.
LINES_AT_ONCE: Final = 200

# Severities of lines to search. '' stands for lines not written by ONNX Runtime, such as the loader's.
_READ_SEVERITIES: Final = frozenset(("", "W", "E", "F"))
_ABOUT_PLACEMENT = re.compile("assigned to the default CPU EP|was inserted using the NHWC format")


def explain_lines(lines: Iterable[str]) -> list[LogFinding]:
    """Return the explanations of the lines of a log, best first; an empty list if no rule matches."""
    return search(lines, (*SETUP_RULES, *MODEL_RULES))


def search(lines: Iterable[str], rules: Sequence[LogRule]) -> list[LogFinding]:
    """Return the findings of `rules` in `lines`. Lines with the same cause are the evidence of one finding."""
    compiled = [(rule, re.compile(rule.pattern)) for rule in rules]
    found: dict[tuple[str, str], LogFinding] = {}
    worth = [parsed.text for parsed in map(parse_line, lines) if _worth_reading(parsed)]
    for start in range(0, len(worth), LINES_AT_ONCE):
        some = worth[start : start + LINES_AT_ONCE]
        together = "\n".join(some)
        possible = compiled
        # For a short log, searching the whole block would take more time than it saves.
        if len(worth) > LINES_AT_ONCE:
            possible = [(rule, pattern) for rule, pattern in compiled if occurs(rule.pattern, together)]
        _search_lines(some, possible, found)
    return sorted(found.values(), key=lambda finding: -finding.weight)


def _search_lines(
    lines: Iterable[str], rules: Sequence[tuple[LogRule, re.Pattern[str]]], found: dict[tuple[str, str], LogFinding]
) -> None:
    for line in lines:
        for rule, pattern in rules:
            match = pattern.search(line)
            if match is not None:
                _add(found, render(rule, match, shorten(line)))
                # Use the first rule that matches the line, because later rules are more general.
                break


def occurs(pattern: str, text: str) -> bool:
    """Return whether the pattern matches anywhere in a text. If not, callers need not search single lines."""
    return re.search(pattern, text, re.MULTILINE) is not None


def enrich(error: BridgeError, lines: Iterable[str]) -> BridgeError:
    """Add information from the log to an error: cause, fix, evidence, and the detail ``unsupported_nodes``.

    Fields that the error already has are kept, with one exception. For a `PlacementRefused` the host's cause only
    lists the nodes that are not on QNN. If a log line shows that QNN did not start at all, the line's cause and fix
    replace those of the error.
    """
    # A refused placement caused a `CompileFailed` with "qnn_nodes", so treat the error like `PlacementRefused`.
    refused = isinstance(error, PlacementRefused) or (
        isinstance(error, CompileFailed) and "qnn_nodes" in error.details
    )
    if not refused and not isinstance(error, (OrtError, ProviderUnavailable, RemoteRuntimeError)):
        return error
    lines = list(lines)
    findings = [finding for finding in explain_lines(lines) if finding.weight > HINT]
    best = findings[0] if findings else None
    if best is not None and best.setup and refused:
        error.cause, error.fix = best.cause, best.fix
    elif refused or _ABOUT_PLACEMENT.search(error.message):
        _add_nodes(error, unsupported_nodes(lines))
    # Search the error's message only if the log explains nothing, because the log contains the underlying reason.
    best = best or next(iter(explain_lines(error.message.splitlines())), None)
    if best is not None:
        error.cause = error.cause or best.cause
        error.fix = error.fix or best.fix or None
    if not error.evidence and findings:
        error.evidence = tuple(line for line in findings[0].evidence if not _repeats(line, [error.message]))
    return error


def enrich_from_stderr(
    error: BridgeError, stderr: StderrCollector, request_ids: Sequence[int], timeout_s: float
) -> BridgeError:
    """Apply `enrich` with the host's output during the last request in `request_ids`. If the list is empty, return
    the error unchanged."""
    if not request_ids:
        return error
    text = decode_stderr(stderr.section(request_ids[-1], timeout_s))
    return enrich(error, text.splitlines())


def _add_nodes(error: BridgeError, nodes: Sequence[NodeReason]) -> None:
    if not nodes:
        return
    error.details["unsupported_nodes"] = [[node.name, node.op_type, node.reason] for node in nodes]
    names = listed([node.label for node in nodes], MAX_EVIDENCE)
    others = _nodes_around(error, nodes)
    if others:
        error.cause = (
            f"QNN refuses {len(nodes)} of the nodes that would run on the CPU: {names}. The {others} other nodes "
            "run on the CPU only because each is inside a refused node, belongs to one, or lies between two."
        )
    error.cause = error.cause or f"QNN does not support these nodes as they are: {names}"
    error.fix = error.fix or "Change these nodes, quantize them if their type is float, or allow fallback='cpu'."
    error.evidence += tuple(shorten(str(node)) for node in nodes[:MAX_EVIDENCE] if node.reason)


def _nodes_around(error: BridgeError, nodes: Sequence[NodeReason]) -> int:
    """Return the number of nodes that run on the CPU only because of the refused nodes in the log; 0 if the number
    is uncertain.

    The log lists a refused If operator together with the nodes of its branches (29 nodes in one model). The host's
    list of nodes on the CPU does not contain the branches, so the number is uncertain in this case.
    """
    on_cpu = {tuple(node) for node in error.details.get("cpu_list") or ()}
    count = error.details.get("cpu_nodes")
    if not isinstance(count, int) or error.details.get("dynamic_inputs") or not error.details.get("qnn_nodes"):
        return 0
    certain = all(node.reason and (node.name, node.op_type) in on_cpu for node in nodes)
    return count - len(nodes) if certain else 0


def _worth_reading(line: LogLine) -> bool:
    """Return whether a line may contain a cause.

    A log of severity 0 contains thousands of lines about successes, so verbose lines are skipped, except errors of
    QNN, which start with <E>.
    """
    return line.severity in _READ_SEVERITIES or (line.place == "QnnLogging" and line.text.startswith("<E>"))


def _add(found: dict[tuple[str, str], LogFinding], finding: LogFinding) -> None:
    key = (finding.rule, finding.cause)
    known = found.get(key)
    if known is None:
        found[key] = finding
    elif len(known.evidence) < MAX_EVIDENCE and not _repeats(finding.evidence[0], known.evidence):
        found[key] = dataclasses.replace(known, evidence=known.evidence + finding.evidence)


def _repeats(line: str, others: Sequence[str]) -> bool:
    """Return whether a line contains one of `others` or is contained in one of `others`: ONNX Runtime repeats a
    line of QNN inside a longer line."""
    return any(line in other or other in line for other in others)
