"""Operators that QNN is known to compute wrong: the table, and the search for them in a model. Nothing is run.

The table is `known_wrong.json`; `python -m lab.sweep` measures it. A row matches a node only if all that its
condition asks for is known: a shape that depends on the input never gives an alarm. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from qnnbridge_host.model.chips import chip_named, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.conditions import all_true, maker_of
from qnnbridge_host.model.graph_index import GraphIndex, GraphNode, read_graph, rules_about
from qnnbridge_host.model.protobuf import Garbage
from qnnbridge_host.model.static_shapes import complete
from qnnbridge_protocol.specs import QNN

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.specs import SessionSpec

CODE: Final = "known-wrong"
_DATA: Final = os.path.join(os.path.dirname(__file__), "known_wrong.json")
# Operators that a warning names, so that it stays one sentence.
_SHOWN: Final = 3
_FIRST_HALF_FLOAT_ARCH: Final = 69
_QUANTISED: Final = ("DequantizeLinear", "com.microsoft.DequantizeLinear")


@dataclasses.dataclass(frozen=True, slots=True)
class WrongOperator:
    """A row of the table.

    Args:
        operators: that the row is about.
        form: "float" or "quantised", the models that it was seen in; "" for both.
        when: expressions that are all true of a node that is computed wrong.
        says: the condition as text.
        least_arch: of the chip, 73 for V73.
        first, last: releases of onnxruntime-qnn that were found wrong; newer ones than those that were tried count
            as wrong, too.
        snr: decibels of the worst case that was measured.
        rewrite: of `qnnbridge fix`, "" if there is none.
        advice: what to do where no rewrite cures it.
    """

    name: str
    operators: tuple[str, ...]
    form: str
    when: tuple[str, ...]
    says: str
    least_arch: int
    first: str
    last: str
    snr: float
    largest: float
    rewrite: str = ""
    advice: str = ""
    tried: int = 0
    wrong: int = 0
    right_outside: int = 0
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def remedy(self) -> str:
        """What to do, as text."""
        return f"qnnbridge fix ({self.rewrite})" if self.rewrite else self.advice

    def applies(self, arch: int, release: str) -> bool:
        """Whether the chip and the release have the fault. release: "" if it is not known."""
        # Without `last`: a release that nobody has measured yet is presumed to have the fault.
        return arch >= self.least_arch and (not release or _number(release) >= _number(self.first))


@dataclasses.dataclass(frozen=True, slots=True)
class KnownWrong:
    """A node that a row matches."""

    fault: WrongOperator
    index: int
    node: str
    op: str

    @property
    def text(self) -> str:
        """One sentence for a person, with the remedy."""
        return f"{self.op} {self.node}: {self.fault.says}; remedy: {self.fault.remedy}"


@functools.cache
def table() -> tuple[WrongOperator, ...]:
    """All rows."""
    with open(_DATA, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    return tuple(
        WrongOperator(**{**row, "operators": tuple(row["operators"]), "when": tuple(row["when"])}) for row in rows
    )


@functools.cache
def operators() -> frozenset[str]:
    """The operators that a row is about."""
    return frozenset(op for fault in table() for op in fault.operators)


def find(
    graph: GraphIndex, *, arch: int, release: str = "", rows: Sequence[WrongOperator] | None = None
) -> tuple[KnownWrong, ...]:
    """The nodes that a row matches, each once.

    Args:
        arch: of the chip, 73 for V73.
        release: of onnxruntime-qnn; "" if it is not known.
        rows: default those of the table.
    """
    faults = [fault for fault in (table() if rows is None else rows) if fault.applies(arch, release)]
    # Once for each operator, not for each node.
    about = functools.cache(lambda op: rules_about(faults, op))
    found = []
    for place, op in enumerate(graph.ops()):
        for fault in about(op):
            node = graph.node(place)
            if matches(fault, node, graph):
                found.append(KnownWrong(fault, node.index, node.label, node.op))
                break
    return tuple(found)


def find_in_model(
    source: str | os.PathLike[str] | bytes,
    *,
    arch: int,
    release: str = "",
    sizes: Mapping[str, int] | None = None,
) -> tuple[KnownWrong, ...]:
    """Of a model file, or a model's bytes. A file that is no model gives nothing: others say so.

    Args:
        sizes: of free dimensions by name, as a session fixes them.
    """
    if isinstance(source, bytes):
        return _find_in(io.BytesIO(source), len(source), arch, release, sizes)
    try:
        # Unbuffered: `walk` reads windows of its own.
        with open(source, "rb", buffering=0) as file:
            return _find_in(file, os.fstat(file.fileno()).st_size, arch, release, sizes)
    except OSError:
        return ()


def _find_in(
    file: BinaryIO, size: int, arch: int, release: str, sizes: Mapping[str, int] | None
) -> tuple[KnownWrong, ...]:
    try:
        graph = read_graph(file, size, sizes)
    except Garbage:
        return ()
    # The quick answer: without an operator of the table no shapes are needed.
    wanted = operators()
    if not any(op in wanted for op in graph.ops()):
        return ()
    complete(graph)
    return find(graph, arch=arch, release=release)


def warning_of(label: str, found: Sequence[KnownWrong], path: str | None = None) -> str:
    """The sentences for a person about a model, "" for nothing found."""
    if not found:
        return ""
    shown = "; ".join(f"{one.op} {one.node} ({one.fault.says})" for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    rewrites = list(dict.fromkeys(one.fault.rewrite for one in found if one.fault.rewrite))
    only = " ".join(f"--only {name}" for name in rewrites)
    advice = list(dict.fromkeys(one.fault.advice for one in found if not one.fault.rewrite and one.fault.advice))
    fixes = [f"run: qnnbridge fix {path or 'MODEL'} -o OUT {only}"] if rewrites else []
    count = "one operator" if len(found) == 1 else f"{len(found)} operators"
    return f"{label}: QNN is known to compute {count} of it wrong: {shown}{more}. Fix: {'; '.join(fixes + advice)}."


def find_for_session(
    source: ModelSource,
    spec: SessionSpec,
    versions: Mapping[str, str],
    *,
    simulator: bool,
    soc_model: str | None = None,
) -> tuple[KnownWrong, ...]:
    """`find_in_model` for a session of a model; nothing for one without the HTP of QNN.

    Args:
        spec: its providers, and the sizes of free dimensions.
        versions: of the packages on the host.
        soc_model: the chip, if another part has found out which.
    """
    from qnnbridge_host.model.compatibility_check import backend_of

    options = [provider.options for provider in spec.providers if provider.name == QNN]
    if spec.providers and not any(backend_of(one) == "htp" for one in options):
        return ()
    # The options of the first QNN provider win.
    given = {name: text for one in reversed(options) for name, text in one.items()}
    return find_in_model(
        source.path if source.path is not None else source.data or b"",
        arch=arch_of(soc_model or given.get("soc_model"), given.get("htp_arch"), simulator=simulator),
        release=versions.get("onnxruntime_qnn", ""),
        sizes=spec.free_dimensions_by_name,
    )


def arch_of(soc_model: str | None, htp_arch: str | None = None, *, simulator: bool) -> int:
    """The architecture that a session computes for: of its chip, else of this computer's or the simulator's.

    A chip that is not known counts as the first that computes in half floats.
    """
    if simulator:
        number = simulated_chip(soc_model, htp_arch)
        chip = chip_of(number) if number else None
    else:
        first = (soc_model or "").split(",")[0]
        # To QNN 0 means that no chip was named.
        chip = chip_named(first) if first.strip(" 0") else chip_of_this_computer()
    return chip.arch if chip is not None else _FIRST_HALF_FLOAT_ARCH


def matches(fault: WrongOperator, node: GraphNode, graph: GraphIndex) -> bool:
    """Whether a row is about this node. What is not known of the node makes no match."""
    first = node.inputs[0] if node.inputs else None
    # In a QDQ model the operators are the same as in a float one. What makes the input shows which of both it is.
    quantised = first is not None and maker_of(first, graph) in _QUANTISED
    if fault.form and (fault.form == "quantised") != quantised:
        return False
    return all_true(fault.when, node, graph)


def _number(release: str) -> tuple[int, ...]:
    """2.7.0 as (2, 7, 0); what is no number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in release.split(".")[:3])
