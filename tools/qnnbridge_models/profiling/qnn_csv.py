"""Reads the file that QNN's provider writes for `profiling_file_path`.

It looks like CSV, but names in it are written as they are: with commas, quotes and line breaks. So lines are
recognised by their first six columns, and everything up to the next such line is the name.

The rows of one call of QNN (compile a graph, load a context, execute a graph) stand together. Those of the backend
come first and the call's own row ends them; parts of a compilation follow it. When several graphs are compiled,
each but the last is written twice. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from qnnbridge_models.profiling import files

_WHOSE: Final = "QNN"
_HEADER: Final = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
_ROW: Final = re.compile(
    r"\d+,(?P<message>[A-Z][A-Z ]*),(?P<value>-?\d+(?:\.\d+)?),(?P<unit>[^,]*),[^,]*,(?P<level>ROOT|SUB-EVENT),"
    r"(?P<name>.*)",
    re.DOTALL,
)
_OPERATOR: Final = re.compile(
    r"(?P<name>.*?)(?P<between>[: ])OpId_\d+(?: \([^)\n]*\))?(?:,(?P<sources>.*))?", re.DOTALL
)


class CallKind(enum.Enum):
    COMPILE = "FINALIZE"
    LOAD = "INIT"
    EXECUTE = "EXECUTE"
    CLOSE = "DEINIT"


_KINDS: Final = {kind.value: kind for kind in CallKind}


@dataclasses.dataclass(frozen=True, slots=True)
class QnnRow:
    """One figure.

    Args:
        sources: of an operator, the nodes of the model that it was made from, if QNN was asked.
        is_transfer: not an operator of the model, but all inputs or all outputs of a graph on their way.
    """

    name: str
    value: float
    unit: str
    sources: str = ""
    is_operator: bool = False
    is_transfer: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCall:
    """One call of QNN.

    Args:
        facts: what the backend reports of it.
        parts: its phases, or the operators of a graph.
    """

    kind: CallKind
    time_us: float
    facts: tuple[QnnRow, ...]
    parts: tuple[QnnRow, ...]

    def fact(self, name: str) -> float | None:
        return next((row.value for row in self.facts if row.name == name), None)


def read(path: Path) -> tuple[QnnCall, ...]:
    """All calls, in order. Raises `BridgeError` for a file that is missing, cut off or something else."""
    files.check(path, _WHOSE)
    # Lines end at "\n" alone: a name may hold a carriage return.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        header = file.readline().rstrip("\r\n")
        if not header.startswith(_HEADER):
            raise files.unusable(path, _WHOSE, "it does not begin with the names of its columns")
        last = ""

        def lines() -> Iterator[str]:
            nonlocal last
            for line in file:
                last = line
                yield line

        calls, rest = _calls(_rows(lines(), with_sources=header.endswith(",ONNX Source Ops")))
    # A process that ended in the middle leaves half a call, or half a line.
    if rest or (last and not last.endswith("\n")):
        raise files.unusable(path, _WHOSE, "it ends in the middle of a call")
    return _without_repeats(calls)


def _rows(lines: Iterable[str], *, with_sources: bool) -> Iterator[tuple[str, str, QnnRow]]:
    """Message, level and figure of each row."""
    record = ""
    for line in lines:
        # A line that does not look like a row continues the name of the row before it.
        if record and _ROW.fullmatch(line.rstrip("\r\n")):
            yield _row(record, with_sources=with_sources)
            record = line
        else:
            record += line
    if record:
        yield _row(record, with_sources=with_sources)


def _row(record: str, *, with_sources: bool) -> tuple[str, str, QnnRow]:
    found = _ROW.fullmatch(record.rstrip("\r\n"))
    if found is None:  # the first line of all is no row, or half a one
        return "", "", QnnRow(record, 0, "")
    name, sources, operator = found["name"], "", None
    if found["message"] == "NODE":
        operator = _OPERATOR.fullmatch(name)
    if operator is not None:
        name, sources = operator["name"], operator["sources"] or ""
    elif with_sources:
        name = name.removesuffix(",")
    is_transfer = (
        operator is not None and operator["between"] == " "
    )  # an operator has its name, a colon, its number
    row = QnnRow(name, float(found["value"]), found["unit"], sources, operator is not None, is_transfer)
    return found["message"], found["level"], row


def _calls(rows: Iterable[tuple[str, str, QnnRow]]) -> tuple[list[QnnCall], bool]:
    """The calls, and whether rows are left over that no call ends."""
    calls: list[QnnCall] = []
    facts: list[QnnRow] = []
    parts: list[QnnRow] = []
    for message, level, row in rows:
        if not level:
            return calls, True
        kind = _KINDS.get(message) if level == "ROOT" else None
        if kind is not None:
            calls.append(QnnCall(kind, row.value, tuple(facts), tuple(parts)))
            facts, parts = [], []
        elif level == "ROOT":
            facts.append(row)
        elif facts or not calls:
            parts.append(row)
        else:
            calls[-1] = dataclasses.replace(calls[-1], parts=(*calls[-1].parts, row))
    return calls, bool(facts or parts)


def _without_repeats(calls: Sequence[QnnCall]) -> tuple[QnnCall, ...]:
    """Of graphs compiled one after the other QNN writes A, A B, B C, C D: each is kept once."""
    compiled = [call for call in calls if call.kind is CallKind.COMPILE]
    if len(compiled) % 2 == 0 or any(a != b for a, b in zip(compiled[:-1:2], compiled[1::2], strict=True)):
        return tuple(calls)
    repeats = {id(call) for call in compiled[1::2]}
    return tuple(call for call in calls if id(call) not in repeats)
