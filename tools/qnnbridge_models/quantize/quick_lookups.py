"""Speed up onnxruntime's quantizer, which searches all nodes or all weights for each tensor.

For a model of 100 convolutions these searches took two thirds of the time of `quantize`, and the time grows with
the square of the model size. This module indexes names instead, computes the quantised form of each weight once for
all folds and candidates, and reads the float model once. A test checks that the quantizer's output does not change.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_models.quantize.faithful import clashing_names

# Private functions of onnxruntime, patched if they exist; without them quantising works, but is slower. `_PURE` is
# the quantizer's function that quantises a weight; its result depends only on its arguments.
_PURE = "quantize_onnx_initializer"
# The quantizer's method that computes scale and zero point of all weights in sequence.
_SCALES = "_calc_initializer_quant_params"
# Limit in bytes for cached quantised weights; weights beyond the limit are quantised each time.
_MOST_BYTES = 1 << 29
# Maximum bytes of a float model that is kept in memory unchanged; a larger model is read for each candidate.
_MOST_FLOAT_BYTES = 1 << 28


class KnownWeights:
    """Cache of quantised weights and scales, used during one quantisation."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Any] = {}
        self._bytes = 0

    def get(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """Return the cached result of `compute` for the key. Callers must not change the result."""
        if key not in self._found:
            found = compute()
            # Do not count the size of scales, which are small dictionaries.
            size = found.ByteSize() if hasattr(found, "ByteSize") else 0
            if self._bytes + size > _MOST_BYTES:
                return found
            self._bytes += size
            self._found[key] = found
        return self._found[key]


class FloatModel:
    """A float model that is quantised in several ways, with the data that all variants share.

    Args:
        path: file of the model, which is not changed.
        known: cache of quantised weights, which models with equal weights can share.
    """

    def __init__(self, path: Path, known: KnownWeights) -> None:
        self.path, self.known = path, known
        self._inferred: Any = None
        self._contents: dict[str, bytes] = {}

    @functools.cached_property
    def outline(self) -> Any:
        """Copy of the model without the contents of large weights, to read names. Callers must not change it."""
        model = graphs.load(self.path)
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) > graphs.SMALL_BYTES:
                tensor.ClearField("raw_data")
        return model

    @functools.cached_property
    def clashing(self) -> dict[str, str]:
        """New names for tensors from which the quantizer would create a name that another tensor has."""
        return clashing_names(self.outline)

    def inferred(self) -> Any:
        """Return a copy of the model with inferred shapes, which the quantizer may change."""
        from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

        if self._inferred is None:
            found = load_model_with_shape_infer(self.path)
            if found.ByteSize() > _MOST_FLOAT_BYTES:
                return found
            self._inferred = found
        # Return a copy, because the quantizer changes the model.
        return copy.deepcopy(self._inferred)

    def contents(self, weight: Any) -> bytes:
        """Return the cached hash of a weight. The cache stays valid, because the quantizer never changes weights of
        the model.
        """
        if weight.name not in self._contents:
            self._contents[weight.name] = hashlib.blake2b(weight.SerializeToString(), digest_size=16).digest()
        return self._contents[weight.name]

    def quantised(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a cached version of the quantizer's function that quantises a weight."""

        def call(weight: Any, *given: Any, **named: Any) -> Any:
            key = (self.contents(weight), len(given), *named, *map(_label, (*given, *named.values())))
            return self.known.get(key, lambda: function(weight, *given, **named))

        return call

    def scales(self, quantizer: Any) -> Callable[[], dict[str, Any]]:
        """Return a cached version of the quantizer's method that computes the scales of all weights."""
        plain = getattr(quantizer, _SCALES)
        options = {name: value for name, value in quantizer.extra_options.items() if name != "TensorQuantOverrides"}
        types = (quantizer.per_channel, quantizer.reduce_range, quantizer.weight_qType, quantizer.activation_qType)

        def call() -> dict[str, Any]:
            every = quantizer.tensors_to_quantize
            found: dict[str, Any] = {}
            for name, wanted in every.items():
                weight = quantizer.model.get_initializer(name)
                if weight is None:
                    continue
                given = quantizer.tensor_quant_overrides.get(name)
                # Use `repr`, because some values cannot be hashed.
                key = (self.contents(weight), repr(types), repr(options), repr(given), repr(vars(wanted)))
                # List only this tensor, because the quantizer's method computes the scales of all listed tensors.
                quantizer.tensors_to_quantize = {name: wanted}
                try:
                    found |= copy.deepcopy(self.known.get(key, plain))
                finally:
                    quantizer.tensors_to_quantize = every
            return found

        return call


def _label(value: Any) -> Any:
    """Return the part of a cache key that identifies an argument by its contents."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    return type(value), repr(value)


class _Index:
    """Index of a protobuf repeated field by name.

    Each lookup indexes the items added since the last one, and rebuilds the index if items were removed.

    Args:
        items: the repeated field.
        names: returns the names of an item.
    """

    def __init__(self, items: Any, names: Callable[[Any], Any]) -> None:
        self._items, self._names = items, names
        self._found: dict[str, list[Any]] = {}
        self._count, self._last = 0, ""

    def of(self, name: str) -> list[Any]:
        """Return the items with that name in their order, including items renamed to it later (see `also`)."""
        count = len(self._items)
        # Detect items that the quantizer removed: the number of items is lower, or the last indexed item has
        # another name.
        if count < self._count or (self._count and self._label(self._count - 1) != self._last):
            self._found, self._count = {}, 0  # an item was removed, so index all again
        for place in range(self._count, count):
            item = self._items[place]
            for one in dict.fromkeys(self._names(item)):
                self._found.setdefault(one, []).append(item)
        if count:
            self._count, self._last = count, self._label(count - 1)
        return self._found.get(name, [])

    def also(self, name: str, items: list[Any]) -> None:
        """Add items that were renamed to this name."""
        known = self._found.setdefault(name, [])
        known += [item for item in items if all(item is not one for one in known)]

    def without(self, name: str, place: int) -> None:
        """Remove the only item with that name. All items must be indexed, so call this method after a lookup."""
        del self._items[place]
        del self._found[name]
        self._count -= 1
        self._last = self._label(self._count - 1) if self._count else ""

    def _label(self, place: int) -> str:
        item = self._items[place]
        return str(item.name or next(iter(self._names(item)), ""))


def _indexed(old: Any) -> Any:
    """Return the quantizer's model wrapper with indexed lookups."""
    kind = type(old)

    # Derive from the installed onnxruntime's class, and override only the lookups.
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
            # If the name is not unique, let the quantizer's own method decide which item to remove.
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
def quick(quantizer: Any, float_model: FloatModel) -> Iterator[None]:
    """Within this context, let a new quantizer use indexed lookups and cached weights.

    The patched functions are globals of onnxruntime's modules; other quantizers get the results of the original
    functions.
    """
    from onnxruntime.quantization import base_quantizer, qdq_quantizer, quant_utils

    quantizer.model = _indexed(quantizer.model)
    plain = quant_utils.find_by_name
    ours = quantizer.model.model.graph.initializer

    def find(item_name: str, item_list: Any) -> Any:
        return quantizer.model.get_initializer(item_name) if item_list is ours else plain(item_name, item_list)

    replaced: list[tuple[Any, str, Any]] = []
    if hasattr(quantizer, _SCALES):
        setattr(quantizer, _SCALES, float_model.scales(quantizer))
    # Patch these modules instead of `quant_utils`, because they import its functions by name.
    for module in (base_quantizer, qdq_quantizer):
        ours_of: dict[str, Any] = {"find_by_name": find}
        if hasattr(quant_utils, _PURE):
            ours_of[_PURE] = float_model.quantised(getattr(quant_utils, _PURE))
        for name, function in ours_of.items():
            if getattr(module, name, None) is not None:
                replaced.append((module, name, getattr(module, name)))
                setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)
