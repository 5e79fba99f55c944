"""Cuts a model: the nodes up to a place, or a few nodes by themselves, as models of their own.

The model is cut behind a node, and the tensors that are alive there become its outputs. A quantised operator with
its QuantizeLinear and DequantizeLinear is one group, between which nothing is cut: QNN computes the group as one,
and a half of it otherwise. Needs the onnx package. Files go into the folder of the `Cutter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.files import link_files
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_models.verify.traps import NodeAt, NodeChange

# Behind one cut. A graph that has more alive at once gets those that were made last.
_MOST_OUTPUTS = 40
# TensorProto.STRING.
_TEXT_TYPE = 8
_Q_AND_DQ = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Cutter:
    """Cuts a model without free dimensions.

    Args:
        model: a `ModelProto`.
        source: its path.
        external_files: names of its weight files.
        folder: where the cut models go.
    """

    def __init__(self, model: Any, source: Path, external_files: Iterable[str], folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._index = ModelIndex(model)
        self._count = 0
        # Each cut names the weight files of the model: they are linked once, beside all cuts.
        link_files(source.parent, external_files, folder)
        self.nodes = self._index.protos
        self._last_use = self._last_uses()
        self._live = self._depends_on_inputs()
        self._makers = self._index.makers
        # Where each tensor that a group makes becomes steps.
        self._quantised_at = {
            node.input[0]: index
            for index, node in enumerate(self.nodes)
            if node.op_type == "QuantizeLinear" and node.input[0] in self._live
        }
        # Behind these nodes, which compute something from the inputs, the model may be cut.
        live = [index for index in range(len(self.nodes)) if self._is_live(index)]
        # The last one is a place in any case: the search takes it for the end that is bad.
        self.places: list[int] = [index for index in live if index == live[-1] or self._is_between_groups(index)]

    def _is_live(self, index: int) -> bool:
        return any(name in self._live for name in self.nodes[index].output)

    def _is_between_groups(self, place: int) -> bool:
        """Not between a quantised operator and its QuantizeLinear: the half of a group is another computation."""
        return not any(self._makers[name] <= place < at for name, at in self._quantised_at.items())

    def group(self, low: int, high: int) -> list[int]:
        """The nodes between two places of `places`, that do something; the first place may be -1."""
        begin = self.places[low] + 1 if low >= 0 else 0
        return [index for index in range(begin, self.places[high] + 1) if self._is_live(index)]

    def operator_of(self, group: Sequence[int]) -> int:
        """The node of a group that computes: the last that is neither Q nor DQ."""
        computing = [index for index in group if self.nodes[index].op_type not in _Q_AND_DQ]
        return (computing or list(group))[-1]

    def whole(self, group: Sequence[int]) -> list[int]:
        """The group with the DequantizeLinear that its inputs come from, and the QuantizeLinear before that."""
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
        """The tensors that the nodes up to this one make and that later nodes or the caller use."""
        found = [
            name
            for index in range(place + 1)
            for name in self.nodes[index].output
            if name in self._live
            # Types that are unknown, and text, cannot be outputs of a cut model.
            and self._index.element(name) not in (0, _TEXT_TYPE)
            and (self._last_use.get(name, -1) > place or name in self._index.outputs)
        ]
        return found[-_MOST_OUTPUTS:]

    def prefix(self, place: int, outputs: Sequence[str]) -> Path:
        """The first nodes, up to this one, with these outputs."""
        # All inputs stay, also those that the cut does not use: ONNX Runtime refuses feeds that are no input.
        return self._written(self.nodes[: place + 1], list(self._model.graph.input), outputs)

    def inputs_of(self, group: Sequence[int]) -> list[str]:
        """What goes into these nodes from others or from the caller: no constants."""
        made = {name for index in group for name in self.nodes[index].output}
        used = dict.fromkeys(name for index in group for name in graphs.reads(self.nodes[index]) if name)
        inputs = {value.name for value in self._model.graph.input}
        return [name for name in used if (name in self._live or name in inputs) and name not in made]

    def outputs_of(self, group: Sequence[int]) -> list[str]:
        """What these nodes make for others, or for the caller."""
        inside = {name for index in group for name in graphs.reads(self.nodes[index])}
        made = [name for index in group for name in self.nodes[index].output if name]
        outside = [name for name in made if name not in inside or name in self._index.outputs]
        return outside or made[-1:]

    def alone(
        self, group: Sequence[int], feeds: Mapping[str, Any], at: int, change: NodeChange | None = None
    ) -> Path:
        """These nodes by themselves, with inputs of the shapes of `feeds`, and constants.

        Args:
            group: indexes of the nodes.
            feeds: what goes in.
            at: the node to change.
            change: what to make otherwise there; inputs that are fed are the caller's to change.
        """
        from onnx import helper, numpy_helper

        # Shapes and types of the CPU's values, since QNN takes fixed shapes only.
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        # Copies: a change must not reach the model that the next cut is made of.
        nodes = {index: type(self.nodes[index])() for index in group}
        for index, copy in nodes.items():
            copy.CopyFrom(self.nodes[index])
        replaced = []
        if change is not None:
            _set_attributes(nodes[at], change.attributes)
            for number, value in change.inputs.items():
                if nodes[at].input[number] not in feeds:
                    replaced.append(numpy_helper.from_array(value, f"{nodes[at].input[number]}/changed"))
                    nodes[at].input[number] = replaced[-1].name
        # Nodes that depend on no input make constants here; they go along, whatever reads them.
        constants = [self.nodes[index] for index in range(max(group)) if not self._is_live(index)]
        # A change may make other shapes.
        return self._written(
            [*constants, *nodes.values()], inputs, self.outputs_of(group), replaced, shapes=change is None
        )

    def described(self, place: int, values: Mapping[str, Any], made: Mapping[str, Any]) -> NodeAt:
        """For the rules about nodes.

        Args:
            place: index of the node.
            values: the CPU's values of what goes in, as far as known.
            made: the same of what comes out.
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
        # The nodes of the cut may call functions of the model's own.
        cut.functions.extend(self._model.functions)
        cut.graph.name = self._model.graph.name or "cut"
        # Steps go out as floats: a group without its DequantizeLinear is computed otherwise, and steps say little.
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
            # Without a declared shape ONNX Runtime infers it.
            known = self._index.shape(name) if shapes else None
            cut.graph.output.append(
                declared[name]
                if shapes and name in declared
                # 1 is FLOAT, the type of what `_dequantized` adds: the index does not know those tensors.
                else helper.make_tensor_value_info(name, self._index.element(name) or 1, known)
            )
        self._count += 1
        path = self._folder / f"cut_{self._count}.onnx"
        path.write_bytes(cut.SerializeToString())
        return path

    def _dequantized(self, name: str) -> Any | None:
        """A DequantizeLinear for what a QuantizeLinear makes; None for everything else."""
        maker = self._makers.get(name)
        if maker is None or self.nodes[maker].op_type != "QuantizeLinear":
            return None
        quantise = self.nodes[maker]
        node = type(quantise)()
        node.CopyFrom(quantise)
        node.op_type, node.name = "DequantizeLinear", f"{name}/float"
        node.input[0] = name
        node.output[0] = f"{name}/float"
        # Only the axis, and the size of blocks, mean the same to both.
        kept = [attribute for attribute in quantise.attribute if attribute.name in ("axis", "block_size")]
        del node.attribute[:]
        node.attribute.extend(kept)
        return node

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for name in graphs.reads(node):
                last[name] = index
        return last

    def _depends_on_inputs(self) -> set[str]:
        # One pass is enough: ONNX wants each node behind the nodes that it reads.
        live = set(self._index.inputs)
        for node in self.nodes:
            # Random numbers are different in each run, so they are no constants.
            if any(name in live for name in graphs.reads(node)) or node.op_type.startswith("Random"):
                live.update(name for name in node.output if name)
        return live - self._index.inputs


def _set_attributes(node: Any, attributes: Mapping[str, Any]) -> None:
    from onnx import helper

    left = [attribute for attribute in node.attribute if attribute.name not in attributes]
    added = [helper.make_attribute(name, value) for name, value in attributes.items() if value is not None]
    del node.attribute[:]
    node.attribute.extend([*left, *added])
