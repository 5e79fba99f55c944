"""Table of operators that QNN is known to compute wrong, and the search for them in a model. The search does not
run the model.

The table is `known_wrong.json`; `python -m lab.sweep` measures its rows. A row matches a node only if all values in
its condition are known: a shape that depends on the input never causes a warning. The module `conditions` evaluates
conditions. The functions have no side effects and are thread-safe.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.model.chips import chip_named, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.conditions import all_true, maker_of
from qnnbridge_host.model.graph_index import (
    GraphIndex,
    GraphNode,
    NodeEntry,
    read_model,
    rules_about,
)
from qnnbridge_host.model.quantised_steps import DEQUANTIZE
from qnnbridge_host.model.static_shapes import complete
from qnnbridge_protocol.shell import NO_FILE, ModelInCommands
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.specs import QNN
from qnnbridge_protocol.version_numbers import numbers_of

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.specs import SessionSpec


CODE: Final = "known-wrong"
_DATA: Final = os.path.join(os.path.dirname(__file__), "known_wrong.json")
# Maximum number of faults in a warning, and of operators listed for each fault: the warning is one sentence.
_SHOWN: Final = 3
_FIRST_HALF_FLOAT_ARCH: Final = 69


@dataclasses.dataclass(frozen=True, slots=True)
class WrongOperator:
    """A row of the table.

    Args:
        operators: operators to which the row applies.
        form: "float" or "quantised", the models in which the fault occurs; "" for all models.
        when: expressions that are all true for a node that is computed wrong.
        says: description of the fault.
        least_arch: first architecture with the fault, 73 for V73.
        first, last: first and last release of onnxruntime-qnn with the fault; releases newer than all tested
        releases count as faulty, too.
        snr: lowest measured SNR in decibels.
        rewrite: name of the rewrite of `qnnbridge fix`, "" if there is none.
        advice: what to do if no rewrite fixes the fault.
        on_cpu: the rewrite moves the operator to the CPU, which a session must allow (`fallback="cpu"`).
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
    on_cpu: bool = False
    tried: int = 0
    wrong: int = 0
    right_outside: int = 0
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def remedy(self) -> str:
        """Text that tells the user how to avoid the fault: the rewrite, or the advice of the row."""
        then = ', and a session with fallback="cpu"' if self.on_cpu else ""
        return f"qnnbridge fix ({self.rewrite}){then}" if self.rewrite else self.advice

    @property
    def fails(self) -> bool:
        """Whether the fault causes an error of the session or of each run, instead of a wrong result."""
        return "no session can be created" in self.says or "each run fails" in self.says

    def applies(self, arch: int, release: str) -> bool:
        """Return whether a chip and a release have the fault. release: "" if it is unknown."""
        # A string that is not a version counts as unknown. `last` is ignored for untested releases, which are
        # presumed to have the fault.
        number = numbers_of(release)
        return arch >= self.least_arch and (not number or number >= numbers_of(self.first))


@dataclasses.dataclass(frozen=True, slots=True)
class KnownWrong:
    """A node that a row matches.

    Args:
        inside: the branch or function that contains the node, "" for a node of the main graph.
        top: position in the main graph of the node, or of the node that contains it; set by `find_in_model`.
        before: rewrites that must run first, because without them the fault's rewrite does not find the node.
    """

    fault: WrongOperator
    index: int
    node: str
    op: str
    inside: str = ""
    top: int = 0
    before: tuple[str, ...] = ()

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Rewrites of `qnnbridge fix` that fix the node, in their order."""
        return (*self.before, self.fault.rewrite) if self.fault.rewrite else ()

    @property
    def text(self) -> str:
        """Fault and remedy as one sentence."""
        return f"{self.op} {self.node}: {self.fault.says}; remedy: {self.fault.remedy}"


@functools.cache
def table() -> tuple[WrongOperator, ...]:
    """Return all rows of the table."""
    with open(_DATA, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    return tuple(
        WrongOperator(**{**row, "operators": tuple(row["operators"]), "when": tuple(row["when"])}) for row in rows
    )


@functools.cache
def operators() -> frozenset[str]:
    """Return all operators of the table."""
    return frozenset(op for fault in table() for op in fault.operators)


@functools.cache
def rewrites_of_failures() -> frozenset[str]:
    """Return the rewrites that are needed only for faults that make the creation of a session fail."""
    rewrites = {fault.rewrite for fault in table()}
    others = {fault.rewrite for fault in table() if "no session can be created" not in fault.says}
    return frozenset(rewrites - others)


def rows_for(arch: int, release: str = "") -> tuple[WrongOperator, ...]:
    """Return the rows for an architecture (73 for V73) and a release of onnxruntime-qnn ("" if it is not known)."""
    return tuple(fault for fault in table() if fault.applies(arch, release))


def find(graph: GraphIndex, faults: Sequence[WrongOperator]) -> tuple[KnownWrong, ...]:
    """Return the nodes that match one of the rows, without duplicates."""
    # Select the rows once for each operator instead of for each node.
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
    rows: Sequence[WrongOperator] | None = None,
) -> tuple[KnownWrong, ...]:
    """Search a model for nodes that match the table. The result is empty for a file that is not a model.

    Args:
        source: the model's path, or its bytes.
        arch, release: see `rows_for`.
        sizes: sizes of free dimensions by name, as the session sets them.
        rows: rows to search for; default: the table's rows for the chip and the release.
    """
    if rows is None:
        rows = rows_for(arch, release)
    graph = read_model(source, sizes)
    if graph is None:
        return ()
    # Check the operators first: shapes are needed only if the model contains an operator of the table.
    wanted = operators()
    if not any(op in wanted for op in graph.ops()):
        return ()
    complete(graph)
    return tuple(_where_it_is(one, graph.entries[one.index]) for one in find(graph, rows))


# Rewrites that replace an If by the branch that is always executed.
BRANCH_REWRITES: Final = ("shape-computations", "untaken-branches")


def _where_it_is(found: KnownWrong, entry: NodeEntry) -> KnownWrong:
    """Add the node's position to a match. Remove the fix if the node is in a branch or function that no rewrite can
    reach."""
    if not entry.inside:
        return dataclasses.replace(found, top=entry.top)
    # Use the node's name in the file: the index adds a prefix to the name of a node in a branch or function.
    node = entry.name or found.node.partition("/")[2]
    found = dataclasses.replace(found, node=node, inside=entry.inside, top=entry.top)
    if entry.always_taken and found.fault.rewrite:
        return dataclasses.replace(found, before=BRANCH_REWRITES)
    advice = f"export the model without the {found.op} in {entry.inside}, which qnnbridge fix does not change"
    fault = dataclasses.replace(found.fault, rewrite="", advice=advice)
    return dataclasses.replace(found, fault=fault)


def warning_of(
    label: str,
    found: Sequence[KnownWrong],
    model: ModelInCommands = NO_FILE,
    evidence: Callable[[Sequence[str]], str] = lambda rows: "",
) -> str:
    """Return a warning about a model, "" without matches.

    Args:
        label: name of the model.
        found: the matches.
        model: the model in the suggested command.
        evidence: function that describes where the given rows were measured.
    """
    if not found:
        return ""
    measured = evidence(list(dict.fromkeys(one.fault.name for one in found)))
    return f"{label}: {fault_text(found)}{measured} Fix: {cure_text(found, model)}."


def fault_text(found: Sequence[KnownWrong]) -> str:
    """Return the known faults of a model's operators as a sentence."""
    # Group by fault, because a model with many layers has the same fault in each layer.
    by_fault: dict[tuple[str, str], list[str]] = {}
    for one in found:
        by_fault.setdefault((one.op, one.fault.says), []).append(one.node)
    kinds = list(by_fault.items())[:_SHOWN]
    shown = "; ".join(f"{op} {listed(nodes, _SHOWN)} ({says})" for (op, says), nodes in kinds)
    left = len(found) - sum(len(nodes) for _, nodes in kinds)
    more = f"; and {left} more" if left else ""
    count = "one operator" if len(found) == 1 else f"{len(found)} operators"
    if all(one.fault.fails for one in found):
        return f"QNN is known to fail with {count} of the model: {shown}{more}."
    return f"QNN is known to compute {count} of the model wrong: {shown}{more}."


def cure_text(found: Sequence[KnownWrong], model: ModelInCommands) -> str:
    """Return the remedies for the matches, without a full stop."""
    rewrites = list(dict.fromkeys(name for one in found if one.fault.rewrite for name in one.rewrites))
    advice = list(dict.fromkeys(one.fault.advice for one in found if not one.fault.rewrite and one.fault.advice))
    fixes = [f"run: {model.fix(*rewrites)}"] if rewrites else []
    if any(one.fault.on_cpu and one.fault.rewrite for one in found):
        fixes.append('create the session with fallback="cpu", which leaves the random operators to the CPU')
    return "; ".join(fixes + advice)


def find_for_session(
    source: ModelSource,
    spec: SessionSpec,
    versions: Mapping[str, str],
    *,
    simulator: bool,
    soc_model: str | None = None,
    rows: Callable[[int, str], Sequence[WrongOperator]] = rows_for,
) -> tuple[KnownWrong, ...]:
    """Run `find_in_model` for a session of a model. The result is empty if the session does not use QNN's HTP.

    Args:
        source: the model.
        spec: the session's providers and sizes of free dimensions.
        versions: versions of the host's packages.
        simulator: whether QNN computes on the simulator.
        soc_model: the chip, if the caller knows it.
    """
    if not computes_on_htp(spec):
        return ()
    options = [provider.options for provider in spec.providers if provider.name == QNN]
    # The options of the first QNN provider take precedence.
    given = {name: text for one in reversed(options) for name, text in one.items()}
    arch = arch_of(soc_model or given.get("soc_model"), given.get("htp_arch"), simulator=simulator)
    release = versions.get("onnxruntime_qnn", "")
    sizes = spec.free_dimensions_by_name
    return find_in_model(source.given, arch=arch, release=release, sizes=sizes, rows=rows(arch, release))


def computes_on_htp(spec: SessionSpec) -> bool:
    """Return whether a session uses QNN's HTP, which is the default without providers."""
    from qnnbridge_host.model.compatibility import backend_of

    options = [provider.options for provider in spec.providers if provider.name == QNN]
    return not spec.providers or any(backend_of(one) == "htp" for one in options)


def arch_of(soc_model: str | None, htp_arch: str | None = None, *, simulator: bool) -> int:
    """Return the architecture of the chip that a session's options set, else of this computer's chip or the
    simulator's.

    For an unknown chip, return the first architecture that computes in float16.
    """
    if simulator:
        number = simulated_chip(soc_model, htp_arch)
        chip = chip_of(number) if number else None
    else:
        first = (soc_model or "").split(",")[0]
        # For QNN, 0 means that no chip is set.
        chip = chip_named(first) if first.strip(" 0") else chip_of_this_computer()
    return chip.arch if chip is not None else _FIRST_HALF_FLOAT_ARCH


def matches(fault: WrongOperator, node: GraphNode, graph: GraphIndex) -> bool:
    """Return whether a row matches a node. Unknown facts of the node prevent a match."""
    first = node.inputs[0] if node.inputs else None
    # Operators have the same types in QDQ models as in float models; only the producer of the input shows whether
    # it is quantised.
    quantised = first is not None and maker_of(first, graph) in DEQUANTIZE
    if fault.form and (fault.form == "quantised") != quantised:
        return False
    return all_true(fault.when, node, graph)
