"""Reads out of ONNX Runtime's log which nodes QNN refused, and why.

At severity 0 the QNN execution provider reports each node, or each group of quantized nodes, in a few lines (head,
one line per node, reason), once per pass over the graph. At severities 1 and 2 there is only a list without
reasons, or the line of a failed validation. Pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

from qnnbridge._diagnosis.qnn_codes import by_number
from qnnbridge._diagnosis.stderr_text import LogLine, parse_line

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
    """A node that QNN refused. reason: empty if the log does not say."""

    name: str
    op_type: str
    reason: str

    def __str__(self) -> str:
        label = f"{self.op_type} ({self.name})" if self.name else self.op_type
        return f"{label}: {self.reason}" if self.reason else label


def unsupported_nodes(lines: Iterable[str]) -> list[NodeReason]:
    """Which nodes QNN refused and why: each once, in the order of the log. Of a group the operator is named."""
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
        # Without a list of nodes this is all there is; the operator then has QNN's name, not ONNX's.
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
        self._unit = ""

    def _operator(self) -> tuple[str, str]:
        """The operator of the group; the others are the Q and DQ nodes around it."""
        for name, op in self._members:
            if op == self._unit:
                return name, op
        return self._members[-1] if self._members else ("", self._unit)

    def _explain(self, name: str, reason: str) -> str:
        if name not in self._refused or reason not in _VAGUE:
            return reason
        row = by_number(self._refused[name][1])
        return f"{row.meaning} [{row.name} ({row.number})]" if row else reason
