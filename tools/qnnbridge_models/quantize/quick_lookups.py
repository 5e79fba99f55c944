"""Quick lookups for onnxruntime's quantizer, which walks over all nodes or all weights for each tensor.

Of 100 convolutions two thirds of `quantize` were these walks, and they grow with the square of the model. The names
are indexed here instead. And what it computes of a weight is the same in each fold and in most candidates: it is
computed once. What the quantizer writes stays the same, byte by byte, which a test holds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Functions of the quantizer that read a weight, its type and numbers, and nothing else.
_PURE = ("compute_data_quant_params", "quantize_onnx_initializer")
# Quantised weights that are kept; those of larger models are computed anew.
_MOST_BYTES = 1 << 29


class KnownWeights:
    """What these functions gave for the weights of one quantisation."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Any] = {}
        self._bytes = 0

    def kept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which computes nothing twice. Its arrays are given as copies."""

        def call(*given: Any, **named: Any) -> Any:
            values = [_label(value) for value in (*given, *named.values())]
            key = (function.__name__, len(given), *named, *values)
            if key not in self._found:
                found = function(*given, **named)
                size = 0 if isinstance(found, tuple) else found.ByteSize()
                if self._bytes + size > _MOST_BYTES:
                    return found
                self._bytes += size
                self._found[key] = found
            found = self._found[key]
            return tuple(np.array(one) for one in found) if isinstance(found, tuple) else found

        return call


def _label(value: Any) -> Any:
    """What stands for an argument in a key: its contents, whatever it is."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    if hasattr(value, "SerializeToString"):
        return hashlib.blake2b(value.SerializeToString(), digest_size=16).digest()
    return type(value), repr(value)


class _Index:
    """Finds items of a repeated field by name; looks at what was added since, and at all where that is not enough.

    names: the names of an item.
    """

    def __init__(self, items: Any, names: Callable[[Any], Any]) -> None:
        self._items, self._names = items, names
        self._found: dict[str, list[Any]] = {}
        self._count, self._last = 0, ""

    def of(self, name: str) -> list[Any]:
        """The items in their order. Their names may be others by now."""
        count = len(self._items)
        if count < self._count or (self._count and self._label(self._count - 1) != self._last):
            self._found, self._count = {}, 0  # something was taken out
        for place in range(self._count, count):
            item = self._items[place]
            for one in dict.fromkeys(self._names(item)):
                self._found.setdefault(one, []).append(item)
        if count:
            self._count, self._last = count, self._label(count - 1)
        return self._found.get(name, [])

    def also(self, name: str, items: list[Any]) -> None:
        """These have the name from now on."""
        known = self._found.setdefault(name, [])
        known += [item for item in items if all(item is not one for one in known)]

    def without(self, name: str, place: int) -> None:
        """The only item of that name is taken out; the lookup before saw all items."""
        del self._items[place]
        del self._found[name]
        self._count -= 1
        self._last = self._label(self._count - 1) if self._count else ""

    def _label(self, place: int) -> str:
        item = self._items[place]
        return str(item.name or next(iter(self._names(item)), ""))


def _indexed(old: Any) -> Any:
    """The same model of a quantizer, with quick lookups."""
    kind = type(old)

    class Indexed(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self.__dict__.update(old.__dict__)
            graph = self.model.graph
            self._readers = _Index(graph.node, lambda node: node.input)
            self._tensors = _Index(graph.initializer, lambda tensor: (tensor.name,))

        def get_initializer(self, name: str) -> Any:
            return next((tensor for tensor in self._tensors.of(name) if tensor.name == name), None)

        def add_initializer(self, tensor: Any) -> None:
            if self.get_initializer(tensor.name) is None:
                self._check_init(tensor)
                self.model.graph.initializer.extend([tensor])

        def initializer_extend(self, inits: Any) -> None:
            if len(inits) == 0:
                raise ValueError("Can add an empty list.")
            for tensor in inits:
                self._check_init(tensor)
                self.model.graph.initializer.append(tensor)

        def remove_initializer(self, tensor: Any) -> None:
            name, items = tensor.name, self.model.graph.initializer
            places = [place for place, item in enumerate(items) if item.name == name]
            if [item.name for item in self._tensors.of(name)] != [name] or len(places) != 1:
                super().remove_initializer(tensor)
                return
            self._tensors.without(name, places[0])
            for value in self.model.graph.input:
                if value.name == name:
                    self.model.graph.input.remove(value)
                    break

        def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
            nodes = list(self._readers.of(old_input_name))
            for node in nodes:
                self.replace_node_input(node, old_input_name, new_input_name)
            self._readers.also(new_input_name, nodes)

    return Indexed()


@contextlib.contextmanager
def quick(quantizer: Any, known: KnownWeights) -> Iterator[None]:
    """A quantizer that has not begun finds nodes and weights by an index, and what is known of weights.

    Its function `find_by_name` belongs to modules of onnxruntime; for the lists of others it does what it did.
    """
    from onnxruntime.quantization import base_quantizer, qdq_quantizer, quant_utils

    quantizer.model = _indexed(quantizer.model)
    plain = quant_utils.find_by_name
    ours = quantizer.model.model.graph.initializer

    def find(item_name: str, item_list: Any) -> Any:
        return quantizer.model.get_initializer(item_name) if item_list is ours else plain(item_name, item_list)

    replaced: list[tuple[Any, str, Any]] = []
    for module in (base_quantizer, qdq_quantizer):
        ours_of = {"find_by_name": find} | {
            name: known.kept(getattr(quant_utils, name)) for name in _PURE if hasattr(quant_utils, name)
        }
        for name, function in ours_of.items():
            if getattr(module, name, None) is not None:
                replaced.append((module, name, getattr(module, name)))
                setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)
