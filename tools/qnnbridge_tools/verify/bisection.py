"""Finds the first node whose result differs: halves the nodes that a wrong output depends on, again and again.

Each step makes a session of the part of the model up to one tensor, on both sides. It takes for granted that a
difference does not heal further down, which holds for most models; `alone` tells whether the node itself is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.model_work import graphs, inference
from qnnbridge_tools.model_work.comparing import OutputDifference, compare
from qnnbridge_tools.verify import sub_model, traps
from qnnbridge_tools.verify.cases import Case
from qnnbridge_tools.verify.result import Culprit, Trap
from qnnbridge_tools.verify.sides import Sides

Differs = Callable[[OutputDifference], bool]
_COMPARED = (1, 6, 7, 9, 10)
"""TensorProto.DataType: float, int32, int64, bool, float16."""
_MOST_TRIES = 24
_SKIPPED = frozenset({"Constant", "Identity", "QuantizeLinear", "DequantizeLinear", "Cast"})


def find(model: Any, sides: Sides, case: Case, output: str, differs: Differs) -> Culprit | None:
    """model: the `ModelProto` as it was run. None if the search finds no single node."""
    search = _Search(model, sides, case, differs)
    candidates = search.candidates(output)
    low, high = 0, len(candidates) - 1
    found: tuple[int, OutputDifference] | None = None
    while low <= high and search.tries < _MOST_TRIES:
        middle = (low + high) // 2
        difference = search.difference_at(candidates[middle])
        if difference is not None and differs(difference):
            found, high = (candidates[middle], difference), middle - 1
        else:
            low = middle + 1
    return None if found is None else search.culprit(*found)


class _Search:
    def __init__(self, model: Any, sides: Sides, case: Case, differs: Differs) -> None:
        self._model, self._sides, self._case, self._differs = model, sides, case, differs
        self._known = inference.types_of(model)
        self.tries = 0
        self._hits: dict[int, list[Trap]] = {}

    def candidates(self, output: str) -> list[int]:
        """Nodes that the output depends on and that depend on an input themselves."""
        graph = self._model.graph
        variable = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
        found = []
        for index in sub_model.ancestors(graph, [output]):
            node = graph.node[index]
            if not any(name in variable for name in node.input):
                continue
            variable.update(node.output)
            if node.op_type not in _SKIPPED and self._known.get(node.output[0], (0, None))[0] in _COMPARED:
                found.append(index)
        return found

    def difference_at(self, index: int) -> OutputDifference | None:
        name = self._model.graph.node[index].output[0]
        part = sub_model.up_to(self._model, name, self._known)
        if part is None:
            return None
        wanted = {value.name for value in part.graph.input}
        feeds = {key: value for key, value in self._case.feeds.items() if key in wanted}
        return self._compare(part, feeds, name, index)

    def culprit(self, index: int, difference: OutputDifference) -> Culprit:
        node = self._model.graph.node[index]
        from onnx import helper

        attributes = {
            attribute.name: value.decode() if isinstance(value, bytes) else value
            for attribute in node.attribute
            if not attribute.HasField("g")
            for value in [helper.get_attribute_value(attribute)]
        }
        alone = self._alone(index)
        at_fault = alone is None or self._differs(alone)
        known = traps.of_operator(node.op_type, attributes) if at_fault else None
        hits = self._hits.get(index, [])
        return Culprit(
            self._case.name,
            node.name or node.output[0],
            graphs.op_name(node),
            difference,
            alone,
            self.tries,
            known or (hits[0] if hits else None),
        )

    def _alone(self, index: int) -> OutputDifference | None:
        """The node with exactly those inputs that the CPU computes for it."""
        part = sub_model.alone(self._model, index, self._known)
        if part is None:
            return None
        feeds: dict[str, Any] = {}
        for value in part.graph.input:
            feed = self._case.feeds.get(value.name)
            feeds[value.name] = self._cpu_value(value.name) if feed is None else feed
        if any(feed is None for feed in feeds.values()):
            return None
        return self._compare(part, feeds, part.graph.output[0].name, index)

    def _cpu_value(self, name: str) -> Any:
        part = sub_model.up_to(self._model, name, self._known)
        if part is None:
            return None
        wanted = {value.name for value in part.graph.input}
        try:
            session = self._sides.on_cpu(self._sides.save(part))
            return self._sides.run_cpu(session, _only(self._case.feeds, wanted), [name])[0]
        except BridgeError:
            return None

    def _compare(self, part: Any, feeds: Mapping[str, Any], name: str, index: int) -> OutputDifference | None:
        """None if one of the sides does not run it."""
        self.tries += 1
        path = self._sides.save(part)
        try:
            expected = self._sides.run_cpu(self._sides.on_cpu(path), feeds, [name])
            with self._sides.on_qnn(path) as session:
                found = self._sides.run_qnn(session, feeds, [name])
        except BridgeError:
            return None
        self._hits[index] = traps.of_values(expected[0], found[0], name)
        return compare([name], [expected], [found])[0]


def _only(feeds: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {key: value for key, value in feeds.items() if key in names}
