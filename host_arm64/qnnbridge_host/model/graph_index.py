"""One index of a model's main graph: its nodes with their attributes, who makes and who takes each tensor, what is
known of it before the model runs.

`node_graph` fills it from a file, without any package; `qnnbridge_host.graph.model_index` from a `ModelProto`. All
rules about operators look at its records. Nodes inside of If, Loop and Scan count with their node.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

Shape = tuple[int | None, ...]


class OperatorRule(Protocol):
    """What QNN computes wrong, refuses or traps: a check of a node, which gives the evidence or nothing."""

    @property
    def operators(self) -> Collection[str] | None:
        """Of which nodes alone it is about; None for all."""


AnyRule = TypeVar("AnyRule", bound=OperatorRule)


def rules_about(rules: Iterable[AnyRule], op: str) -> tuple[AnyRule, ...]:
    """The rules that may object to nodes of an operator, in their order."""
    return tuple(rule for rule in rules if rule.operators is None or op in rule.operators)


@dataclasses.dataclass(frozen=True, slots=True)
class GraphTensor:
    """One tensor.

    Args:
        type: `float`; "" if it is not known.
        shape: None if the rank is not known; None for an axis without a fixed size.
        values: of a small constant, in the order of the memory; also small numbers that follow from shapes.
    """

    name: str
    type: str = ""
    shape: Shape | None = None
    constant: bool = False
    values: tuple[Any, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if every axis has a size."""
        if self.shape is None or None in self.shape:
            return None
        return cast("tuple[int, ...]", self.shape)

    @property
    def elements(self) -> int | None:
        shape = self.fixed
        return None if shape is None else math.prod(shape)

    @property
    def is_empty(self) -> bool:
        return self.shape is not None and 0 in self.shape


@dataclasses.dataclass(frozen=True, eq=False)
class GraphNode:
    """One node of the main graph.

    Args:
        op: `Conv`, or with its domain if that is not ONNX's own.
        inputs: None where one is left out.
        inner_ops: operators inside of it, each once.
    """

    index: int
    name: str
    op: str
    inputs: tuple[GraphTensor | None, ...]
    outputs: tuple[GraphTensor | None, ...]
    attributes: Mapping[str, Any]
    inner_ops: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.name or (self.made[0].name if self.made else f"#{self.index}")

    # Kept: the rules ask dozens of times for each node.
    @functools.cached_property
    def given(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.inputs if tensor is not None)

    @functools.cached_property
    def made(self) -> tuple[GraphTensor, ...]:
        return tuple(tensor for tensor in self.outputs if tensor is not None)

    def input(self, number: int) -> GraphTensor | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)


class GraphIndex(abc.ABC):
    """A graph by the names of its tensors and the places of its nodes. Records are made when one is asked for."""

    @abc.abstractmethod
    def ops(self) -> Iterable[str]:
        """The operator of each node, in the order of the file."""

    @abc.abstractmethod
    def _reads(self) -> Iterable[Iterable[str]]:
        """The inputs of each node."""

    @abc.abstractmethod
    def _makes(self) -> Iterable[Iterable[str]]:
        """The outputs of each node."""

    @abc.abstractmethod
    def _record(self, place: int) -> GraphNode: ...

    @abc.abstractmethod
    def about(self, name: str) -> GraphTensor:
        """What is known of a tensor."""

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """As nodes name them: with their domains."""
        return frozenset(self.ops())

    @functools.cached_property
    def makers(self) -> dict[str, int]:
        """The place of the node that makes a tensor."""
        return {name: place for place, names in enumerate(self._makes()) for name in names if name}

    @functools.cached_property
    def users(self) -> dict[str, list[int]]:
        """The places of the nodes that take a tensor, each once."""
        found: dict[str, list[int]] = {}
        for place, names in enumerate(self._reads()):
            for name in dict.fromkeys(names):
                found.setdefault(name, []).append(place)
        return found

    @functools.cached_property
    def _records(self) -> dict[int, GraphNode]:
        return {}

    def node(self, place: int) -> GraphNode:
        """The record of a node."""
        found = self._records.get(place)
        if found is None:
            found = self._records[place] = self._record(place)
        return found

    @functools.cached_property
    def nodes(self) -> tuple[GraphNode, ...]:
        """All records, in the order of the file."""
        return tuple(self.node(place) for place, _ in enumerate(self.ops()))

    def origin(self, name: str) -> GraphNode | None:
        """The node that makes a tensor; None for inputs and initializers."""
        place = self.makers.get(name)
        return None if place is None else self.node(place)

    def readers(self, name: str) -> tuple[GraphNode, ...]:
        """The nodes that take a tensor, each once."""
        return tuple(map(self.node, self.users.get(name, ())))

    @functools.cached_property
    def links(self) -> tuple[list[tuple[int, ...]], list[list[int]]]:
        """Places of the makers of what each node takes, and of the users of what it makes, each once."""
        makers = self.makers
        before = [tuple(dict.fromkeys(makers[name] for name in names if name in makers)) for names in self._reads()]
        behind: list[list[int]] = [[] for _ in before]
        for place, found in enumerate(before):
            for maker in found:
                behind[maker].append(place)
        return before, behind

    def tensors(self, names: Sequence[str]) -> tuple[GraphTensor | None, ...]:
        """Those of a node, None for "", which is one that is left out."""
        return tuple([self.about(name) if name else None for name in names])
