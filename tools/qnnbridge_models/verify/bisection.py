"""Find the first node whose results differ between QNN and the CPU, or that crashes QNN.

The search cuts the model after a node: the tensors that later nodes read become outputs. One pair of sessions
examines several cuts, so a thousand nodes take four rounds. If QNN crashes, each round examines one cut. At the
end, the first differing node runs alone on inputs from the CPU, which shows whether the node itself is wrong.

A quantised operator with its QuantizeLinear and DequantizeLinear forms a group that is never cut, because QNN
computes the group at once, and would compute a part of it differently. Cutting needs the onnx package. A `Cutter`
belongs to one search, is not thread-safe, and writes files into its folder.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.files import link_files
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.judge import NumberFormat
from qnnbridge_host.numerics.pairing import judge_all
from qnnbridge_models.verify import traps
from qnnbridge_models.verify.traps import NodeAt, NodeChange
from qnnbridge_models.verify.verification import Divergence, NodeAlone, TrapFound
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_tools.sessions import CPU, DEATHS, QNN, SessionSettings, memory_filling, one_line, opened

if TYPE_CHECKING:
    from qnnbridge import Host

# Maximum number of outputs of a cut model. If more tensors cross the cut, those computed last are used.
_MOST_OUTPUTS = 40
# TensorProto.STRING.
_TEXT_TYPE = 8
_Q_AND_DQ = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Cutter:
    """Cuts a model without free dimensions: builds models of the first nodes, or of a few nodes alone.

    Args:
        model: `ModelProto`.
        source: path of the model.
        external_files: names of the model's weight files.
        folder: folder for the cut models.
    """

    def __init__(self, model: Any, source: Path, external_files: Iterable[str], folder: Path) -> None:
        self._model = model
        self._folder = folder
        # Use the model's name in the file names of cut models, because crash reports contain them.
        self._stem = source.stem
        self._index = ModelIndex(model)
        self._count = 0
        # Link the model's weight files once, next to the cut models that refer to them.
        link_files(source.parent, external_files, folder)
        self.nodes = self._index.protos
        self._last_use = {name: index for index, node in enumerate(self.nodes) for name in graphs.reads(node)}
        self._live = self._depends_on_inputs()
        self._makers = self._index.makers
        # Pairs (index of a tensor's producer, index of the QuantizeLinear that reads the tensor). A cut between the
        # two would split a quantised group.
        groups = [
            (self._makers[node.input[0]], index)
            for index, node in enumerate(self.nodes)
            if node.op_type == "QuantizeLinear" and node.input[0] in self._live
        ]
        # Nodes that depend on the inputs. The model is cut only after these nodes, because the other nodes are
        # constant.
        live = [index for index in range(len(self.nodes)) if self._is_live(index)]
        # Always include the last node: the search needs a cut at which the results are known to differ.
        self.places: list[int] = [
            index
            for index in live
            if index == live[-1] or not any(maker <= index < quantised for maker, quantised in groups)
        ]

    def _is_live(self, index: int) -> bool:
        return any(name in self._live for name in self.nodes[index].output)

    def group(self, low: int, high: int) -> list[int]:
        """Return the input-dependent nodes after cut position `low` (-1: the start), up to and including `high`."""
        begin = self.places[low] + 1 if low >= 0 else 0
        return [index for index in range(begin, self.places[high] + 1) if self._is_live(index)]

    def operator_of(self, group: Sequence[int]) -> int:
        """Return the last node of the group that is neither a QuantizeLinear nor a DequantizeLinear."""
        computing = [index for index in group if self.nodes[index].op_type not in _Q_AND_DQ]
        return (computing or list(group))[-1]

    def whole(self, group: Sequence[int]) -> list[int]:
        """Return the group and the QuantizeLinear and DequantizeLinear nodes that compute its inputs."""
        found = set(group)
        for op_type in ("DequantizeLinear", "QuantizeLinear"):
            makers = {
                self._makers[name]
                for index in found
                for name in graphs.reads(self.nodes[index])
                if name in self._live
            }
            found |= {index for index in makers if self.nodes[index].op_type == op_type}
        return sorted(found)

    def alive(self, place: int) -> list[str]:
        """Return the tensors computed up to node `place` that later nodes read or that the model returns."""
        found = [
            name
            for index in range(place + 1)
            for name in self.nodes[index].output
            if name in self._live
            # Strings and tensors of unknown type cannot be outputs of a cut model.
            and self._index.element(name) not in (0, _TEXT_TYPE)
            and (self._last_use.get(name, -1) > place or name in self._index.outputs)
        ]
        return found[-_MOST_OUTPUTS:]

    def prefix(self, place: int, outputs: Sequence[str]) -> Path:
        """Write a model of the nodes up to `place` with these outputs; return its path."""
        # Keep all inputs, including unused ones: ONNX Runtime refuses feeds that are not inputs.
        return self._written(self.nodes[: place + 1], list(self._model.graph.input), outputs)

    def inputs_of(self, group: Sequence[int]) -> list[str]:
        """Return the non-constant inputs of these nodes that other nodes or the caller provide."""
        made = {name for index in group for name in self.nodes[index].output}
        used = dict.fromkeys(name for index in group for name in graphs.reads(self.nodes[index]) if name)
        inputs = {value.name for value in self._model.graph.input}
        return [name for name in used if (name in self._live or name in inputs) and name not in made]

    def outputs_of(self, group: Sequence[int]) -> list[str]:
        """Return the outputs of these nodes that other nodes read or that are outputs of the model."""
        inside = {name for index in group for name in graphs.reads(self.nodes[index])}
        made = [name for index in group for name in self.nodes[index].output if name]
        outside = [name for name in made if name not in inside or name in self._index.outputs]
        return outside or made[-1:]

    def alone(
        self, group: Sequence[int], feeds: Mapping[str, Any], at: int, change: NodeChange | None = None
    ) -> Path:
        """Write a model of these nodes and their constants only. Its inputs have the shapes of `feeds`.

        Args:
            group: indexes of the nodes.
            feeds: values of the inputs.
            at: index of the node to which `change` applies.
            change: change of this node's attributes, to test whether it removes the error; the caller applies
                changes of input values to `feeds`.
        """
        from onnx import helper, numpy_helper

        # QNN supports fixed shapes only, so use the shapes and types of the CPU's values.
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        # Copy the nodes, so that a change does not affect the model from which the next cut is built.
        nodes = {index: copy.deepcopy(self.nodes[index]) for index in group}
        replaced = []
        if change is not None:
            kept = [attribute for attribute in nodes[at].attribute if attribute.name not in change.attributes]
            added = [helper.make_attribute(name, v) for name, v in change.attributes.items() if v is not None]
            del nodes[at].attribute[:]
            nodes[at].attribute.extend([*kept, *added])
            for number, value in change.inputs.items():
                if nodes[at].input[number] not in feeds:
                    replaced.append(numpy_helper.from_array(value, f"{nodes[at].input[number]}/changed"))
                    nodes[at].input[number] = replaced[-1].name
        # Nodes that do not depend on an input compute constants here; include all of them.
        constants = [self.nodes[index] for index in range(max(group)) if not self._is_live(index)]
        # With a change, do not declare the outputs' shapes: a changed attribute may alter them.
        return self._written(
            [*constants, *nodes.values()], inputs, self.outputs_of(group), replaced, shapes=change is None
        )

    def described(self, place: int, values: Mapping[str, Any], made: Mapping[str, Any]) -> NodeAt:
        """Return the properties of a node that the trap rules examine.

        Args:
            place: index of the node.
            values: known values of its inputs on the CPU.
            made: known values of its outputs on the CPU.
        """
        index, node, record = self._index, self.nodes[place], self._index.node(place)
        return NodeAt(
            record.op,
            record.attributes,
            tuple(
                values[name] if name in values else index.constant(name, graphs.SMALL_BYTES) for name in node.input
            ),
            tuple(made.get(name) for name in node.output),
            tuple(values[name].shape if name in values else index.shape(name) for name in node.input),
        )

    def _written(
        self,
        nodes: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[str],
        constants: Sequence[Any] = (),
        *,
        shapes: bool = True,
    ) -> Path:
        from onnx import helper

        cut = type(self._model)()
        cut.ir_version = self._model.ir_version
        cut.opset_import.extend(self._model.opset_import)
        # Keep the model's functions, which the nodes may call.
        cut.functions.extend(self._model.functions)
        cut.graph.name = self._model.graph.name or "cut"
        # Output the dequantized values: integer differences are hard to judge, and QNN computes a quantised group
        # without its DequantizeLinear differently.
        floats = [self._dequantized(name) for name in outputs]
        added = [node for node in floats if node is not None]
        outputs = [name if node is None else node.output[0] for name, node in zip(outputs, floats, strict=True)]
        cut.graph.node.extend([*nodes, *added])
        cut.graph.input.extend(inputs)
        used = {name for node in (*nodes, *added) for name in graphs.reads(node)}
        cut.graph.initializer.extend(t for t in self._model.graph.initializer if t.name in used)
        cut.graph.initializer.extend(constants)
        declared = {value.name: value for value in self._model.graph.output}
        for name in outputs:
            # ONNX Runtime infers shapes that are not declared.
            known = self._index.shape(name) if shapes else None
            cut.graph.output.append(
                declared[name]
                if shapes and name in declared
                # Use type 1 (FLOAT) for outputs of `_dequantized`, which are not in the index.
                else helper.make_tensor_value_info(name, self._index.element(name) or 1, known)
            )
        self._count += 1
        path = self._folder / f"{self._stem}.cut_{self._count}.onnx"
        path.write_bytes(cut.SerializeToString())
        return path

    def _dequantized(self, name: str) -> Any | None:
        """Return a DequantizeLinear for the output of a QuantizeLinear; None for any other tensor."""
        maker = self._makers.get(name)
        if maker is None or self.nodes[maker].op_type != "QuantizeLinear":
            return None
        node = copy.deepcopy(self.nodes[maker])
        node.op_type, node.name = "DequantizeLinear", f"{name}/float"
        node.input[0] = name
        node.output[0] = f"{name}/float"
        # Copy only axis and block_size from the QuantizeLinear: they mean the same in a DequantizeLinear.
        kept = [attribute for attribute in self.nodes[maker].attribute if attribute.name in ("axis", "block_size")]
        del node.attribute[:]
        node.attribute.extend(kept)
        return node

    def _depends_on_inputs(self) -> set[str]:
        # One pass is enough, because ONNX requires topological order.
        live = set(self._index.inputs)
        for node in self.nodes:
            # Count nodes that produce random numbers as dependent on the inputs, because their results are not
            # constant.
            if any(name in live for name in graphs.reads(node)) or node.op_type.startswith("Random"):
                live.update(name for name in node.output if name)
        return live - self._index.inputs


# Number of cuts in a round. Six cuts divide the nodes into seven ranges, so four rounds suffice for 2,401 nodes.
CUTS_AT_ONCE = 6
# If QNN crashes, a round examines one cut: twelve rounds reduce 4,096 nodes to one.
MOST_ROUNDS = 12
# The search ends after this many cut models that QNN cannot finalize: they do not show whether the values differ.
MOST_NOT_FINALIZED = 6
# Minimum time left, in seconds, to start another session.
_LEAST_S = 1.0


class DivergenceNotFound(Exception):
    """Raised if the search found no node; the message contains the reason."""


@dataclasses.dataclass(slots=True)
class DivergenceSearch:
    """Search for the first differing node of one model with one set of inputs.

    Args:
        cutter: cuts the model.
        row: name of the set of inputs.
        feeds: the inputs.
        settings: settings of sessions, without sizes of free dimensions, because the cut models have fixed sizes.
        number_format: format in which QNN computes.
        steps: quantisation step of each quantised tensor, by name.
        host_python: interpreter of the hosts; a new host is started after each crash.
        deadline: value of `time.monotonic` at which the search ends.
        failure: QNN's error for the whole model, if it fails with these inputs.
        left_out: ONNX Runtime optimizers to disable, because QNN cannot create a session for the whole model with
            them.
    """

    cutter: Cutter
    row: str
    feeds: Mapping[str, Any]
    settings: SessionSettings
    number_format: NumberFormat
    steps: Mapping[str, float]
    host_python: str | None
    deadline: float
    failure: BridgeError | None = None
    left_out: tuple[str, ...] = ()
    _host: Host | None = None
    # Function that overwrites old results in QNN's memory in the host; set once a session exists in the host.
    _fill: Callable[[], None] | None = None
    _sessions: int = 0
    # Differences and traps by tensor, from all rounds: the first differing cut may have been examined in any round.
    _seen: dict[str, tuple[JudgedNumbers, tuple[TrapFound, ...]]] = dataclasses.field(default_factory=dict)
    _error: BridgeError | None = None
    _not_finalized: set[int] = dataclasses.field(default_factory=set)

    def run(self) -> tuple[Divergence, tuple[TrapFound, ...]]:
        """Find the first differing node and the traps that explain it. Raise `DivergenceNotFound`."""
        begun = time.monotonic()
        try:
            return self._result(*self._narrowed(), begun)
        finally:
            self._drop_host()

    def prove_at(self, op: str) -> tuple[TrapFound, ...]:
        """Run only the first node that has this operator, on inputs from the CPU. Return the traps proven there."""
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
        """Return (last cut position that agrees or -1, first cut position that differs)."""
        places = self.cutter.places
        low, high = -1, len(places) - 1
        if high < 0:
            raise DivergenceNotFound("no node computes anything from the inputs")
        # A crashed session returns no values at all, so examining several cuts at once has no advantage.
        at_once = CUTS_AT_ONCE if self.failure is None else 1
        for _ in range(MOST_ROUNDS):
            # Skip cuts whose models QNN could not finalize: they do not show whether the values differ.
            open_marks = [mark for mark in range(low + 1, high) if mark not in self._not_finalized]
            if not open_marks or self._left() < _LEAST_S or len(self._not_finalized) >= MOST_NOT_FINALIZED:
                break
            marks = _spread(open_marks, at_once)
            bad = self._probe([places[mark] for mark in marks])
            if bad is not None:
                # Use the first differing cut. Later cuts may agree again, because operators such as Relu or ArgMax
                # can hide the error.
                for mark, differs in zip(marks, bad, strict=True):
                    if differs:
                        high = mark
                        break
                    low = mark
            elif self._left() < _LEAST_S:
                # Ignore the error: the session ended because of the deadline, not because of a node.
                self._error = None
                break
            elif len(marks) > 1:
                # QNN cannot create a session with the outputs of several cuts, so test one cut at a time from now
                # on.
                at_once = 1
            elif self._is_the_failure():
                high = marks[0]
            else:
                self._not_finalized.add(marks[0])
        return low, high

    def _is_the_failure(self) -> bool:
        """Return whether QNN failed on the cut model in the same way as on the whole model.

        If QNN failed differently, the cut itself caused the failure.
        """
        if self.failure is None or self._error is None:
            return False
        # The same fault may end a process in several ways, so treat all crashes as equal.
        if isinstance(self.failure, DEATHS) or isinstance(self._error, DEATHS):
            return isinstance(self.failure, DEATHS) and isinstance(self._error, DEATHS)
        return type(self._error) is type(self.failure)

    def _probe(self, places: Sequence[int]) -> list[bool] | None:
        """Return for each cut whether its values differ; None if QNN returns no values."""
        alive = {place: self.cutter.alive(place) for place in places}
        outputs = list(dict.fromkeys(name for names in alive.values() for name in names))
        if not outputs:
            # No tensor here can be an output: all are strings or have unknown types. Continue the search with later
            # nodes.
            return [False] * len(places)
        model = self.cutter.prefix(places[-1], outputs)
        # Run on the CPU first: if the CPU rejects the cut model, the search ends without running QNN.
        expected = self._on_cpu(model)
        answer = self._on_qnn(model, self.feeds)
        if answer is None:
            return None
        differing: set[str] = set()
        judged = judge_all(outputs, expected, answer, self.number_format, steps=self.steps)
        for (name, one), wanted, got in zip(judged, expected, answer, strict=True):
            if one.state == "differs":
                differing.add(name)
                self._seen[name] = one, traps.of_values(name, wanted, got, self.number_format)
        return [any(name in differing for name in alive[place]) for place in places]

    def _faults(self, names: Sequence[str], expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
        """Return why tensors differ. Include traps that the comparison ignores, such as a number instead of NaN."""
        judged = judge_all(names, expected, found, self.number_format, steps=self.steps)
        reasons = [one.reason for _, one in judged if one.state == "differs"]
        trapped = any(traps.of_values(*one, self.number_format) for one in zip(names, expected, found, strict=True))
        return reasons or ["QNN returns numbers instead of NaN or infinity"] * trapped

    def _result(self, low: int, high: int, begun: float) -> tuple[Divergence, tuple[TrapFound, ...]]:
        group = self.cutter.group(low, high)
        exact = high - low == 1
        place = self.cutter.operator_of(group) if exact else self.cutter.places[high]
        node = self.cutter.nodes[place]
        made = [name for index in group for name in self.cutter.nodes[index].output]
        # Report the last examined tensor of the group, because later nodes read this tensor.
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
        """Run a group of nodes on QNN with the inputs that the CPU computed. Return the result, and the traps that
        replacing the group's operator confirmed."""
        place = self.cutter.operator_of(group)
        whole = self.cutter.whole(group)
        try:
            values = self._values_on_cpu(whole)
            model = self.cutter.alone(whole, values, place)
            expected = self._on_cpu(model, values)
        except (DivergenceNotFound, BridgeError, ValueError, KeyError) as error:
            return NodeAlone(None, f"could not be run alone: {str(error).splitlines()[0]}"), ()
        answer = self._on_qnn(model, values)
        if answer is None:
            text = one_line(self._error) if self._error is not None else "no answer"
            return NodeAlone(False, f"QNN also fails on this node alone, with the CPU's values: {text}"), ()
        names = self.cutter.outputs_of(whole)
        reasons = self._faults(names, expected, answer)
        if not reasons:
            words = (
                "run alone with inputs from the CPU, the node is right: in the model the node amplifies an earlier "
                "error, or QNN fuses the node with other nodes"
            )
            return NodeAlone(True, words), ()
        at = self.cutter.described(place, values, dict(zip(names, expected, strict=True)))
        proven: list[TrapFound] = []
        for trap, seen in traps.suspected(at):
            # Each change takes two sessions, so stop at the first change that removes the error.
            change = next(
                (change for change in trap.changes(at) if self._agrees_with(change, whole, place, values)), None
            )
            if change is not None:
                proven.append(traps.proven(trap, label_of(self.cutter.nodes[place], place), seen, change))
        return NodeAlone(
            False, f"run alone with inputs from the CPU, the node is wrong as well: {reasons[0]}"
        ), tuple(proven)

    def _agrees_with(self, change: NodeChange, group: Sequence[int], place: int, values: Mapping[str, Any]) -> bool:
        """Run the node with the change on the CPU and on QNN, and return whether the results agree."""
        if self._left() < _LEAST_S:
            return False
        # Run the changed node on the CPU as well: if the results now agree, the changed property caused the error.
        names = self.cutter.nodes[place].input
        replaced = {names[number]: value for number, value in change.inputs.items() if names[number] in values}
        feeds = {**values, **replaced}
        for name, value in feeds.items():
            if change.scale != 1.0 and value.dtype.kind == "f":
                feeds[name] = np.asarray(value * value.dtype.type(change.scale))
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
                f"the CPU does not run a model that was cut for the search ({error.cause or error.message})"
            ) from None

    def _on_qnn(self, model: Path, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return QNN's values; None if it failed, with the error in `_error`."""
        self._sessions += 1
        self._error = None
        try:
            with opened(
                *(self._made_host(), model, QNN, self.settings, self._left()),
                disabled_optimizers=self.left_out,
                proven=True,
            ) as side:
                self._fill_memory()
                answer = side.answer(feeds, self._left())
                self._error = answer.error
        except BridgeError as error:
            self._error = error
        # Use a new host after an error, because the error may affect later results of the old host.
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
            self._host = self._fill = None

    def _fill_memory(self) -> None:
        if self._fill is None:
            self._fill = memory_filling(self._made_host(), self.settings)
        self._fill()

    def _left(self) -> float:
        return max(0.1, self.deadline - time.monotonic())


def label_of(node: Any, place: int) -> str:
    return str(node.name) or f"{node.op_type} #{place}"


def _spread(marks: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the cut positions, evenly spread, in ascending order."""
    count = min(most, len(marks))
    return sorted({marks[len(marks) * step // (count + 1)] for step in range(1, count + 1)})
