"""Cuts a model: its first nodes with what is alive behind them as outputs, or one node by itself.

Needs the onnx package. One `Cutter` belongs to one search; no threads. Files go into its folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_tools.models.shared import graphs, inference
from qnnbridge_tools.models.shared.files import inside_folder
from qnnbridge_tools.models.verify.traps import NodeAt

_MOST_OUTPUTS = 40
"""Behind one cut. A graph that has more alive at once gets those that were made last."""
_TEXT = 8


class Cutter:
    """Of a model without free dimensions. external_files: names of its weight files."""

    def __init__(self, model: Any, source: Path, external_files: Iterable[str], folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._types = inference.types_of(model)
        self._count = 0
        link_weights(source, external_files, folder)
        self.nodes: list[Any] = list(model.graph.node)
        self._outputs = {value.name for value in model.graph.output}
        self._last_use = self._last_uses()
        self._live = self._depends_on_inputs()
        self.places: list[int] = [
            index for index, node in enumerate(self.nodes) if any(name in self._live for name in node.output)
        ]
        """The nodes that compute something from the inputs."""

    def alive(self, place: int) -> list[str]:
        """What the first nodes, up to this one, made and later ones or the caller use."""
        found = [
            name
            for index in range(place + 1)
            for name in self.nodes[index].output
            if name in self._live
            and self._types.get(name, (0, None))[0] not in (0, _TEXT)
            and (self._last_use.get(name, -1) > place or name in self._outputs)
        ]
        return found[-_MOST_OUTPUTS:]

    def prefix(self, place: int, outputs: Sequence[str]) -> Path:
        """The first nodes, up to this one, with these outputs."""
        return self._written(self.nodes[: place + 1], list(self._model.graph.input), outputs)

    def inputs_of(self, place: int) -> list[str]:
        """What this node takes from others or from the caller: no constants."""
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
        from onnx import helper, numpy_helper

        node = self.nodes[place]
        attributes: dict[str, Any] = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            attributes[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        constants = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in self._model.graph.initializer
            if tensor.name in node.input and len(tensor.raw_data) <= inference.SMALL_BYTES
            if not tensor.external_data
        }
        return NodeAt(
            graphs.op_name(node), attributes, tuple(values.get(name, constants.get(name)) for name in node.input)
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


def link_weights(source: Path, external_files: Iterable[str], folder: Path) -> None:
    """Puts the weight files of a model where a changed copy of it will be."""
    for name in filter(inside_folder, external_files):
        there = folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.parent / name, there)
        except OSError:
            shutil.copyfile(source.parent / name, there)


def _uses(node: Any) -> Iterable[str]:
    """Its inputs, and what the graphs inside of it take from outside."""
    yield from node.input
    for attribute in node.attribute:
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for graph in graphs.subgraphs(inner):
                for each in graph.node:
                    yield from each.input
                yield from (value.name for value in graph.output)
