"""Generate cases of each family from a seed. Pure functions.

Family, number and seed determine a case, so that a stopped sweep can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from lab.sweep import elementwise, fusions, moving, products, windows
from lab.sweep.draws import Rng
from qnnbridge_host.numerics.cases import Case

FAMILIES: Final[Mapping[str, Callable[[Rng], Case]]] = {
    "unary": elementwise.unary,
    "binary": elementwise.binary,
    "power": elementwise.power,
    "chain": elementwise.chain,
    "conv": windows.conv,
    "dilated": windows.dilated,
    "pool": windows.pool,
    "average": windows.average,
    "resize": windows.resize,
    "pad": windows.pad,
    "matmul": products.matmul,
    "reduce": products.reduce,
    "normalisation": products.normalisation,
    "moving": moving.moving,
    "indexing": moving.indexing,
    "recurrent": products.recurrent,
    "sampling": moving.sampling,
    "gate": elementwise.gate,
    "cast": elementwise.cast,
    "gelu": fusions.gelu,
    "tanh-gelu": fusions.tanh_gelu,
    "scaled-softmax": fusions.scaled_softmax,
    "normalised": fusions.normalised,
    "reshaped-gemm": fusions.reshaped_gemm,
    "layouts": fusions.layouts,
    "quantising": fusions.quantising,
}


def generated(family: str, number: int, seed: int) -> Case:
    """Return case `number` of a family."""
    return FAMILIES[family](np.random.default_rng([seed, number, *family.encode()]))
