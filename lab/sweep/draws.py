"""Random sizes, shapes, tensors and cases for the families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_host.numerics.cases import Case, SweepNode, SweepTensor

Rng = np.random.Generator
SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 20, 24, 25, 31, 32, 33, 40, 48, 49, 56, 63, 64, 65, 80)
# Sizes of pictures that the simulator computes in less than a second.
PICTURES: Final = (4, 6, 7, 8, 9, 10, 12, 13, 14, 16, 18, 20, 24, 28, 32, 40, 48, 56, 63, 64, 80, 112)
CHANNELS: Final = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 48, 64, 96)
FORMS: Final = ("float",) * 6 + ("float16",) + ("qdq8",) * 2 + ("qdq16",)
# Maximum number of elements of a tensor: the simulator is slow.
_MOST_ELEMENTS: Final = 1 << 16


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def draw_shape(rng: Rng, least: int = 1, most: int = 5) -> tuple[int, ...]:
    rank = int(rng.integers(least, most + 1))
    while True:
        shape = tuple(int(pick(rng, *SIZES)) for _ in range(rank))
        if rank > 2 and rng.random() < 0.6:
            shape = (1, *shape[1:])
        if np.prod(shape) <= _MOST_ELEMENTS:
            return shape


def whole(values: Any, type: str = "int64") -> SweepTensor:  # noqa: A002 - as ONNX calls it
    array = np.asarray(values)
    return SweepTensor(tuple(array.shape), type, array.ravel().tolist(), True)


def case_of(
    rng: Rng,
    tensors: Mapping[str, SweepTensor],
    *nodes: SweepNode,
    opset: int = 17,
    forms: tuple[str, ...] = FORMS,
) -> Case:
    return Case(dict(tensors), tuple(nodes), opset, str(pick(rng, *forms)), int(rng.integers(1 << 16)))


def one_node(op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> SweepNode:
    return SweepNode(op, inputs, attributes, outputs)
