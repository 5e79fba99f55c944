"""Finds the first node behind which QNN differs from the CPU, or with which QNN dies, in few sessions.

The model is cut behind a node, and the tensors that are alive there become its outputs. One pair of sessions looks
at several cuts at once, so that a thousand nodes take four rounds; where QNN dies there is one cut at a time. The
node that is found runs by itself at the end, on the CPU's own values: that shows whether it is wrong itself.

Cutting needs the onnx package. One `Cutter` belongs to one search; no threads. Files go into its folder.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.numerics.judge import NumberFormat
from qnnbridge_host.numerics.ranking import judge_all
from qnnbridge_models.verify import traps
from qnnbridge_models.verify.cutting import Cutter
from qnnbridge_models.verify.traps import NodeChange
from qnnbridge_models.verify.verification import Divergence, NodeAlone, TrapFound
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_tools.sessions import CPU, DEATHS, QNN, SessionSettings, one_line, opened

if TYPE_CHECKING:
    from qnnbridge import Host

# Six cuts make seven parts: four rounds are enough for 2,401 nodes.
CUTS_AT_ONCE = 6
# Where QNN dies there is one cut in a round: twelve halve 4,096 nodes to one.
MOST_ROUNDS = 12
# A cut that QNN does not finalize is no evidence; after this many the search ends.
MOST_NOT_FINALIZED = 6
# With less left no session is begun.
_LEAST_S = 1.0


class DivergenceNotFound(Exception):
    """Nothing can be said; the text says why."""


@dataclasses.dataclass(slots=True)
class DivergenceSearch:
    """Of one model and one set of inputs.

    Args:
        row: the name of the inputs.
        settings: of sessions; without sizes, which are in the cut models.
        host_python: of the hosts, which are made anew after each death.
        failure: of QNN on the whole model, if it raises or ends on these inputs.
    """

    cutter: Cutter
    row: str
    feeds: Mapping[str, Any]
    settings: SessionSettings
    number_format: NumberFormat
    host_python: str | None
    deadline: float
    failure: BridgeError | None = None
    _host: Host | None = None
    _sessions: int = 0
    # Each tensor that differs, and the traps that its values show. Of all rounds: the cut that turns out to be the
    # first bad one may be from any of them.
    _seen: dict[str, tuple[JudgedNumbers, tuple[TrapFound, ...]]] = dataclasses.field(default_factory=dict)
    _error: BridgeError | None = None
    _not_finalized: set[int] = dataclasses.field(default_factory=set)

    def run(self) -> tuple[Divergence, tuple[TrapFound, ...]]:
        """Searches for the first node, and the traps behind it. Raises `DivergenceNotFound`."""
        begun = time.monotonic()
        try:
            return self._result(*self._narrowed(), begun)
        finally:
            self._drop_host()

    def prove_at(self, op: str) -> tuple[TrapFound, ...]:
        """The traps of the first node of this operator, on the CPU's values for these inputs."""
        try:
            for place in range(len(self.cutter.places)):
                group = self.cutter.group(place - 1, place)
                if any(self.cutter.nodes[index].op_type == op for index in group):
                    _, found = self._by_itself(group)
                    return found
        except (DivergenceNotFound, BridgeError):
            return ()
        finally:
            self._drop_host()
        return ()

    def _narrowed(self) -> tuple[int, int]:
        """Places between which it begins: good behind the first (-1: the inputs), bad behind the second."""
        places = self.cutter.places
        low, high = -1, len(places) - 1
        if high < 0:
            raise DivergenceNotFound("no node computes anything from the inputs")
        # A session that dies gives the values of none of its cuts, so several say no more than one.
        at_once = CUTS_AT_ONCE if self.failure is None else 1
        for _ in range(MOST_ROUNDS):
            # Cuts that QNN did not finalize say nothing about the nodes before them.
            open_marks = [mark for mark in range(low + 1, high) if mark not in self._not_finalized]
            if not open_marks or self._left() < _LEAST_S or len(self._not_finalized) >= MOST_NOT_FINALIZED:
                break
            marks = _spread(open_marks, at_once)
            bad = self._probe([places[mark] for mark in marks])
            if bad is not None:
                # The first bad cut counts, and not those behind it: a Relu or an ArgMax may hide the error again.
                for mark, differs in zip(marks, bad, strict=True):
                    if differs:
                        high = mark
                        break
                    low = mark
            elif len(marks) > 1:
                at_once = 1  # one of them cannot be made into a session; which, the next rounds say
            elif self._is_the_failure():
                high = marks[0]
            else:
                self._not_finalized.add(marks[0])
        return low, high

    def _is_the_failure(self) -> bool:
        """Whether QNN failed on a part as on the whole model. Any other failure is that of the cut."""
        if self.failure is None or self._error is None:
            return False
        # One fault may end a process in several ways, so all deaths count as the same.
        if isinstance(self.failure, DEATHS) or isinstance(self._error, DEATHS):
            return isinstance(self.failure, DEATHS) and isinstance(self._error, DEATHS)
        return type(self._error) is type(self.failure)

    def _probe(self, places: Sequence[int]) -> list[bool] | None:
        """Whether the values behind each cut differ; None if QNN gives none."""
        alive = {place: self.cutter.alive(place) for place in places}
        outputs = list(dict.fromkeys(name for names in alive.values() for name in names))
        if not outputs:
            # Nothing there can be an output (text, unknown types). The search goes on behind these places.
            return [False] * len(places)
        model = self.cutter.prefix(places[-1], outputs)
        # The CPU first: a cut that it refuses ends the search before QNN is asked.
        expected = self._on_cpu(model)
        answer = self._on_qnn(model, self.feeds)
        if answer is None:
            return None
        differing: set[str] = set()
        judged = judge_all(outputs, expected, answer, self.number_format)
        for (name, one), wanted, got in zip(judged, expected, answer, strict=True):
            if one.state == "differs":
                differing.add(name)
                self._seen[name] = one, traps.of_values(name, wanted, got, self.number_format)
        return [any(name in differing for name in alive[place]) for place in places]

    def _faults(self, names: Sequence[str], expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
        """Why tensors differ; NaN and infinity may be judged as no difference, and be a trap."""
        judged = judge_all(names, expected, found, self.number_format)
        reasons = [one.reason for _, one in judged if one.state == "differs"]
        trapped = any(traps.of_values(*one, self.number_format) for one in zip(names, expected, found, strict=True))
        return reasons or ["numbers come out in place of NaN or infinity"] * trapped

    def _result(self, low: int, high: int, begun: float) -> tuple[Divergence, tuple[TrapFound, ...]]:
        group = self.cutter.group(low, high)
        exact = high - low == 1
        place = self.cutter.operator_of(group) if exact else self.cutter.places[high]
        node = self.cutter.nodes[place]
        made = [name for index in group for name in self.cutter.nodes[index].output]
        # The last result of the group first: it is what later nodes read.
        tensor = next((name for name in reversed(made) if name in self._seen), next(iter(node.output), ""))
        difference, found = self._seen.get(tensor, (None, ()))
        error = one_line(self._error) if self._error is not None and self._is_the_failure() else ""
        alone: NodeAlone | None = None
        if exact and self._left() >= _LEAST_S:
            alone, proven = self._by_itself(group)
            found += tuple(trap for trap in proven if trap.name not in {one.name for one in found})
        divergence = Divergence(
            row=self.row,
            node=label_of(node, place),
            op=graphs.op_name(node),
            number=place + 1,
            of=len(self.cutter.nodes),
            exact=exact,
            window=high - low,
            tensor=tensor,
            difference=difference,
            error=error,
            group=tuple(label_of(self.cutter.nodes[n], n) for n in self.cutter.whole(group)) if exact else (),
            not_finalized=len(self._not_finalized),
            alone=alone,
            sessions=self._sessions,
            seconds=time.monotonic() - begun,
        )
        return divergence, found

    def _by_itself(self, group: Sequence[int]) -> tuple[NodeAlone, tuple[TrapFound, ...]]:
        """What comes of a group on the CPU's values of its inputs, and the traps that a change of it proves."""
        place = self.cutter.operator_of(group)
        whole = self.cutter.whole(group)
        try:
            values = self._values_on_cpu(whole)
            model = self.cutter.alone(whole, values, place)
            expected = self._on_cpu(model, values)
        except (DivergenceNotFound, BridgeError, ValueError, KeyError) as error:
            return NodeAlone(None, f"could not be tried by itself: {str(error).splitlines()[0]}"), ()
        answer = self._on_qnn(model, values)
        if answer is None:
            text = one_line(self._error) if self._error is not None else "no answer"
            return NodeAlone(False, f"by itself, on the CPU's values, QNN fails, too: {text}"), ()
        names = self.cutter.outputs_of(whole)
        reasons = self._faults(names, expected, answer)
        if not reasons:
            words = "by itself, on the CPU's values, it is right: it adds to what came before, or is fused with it"
            return NodeAlone(True, words), ()
        at = self.cutter.described(place, values, dict(zip(names, expected, strict=True)))
        proven: list[TrapFound] = []
        for trap, seen in traps.suspected(at):
            # The first change that cures is enough: each takes two sessions.
            change = next(
                (change for change in trap.changes(at) if self._agrees_with(change, whole, place, values)), None
            )
            if change is not None:
                proven.append(traps.proven(trap, label_of(self.cutter.nodes[place], place), seen, change))
        return NodeAlone(False, f"by itself, on the CPU's values, it is wrong, too: {reasons[0]}"), tuple(proven)

    def _agrees_with(self, change: NodeChange, group: Sequence[int], place: int, values: Mapping[str, Any]) -> bool:
        """Whether the error goes with the change."""
        if self._left() < _LEAST_S:
            return False
        # Both sides run the changed node, so they agree again only if the error went with what was changed.
        names = self.cutter.nodes[place].input
        replaced = {names[number]: value for number, value in change.inputs.items() if names[number] in values}
        feeds = {name: _scaled(replaced.get(name, value), change.scale) for name, value in values.items()}
        try:
            model = self.cutter.alone(group, feeds, place, change)
            expected = self._on_cpu(model, feeds)
        except (DivergenceNotFound, BridgeError, ValueError, KeyError):
            return False
        answer = self._on_qnn(model, feeds)
        if answer is None:
            return False
        return not self._faults(self.cutter.outputs_of(group), expected, answer)

    def _values_on_cpu(self, group: Sequence[int]) -> dict[str, Any]:
        wanted = self.cutter.inputs_of(group)
        values = {name: self.feeds[name] for name in wanted if name in self.feeds}
        inner = [name for name in wanted if name not in values]
        if inner:
            values.update(zip(inner, self._on_cpu(self.cutter.prefix(max(group), inner)), strict=True))
        return values

    def _on_cpu(self, model: Path, feeds: Mapping[str, Any] | None = None) -> list[Any]:
        self._sessions += 1
        try:
            with opened(self._made_host(), model, CPU, self.settings, self._left()) as side:
                return side.values(self.feeds if feeds is None else feeds)
        except BridgeError as error:
            raise DivergenceNotFound(
                f"the CPU does not run a part of the model ({error.cause or error.message})"
            ) from None

    def _on_qnn(self, model: Path, feeds: Mapping[str, Any]) -> list[Any] | None:
        """The values; None if there are none, and `_error` says why."""
        self._sessions += 1
        self._error = None
        try:
            with opened(self._made_host(), model, QNN, self.settings, self._left()) as side:
                answer = side.answer(feeds, self._left())
                self._error = answer.error
        except BridgeError as error:
            self._error = error
        # A host that has failed is not used again: what comes next must not inherit its fault.
        if self._error is not None:
            self._drop_host()
            return None
        return answer.values

    def _made_host(self) -> Host:
        from qnnbridge import Host

        if self._host is None:
            self._host = Host(python=self.host_python)
        return self._host

    def _drop_host(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def _left(self) -> float:
        return max(0.1, self.deadline - time.monotonic())


def label_of(node: Any, place: int) -> str:
    return str(node.name) or f"{node.op_type} #{place}"


def _scaled(value: Any, factor: float) -> Any:
    if factor == 1.0 or value.dtype.kind != "f":
        return value
    return np.asarray(value * value.dtype.type(factor))


def _spread(marks: Sequence[int], most: int) -> list[int]:
    """At most this many of them, evenly spread, ascending."""
    count = min(most, len(marks))
    return sorted({marks[len(marks) * step // (count + 1)] for step in range(1, count + 1)})
