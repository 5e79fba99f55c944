"""Finds the first node behind which QNN differs from the CPU, or with which QNN dies, in few sessions.

The model is cut behind a node, and the tensors that are alive there become its outputs. One pair of sessions looks
at several cuts at once, so that a thousand nodes take four rounds; where QNN dies there is one cut at a time. The
node that is found runs by itself at the end, on the CPU's own values: that tells whether it is wrong itself.

Cutting needs the onnx package. One `Cutter` belongs to one search; no threads. Files go into its folder.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.files import link_files
from qnnbridge_host.numerics.comparing import OutputComparison
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.models.shared.sessions import CPU, QNN, SessionSettings, one_line, opened
from qnnbridge_tools.models.verify import traps
from qnnbridge_tools.models.verify.result import Divergence, NodeAlone, TrapFound
from qnnbridge_tools.models.verify.traps import NodeAt
from qnnbridge_tools.models.verify.trying import judge

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge_host.compile.compare import Tolerance


# Behind one cut. A graph that has more alive at once gets those that were made last.
_MOST_OUTPUTS = 40
_TEXT_TYPE = 8

CUTS_AT_ONCE = 6
MOST_ROUNDS = 12
# With less left no session is begun.
_LEAST_S = 1.0


class Cutter:
    """Of a model without free dimensions. external_files: names of its weight files."""

    def __init__(self, model: Any, source: Path, external_files: Iterable[str], folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._types = graphs.types_of(model)
        self._count = 0
        link_files(source.parent, external_files, folder)
        self.nodes: list[Any] = list(model.graph.node)
        self._outputs = {value.name for value in model.graph.output}
        self._last_use = self._last_uses()
        self._live = self._depends_on_inputs()
        # The nodes that compute something from the inputs.
        self.places: list[int] = [
            index for index, node in enumerate(self.nodes) if any(name in self._live for name in node.output)
        ]

    def alive(self, place: int) -> list[str]:
        """The tensors that the nodes up to this one make and that later nodes or the caller use."""
        found = [
            name
            for index in range(place + 1)
            for name in self.nodes[index].output
            if name in self._live
            and self._types.get(name, (0, None))[0] not in (0, _TEXT_TYPE)
            and (self._last_use.get(name, -1) > place or name in self._outputs)
        ]
        return found[-_MOST_OUTPUTS:]

    def prefix(self, place: int, outputs: Sequence[str]) -> Path:
        """The first nodes, up to this one, with these outputs."""
        return self._written(self.nodes[: place + 1], list(self._model.graph.input), outputs)

    def inputs_of(self, place: int) -> list[str]:
        """The inputs of this node that other nodes or the caller give: no constants."""
        used = dict.fromkeys(name for name in _uses(self.nodes[place]) if name)
        inputs = {value.name for value in self._model.graph.input}
        return [name for name in used if name in self._live or name in inputs]

    def alone(self, place: int, feeds: Mapping[str, Any]) -> Path:
        """This node by itself, with inputs of the shapes of `feeds`, and constants."""
        from onnx import helper

        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        constants = [node for node in self.nodes[:place] if not any(name in self._live for name in node.output)]
        outputs = [name for name in self.nodes[place].output if name]
        return self._written([*constants, self.nodes[place]], inputs, outputs)

    def described(self, place: int, values: Mapping[str, Any]) -> NodeAt:
        """For the rules about nodes. values: the CPU's, as far as known."""
        from onnx import numpy_helper

        node = self.nodes[place]
        constants = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in self._model.graph.initializer
            if tensor.name in node.input and len(tensor.raw_data) <= graphs.SMALL_BYTES
            if not tensor.external_data
        }
        return NodeAt(
            graphs.op_name(node),
            graphs.attribute_values(node),
            tuple(values.get(name, constants.get(name)) for name in node.input),
        )

    def _written(self, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str]) -> Path:
        from onnx import helper

        cut = type(self._model)()
        cut.ir_version = self._model.ir_version
        cut.opset_import.extend(self._model.opset_import)
        cut.functions.extend(self._model.functions)
        cut.graph.name = self._model.graph.name or "cut"
        cut.graph.node.extend(nodes)
        cut.graph.input.extend(inputs)
        used = {name for node in nodes for name in _uses(node)}
        cut.graph.initializer.extend(t for t in self._model.graph.initializer if t.name in used)
        declared = {value.name: value for value in self._model.graph.output}
        for name in outputs:
            element, shape = self._types.get(name, (1, None))
            known = shape if shape is not None and None not in shape else None
            cut.graph.output.append(
                declared[name] if name in declared else helper.make_tensor_value_info(name, element, known)
            )
        self._count += 1
        path = self._folder / f"cut_{self._count}.onnx"
        path.write_bytes(cut.SerializeToString())
        return path

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for name in _uses(node):
                last[name] = index
        return last

    def _depends_on_inputs(self) -> set[str]:
        constants = {tensor.name for tensor in self._model.graph.initializer}
        live = {value.name for value in self._model.graph.input} - constants
        inputs = set(live)
        for node in self.nodes:
            if any(name in live for name in _uses(node)) or node.op_type.startswith("Random"):
                live.update(name for name in node.output if name)
        return live - inputs


def _uses(node: Any) -> Iterable[str]:
    """Its inputs, and what the graphs inside of it take from outside."""
    yield from node.input
    for attribute in node.attribute:
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for graph in graphs.subgraphs(inner):
                for each in graph.node:
                    yield from each.input
                yield from (value.name for value in graph.output)


@dataclasses.dataclass(frozen=True, slots=True)
class BisectionResult:
    divergence: Divergence
    traps: tuple[TrapFound, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A tensor that differs, and the traps that its values show."""

    difference: OutputComparison
    traps: tuple[TrapFound, ...]


class DivergenceNotFound(Exception):
    """Nothing can be said; the text says why."""


class DivergenceSearch:
    """Of one model and one set of inputs.

    Args:
        host_python: of the hosts, which are made anew after each death.
    """

    def __init__(
        self,
        cutter: Cutter,
        row: str,
        feeds: Mapping[str, Any],
        settings: SessionSettings,
        tolerance: Tolerance,
        host_python: str | None,
        deadline: float,
    ) -> None:
        self._cutter = cutter
        self._row = row
        self._feeds = feeds
        self._settings = dataclasses.replace(settings, sizes={})  # the cut models have theirs
        self._tolerance = tolerance
        self._python = host_python
        self._deadline = deadline
        self._host: Host | None = None
        self._sessions = 0
        self._seen: dict[str, _Seen] = {}
        self._error = ""

    def run(self, *, dies: bool) -> BisectionResult:
        """Searches for the first node.

        Raises `DivergenceNotFound`.

        Args:
            dies: QNN raises or ends on the whole model.
        """
        begun = time.monotonic()
        try:
            low, high = self._narrowed(dies)
            found = self._told(low, high, begun)
        finally:
            self._drop_host()
        return found

    def _narrowed(self, dies: bool) -> tuple[int, int]:
        """Places between which it begins: good behind the first (-1: the inputs), bad behind the second."""
        places = self._cutter.places
        low, high = -1, len(places) - 1
        if high < 0:
            raise DivergenceNotFound("no node computes anything from the inputs")
        for _ in range(MOST_ROUNDS):
            if high - low <= 1 or self._left() < _LEAST_S:
                break
            marks = _between(low, high, 1 if dies else CUTS_AT_ONCE)
            bad = self._probe([places[mark] for mark in marks])
            if bad is None and self._error:  # it raised or died on all of them together
                high, dies, self._error = marks[-1], True, self._error if len(marks) == 1 else ""
                continue
            for mark, differs in zip(marks, bad or [], strict=True):
                if differs:
                    high = mark
                    break
                low = mark
        return low, high

    def _probe(self, places: Sequence[int]) -> list[bool] | None:
        """Whether the values behind each cut differ; None if QNN gives none."""
        alive = {place: self._cutter.alive(place) for place in places}
        outputs = list(dict.fromkeys(name for names in alive.values() for name in names))
        if not outputs:
            return [False] * len(places)
        model = self._cutter.prefix(places[-1], outputs)
        expected = self._on_cpu(model)
        answer, error = self._on_qnn(model, self._feeds)
        self._error = error
        if answer is None:
            return None
        differing: set[str] = set()
        judged = judge(outputs, expected, answer, {}, self._tolerance)
        for one, wanted, got in zip(judged, expected, answer, strict=True):
            if one.differs:
                name = one.difference.name
                differing.add(name)
                self._seen[name] = _Seen(one.difference, traps.of_values(name, wanted, got))
        return [any(name in differing for name in alive[place]) for place in places]

    def _told(self, low: int, high: int, begun: float) -> BisectionResult:
        places = self._cutter.places
        place = places[high]
        node = self._cutter.nodes[place]
        exact = high - low == 1
        seen = next((self._seen[name] for name in node.output if name in self._seen), None)
        found = seen.traps if seen is not None else ()
        alone: NodeAlone | None = None
        if exact and self._left() >= _LEAST_S:
            values, alone = self._by_itself(place)
            if alone.agrees is not True:  # by itself it is right: then the trap is not its own
                found += traps.of_node(label_of(node, place), self._cutter.described(place, values))
        return BisectionResult(
            Divergence(
                row=self._row,
                node=label_of(node, place),
                op=graphs.op_name(node),
                number=place + 1,
                of=len(self._cutter.nodes),
                exact=exact,
                window=high - low,
                tensor=seen.difference.name if seen is not None else next(iter(node.output), ""),
                difference=seen.difference if seen is not None else None,
                error=self._error,
                alone=alone,
                sessions=self._sessions,
                seconds=time.monotonic() - begun,
            ),
            found,
        )

    def _by_itself(self, place: int) -> tuple[dict[str, Any], NodeAlone]:
        """Its inputs' values on the CPU, and what comes of it with them."""
        try:
            values = self._values_on_cpu(place)
            model = self._cutter.alone(place, values)
            expected = self._on_cpu(model, values)
        except (DivergenceNotFound, BridgeError, ValueError, KeyError) as error:
            return {}, NodeAlone(None, f"could not be tried by itself: {str(error).splitlines()[0]}")
        answer, error_text = self._on_qnn(model, values)
        if answer is None:
            return values, NodeAlone(False, f"by itself, on the CPU's values, QNN fails, too: {error_text}")
        names = [name for name in self._cutter.nodes[place].output if name]
        remarks = [one.remark for one in judge(names, expected, answer, {}, self._tolerance) if one.differs]
        if remarks:
            return values, NodeAlone(False, f"by itself, on the CPU's values, it is wrong, too: {remarks[0]}")
        return values, NodeAlone(
            True, "by itself, on the CPU's values, it is right: it adds to what came before, or is fused with it"
        )

    def _values_on_cpu(self, place: int) -> dict[str, Any]:
        wanted = self._cutter.inputs_of(place)
        values = {name: self._feeds[name] for name in wanted if name in self._feeds}
        inner = [name for name in wanted if name not in values]
        if inner:
            values.update(zip(inner, self._on_cpu(self._cutter.prefix(place, inner)), strict=True))
        return values

    def _on_cpu(self, model: Path, feeds: Mapping[str, Any] | None = None) -> list[Any]:
        self._sessions += 1
        try:
            with opened(self._made_host(), model, CPU, self._settings, self._left()) as side:
                return side.values(self._feeds if feeds is None else feeds)
        except BridgeError as error:
            raise DivergenceNotFound(
                f"the CPU does not run a part of the model ({error.cause or error.message})"
            ) from None

    def _on_qnn(self, model: Path, feeds: Mapping[str, Any]) -> tuple[list[Any] | None, str]:
        """The values, or why there are none."""
        self._sessions += 1
        try:
            with opened(self._made_host(), model, QNN, self._settings, self._left()) as side:
                answer = side.answer(feeds, self._left())
        except BridgeError as error:
            self._drop_host()
            return None, one_line(error)
        if answer.error is not None:
            self._drop_host()
            return None, one_line(answer.error)
        return answer.values, ""

    def _made_host(self) -> Host:
        from qnnbridge import Host

        if self._host is None:
            self._host = Host(python=self._python)
        return self._host

    def _drop_host(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())


def label_of(node: Any, place: int) -> str:
    return str(node.name) or f"{node.op_type} #{place}"


def _between(low: int, high: int, most: int) -> list[int]:
    """At most so many places strictly between, evenly spread, ascending."""
    count = min(most, high - low - 1)
    return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low, high})
